# SPDX-License-Identifier: Apache-2.0
"""Property test of cards that move between hosts, in any order.

Two cards move between the slots of three hosts, which are switched off for
it. Guests use a card whole or a VF of it, hosts make and remove VFs, clean
and report, the database is restored, an operator cleans, releases, retires
and replaces devices and deletes hosts. The machine knows what each card has
been cleaned of and where: nothing may be offered that the host has not cleaned
since the card came there, or that has the data of a guest.
"""

import contextlib
import dataclasses
import time
import uuid

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import admin
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

OPERATOR = 'root@control'
PLACES = ('h1', 'h2', 'h3')
HOSTS = st.sampled_from(PLACES)
VFS = 2
_EVENT = device_rules.DeviceEvent


@dataclasses.dataclass
class Truth:
    """A card as it really is.

    :ivar vfs: whether it has VFs
    :ivar is_clean: it was cleaned as a whole, in its place, after all else
    :ivar is_whole_used: a guest had it whole, and it was not cleaned since
    :ivar clean_vfs: VFs that are clean, because the card is or they were
        cleaned
    """

    dsn: str
    vfs: bool = False
    is_clean: bool = False
    is_whole_used: bool = False
    clean_vfs: set[int] = dataclasses.field(default_factory=set)

    def forget(self):
        """Note that nobody knows what the card was used for."""
        self.is_clean = False
        self.clean_vfs.clear()


class MoveMachine(RuleBasedStateMachine):
    """Three hosts with a slot each, two cards, guests and an operator.

    :ivar slots: the card in each slot
    :ivar on: hosts that have reported since they were switched on
    """

    @initialize()
    def start(self):
        self.case = base.MachineCase()
        self.case.cleaned_before = self.case.new_are_clean = False
        self.case.functions, self.case.variant = (), False
        self.case.setUp()
        self.db = self.case.db
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X', vendor='10de', device='74a1'))
        self.slots = {'h1': Truth('48-a'), 'h2': Truth('48-b')}
        self.on = set()
        for host in PLACES:
            self.boot(host)

    def teardown(self):
        if hasattr(self, 'case'):
            self.case.doCleanups()

    # -- hosts ---------------------------------------------------------------

    @rule(host=HOSTS)
    def boot(self, host, newer=0):
        """Switch a host on, which begins a session and reports.

        :param newer: by how many sessions the host is ahead of the database
        """
        with self.db.reader() as session:
            expected = session.scalar(sa.select(tables.HOSTS.c.session).where(
                tables.HOSTS.c.name == host, tables.HOSTS.c.deleted == 0)) or 0
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).where(
                tables.HOSTS.c.name == host).values(heard_at=1.0))
        hosts.begin(
            self.db, host, base.node_uuid(host), start_uuid=str(uuid.uuid4()),
            expected=expected + newer, identity=host_rules.MachineIdentity(
                boot_id=str(uuid.uuid4()), machine_id=host))
        self.on.add(host)
        self.report(host)

    @rule(host=HOSTS)
    def restore(self, host):
        """Let a host find that the database was restored from a backup."""
        if host in self.slots:
            self.slots[host].forget()
        self.boot(host, newer=1)

    @rule(host=HOSTS)
    def report(self, host):
        if host not in self.on:
            return
        card, functions = self.slots.get(host), []
        if card is not None:
            gpu = base.function(
                0, device='74a1', dsn=card.dsn, sriov_totalvfs=VFS,
                used_by='vf' if card.vfs else None,
                sriov_numvfs=VFS if card.vfs else 0)
            functions = [gpu, *(base.function(
                0, id=f'{gpu.id}/vf{number}', device='74b5', dsn=None,
                address=f'0000:00:00.{number + 1}', pf=gpu.id,
                vf_index=number) for number in range(VFS * card.vfs))]
        reports.report(self.db, base.scan(
            functions, host=host, node_uuid=base.node_uuid(host), number=1,
            assignments=()))

    def off(self, host, seconds=100000):
        self.on.discard(host)
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).where(
                tables.HOSTS.c.name == host).values(
                    heard_at=time.time() - seconds))

    @rule(source=HOSTS, goal=HOSTS, seconds=st.sampled_from([100, 100000]))
    def move(self, source, goal, seconds):
        """Exchange what two slots have, of hosts that are off for it."""
        if source == goal:
            return
        for host in (source, goal):
            self.off(host, seconds)
        exchanged = self.slots.pop(source, None), self.slots.pop(goal, None)
        for host, card in zip((goal, source), exchanged, strict=True):
            if card is not None:
                card.vfs = False
                card.forget()
                self.slots[host] = card

    @rule(source=HOSTS, goal=HOSTS, is_used=st.booleans())
    def visit(self, source, goal, is_used):
        """Have a card in another host while its own is off, and back."""
        if source == goal or goal in self.slots:
            return
        self.clean(source, passed=True)
        self.move(source, goal, 100)
        self.boot(goal)
        if is_used:
            self.use_whole(goal)
        self.move(source, goal, 100)
        self.boot(source)

    @rule(host=HOSTS)
    def make_or_remove_vfs(self, host):
        card = self.slots.get(host)
        if host in self.on and card is not None:
            card.vfs = not card.vfs
            self.report(host)

    @rule(host=HOSTS, vfs=st.booleans())
    def boot_with_vfs(self, host, vfs):
        """Switch a host on whose driver makes VFs, or does not."""
        if host not in self.on:
            if host in self.slots:
                self.slots[host].vfs = vfs
            self.boot(host)

    # -- guests and cleanings ------------------------------------------------

    @rule(host=HOSTS)
    def use_whole(self, host):
        if host not in self.on:
            return
        self.clean(host, passed=True)
        try:
            claim = self.case.claim(
                1, str(uuid.uuid4()), host=host, variant='MI300X')
        except exception.ClaimDenied:
            return
        claims.activate(self.db, base.uuids(claim))
        self.slots[host].forget()
        self.slots[host].is_whole_used = True
        releases.release(self.db, base.uuids(claim))

    @rule(host=HOSTS, number=st.integers(0, VFS - 1))
    def use_vf(self, host, number):
        """Let a guest use a VF; the claim itself is not tried here."""
        if host not in self.on:
            return
        self.clean(host, passed=True)
        _, vfs = self.offered(host)
        for device in self.present(host):
            if (device.stable_id in vfs
                    and device.stable_id.endswith(f'/vf{number}')):
                with self.db.writer() as session:
                    rows.apply(session, device.uuid, _EVENT.CLAIM,
                               _EVENT.ACTIVATE, _EVENT.RELEASE,
                               clean_token=str(uuid.uuid4()))
                self.slots[host].is_clean = False
                self.slots[host].clean_vfs.discard(number)

    @rule(host=HOSTS, passed=st.booleans())
    def clean(self, host, passed):
        for task in cleaning.tasks(self.db, host) if host in self.on else ():
            card = self.slots.get(host)
            is_vf = '/vf' in task.stable_id
            can = passed and card is not None and card.vfs == is_vf
            cleaning.started(self.db, task.device_uuid, task.token, 'a')
            cleaning.finished(
                self.db, task.device_uuid, 'a', task.steps,
                cleaned.results(task.steps) if can else cleaned.failed('bad'))
            if can and is_vf:
                card.clean_vfs.add(int(task.stable_id[-1]))
            elif can:
                card.is_clean, card.is_whole_used = True, False
                card.clean_vfs.update(range(VFS))

    # -- the operator --------------------------------------------------------

    @rule(host=HOSTS, verb=st.sampled_from([
        released.clean, released.release, retirement.replace]),
        which=st.integers(0, VFS))
    def operate(self, host, verb, which):
        try:
            devices = device_admin.list_all(
                self.db, host, include_retired=True)
            verb(self.db, devices[which].uuid, OPERATOR)
        except (IndexError, exception.GPUPluginException):
            return

    @rule(host=HOSTS)
    def retire(self, host):
        for device in self.present(host):
            if device.parent is None and device.state != 'retired':
                retirement.retire(self.db, device.uuid, None, 'op')

    @rule(host=HOSTS)
    @precondition(lambda self: len(self.on) < len(PLACES))
    def delete(self, host):
        if host not in self.on:
            with contextlib.suppress(exception.GPUPluginException):
                host_admin.delete(self.db, host, force=True)

    def present(self, host):
        try:
            return [device for device in device_admin.list_all(
                self.db, host, include_retired=True) if device.present]
        except exception.NotFound:
            return []

    def offered(self, host):
        """Return the stable ids of GPUs that a claim may take, and of VFs.

        A GPU whose VFs are gone is not offered while one of them is dirty.
        """
        with self.db.reader() as session:
            row = host_db.get(session, host)
            groups = [group.value for group in capacity.load(
                session, [row])[row.id]]
        return {gpu.id for group in groups for gpu in group.gpu_capacities
                if gpu.passthrough}, {
                    vf.id for group in groups
                    for gpu, known in zip(
                        group.gpus, group.gpu_capacities, strict=True)
                    if known.offered for vf in group.children[gpu.id]
                    if vf.is_claimable}

    @invariant()
    def nothing_is_offered_that_was_not_cleaned_here(self):
        for host in getattr(self, 'on', ()):
            card = self.slots.get(host)
            if card is None:
                continue
            gpus, vfs = self.offered(host)
            for device in self.present(host):
                if device.stable_id in gpus and not card.vfs:
                    assert card.is_clean, device
                elif device.stable_id in vfs and card.vfs:
                    assert not card.is_whole_used, device
                    assert int(device.stable_id[-1]) in card.clean_vfs, device


class MovesInAnyOrderTest(oslotest_base.BaseTestCase):

    def test_no_card_is_offered_that_its_host_has_not_cleaned(self):
        vgpu_base.run_machine(MoveMachine, examples=8, steps=25)
