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
"""vGPUs in the conductor: types, capacity, claims and what becomes of them."""

import dataclasses
import itertools
import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import inventory as inventory_mod
from gpgpu_plugin.conductor import operators
from gpgpu_plugin.conductor import report
from gpgpu_plugin.conductor import variants
from gpgpu_plugin.conductor import vgpu_types
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import request as request_mod
from gpgpu_plugin.domain import vgpu_type
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import view
from tests.unit.conductor import base

TYPES = tuple(vgpu_type.VGPUType(
    name=f'T4-{size}Q', type_id=f'nvidia-{230 + number}',
    video_ram=size * 1024, max_instances=16 // size)
    for number, size in enumerate((1, 2, 4, 8, 16)))


def t4(number, **facts):
    """A T4 that is carved into mdevs."""
    return base.function(number, **{
        'device': '1eb8', 'driver': 'nvidia', 'vgpu_seats': pci.SEAT_MDEV,
        'vgpu_types': TYPES, **facts})


def vf(parent, index, **facts):
    """A VF of a card."""
    return pci.PCIFunction(**{
        'id': f'{parent.id}/vf{index}', 'pf': parent.id, 'vf_index': index,
        'address': f'{parent.address[:-4]}01.{index}', 'vendor': '10de',
        'device': '26b9', 'class_code': '030200',
        'vgpu_seats': pci.SEAT_VF, **facts})


CARDS = (t4(0), t4(1))


class VGPUTestCase(base.ConductorTestCase):

    cards = CARDS
    variant = False
    sharing = 'same_type'

    def setUp(self):
        super().setUp()
        variants.create(self.db, view.VariantView(
            name='T4', vendor='10de', device='1eb8', sharing=self.sharing))
        for name in ('T4-1Q', 'T4-4Q', 'T4-16Q'):
            self.enable(name)

    def enable(self, name, host=None, *, enabled=True):
        return vgpu_types.set_enabled(
            self.db, 'T4', name, host, enabled=enabled)

    def ask(self, instance='i1', **counts):
        """Claim; ``Q4=2`` are two of T4-4Q, ``whole=1`` is a whole card."""
        names = {name: naming.resource_class('T4', f'T4-{name[1:]}Q')
                 if name != 'whole' else 'CUSTOM_GPU_T4' for name in counts}
        demands = tuple(sorted(
            request_mod.Demand(resource_class=names[name], count=count)
            for name, count in counts.items()))
        return claims.claim(self.db, claim_obj.ClaimRequest(
            instance_uuid=instance, host='h1',
            request=request_mod.Request(demands=demands), allocated={
                naming.provider_uuid(base.NODE, 'T4'): {
                    each.resource_class: each.count for each in demands}}),
            lease=60)

    def denied(self, reason, **counts):
        exc = self.assertRaises(
            exception.ClaimDenied, self.ask, 'other', **counts)
        self.assertEqual(reason, exc.reason, str(exc))
        return str(exc)

    def end(self, claim, passed=True):
        claims.release(self.db, base.uuids(claim))
        self.clean_all(passed)

    def remaining(self):
        return {each.vgpu_type.removeprefix('T4-'): each.remaining_capacity
                for each in vgpu_types.list_all(self.db)
                if each.enabled}

    def offered_to_placement(self, inventory):
        """What Placement offers beside what is allocated there."""
        [group] = inventory.groups
        return {each.resource_class.removeprefix('CUSTOM_VGPU_T4_T4_'):
                (each.total, each.reserved) for each in group.types}


class TypesTest(VGPUTestCase):

    def test_found_and_offered_once_enabled(self):
        listed = {each.vgpu_type: each for each in vgpu_types.list_all(
            self.db, 'h1', 'T4')}
        self.assertEqual(
            ['T4-16Q', 'T4-1Q', 'T4-2Q', 'T4-4Q', 'T4-8Q', 'passthrough'],
            sorted(listed))
        self.assertEqual(
            (False, 2048, 8, 16, 0), dataclasses.astuple(listed['T4-2Q'])[4:6]
            + dataclasses.astuple(listed['T4-2Q'])[9:12])
        self.assertEqual('CUSTOM_VGPU_T4_T4_4Q',
                         listed['T4-4Q'].resource_class)
        self.assertEqual(
            {'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
            self.remaining())

    def test_a_type_on_one_host_alone(self):
        other = str(uuid.uuid4())
        report.report(self.db, base.scan(CARDS, 'h2', other))
        types, hosts = self.enable('T4-2Q', 'h2')
        self.assertEqual((['h2'], ['h2']), (
            [each.host for each in types], hosts))
        self.assertEqual([False, True], [
            each.enabled for each in vgpu_types.list_all(self.db)
            if each.vgpu_type == 'T4-2Q'])

    def test_hosts_to_come_offer_what_is_offered_everywhere(self):
        self.enable('passthrough', enabled=False)
        report.report(self.db, base.scan(CARDS, 'h2', str(uuid.uuid4())))
        self.assertEqual(
            {'T4-16Q', 'T4-1Q', 'T4-4Q'},
            {each.vgpu_type for each in vgpu_types.list_all(self.db, 'h2')
             if each.enabled})

    def test_a_list_reads_no_devices(self):
        # There may be thousands of hosts with hundreds of VFs each.
        counts = []
        for number in range(2, 4):
            report.report(self.db, base.scan(
                CARDS, f'h{number}', str(uuid.uuid4())))
            with self.statements() as found:
                self.assertEqual(
                    6 * number, len(vgpu_types.list_all(self.db)))
            self.assertFalse([each for each in found if 'facts' in each])
            counts.append(len(found))
        self.assertEqual(1, len(set(counts)), counts)

    def test_unknown(self):
        exc = self.assertRaises(
            exception.NotFound, self.enable, 'T4-3Q')
        self.assertIn('T4-3Q of T4 (there are: T4-16Q', str(exc))
        self.assertRaises(exception.NotFound, self.enable, 'T4-1Q', 'h9')
        self.assertRaises(
            exception.NotFound, vgpu_types.list_all, self.db, 'h9')
        self.assertRaises(
            exception.NotFound, vgpu_types.list_all, self.db, None, 'T5')

    def test_two_types_of_one_resource_class(self):
        # T4 and 'T4-T4', '4Q' normalise to the same class.
        variants.create(self.db, view.VariantView(
            name='T4-T4', vendor='10de', device='9999'))
        report.report(self.db, base.scan([*CARDS, t4(
            2, device='9999', vgpu_types=(vgpu_type.VGPUType(
                name='4Q', type_id='x', max_instances=1),))]))
        exc = self.assertRaises(
            exception.Conflict, vgpu_types.set_enabled, self.db, 'T4-T4',
            '4Q', None, enabled=True)
        self.assertIn('type T4-4Q of T4 has the resource class', str(exc))

    def test_a_type_that_no_card_has_any_more(self):
        claim = self.ask(Q1=1)
        report.report(self.db, base.scan(
            [dataclasses.replace(each, vgpu_types=TYPES[2:3])
             for each in CARDS]))
        listed = {each.vgpu_type: each
                  for each in vgpu_types.list_all(self.db)}
        self.assertNotIn('T4-2Q', listed)
        self.assertEqual((0, 0, 1), (
            listed['T4-1Q'].max_capacity,
            listed['T4-1Q'].remaining_capacity, listed['T4-1Q'].assigned))
        # Placement must not lose a class on which there is an allocation.
        self.assertEqual((1, 0), self.offered_to_placement(
            claims.activate(self.db, base.uuids(claim)))['1Q'])

    def test_disabled_is_reserved_and_stays(self):
        claim = self.ask(Q1=1)
        self.enable('T4-1Q', enabled=False)
        self.assertEqual((32, 31), self.offered_to_placement(
            claims.activate(self.db, base.uuids(claim)))['1Q'])
        self.assertIn('vgpu-type enable', self.denied(
            'type_disabled', Q1=1))
        self.denied('type_disabled', Q2=1)


class CapacityTest(VGPUTestCase):

    def test_one_type_a_card(self):
        claim = self.ask(Q4=1)
        self.assertEqual(
            {'passthrough': 1, '1Q': 16, '4Q': 7, '16Q': 1},
            self.remaining())
        # Of 32, 16 are left; of 2 whole cards one.
        self.assertEqual(
            {'CUSTOM_GPU_T4': (2, 1), '1Q': (32, 16), '4Q': (8, 0),
             '16Q': (2, 1)}, self.offered_to_placement(claim.inventory))
        self.ask('i2', Q1=1)
        self.assertEqual({'passthrough': 0, '1Q': 15, '4Q': 3, '16Q': 0},
                         self.remaining())
        self.assertIn('cards have T4-1Q, T4-4Q', self.denied(
            'type_conflict', Q16=1))
        self.denied('not_enough_available', whole=1)
        self.end(claim)
        self.assertEqual({'passthrough': 1, '1Q': 31, '4Q': 4, '16Q': 1},
                         self.remaining())

    def test_a_whole_card_offers_no_vgpu(self):
        claim = self.ask(whole=1)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        # Bound to vfio-pci, a card shows no types; what it has is known.
        held = claim.assignments[0].stable_id
        report.report(self.db, base.scan([dataclasses.replace(
            each, driver='vfio-pci', vgpu_types=(), vgpu_seats=None)
            if each.id == held else each for each in CARDS]))
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())

    def test_a_card_that_must_stay_the_hosts(self):
        report.report(self.db, base.scan([
            t4(0, used_by='boot_vga'),
            t4(1, iommu_group=7, foreign=('0000:22:00.0',))]))
        self.assertEqual({'passthrough': 0, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())
        self.denied('not_enough_available', whole=1)

    def test_what_is_not_clean_takes_room(self):
        claim = self.ask(Q4=1)
        claims.release(self.db, base.uuids(claim))
        self.assertEqual(7, self.remaining()['4Q'])
        self.assertEqual(16, self.remaining()['1Q'])
        self.clean_all(passed=False)
        self.assertEqual(7, self.remaining()['4Q'])
        [seat] = [each for each in operators.device_list(self.db)
                  if each.state == 'quarantined']
        self.assertEqual(('mdev', 'T4-4Q'), (seat.kind, seat.vgpu_type))
        cleaning.operator_release(self.db, seat.uuid)
        [task] = cleaning.tasks(self.db, 'h1')
        # The mdev that must go is that of the last holding.
        self.assertEqual((base.uuids(claim)[0], 'T4-4Q'),
                         (task.assignment_uuid, task.vgpu_type))
        self.assertNotEqual(task.token, task.assignment_uuid)
        self.clean_all()
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())

    def test_a_disabled_or_missing_card(self):
        [first, _] = operators.device_list(self.db)
        operators.device_set(self.db, first.uuid, enabled=False)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        report.report(self.db, base.scan(CARDS[:1]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())

    def test_mdevs_of_others_stop_all(self):
        foreign = str(uuid.uuid4())
        report.report(self.db, base.scan(
            [t4(0, carved=(foreign,), used_by='mdev'), t4(1)]))
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())

    def test_our_own_mdevs_are_no_news(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        report.report(self.db, base.scan([
            dataclasses.replace(
                each, carved=(mine,), used_by='mdev', vgpu_types=tuple(
                    dataclasses.replace(kind, max_instances=None)
                    for kind in TYPES)) for each in CARDS]))
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 7, '16Q': 1},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())


class SeatTest(VGPUTestCase):

    def test_seats_are_used_again_and_shown(self):
        claim = self.ask(Q4=2)
        self.assertEqual(
            [f'{CARDS[0].id}/mdev0', f'{CARDS[0].id}/mdev1'],
            [each.stable_id for each in claim.assignments])
        self.assertEqual(
            {('T4-4Q', 'T4', CARDS[0].address)},
            {(each.vgpu_type, each.variant, each.address)
             for each in claim.assignments})
        claims.activate(self.db, base.uuids(claim))
        shown = {each.stable_id: each
                 for each in operators.device_list(self.db)}
        card = shown[CARDS[0].id]
        self.assertEqual(('assigned', None), (card.shown_state,
                                              card.used_by))
        seat = shown[f'{CARDS[0].id}/mdev0']
        self.assertEqual((card.uuid, 'T4-4Q', 'i1'),
                         (seat.parent, seat.vgpu_type, seat.used_by))
        self.assertEqual({'assigned': 1, 'available': 1}, self.states())
        self.end(claim)
        again = self.ask(Q1=1)
        self.assertEqual(claim.assignments[0].device_uuid,
                         again.assignments[0].device_uuid)
        self.assertNotEqual(claim.assignments[0].uuid,
                            again.assignments[0].uuid)
        self.assertEqual(4, len(operators.device_list(self.db)))

    def test_buses_are_numbered_anew(self):
        claim = self.ask(Q4=1)
        moved = [dataclasses.replace(each, address=f'0000:{number:02x}:00.0')
                 for number, each in enumerate(CARDS, start=9)]
        report.report(self.db, base.scan(moved))
        [held] = claims.of_host(self.db, 'h1')
        self.assertEqual('0000:09:00.0', held.address)
        self.assertEqual(claim.assignments[0].uuid, held.uuid)

    def test_a_seat_is_neither_enabled_nor_disabled(self):
        claim = self.ask(Q4=1)
        exc = self.assertRaises(
            exception.Conflict, operators.device_set, self.db,
            claim.assignments[0].device_uuid, enabled=False)
        self.assertIn('disable the card', str(exc))

    def test_the_same_request_again(self):
        self.assertEqual(base.uuids(self.ask(Q4=2)),
                         base.uuids(self.ask(Q4=2)))

    def test_statements_do_not_grow_with_what_is_held(self):
        counts = []
        for number in range(3):
            self.ask(f'before{number}', Q1=3 * number + 1)
            with self.statements() as found:
                self.ask(f'counted{number}', Q1=1)
            counts.append(len(found))
        self.assertEqual(1, len(set(counts)), counts)
        # Of a whole card it is ten; a seat that is made is one more, and what
        # else is carved there changes its capacity as well.
        self.assertLessEqual(counts[0], 13, found)

    def test_untouched_seats_are_free_at_once(self):
        claims.abort(self.db, base.uuids(self.ask(Q4=1)), touched=False,
                     fault=None)
        self.assertEqual(32, self.remaining()['1Q'])

    def test_a_card_keeps_its_group_while_something_is_held(self):
        claim = self.ask(Q4=1)
        report.report(self.db, base.scan(
            [dataclasses.replace(each, fault='it does not answer')
             for each in CARDS]))
        self.assertEqual('T4', claims.of_host(self.db, 'h1')[0].variant)
        self.end(claim)
        report.report(self.db, base.scan(
            [dataclasses.replace(each, fault='it does not answer at all')
             for each in CARDS]))
        self.assertEqual({'unmanaged': 2}, self.states())

    def test_several_kinds_in_one_instance(self):
        claim = self.ask(whole=1, Q4=2)
        self.assertEqual(
            {'passthrough', 'T4-4Q'},
            {each.vgpu_type for each in claim.assignments})
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 2, '16Q': 0},
                         self.remaining())

    def test_not_together(self):
        self.ask(whole=1)
        self.assertIn('not all of them together', self.denied(
            'type_conflict', Q1=1, Q4=1))

    def test_breadth_first(self):
        operators.group_set(self.db, 'h1', 'T4', 'breadth_first')
        claim = self.ask(Q4=2)
        self.assertEqual(
            [f'{each.id}/mdev0' for each in CARDS],
            [each.stable_id for each in claim.assignments])


PF = t4(0, vgpu_seats=pci.SEAT_VF, sriov_totalvfs=16, sriov_numvfs=3)


class VFTest(VGPUTestCase):

    cards = (PF, *(vf(PF, index) for index in range(3)))

    def test_as_many_as_there_are_vfs(self):
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())
        claim = self.ask(Q1=2)
        self.assertEqual([f'{PF.id}/vf0', f'{PF.id}/vf1'],
                         [each.stable_id for each in claim.assignments])
        self.assertEqual({'passthrough': 0, '1Q': 1, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())

    def test_a_vf_that_somebody_else_gave_a_type(self):
        report.report(self.db, base.scan([
            PF, vf(PF, 0, carved=('557',)), *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        report.report(self.db, base.scan(self.cards))
        self.assertEqual(3, self.remaining()['1Q'])

    def test_what_the_card_could_be_is_remembered(self):
        claim = self.ask(Q4=1)
        report.report(self.db, base.scan([
            dataclasses.replace(PF, vgpu_types=None),
            vf(PF, 0, carved=('232',)), *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 2, '16Q': 0},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())

    def test_a_vf_that_is_nobodys_to_give(self):
        report.report(self.db, base.scan([
            PF, vf(PF, 0, owner='Nova ([pci] device_spec)'),
            *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())


class ToldTest(VGPUTestCase):
    """Drivers that make fewer than the sizes of the types say."""

    def tell(self, card, *beside, **room):
        """``Q4=2``: two more of T4-4Q."""
        return {card.id: vgpu_type.Creatable(beside=beside, room={
            f'T4-{name[1:]}Q': count for name, count in room.items()})}

    def report(self, told, cards=CARDS):
        return report.report(self.db, base.scan(
            dataclasses.replace(each, creatable=told.get(each.id))
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
                     told=self.tell(CARDS[0], mine, Q4=0))
        self.assertEqual(4, self.remaining()['4Q'])
        claims.release(self.db, [mine])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token)
        cleaning.finished(
            self.db, task.device_uuid, task.token, passed=True, evidence='',
            told=self.tell(CARDS[0], Q1=14, Q4=3, Q16=0))
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
            self.report(told, [
                dataclasses.replace(CARDS[0], carved=(mine,)), CARDS[1]])
        self.assertFalse([each for each in found if each.startswith(
            'UPDATE') and 'hosts' not in each], found)

    def test_answers_arrive_in_any_order(self):
        [first], [second] = (
            base.uuids(self.ask(name, Q1=1)) for name in ('i1', 'i2'))
        claims.activate(self.db, [second], self.tell(
            CARDS[0], first, second, Q1=3))
        for _ in range(2):
            self.assertEqual(19, self.remaining()['1Q'])
            claims.activate(self.db, [first], self.tell(
                CARDS[0], first, Q1=9))
        self.report(self.tell(CARDS[0], second, Q1=9), [
            dataclasses.replace(CARDS[0], carved=(second,)), CARDS[1]])
        self.assertEqual(19, self.remaining()['1Q'])
        claims.release(self.db, [first])
        self.clean_all()
        self.report(self.tell(CARDS[0], second, Q1=9), [
            dataclasses.replace(CARDS[0], carved=(second,)), CARDS[1]])
        self.assertEqual(25, self.remaining()['1Q'])

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
        [kind] = [each for each in vgpu_types.list_all(self.db)
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
            for each in vgpu_types.list_all(self.db)
            if each.vgpu_type == 'T4-4Q'})

    def test_beside_mdevs_of_others(self):
        foreign = str(uuid.uuid4())
        self.report(self.tell(CARDS[0], foreign, Q4=2), [
            dataclasses.replace(CARDS[0], carved=(foreign,)), CARDS[1]])
        self.assertEqual(4, self.remaining()['4Q'])

    def test_the_reason_has_a_name(self):
        self.report(self.tell(CARDS[0], Q1=None) | self.tell(CARDS[1]))
        self.assertIn('room for 8, but their drivers make no more',
                      self.denied('driver_has_no_room', Q4=1))
        self.ask(Q1=1)
        self.assertIn('room for 4,', self.denied('driver_has_no_room', Q4=1))
        self.denied('not_enough_available', Q4=9)

    def test_the_largest_is_in_the_way(self):
        self.report(self.tell(CARDS[0], Q1=16, Q4=4, Q16=1))
        self.ask(Q4=1)
        self.assertIn('cards have T4-4Q', self.denied(
            'type_conflict', Q16=2))


class PlacedTest(VGPUTestCase):

    sharing = 'mixed_placed'

    def placements(self):
        """Where what is carved is, by the type."""
        with self.db.reader() as session:
            return sorted(
                (device.vgpu_type, device.placement) for device
                in session.query(models.Device).filter(
                    models.Device.vgpu_type.is_not(None)))

    def test_where_it_is_counted_with(self):
        self.enable('T4-8Q')
        small = self.ask(Q1=1)
        self.ask('i2', Q8=1)
        # At the beginning of a half, and in the other half.
        self.assertEqual([('T4-1Q', 0), ('T4-8Q', 8)], self.placements())
        # 16 GB have one whole half left on the other card, and on this one.
        self.assertEqual(2, self.remaining()['8Q'])
        self.end(small)
        self.assertEqual([('T4-8Q', 8)], self.placements())
        self.assertEqual(3, self.remaining()['8Q'])


class ClaimMachine(RuleBasedStateMachine):
    """Any order of claims and releases of all types."""

    sharing = 'same_type'

    def __init__(self):
        super().__init__()
        self.case = _Case('run')
        self.case.sharing = self.sharing
        self.case.setUp()
        self.live = {}
        self.count = 0

    def teardown(self):
        self.case.doCleanups()

    @rule(name=st.sampled_from(['Q1', 'Q4', 'Q16', 'whole']),
          count=st.integers(1, 5))
    def claim(self, name, count):
        key = 'passthrough' if name == 'whole' else f'{name[1:]}Q'
        promised = self.case.remaining()[key]
        self.count += 1
        try:
            claim = self.case.ask(f'i{self.count}', **{name: count})
        except exception.ClaimDenied:
            assert promised < count, (promised, count)
        else:
            assert promised >= count, (promised, count)
            self.live[f'i{self.count}'] = claim

    @rule(data=st.data(), passed=st.booleans())
    def release(self, data, passed):
        if self.live:
            key = data.draw(st.sampled_from(sorted(self.live)))
            self.case.end(self.live.pop(key), passed)

    @invariant()
    def hardware_would_take_it(self):
        cards = {}
        for each in claims.of_host(self.case.db, 'h1'):
            card = each.stable_id.partition('/mdev')[0]
            cards.setdefault(card, []).append(each.vgpu_type)
        for held in cards.values():
            if 'passthrough' in held:
                assert len(held) == 1, held
                continue
            assert len(set(held)) == 1 or self.sharing != 'same_type', held
            sizes = [int(name[3:-1]) for name in held]
            assert sum(sizes) <= 16, held

    @invariant()
    def nothing_overlaps(self):
        if self.sharing != 'mixed_placed':
            return
        with self.case.db.reader() as session:
            spans = sorted(
                (device.parent_id, device.placement,
                 device.placement + int(device.vgpu_type[3:-1]))
                for device in session.query(models.Device).filter(
                    models.Device.vgpu_type.is_not(None)))
        for (card, _, end), (other, begin, _) in itertools.pairwise(spans):
            assert card != other or end <= begin, spans

    @invariant()
    def placement_is_told_the_same(self):
        with self.case.db.reader() as session:
            found = _inventory_of(session)
        remaining = self.case.remaining()
        held = claims.of_host(self.case.db, 'h1')
        for name, (total, reserved) in found.items():
            key = 'passthrough' if name == 'CUSTOM_GPU_T4' else name
            used = sum(each.vgpu_type.removeprefix('T4-') == key
                       for each in held)
            assert total - reserved - used == remaining[key], name


class MixedMachine(ClaimMachine):
    """Sizes beside each other."""

    sharing = 'mixed'


class PlacedMachine(ClaimMachine):
    """Sizes at the places of NVIDIA's mixed-size mode."""

    sharing = 'mixed_placed'


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
        return vgpu_type.Creatable(
            beside=tuple(sorted(self.made)),
            room={each.name: self.available(each.name) for each in TYPES})


def size_of(name):
    return int(name[3:-1])


class DriverMachine(RuleBasedStateMachine):
    """What drivers say is known after each change, in whatever order it
    arrives; what is claimed after it they make."""

    def __init__(self):
        super().__init__()
        self.case = _Case('run')
        self.case.sharing = 'mixed'
        self.case.setUp()
        self.live = {}
        self.count = 0

    def teardown(self):
        self.case.doCleanups()

    @initialize(memories=st.tuples(*[st.integers(0, 16)] * 2))
    def start(self, memories):
        self.drivers = {card.id: Driver(memory) for card, memory in zip(
            CARDS, memories, strict=True)}
        report.report(self.case.db, base.scan(
            dataclasses.replace(card, creatable=self.drivers[card.id].told())
            for card in CARDS))

    def told(self, claim):
        cards = {each.stable_id.partition('/mdev')[0]
                 for each in claim.assignments}
        return {card: self.drivers[card].told() for card in cards}

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

    @rule(name=names, count=st.integers(1, 5))
    def boot(self, name, count):
        claim = self.ask(name, count)
        if claim is not None:
            assert self.make(claim), claim
            claims.activate(self.case.db, base.uuids(claim),
                            self.told(claim))
            self.live[self.count] = claim

    @rule(first=names, second=names, swapped=st.booleans())
    def boot_two_at_once(self, first, second, swapped):
        answers = []
        for claim in [self.ask(name, 1) for name in (first, second)]:
            if claim is None:
                continue
            if self.make(claim):
                answers.append((claims.activate, claim, self.told(claim), {}))
                self.live[f'{self.count} {len(answers)}'] = claim
            else:
                answers.append((claims.abort, claim, self.told(claim),
                                {'touched': False, 'fault': None}))
        for method, claim, told, how in answers[::-1 if swapped else 1]:
            method(self.case.db, base.uuids(claim), told=told, **how)

    @rule(data=st.data())
    def delete(self, data):
        if self.live:
            key = data.draw(st.sampled_from(sorted(self.live, key=str)))
            claim = self.live.pop(key)
            claims.release(self.case.db, base.uuids(claim))
            for task in cleaning.tasks(self.case.db, 'h1'):
                card = task.stable_id.partition('/mdev')[0]
                cleaning.started(self.case.db, task.device_uuid, task.token)
                self.drivers[card].made.pop(task.assignment_uuid)
                cleaning.finished(
                    self.case.db, task.device_uuid, task.token, passed=True,
                    evidence='', told={card: self.drivers[card].told()})

    @invariant()
    def no_more_than_the_drivers_make(self):
        for name, left in self.case.remaining().items():
            if name != 'passthrough':
                assert left <= sum(
                    driver.available(f'T4-{name}')
                    for driver in self.drivers.values()), name


def _inventory_of(session):
    [group] = inventory_mod.of_host(session, host_db.get(session, 'h1')).groups
    return {each.resource_class.removeprefix('CUSTOM_VGPU_T4_T4_'):
            (each.total, each.reserved) for each in group.types}


class _Case(VGPUTestCase):
    """A conductor for the machines."""

    def run_it(self):
        """Nothing by itself."""

    run = run_it


_SETTINGS = settings(max_examples=15, stateful_step_count=12, deadline=None,
                     derandomize=True)


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_same_type(self):
        self._run(ClaimMachine)

    def test_mixed(self):
        self._run(MixedMachine)

    def test_mixed_placed(self):
        self._run(PlacedMachine)

    def test_what_drivers_say(self):
        self._run(DriverMachine)

    def _run(self, machine):
        case = machine.TestCase()
        case.settings = _SETTINGS
        case.runTest()
