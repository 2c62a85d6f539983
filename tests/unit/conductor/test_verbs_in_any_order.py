# SPDX-License-Identifier: Apache-2.0
"""Property tests of what operators do to GPUs and hosts, in any order.

Two hosts boot and delete instances, clean devices and get other cards, while
an operator quarantines, cleans, releases, retires, replaces, disables and
drains.
"""

import collections
import datetime

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import usage as usage_db
from tests.fixtures import cleaned
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

START = datetime.datetime(2026, 11, 1)
OPERATOR = 'root@control'
SIZES = {'h1': 3, 'h2': 2}
PLACES = st.sampled_from([(host, number) for host, size in SIZES.items()
                          for number in range(size)])
HOSTS = st.sampled_from(sorted(SIZES))


class VerbMachine(RuleBasedStateMachine):
    """Two hosts with a few GPUs, instances, and an operator.

    :ivar states: state of each device, as it must be
    :ivar numbers: number of the card that is at each place
    :ivar withdrawn: devices that are quarantined when their instance ends
    :ivar disabled: devices that are not offered
    :ivar draining: hosts that are not offered
    :ivar owners: instance by assignment
    :ivar used: device of each assignment there ever was
    :ivar running: cleanings that have begun, with their tokens and steps
    :cvar done: number of verbs, of all runs, by name and whether they were
        refused
    """

    done = collections.Counter()

    def __init__(self):
        super().__init__()
        self.case = base.MachineCase('run')
        self.case.new_are_clean = False
        self.case.functions = ()
        self.case.setUp()
        self.seconds = self.instances = 0
        self.case.useFixture(clocks.Clocks(self.now))
        self.numbers = {(host, number): 0 for host, size in SIZES.items()
                      for number in range(size)}
        for host in SIZES:
            self.report(host)
        self.case.clean_all()
        self.states = {device.uuid: 'available' for device in self.listed()}
        self.withdrawn, self.disabled, self.draining = set(), set(), set()
        self.owners, self.used, self.running = {}, {}, {}

    def teardown(self):
        self.case.doCleanups()

    def now(self):
        self.seconds += 10
        return START + datetime.timedelta(seconds=self.seconds)

    def report(self, host):
        hosts.store(self.case.db, base.scan([
            base.function(number, dsn=f'48-{host}-2d-00-00-00-{number:02x}-'
                                      f'{self.numbers[host, number]:02x}')
            for number in range(SIZES[host])],
            host=host, node_uuid=base.node_uuid(host)))

    def listed(self, host=None):
        return device_admin.list_all(
            self.case.db, host, include_retired=True)

    def at(self, place):
        """Return the UUID of the device that has a place."""
        host, number = place
        address = f'0000:{number:02x}:00.0'
        [device] = [device for device in self.listed(host)
                    if device.address == address and device.present]
        return device.uuid

    def offered(self, host):
        """Return the devices that a claim on a host may get."""
        return [] if host in self.draining else [
            device.uuid for device in self.listed(host)
            if self.states[device.uuid] == 'available'
            and device.uuid not in self.disabled]

    def refresh(self):
        """Read the states again, after a verb with many outcomes."""
        self.states = self.found()

    def found(self):
        """Return the states of all devices as they are listed."""
        return {device.uuid: device.state if device.present
                or device.state == 'retired' else 'missing'
                for device in self.listed()}

    def attempt(self, name, call, *arguments, allowed):
        """Call a verb, which must be refused unless it is allowed."""
        try:
            call(self.case.db, *arguments)
        except exception.Conflict:
            refused = True
        else:
            refused = False
        self.done[name, refused] += 1
        assert refused is not allowed, (name, arguments, self.states)
        return allowed

    # -- what hosts do ------------------------------------------------------

    @initialize(host=HOSTS, free=st.integers(0, 1))
    def first_boot(self, host, free):
        """Boot, try what must be refused, and retire or replace a GPU."""
        self.boot(host, 1)
        [used] = [place for place in self.numbers
                  if self.states[self.at(place)] == 'assigned']
        for verb in (self.clean, self.release, self.retire, self.replace):
            verb(used)
        if used != (host, free):
            self.clean((host, free))
            self.retire((host, free))
            self.retire((host, free))
            self.quarantine((host, free))

    @rule(host=HOSTS, count=st.integers(1, 2))
    def boot(self, host, count):
        offered = self.offered(host)
        self.instances += 1
        try:
            granted = self.case.boot(
                count, f'i{self.instances}', host=host).assignments
        except exception.ClaimDenied:
            assert len(offered) < count, (offered, self.states)
            return
        devices = [found.device_uuid for found in granted]
        assert len(set(devices)) == count
        assert set(devices) <= set(offered), (devices, offered)
        for found in granted:
            self.states[found.device_uuid] = 'assigned'
            self.owners[found.uuid] = f'i{self.instances}'
            self.used[found.uuid] = found.device_uuid

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def delete(self, data):
        instance = data.draw(st.sampled_from(sorted(set(
            self.owners.values()))))
        ended = [uuid for uuid, owner in self.owners.items()
                 if owner == instance]
        releases.release(self.case.db, ended)
        for uuid in ended:
            del self.owners[uuid]
            device = self.used[uuid]
            self.states[device] = (
                'quarantined' if device in self.withdrawn else 'dirty')
            self.withdrawn.discard(device)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), taken_back=st.booleans())
    def quarantine_and_delete(self, data, taken_back):
        """Withdraw a device that an instance has, which then ends."""
        device = self.used[data.draw(st.sampled_from(sorted(self.owners)))]
        [place] = [place for place in self.numbers if self.at(place) == device]
        self.quarantine(place)
        if taken_back:
            self.release(place)
        self.delete(data)

    @rule(host=HOSTS)
    def begin_cleaning(self, host):
        for task in cleaning.tasks(self.case.db, host):
            assert self.states[task.device_uuid] in ('dirty', 'cleaning')
            cleaning.started(
                self.case.db, task.device_uuid, task.token, task.token)
            self.states[task.device_uuid] = 'cleaning'
            self.running[task.device_uuid] = (task.token, task.steps)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), passed=st.booleans())
    def end_cleaning(self, data, passed):
        """Report a cleaning, which verbs may have overtaken."""
        device = data.draw(st.sampled_from(sorted(self.running)))
        token, steps = self.running.pop(device)
        try:
            cleaning.finished(
                self.case.db, device, token, steps, cleaned.results(steps)
                if passed else cleaned.failed('it hangs'))
        except exception.Conflict:
            assert self.states[device] != 'cleaning'
            return
        if self.states[device] == 'cleaning':
            self.states[device] = 'available' if passed else 'quarantined'

    @rule(place=PLACES)
    def exchange_card(self, place):
        """Put another card at a place that no instance has."""
        device = self.at(place)
        if self.states[device] in ('assigned', 'cleaning'):
            return
        self.numbers[place] += 1
        self.report(place[0])
        self.refresh()
        assert self.states[self.at(place)] in ('quarantined', 'dirty')

    # -- what the operator does ---------------------------------------------

    @rule(place=PLACES)
    def quarantine(self, place):
        device = self.at(place)
        state = self.states[device]
        later = state == 'assigned' and device not in self.withdrawn
        if self.attempt('quarantine', withdrawal.quarantine, device, 'loud',
                        OPERATOR, allowed=later or (
                            state not in ('assigned', 'retired')
                            and not self.is_held(device, 'quarantined'))):
            if later:
                self.withdrawn.add(device)
            else:
                self.states[device] = 'quarantined'

    @rule(place=PLACES)
    def clean(self, place):
        device = self.at(place)
        state = self.states[device]
        if self.attempt('clean', released.clean, device, OPERATOR,
                        allowed=state != 'assigned'
                        or device in self.withdrawn):
            if device in self.withdrawn:
                self.withdrawn.discard(device)
            elif state != 'cleaning':
                self.states[device] = 'dirty'

    def is_held(self, uuid, kind):
        with self.case.db.reader() as session:
            return kind in rows.device(session, uuid).holds

    @rule(place=PLACES)
    def release(self, place):
        device = self.at(place)
        if self.attempt('release', released.release, device,
                        OPERATOR, allowed=device in self.withdrawn
                        or self.states[device] in ('quarantined', 'retired')):
            if device in self.withdrawn:
                self.withdrawn.discard(device)
            else:
                self.states[device] = 'dirty'

    @rule(place=PLACES)
    def retire(self, place):
        device = self.at(place)
        if self.attempt('retire', retirement.retire, device, None, OPERATOR,
                        allowed=self.states[device] not in (
                            'assigned', 'retired')):
            self.states[device] = 'retired'

    @rule(place=PLACES)
    def replace(self, place):
        device = self.at(place)
        if self.attempt('replace', retirement.replace, device, OPERATOR,
                        allowed=self.states[device] != 'assigned'):
            self.refresh()
            assert self.states[device] in ('retired', 'dirty')
            assert self.states[self.at(place)] in ('retired', 'dirty')

    @rule(place=PLACES, enabled=st.booleans())
    def set_enabled(self, place, enabled):
        device = self.at(place)
        device_admin.set_(self.case.db, device, OPERATOR, enabled=enabled)
        (self.disabled.discard if enabled else self.disabled.add)(device)

    @rule(host=HOSTS, draining=st.booleans())
    def drain(self, host, draining):
        host_admin.drain(self.case.db, host, 'op', draining=draining)
        (self.draining.add if draining else self.draining.discard)(host)

    # -- what holds ---------------------------------------------------------

    @invariant()
    def devices_are_in_the_expected_states(self):
        """No verb, and no late cleaning, makes a device available."""
        assert self.states == self.found()

    @invariant()
    def no_device_is_given_twice(self):
        given = [assignment for host in SIZES
                 for assignment in claims.of_host(self.case.db, host)]
        assert {found.uuid for found in given} == self.owners.keys()
        devices = [found.device_uuid for found in given]
        assert len(devices) == len(set(devices))
        assert {self.states[device] for device in devices} <= {'assigned'}

    @invariant()
    def groups_offer_what_may_be_claimed(self):
        for host in SIZES:
            assert sum(group.remaining for group in group_admin.list_all(
                self.case.db, host=host)) == len(self.offered(host))

    @invariant()
    def usage_has_neither_gaps_nor_overlaps(self):
        with self.case.db.reader() as session:
            found = session.execute(sa.select(
                usage_db.TABLE.c.assignment_uuid, usage_db.TABLE.c.device_uuid,
                usage_db.TABLE.c.began_at, usage_db.TABLE.c.ended_at).order_by(
                    usage_db.TABLE.c.began_at)).tuples().all()
        assert {uuid: device for uuid, device, _, _ in found} == self.used
        last = {}
        for uuid, device, began, ended in found:
            assert (ended is None) is (uuid in self.owners)
            # One that goes on is the last of its device.
            before = last.get(device, START)
            assert before is not None
            assert before < began
            last[device] = ended


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_verbs_give_no_device_twice_and_offer_none_that_is_not_clean(self):
        VerbMachine.done.clear()
        vgpu_base.run_machine(VerbMachine, examples=10, steps=25,
                              are_all_needed=True)
        for name in ('quarantine', 'clean', 'release', 'retire', 'replace'):
            for refused in (False, True):
                self.assertGreater(VerbMachine.done[name, refused], 0, name)
