# SPDX-License-Identifier: Apache-2.0
"""Property test of cards that change the slots of one host, in any order.

The host is switched off, its cards are put into other slots, and switched on.
Guests use cards and end, the host cleans and reports, and an operator accepts,
retires and replaces what was found. Each assignment must follow its card, and
nothing may be offered that was not cleaned since the card came to its slot, or
since a guest had the card.
"""

import contextlib
import dataclasses
import uuid

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain import host as host_rules
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

OPERATOR = 'root@control'
SLOTS = range(3)
SLOT = st.sampled_from(SLOTS)


def gpu(slot, **facts):
    """Return a GPU in a slot; the last slot is below the first one."""
    below = {'id': f'{base.function(0).id}/08.0/00.0'}
    return base.function(slot, **facts, **(
        below if slot == SLOTS[-1] else {}))


@dataclasses.dataclass(eq=False)
class Card:
    """A card as it really is."""

    dsn: str
    is_clean: bool = False
    user: str | None = None


class SlotMachine(RuleBasedStateMachine):
    """A host with three slots, and four cards."""

    @initialize()
    def start(self):
        self.case = base.MachineCase()
        self.case.new_are_clean = False
        self.case.functions = ()
        self.case.setUp()
        self.db = self.case.db
        self.all_cards = [Card(f'48-{letter}') for letter in 'abcd']
        self.slots = dict.fromkeys(SLOTS)
        self.start_host()
        self.put(0, 0)
        self.put(1, 1)

    def teardown(self):
        if hasattr(self, 'case'):
            self.case.doCleanups()

    # -- the host ------------------------------------------------------------

    @rule(order=st.permutations([0, 1, 2, 3, None]))
    def put_all(self, order):
        """Put cards into all slots."""
        for slot, number in zip(SLOTS, order, strict=False):
            card = None if number is None else self.all_cards[number]
            for moved in filter(None, (card, self.slots[slot])):
                if card is not self.slots[slot]:
                    moved.is_clean = False
            self.slots[slot] = card
        self.start_host()

    @rule(slot=SLOT, number=st.integers(0, 4))
    def put(self, slot, number):
        """Put a card into a slot; what was there goes where the card was.

        4: the slot becomes empty.
        """
        card = self.all_cards[number] if number < len(self.all_cards) else None
        before = self.slots[slot]
        if card is before:
            return
        for other in SLOTS:
            if card is not None and self.slots[other] is card:
                self.slots[other] = before
        self.slots[slot] = card
        for moved in filter(None, (card, before)):
            moved.is_clean = False
        self.start_host()

    @rule()
    def start_host(self):
        hosts.begin(self.db, 'h1', base.NODE, start_uuid=str(uuid.uuid4()),
                    expected=self.session(),
                    identity=host_rules.MachineIdentity(
                        boot_id=str(uuid.uuid4()), machine_id='h1'))
        self.report()

    def session(self):
        with self.db.reader() as session:
            host = host_db.find(session, 'h1')
            return host.session if host else 0

    @rule()
    def report(self):
        reports.report(self.db, base.scan([
            gpu(slot, dsn=card.dsn, serial=None)
            for slot, card in self.slots.items() if card is not None]))

    @rule()
    def clean(self):
        for task in cleaning.tasks(self.db, 'h1'):
            card = self.at(task.stable_id)
            cleaning.started(self.db, task.device_uuid, task.token, 'a')
            cleaning.finished(
                self.db, task.device_uuid, 'a', task.steps,
                cleaned.results(task.steps))
            card.is_clean = True

    def at(self, stable_id):
        """Return the card that is in a place."""
        [card] = [card for slot, card in self.slots.items()
                  if gpu(slot).id == stable_id]
        return card

    # -- guests --------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def boot(self, count):
        self.clean()
        instance = str(uuid.uuid4())
        with contextlib.suppress(exception.ClaimDenied):
            granted = self.case.claim(count, instance)
            claims.activate(self.db, base.uuids(granted))
            for assignment in granted.assignments:
                card = self.at(assignment.stable_id)
                assert card.is_clean, assignment
                assert card.user is None, assignment
                card.is_clean, card.user = False, assignment.uuid

    @rule(number=st.integers(0, 9))
    def end(self, number):
        found = claims.of_host(self.db, 'h1')
        if found:
            ended = found[number % len(found)]
            releases.release(self.db, [ended.uuid])
            for card in self.all_cards:
                if card.user == ended.uuid:
                    card.user = None
            self.report()

    # -- the operator --------------------------------------------------------

    @rule(number=st.integers(0, 9), verb=st.sampled_from([
        released.release, retirement.replace,
        lambda db, uuid, actor: retirement.retire(db, uuid, None, actor)]))
    def operate(self, number, verb):
        devices = self.devices()
        with contextlib.suppress(exception.GPUPluginException):
            verb(self.db, devices[number % len(devices)].uuid, OPERATOR)
        self.report()

    @rule()
    def accept(self):
        """Have the operator accept all cards that were found."""
        for device in self.devices():
            with contextlib.suppress(exception.GPUPluginException):
                device_admin.remove_hold(
                    self.db, device.uuid, ['identity_changed'], OPERATOR)
        self.report()

    # -- what must hold ------------------------------------------------------

    def devices(self):
        return device_admin.list_all(self.db, include_retired=True)

    def host_rows(self):
        with self.db.reader() as session:
            return rows.of_host(session, 'h1')

    @invariant()
    def a_place_has_one_row_of_the_card_in_it(self):
        if not hasattr(self, 'case'):
            return
        present = {device.stable_id: device
                   for device in self.host_rows().devices if device.present}
        for device in present.values():
            assert self.at(device.stable_id).dsn == device_db.identity(
                device).dsn, device
        used = {row.device.stable_id for row in self.host_rows().assignments}
        for slot, card in self.slots.items():
            if card is not None:
                place = gpu(slot).id
                # What is in the place of a guest's card is left out.
                assert place in present or place in used, place

    @invariant()
    def assignments_follow_their_cards(self):
        if not hasattr(self, 'case'):
            return
        assignments = self.host_rows().assignments
        used = {row.device.stable_id for row in assignments}
        for row in assignments:
            [card] = [card for card in self.all_cards if card.user == row.uuid]
            assert card.dsn == device_db.identity(row.device).dsn, row
            if card in self.slots.values():
                # A place is given to no other card while a guest has its own.
                place = self.place(card)
                assert place == row.device.stable_id or place in used, row

    def place(self, card):
        [slot] = [slot for slot in SLOTS if self.slots[slot] is card]
        return gpu(slot).id

    @invariant()
    def nothing_is_offered_that_was_not_cleaned_here(self):
        for device in self.devices() if hasattr(self, 'case') else ():
            if device.state == 'available' and device.present:
                card = self.at(device.stable_id)
                assert card.is_clean, device


class SlotsInAnyOrderTest(oslotest_base.BaseTestCase):

    def test_rows_follow_the_cards(self):
        vgpu_base.run_machine(SlotMachine, examples=12, steps=25)
