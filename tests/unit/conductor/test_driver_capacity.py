#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""What the drivers of cards say of their room, and what becomes of it."""

import dataclasses
import functools
import itertools
import uuid

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
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain.vgpu import driver_capacity
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

CARDS = vgpu_base.CARDS
TYPES = vgpu_base.TYPES


class ToldTest(vgpu_base.VGPUTestCase):
    """Drivers that make fewer than the sizes of the types say."""

    def tell(self, card, *beside, sampled_at=('', 0), **room):
        """``Q4=2``: two more of T4-4Q."""
        return {
            card.id: driver_capacity.DriverCapacity(
                existing=beside,
                sampled_at=sampled_at,
                available={
                    f'T4-{name[1:]}Q': count for name, count in room.items()
                },
            )
        }

    def report(self, told, cards=CARDS):
        return reports.report(self.db, base.scan(
            dataclasses.replace(each, driver_capacity=told.get(each.id))
            for each in cards))

    def test_no_more_than_the_driver_says(self):
        self.report(self.tell(CARDS[0], Q1=15, Q4=3))
        self.assertEqual({'passthrough': 2, '1Q': 31, '4Q': 7, '16Q': 1},
                         self.remaining())
        # A card with nothing on it is as large as its driver says.
        self.assertEqual({'CUSTOM_GPU_T4': (2, 0), '1Q': (31, 0),
                          '4Q': (7, 0), '16Q': (2, 1)},
                         self.offered_to_placement(self.report(
                             self.tell(CARDS[0], Q1=15, Q4=3))))

    def test_told_after_each_change(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        self.assertEqual(7, self.remaining()['4Q'])
        claims.activate(self.db, [mine], self.tell(CARDS[0], mine, Q4=1))
        self.assertEqual(5, self.remaining()['4Q'])
        # What was claimed since then is no news to it.
        other = self.ask('i2', Q4=1)
        self.assertEqual(4, self.remaining()['4Q'])
        claims.abort(self.db, base.uuids(other), touched=False, fault=None,
                     driver_capacities=self.tell(CARDS[0], mine, Q4=0))
        self.assertEqual(4, self.remaining()['4Q'])
        claims.release(self.db, [mine])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token)
        cleaning.finished(
            self.db, task.device_uuid, task.token, passed=True, evidence='',
            driver_capacities=self.tell(CARDS[0], Q1=14, Q4=3, Q16=0))
        self.assertEqual({'passthrough': 2, '1Q': 30, '4Q': 7, '16Q': 1},
                         self.remaining())

    def test_one_at_least(self):
        self.report(self.tell(CARDS[0], Q4=None))
        self.assertEqual({'passthrough': 2, '1Q': 16, '4Q': 8, '16Q': 1},
                         self.remaining())
        self.ask(Q4=2)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 6, '16Q': 1},
                         self.remaining())

    def test_what_was_said_beside_what_is_gone(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        claims.activate(self.db, [mine], self.tell(
            CARDS[0], mine, Q4=None))
        self.assertEqual(16, self.remaining()['1Q'])
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())
        # It may even arrive after that.
        other = self.ask('i2', Q4=1)
        self.end(other)
        again = self.ask('i3', Q4=1)
        claims.activate(self.db, base.uuids(again), self.tell(
            CARDS[0], f'{CARDS[0].id}/mdev7', Q4=0))
        self.assertEqual(7, self.remaining()['4Q'])

    def test_a_scan_that_could_not_ask(self):
        self.report(self.tell(CARDS[0], Q4=1))
        self.assertEqual(5, self.remaining()['4Q'])
        self.report({})
        self.assertEqual(5, self.remaining()['4Q'])

    def test_the_same_again_is_no_news(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        told = self.tell(CARDS[0], mine, Q4=1)
        first = claims.activate(self.db, [mine], told)
        self.assertEqual(first, claims.activate(self.db, [mine], told))
        with self.statements() as found:
            self.report(
                told,
                [
                    dataclasses.replace(CARDS[0], existing_vgpus=(mine,)),
                    CARDS[1],
                ],
            )
        self.assertFalse([each for each in found if each.startswith(
            'UPDATE') and 'hosts' not in each], found)

    def test_answers_arrive_in_any_order(self):
        [first], [second] = (
            base.uuids(self.ask(name, Q1=1)) for name in ('i1', 'i2'))
        claims.activate(self.db, [second], self.tell(
            CARDS[0], first, second, sampled_at=('a', 3), Q1=3))
        for _ in range(2):
            self.assertEqual(19, self.remaining()['1Q'])
            claims.activate(self.db, [first], self.tell(
                CARDS[0], first, sampled_at=('a', 2), Q1=9))
        alone = [
            dataclasses.replace(CARDS[0], existing_vgpus=(second,)),
            CARDS[1],
        ]
        self.report(
            self.tell(CARDS[0], second, sampled_at=('a', 1), Q1=9), alone
        )
        self.assertEqual(19, self.remaining()['1Q'])
        claims.release(self.db, [first])
        self.clean_all()
        self.report(
            self.tell(CARDS[0], second, sampled_at=('a', 4), Q1=9), alone
        )
        self.assertEqual(25, self.remaining()['1Q'])

    def test_told_late_of_what_is_gone_since(self):
        [first], [second] = (
            base.uuids(self.ask(name, Q4=1)) for name in ('i1', 'i2'))
        claims.activate(self.db, [first], self.tell(
            CARDS[0], first, sampled_at=('a', 1), Q4=1))
        claims.release(self.db, [first])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token)
        cleaning.finished(
            self.db,
            task.device_uuid,
            task.token,
            passed=True,
            evidence='',
            driver_capacities=self.tell(
                CARDS[0], second, sampled_at=('a', 3), Q4=0
            ),
        )
        self.assertEqual(4, self.remaining()['4Q'])
        claims.activate(self.db, [second], self.tell(
            CARDS[0], first, second, sampled_at=('a', 2), Q4=0))
        self.assertEqual(4, self.remaining()['4Q'])

    def test_told_late_of_a_place_that_is_another_ones(self):
        [first] = base.uuids(self.ask(Q16=1))
        claims.activate(self.db, [first], self.tell(
            CARDS[0], first, sampled_at=('a', 1)))
        claims.release(self.db, [first])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token)
        cleaning.finished(
            self.db,
            task.device_uuid,
            task.token,
            passed=True,
            evidence='',
            driver_capacities=self.tell(
                CARDS[0], sampled_at=('a', 3), Q1=12, Q4=3
            ),
        )
        mine = base.uuids(self.ask('i2', Q4=1))
        self.report(self.tell(CARDS[0], first, sampled_at=('a', 2)), [
            dataclasses.replace(CARDS[0], existing_vgpus=(first,)), CARDS[1]])
        self.assertEqual(6, self.remaining()['4Q'])
        claims.activate(self.db, mine, self.tell(
            CARDS[0], *mine, sampled_at=('a', 4), Q4=2))
        self.assertEqual(6, self.remaining()['4Q'])

    def test_told_by_another_start_of_the_host(self):
        self.report(self.tell(CARDS[0], sampled_at=('a', 9), Q4=1))
        self.report(self.tell(CARDS[0], sampled_at=('b', 1), Q4=3))
        self.assertEqual(7, self.remaining()['4Q'])

    def test_when_it_was_said_is_no_news(self):
        mine = base.uuids(self.ask(Q4=1))
        first = claims.activate(
            self.db,
            mine,
            self.tell(CARDS[0], *mine, sampled_at=('a', 1), Q4=1),
        )
        again = self.tell(CARDS[0], *mine, sampled_at=('a', 3), Q4=1)
        self.assertEqual(first, claims.activate(self.db, mine, again))
        with self.statements() as found:
            self.report(
                self.tell(CARDS[0], *mine, sampled_at=('a', 4), Q4=1),
                [dataclasses.replace(CARDS[0], existing_vgpus=mine), CARDS[1]])
        self.assertFalse([each for each in found if each.startswith(
            'UPDATE') and 'hosts' not in each], found)
        # It is known all the same, so that what was said before is late.
        claims.activate(self.db, mine, self.tell(
            CARDS[0], *mine, sampled_at=('a', 2), Q4=3))
        self.assertEqual(5, self.remaining()['4Q'])

    def test_learnt_how_many_it_takes(self):
        claim = self.ask(Q4=3)
        mine = base.uuids(claim)
        claims.activate(self.db, mine, self.tell(CARDS[0], *mine))
        self.assertEqual(4, self.remaining()['4Q'])
        self.end(claim)
        # On an empty card it makes more than none.
        told = self.tell(CARDS[0], Q1=None, Q4=None, Q16=None)
        self.report(told)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 7, '16Q': 2},
                         self.remaining())
        [kind] = [each for each in vgpu_type_admin.list_all(self.db)
                  if each.vgpu_type == 'T4-4Q']
        self.assertEqual((4, 7), (kind.max_vgpu_per_pgpu, kind.max_capacity))
        # Another driver makes more; beside others it proves nothing.
        [*mine] = base.uuids(self.ask('i2', Q4=3))
        claims.activate(self.db, mine, self.tell(CARDS[0], *mine, Q4=None))
        self.assertEqual(5, self.remaining()['4Q'])

    def test_not_learnt_beside_others(self):
        one = base.uuids(self.ask(Q4=1))
        foreign = str(uuid.uuid4())
        claims.activate(self.db, one, self.tell(CARDS[0], *one, foreign))
        self.report(self.tell(CARDS[0], Q4=None))
        self.assertEqual({'T4-4Q': 8}, {
            each.vgpu_type: each.max_capacity
            for each in vgpu_type_admin.list_all(self.db)
            if each.vgpu_type == 'T4-4Q'})

    def test_beside_mdevs_of_others(self):
        foreign = str(uuid.uuid4())
        self.report(
            self.tell(CARDS[0], foreign, Q4=2),
            [
                dataclasses.replace(CARDS[0], existing_vgpus=(foreign,)),
                CARDS[1],
            ],
        )
        self.assertEqual(4, self.remaining()['4Q'])

    def test_the_reason_has_a_name(self):
        self.report(self.tell(CARDS[0], Q1=None) | self.tell(CARDS[1]))
        self.assertIn('8 would fit by size, but the drivers of the '
                      'GPUs report no more',
                      self.denied('driver_has_no_room', Q4=1))
        self.ask(Q1=1)
        self.assertIn('4 would fit by size,',
                      self.denied('driver_has_no_room', Q4=1))
        self.denied('not_enough_available', Q4=9)

    def test_the_largest_is_in_the_way(self):
        self.report(self.tell(CARDS[0], Q1=16, Q4=4, Q16=1))
        self.ask(Q4=1)
        self.assertIn('vGPUs of type T4-4Q', self.denied(
            'type_conflict', Q16=2))


class Driver:
    """The driver of one card of 16 GB, of which it gives away fewer."""

    def __init__(self, memory):
        self.memory = memory
        self.made = {}

    def available(self, name):
        return (self.memory - sum(map(size_of, self.made.values()))) // (
            size_of(name))

    def make(self, uuid_, name):
        """Whether it did."""
        if not self.available(name):
            return False
        self.made[uuid_] = name
        return True

    def told(self):
        return driver_capacity.DriverCapacity(
            existing=tuple(sorted(self.made)),
            available={each.name: self.available(each.name) for each in TYPES})


def size_of(name):
    return int(name[3:-1])


class DriverMachine(RuleBasedStateMachine):
    """What drivers say is known after each change, in whatever order it
    arrives and however late; what is claimed after it they make."""

    def __init__(self):
        super().__init__()
        self.case = vgpu_base.MachineCase('run')
        self.case.mix_policy = 'any_mix'
        self.case.setUp()
        self.live = {}
        self.count = 0
        self.cleaned = set()
        # Calls that are on their way to the conductor.
        self.calls = []

    def teardown(self):
        self.case.doCleanups()

    @initialize(memories=st.tuples(*[st.sampled_from([3, 6, 16])] * 2))
    def start(self, memories):
        self.numbers = itertools.count(1)
        self.drivers = {card.id: Driver(memory) for card, memory in zip(
            CARDS, memories, strict=True)}
        self.scan(False)

    def told(self, *cards):
        at = ('start', next(self.numbers))
        return {
            card: dataclasses.replace(self.drivers[card].told(), sampled_at=at)
            for card in cards
        }

    def told_of(self, claim):
        return self.told(*{each.stable_id.partition('/mdev')[0]
                           for each in claim.assignments})

    def call(self, late, method, *args, **kwargs):
        self.calls.append(functools.partial(
            method, self.case.db, *args, **kwargs))
        if not late:
            self.calls.pop()()

    def ask(self, name, count):
        promised = self.case.remaining()[f'{name[1:]}Q']
        self.count += 1
        try:
            claim = self.case.ask(f'i{self.count}', **{name: count})
        except exception.ClaimDenied:
            assert promised < count, (promised, count)
            return None
        assert promised >= count, (promised, count)
        return claim

    def make(self, claim):
        """Whether the drivers made all of it; otherwise nothing is left."""
        made = []
        for each in claim.assignments:
            driver = self.drivers[each.stable_id.partition('/mdev')[0]]
            if not driver.make(each.uuid, each.vgpu_type):
                for driver, uuid_ in made:
                    del driver.made[uuid_]
                return False
            made.append((driver, each.uuid))
        return True

    names = st.sampled_from(['Q1', 'Q4', 'Q16'])

    @rule(name=names, count=st.integers(1, 5), late=st.booleans())
    def boot(self, name, count, late):
        known = not self.calls
        claim = self.ask(name, count)
        if claim is None:
            return
        made = self.make(claim)
        assert made or not known, claim
        uuids, told = base.uuids(claim), self.told_of(claim)
        if not made:
            self.call(late, claims.abort, uuids, touched=False, fault=None,
                      driver_capacities=told)
            return
        key = f'i{self.count}'

        def activate(*args):
            claims.activate(*args)
            self.live[key] = uuids
        self.call(late, activate, uuids, told)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), how=st.sampled_from(['late', 'now', 'swapped']))
    def delete(self, data, how):
        key = data.draw(st.sampled_from(sorted(self.live)))
        claims.release(self.case.db, self.live.pop(key))
        before = len(self.calls)
        for task in cleaning.tasks(self.case.db, 'h1'):
            if task.token in self.cleaned:
                continue
            self.cleaned.add(task.token)
            card = task.stable_id.partition('/mdev')[0]
            cleaning.started(self.case.db, task.device_uuid, task.token)
            self.drivers[card].made.pop(task.assignment_uuid)
            self.call(how != 'now', cleaning.finished, task.device_uuid,
                      task.token, passed=True, evidence='',
                      driver_capacities=self.told(card))
        if how == 'swapped':
            while self.calls[before:]:
                self.calls.pop()()

    @precondition(lambda self: self.calls)
    @rule(late=st.booleans())
    def scan(self, late):
        told = self.told(*self.drivers)
        self.call(late, reports.report, base.scan(
            dataclasses.replace(
                card, driver_capacity=told[card.id],
                existing_vgpus=tuple(sorted(self.drivers[card.id].made)))
            for card in CARDS))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def arrive(self, data):
        for each in data.draw(st.permutations(self.calls)):
            each()
        self.calls.clear()

    @invariant()
    def no_more_than_the_drivers_make(self):
        if self.calls:
            return
        for name, left in self.case.remaining().items():
            if name != 'passthrough':
                assert left <= sum(
                    driver.available(f'T4-{name}')
                    for driver in self.drivers.values()), name

    @invariant()
    def nothing_is_learnt_that_is_not_so(self):
        with self.case.db.reader() as session:
            for card in session.query(models.Device).filter_by(kind='pci'):
                memory = self.drivers[card.stable_id].memory
                told = device_db.driver_capacity(card)
                for name, most in told.observed_max.items():
                    assert most == memory // size_of(name), (name, told)


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_any_order(self):
        vgpu_base.run_machine(DriverMachine, examples=20, steps=20)
