# SPDX-License-Identifier: Apache-2.0
"""Property tests of two starts of a host and a copy elsewhere.

Both sides are real: the resource tracker with its book and its table of
spawn's steps, and the conductor's manager. The network between them loses,
delays, repeats and reorders calls; processes are killed; the database is
restored. The machine knows the truth.
"""

import contextlib
import os
import sqlite3
import types

import fixtures
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.virt import steps
from tests.fixtures import known_machine
from tests.fixtures import network as network_fixture
from tests.fixtures import orphans
from tests.fixtures import released
from tests.fixtures import virt_driver
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

GPUS = 3
BUILD = ('begin_session', 'claim', 'activate', 'abort', 'release')
ITERATION = ('begin_session', 'release', 'digest', 'report',
             'host_assignments', 'host_inventory', 'clean_tasks',
             'clean_started', 'clean_failure', 'clean_finished',
             'clean_finished')


def fates(calls):
    return st.dictionaries(st.sampled_from(calls), st.sampled_from(
        network_fixture.Fate), max_size=2)


MEANWHILE = st.sampled_from([
    'nothing', 'nothing', 'dispatch', 'iterate', 'old', 'copy', 'killed'])


class Placement:
    """Allocations of instances that Nova has."""

    def __init__(self):
        self.allocations = {}

    def get_allocations_for_resource_provider(self, ctxt, rp_uuid):
        return types.SimpleNamespace(allocations=self.allocations)


class SessionMachine(RuleBasedStateMachine):
    """A host of three GPUs, its predecessor that still runs, and a copy.

    :ivar servers: instances that Nova has
    :ivar now: resource tracker of the start that is to speak for the host
    :ivar old: that of an earlier start that was not ended; None for none
    :ivar copy: that of a nova-compute with the same nova.conf elsewhere
    :cvar counts: what happened, of all runs
    """

    counts = {}

    def __init__(self):
        super().__init__()
        self.case = base.MachineCase('run')
        self.case.functions = ()
        self.case.setUp()
        self.folder = self.case.useFixture(
            fixtures.TempDir()).path
        self.network = network_fixture.Network(manager.ConductorManager(
            self.case.conf, self.case.db, self))
        self.client = Placement()
        self.machines = [
            known_machine.KnownMachine(name, base.EIGHT[:GPUS])
            for name in ('m1', 'm2')]
        self.servers = set()
        self.made = 0
        self.seconds = 0.0
        self.casts_are_lost = False
        self.old = self.copy = self.backup = None
        self.begun_at_restore = -1

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- the conductor's casts ----------------------------------------------

    def refresh(self, ctxt, host):
        self._cast('refresh')

    def assignments_changed(self, ctxt, host):
        self._cast('assignments_changed')

    def _cast(self, name):
        if not self.casts_are_lost:
            getattr(self.now, name)()

    # -- starts of nova-compute ---------------------------------------------

    @property
    def machine(self):
        return self.machines[0]

    def start(self, machine):
        """Start a nova-compute on a machine."""
        self.case.conf.set_override('state_path', os.path.join(
            self.folder, machine.machine_id), 'gpgpu_compute')
        tracker = resource_tracker.ResourceTracker(
            self.case.conf, 'h1', machine,
            network_fixture.NetworkAPI(self.network),
            virt_driver.make(self.client),
            orphans.search(
                lambda assignment: self.is_orphaned(machine, assignment)),
            clock=lambda: self.seconds)
        tracker.set_node('h1', base.NODE)
        return tracker

    def is_orphaned(self, machine, assignment):
        """Return whether an assignment is a leftover."""
        return assignment.instance_uuid not in machine.guests and (
            assignment.state == 'provisioning'
            or assignment.instance_uuid not in self.servers)

    def restart(self):
        """Start nova-compute again after it was killed."""
        self.count('killed')
        self.machine.cleaning = None
        self.network.fates = {}
        self.now = self.start(self.machine)
        self.end_deleted()

    def end_deleted(self):
        """Complete the deletes that Nova had begun."""
        for instance in set(self.machine.guests) - self.servers:
            self.machine.end_guest(instance)
            self.now.release_instance(instance)

    @contextlib.contextmanager
    def may_be_killed(self):
        try:
            yield
        except network_fixture.Killed:
            self.restart()
        finally:
            self.network.fates = {}
            self.machine.fails = False

    def run(self, tracker):
        if tracker is not None:
            self.seconds += 60
            tracker.run_once()

    @initialize(servers=st.integers(0, 2), deleted=st.booleans(),
                has_backup=st.booleans(), begins=st.sampled_from([
                    'nothing', 'clean_late', 'start_beside', 'late_report',
                    'early_restore']))
    def first_start(self, servers, deleted, has_backup, begins):
        self.now = self.start(self.machine)
        self.copy = self.start(self.machines[1])
        self.run(self.now)
        if has_backup:
            self.back_up()
        for _ in range(servers):
            self.build(1, {}, 'nothing')
        if deleted and self.servers:
            self.delete_server('i1')
        getattr(self, begins)()

    def late_report(self):
        self.report_late(GPUS - 1, restarts=False)

    def early_restore(self):
        self.back_up()
        self.build(1, {}, 'nothing')
        for instance in sorted(self.servers):
            self.delete_server(instance)
        self.restore(marked=False)
        self.seconds += 3600
        self.run(self.now)

    def nothing(self):
        """Do nothing meanwhile."""

    # -- what happens -------------------------------------------------------

    @rule(fates=fates(ITERATION), late=st.booleans(), fails=st.sampled_from(
        [False, False, False, True]))
    def iterate(self, fates, late, fails):
        self.network.fates = dict(fates)
        self.machine.fails = fails

        def meanwhile():
            self.count('cleaning')
            if late:
                self.network.dispatch_late()
            self.machine.wrong += self.wrongly_free()
        self.machine.meanwhile = meanwhile
        with self.may_be_killed():
            self.run(self.now)
        self.machine.meanwhile = self.nothing

    @rule(which=st.sampled_from(['old', 'copy']))
    def iterate_other(self, which):
        self.network.fates = {}
        if which == 'old' or not self.is_takeover_allowed():
            self.run(getattr(self, which))

    @rule(number=st.integers(0, GPUS - 1), restarts=st.booleans())
    def report_late(self, number, restarts):
        """Pull a GPU for a moment; the report without it arrives last."""
        self.network.fates = {'report': network_fixture.Fate.LATE}
        self.machine.pull(number)
        self.run(self.now)
        self.network.fates = {}
        self.machine.pull(number)
        if restarts:
            self.restart()
        self.run(self.now)
        self.network.dispatch_late()

    @rule()
    def clean_late(self):
        """Let the verdict on a cleaning arrive during the next one."""
        self.iterate({'clean_finished': network_fixture.Fate.LATE},
                     late=False, fails=False)
        self.iterate({}, late=True, fails=False)

    @rule(count=st.integers(1, 2), fates=fates(BUILD), meanwhile=MEANWHILE)
    def build(self, count, fates, meanwhile):
        self.made += 1
        instance = f'i{self.made}'
        self.servers.add(instance)
        self.client.allocations[instance] = {
            'resources': {'CUSTOM_GPU_H100': count}}
        now = self.now
        spawn = steps.Spawn(
            tracker=now, request=self.case.request(count, instance),
            spawn=lambda: self.spawn(instance, meanwhile),
            destroy=lambda: self.machine.end_guest(instance))
        self.network.fates = dict(fates)
        with self.may_be_killed(), now.builds.running(instance):
            try:
                steps.execute(spawn)
            except exception.GPUPluginException:
                self.servers.discard(instance)
                del self.client.allocations[instance]
            else:
                self.count('built')

    def spawn(self, instance, meanwhile):
        """Spawn a server while others work."""
        if meanwhile == 'dispatch':
            self.network.dispatch_late()
        elif meanwhile == 'killed':
            raise network_fixture.Killed
        elif meanwhile != 'nothing':
            self.run({'iterate': self.now, 'old': self.old,
                      'copy': self.copy}[meanwhile])
        self.machine.start_guest(instance, [
            assignment.stable_id for assignment
            in self.now.assignments.of_instance(instance)])

    @precondition(lambda self: self.servers)
    @rule(fates=fates(['release']), data=st.data())
    def delete(self, fates, data):
        instance = data.draw(st.sampled_from(sorted(self.servers)))
        self.network.fates = dict(fates)
        with self.may_be_killed():
            self.delete_server(instance)

    def delete_server(self, instance):
        self.servers.discard(instance)
        self.client.allocations.pop(instance, None)
        self.machine.end_guest(instance)
        self.now.release_instance(instance)

    @precondition(lambda self: self.servers
                  and self.now.session.is_reported)
    @rule(data=st.data())
    def reboot(self, data):
        """Reboot hard; the guest gets the book's devices, without a call."""
        instance = data.draw(st.sampled_from(sorted(self.servers)))
        assigned = self.now.assignments.of_instance(instance)
        if assigned:
            self.machine.end_guest(instance)
            self.machine.start_guest(instance, [
                assignment.stable_id for assignment in assigned])

    @rule()
    def kill(self):
        self.restart()
        self.run(self.now)

    def start_beside(self):
        """Start a second nova-compute; SIGSTOP had stopped the first one."""
        self.old, self.now = self.now, self.start(self.machine)
        self.run(self.now)

    def pause(self):
        self.network.is_paused = not self.network.is_paused

    @rule()
    def dispatch(self):
        self.network.dispatch_late()

    def lose_casts(self):
        self.casts_are_lost = not self.casts_are_lost

    @rule(number=st.integers(0, GPUS - 1))
    def pull(self, number):
        self.machine.pull(number)

    @rule(what=st.sampled_from([
        'start_beside', 'pause', 'lose_casts', 'take_over', 'back_up',
        'disable']))
    def change(self, what):
        getattr(self, what)()

    def disable(self):
        for device in device_admin.list_all(self.case.db, 'h1')[:1]:
            device_admin.set_(
                self.case.db, device.uuid, 'op@c1', enabled=not device.enabled)

    def take_over(self):
        """Cut the machine's power and let the copy replace it."""
        self.count('taken over')
        self.machine.power_off()
        self.machines.reverse()
        self.now, self.copy, self.old = (
            self.copy, self.start(self.machines[1]), None)
        sessions.allow_takeover(self.case.db, 'h1')
        self.network.fates = {}
        self.run(self.now)

    def back_up(self):
        self.count('backed up')
        if self.backup is None:
            self.backup = sqlite3.connect(':memory:')
            self.case.addCleanup(self.backup.close)
        with self.database() as database:
            database.backup(self.backup)

    @precondition(lambda self: self.backup is not None)
    @rule(marked=st.booleans())
    def restore(self, marked):
        self.count('restored')
        with self.database() as database:
            self.backup.backup(database)
        self.begun_at_restore = self.now.assignments.session()
        if marked:
            sessions.mark_restored(self.case.db)

    def database(self):
        return contextlib.closing(
            sqlite3.connect(self.case.db.engine.url.database))

    # -- what must hold -----------------------------------------------------

    def is_known(self):
        """Return whether the host has reported what it has."""
        with self.case.db.reader() as session:
            host = host_db.find(session, 'h1')
            return (self.now.session.is_reported
                    and not hold_db.of_hosts(session, [host.id])
                    and host.report_number > 0
                    and host.start_uuid == self.now.session.start_uuid
                    and host.session > self.begun_at_restore)

    def is_takeover_allowed(self):
        with self.case.db.reader() as session:
            return host_db.find(session, 'h1').takeover

    @invariant()
    def copy_does_not_speak(self):
        assert not self.copy.session.is_active

    @invariant()
    def free_devices_are_free(self):
        wrong = [*self.wrongly_free(), *self.machine.wrong]
        assert not wrong, wrong

    def wrongly_free(self):
        """Return which devices are offered and must not be."""
        if not self.is_known():
            return []
        self.count('compared')
        machine = self.machine
        return [
            f'free: {device.stable_id}, of {machine.guests}, dirty '
            f'{machine.dirty}, cleaning {machine.cleaning}'
            for device in device_admin.list_all(self.case.db, 'h1')
            if device.shown_state == 'available' and (
                device.stable_id in machine.used
                or device.stable_id in machine.dirty
                or device.stable_id == machine.cleaning)]

    def teardown(self):
        try:
            self.check_end()
        finally:
            self.case.doCleanups()

    def check_end(self):
        """Check that all GPUs become available without guests."""
        self.network.is_paused = self.casts_are_lost = False
        self.network.fates = {}
        self.network.dispatch_late()
        self.run_for_days()
        if not self.now.session.is_reported:
            sessions.allow_takeover(self.case.db, 'h1')
            self.run_for_days()
        for instance in sorted(self.servers):
            self.delete_server(instance)
        self.machine.put_back()
        for device in device_admin.list_all(self.case.db, 'h1'):
            device_admin.set_(
                self.case.db, device.uuid, 'op@c1', enabled=True)
            if device.state == 'quarantined':
                released.release(
                    self.case.db, device.uuid, 'op@c1')
        self.run_for_days()
        assert not self.machine.dirty, self.machine.dirty
        assert not claims.of_host(self.case.db, 'h1')
        assert self.case.states() == {'available': GPUS}, self.case.states()

    def run_for_days(self):
        """Let the host do all that it does by itself within three days."""
        for _ in range(3):
            self.seconds += 86400
            self.run(self.now)


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_calls_of_two_sessions_and_a_copy_double_and_lose_nothing(self):
        SessionMachine.counts = {}
        vgpu_base.run_machine(SessionMachine, examples=40, steps=14)
        for what in ('built', 'killed', 'restored', 'cleaning', 'compared'):
            self.assertGreater(SessionMachine.counts.get(what, 0), 0, what)
