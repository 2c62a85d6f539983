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
import uuid

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.db import models
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.objects import admin
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

CARDS = vgpu_base.CARDS
TYPES = vgpu_base.TYPES
t4 = vgpu_base.t4
vf = vgpu_base.vf


class TypesTest(vgpu_base.VGPUTestCase):

    def test_found_and_offered_once_enabled(self):
        listed = {each.vgpu_type: each for each in vgpu_type_admin.list_all(
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
        reports.report(self.db, base.scan(CARDS, 'h2', other))
        types, hosts = self.enable('T4-2Q', 'h2')
        self.assertEqual((['h2'], ['h2']), (
            [each.host for each in types], hosts))
        self.assertEqual([False, True], [
            each.enabled for each in vgpu_type_admin.list_all(self.db)
            if each.vgpu_type == 'T4-2Q'])

    def test_hosts_to_come_offer_what_is_offered_everywhere(self):
        self.enable('passthrough', enabled=False)
        reports.report(self.db, base.scan(CARDS, 'h2', str(uuid.uuid4())))
        self.assertEqual(
            {'T4-16Q', 'T4-1Q', 'T4-4Q'},
            {each.vgpu_type for each in vgpu_type_admin.list_all(self.db, 'h2')
             if each.enabled})

    def test_the_scheduler_is_told_of_cards_below_no_switch(self):
        [host] = scheduler_feed.changes_since(self.db, 0).hosts
        self.assertEqual(((), (1, 2)), (
            host.groups[0].switches, host.groups[0].alone))
        self.ask(whole=1)
        [host] = scheduler_feed.changes_since(self.db, 0).hosts
        self.assertEqual((2,), host.groups[0].alone)

    def test_a_list_reads_no_devices(self):
        # There may be thousands of hosts with hundreds of VFs each.
        counts = []
        for number in range(2, 4):
            reports.report(self.db, base.scan(
                CARDS, f'h{number}', str(uuid.uuid4())))
            with self.statements() as found:
                self.assertEqual(
                    6 * number, len(vgpu_type_admin.list_all(self.db)))
            self.assertFalse([each for each in found if 'facts' in each])
            counts.append(len(found))
        self.assertEqual(1, len(set(counts)), counts)

    def test_unknown(self):
        exc = self.assertRaises(
            exception.NotFound, self.enable, 'T4-3Q')
        self.assertIn('T4-3Q of T4 (there are: T4-16Q', str(exc))
        self.assertRaises(exception.NotFound, self.enable, 'T4-1Q', 'h9')
        self.assertRaises(
            exception.NotFound, vgpu_type_admin.list_all, self.db, 'h9')
        self.assertRaises(
            exception.NotFound, vgpu_type_admin.list_all, self.db, None, 'T5')

    def test_two_types_of_one_resource_class(self):
        # T4 and 'T4-T4', '4Q' normalise to the same class.
        variant_admin.create(self.db, admin.VariantInfo(
            name='T4-T4', vendor='10de', device='9999'))
        reports.report(self.db, base.scan([*CARDS, t4(
            2, device='9999', vgpu_types=(vgpu_type.VGPUType(
                name='4Q', type_id='x', max_instances=1),))]))
        exc = self.assertRaises(
            exception.Conflict, vgpu_type_admin.set_enabled, self.db, 'T4-T4',
            '4Q', None, enabled=True)
        self.assertIn('type T4-4Q of T4 has the resource class', str(exc))

    def test_a_type_that_no_card_has_any_more(self):
        claim = self.ask(Q1=1)
        reports.report(self.db, base.scan(
            [dataclasses.replace(each, vgpu_types=TYPES[2:3])
             for each in CARDS]))
        listed = {each.vgpu_type: each
                  for each in vgpu_type_admin.list_all(self.db)}
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


class CapacityTest(vgpu_base.VGPUTestCase):

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
        self.assertIn('vGPUs of type T4-1Q, T4-4Q', self.denied(
            'type_conflict', Q16=1))
        self.denied('not_enough_available', whole=1)
        self.end(claim)
        self.assertEqual({'passthrough': 1, '1Q': 31, '4Q': 4, '16Q': 1},
                         self.remaining())

    def test_a_card_whose_types_cannot_be_read_is_not_offered_whole(self):
        # What is on it is not known: it may be somebody's.
        unknown = dataclasses.replace(
            CARDS[0], vgpu_types=None, vgpu_mechanism=None,
            unreadable=('vGPU types',))
        reports.report(self.db, base.scan([unknown, CARDS[1]]))
        self.assertEqual(1, self.remaining()['passthrough'])
        self.denied('not_enough_available', whole=2)
        [granted] = self.ask(whole=1).assignments
        self.assertEqual(CARDS[1].id, granted.stable_id)
        self.denied('not_enough_available', whole=1)
        # Once they can be read it is known to be free.
        reports.report(self.db, base.scan(CARDS))
        [granted] = self.ask('i2', whole=1).assignments
        self.assertEqual(CARDS[0].id, granted.stable_id)

    def test_an_unreadable_attribute_other_than_types_does_not_matter(self):
        reports.report(self.db, base.scan([dataclasses.replace(
            CARDS[0], unreadable=('numa_node',)), CARDS[1]]))
        self.assertEqual(2, self.remaining()['passthrough'])
        self.ask(whole=2)

    def test_a_whole_card_offers_no_vgpu(self):
        claim = self.ask(whole=1)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        # Bound to vfio-pci, a card shows no types; what it has is known.
        held = claim.assignments[0].stable_id
        reports.report(self.db, base.scan([dataclasses.replace(
            each, driver='vfio-pci', vgpu_types=(), vgpu_mechanism=None)
            if each.id == held else each for each in CARDS]))
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())

    def test_a_card_that_must_stay_the_hosts(self):
        reports.report(self.db, base.scan([
            t4(0, used_by='boot_vga'),
            t4(1, iommu_group=7, iommu_foreign_members=('0000:22:00.0',))]))
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
        [seat] = [each for each in device_admin.list_all(self.db)
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
        [first, _] = device_admin.list_all(self.db)
        device_admin.set_(self.db, first.uuid, enabled=False)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        reports.report(self.db, base.scan(CARDS[:1]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())

    def test_mdevs_of_others_stop_all(self):
        foreign = str(uuid.uuid4())
        reports.report(self.db, base.scan(
            [t4(0, existing_vgpus=(foreign,), used_by='mdev'), t4(1)]))
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())

    def test_our_own_mdevs_are_no_news(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        reports.report(self.db, base.scan([
            dataclasses.replace(
                each, existing_vgpus=(mine,), used_by='mdev', vgpu_types=tuple(
                    dataclasses.replace(kind, max_instances=None)
                    for kind in TYPES)) for each in CARDS]))
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 7, '16Q': 1},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())


class SeatTest(vgpu_base.VGPUTestCase):

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
                 for each in device_admin.list_all(self.db)}
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
        self.assertEqual(4, len(device_admin.list_all(self.db)))

    def test_buses_are_numbered_anew(self):
        claim = self.ask(Q4=1)
        moved = [dataclasses.replace(each, address=f'0000:{number:02x}:00.0')
                 for number, each in enumerate(CARDS, start=9)]
        reports.report(self.db, base.scan(moved))
        [held] = claims.of_host(self.db, 'h1')
        self.assertEqual('0000:09:00.0', held.address)
        self.assertEqual(claim.assignments[0].uuid, held.uuid)

    def test_a_seat_is_neither_enabled_nor_disabled(self):
        claim = self.ask(Q4=1)
        exc = self.assertRaises(
            exception.Conflict, device_admin.set_, self.db,
            claim.assignments[0].device_uuid, enabled=False)
        self.assertIn('the parent GPU 0000:00:00.0 of h1', str(exc))

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
        reports.report(self.db, base.scan(
            [dataclasses.replace(each, fault='it does not answer')
             for each in CARDS]))
        self.assertEqual('T4', claims.of_host(self.db, 'h1')[0].variant)
        self.end(claim)
        reports.report(self.db, base.scan(
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
        group_admin.set_(self.db, 'h1', 'T4', 'breadth_first')
        claim = self.ask(Q4=2)
        self.assertEqual(
            [f'{each.id}/mdev0' for each in CARDS],
            [each.stable_id for each in claim.assignments])


PF = t4(
    0,
    vgpu_mechanism=capability.VGPUMechanism.VF,
    sriov_totalvfs=16,
    sriov_numvfs=3,
)


class VFTest(vgpu_base.VGPUTestCase):

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
        reports.report(self.db, base.scan([
            PF, vf(PF, 0, existing_vgpus=('557',)), *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        reports.report(self.db, base.scan(self.cards))
        self.assertEqual(3, self.remaining()['1Q'])

    def test_what_the_card_could_be_is_remembered(self):
        claim = self.ask(Q4=1)
        reports.report(self.db, base.scan([
            dataclasses.replace(PF, vgpu_types=None),
            vf(PF, 0, existing_vgpus=('232',)), *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 2, '16Q': 0},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())

    def test_a_vf_that_knows_no_types_is_no_seat_for_one(self):
        # Its vendor's driver is not bound to it.
        reports.report(self.db, base.scan([
            PF, vf(PF, 0, vgpu_mechanism=None, driver='vfio-pci'),
            *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())
        claim = self.ask(Q1=2)
        self.assertEqual([f'{PF.id}/vf1', f'{PF.id}/vf2'],
                         [each.stable_id for each in claim.assignments])
        self.denied('not_enough_available', Q1=1)

    def test_vfs_of_a_card_that_know_no_types(self):
        pf = dataclasses.replace(
            PF, vgpu_types=(vgpu_type.of_plain_vfs(3),))
        reports.report(
            self.db,
            base.scan(
                [
                    pf,
                    *(
                        vf(PF, number, vgpu_mechanism=None)
                        for number in range(3)
                    ),
                ]
            ),
        )
        self.enable('vf3')
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0,
                          'vf3': 3}, self.remaining())

    def test_a_vf_that_is_nobodys_to_give(self):
        reports.report(self.db, base.scan([
            PF, vf(PF, 0, owner='Nova ([pci] device_spec)'),
            *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())

    def test_a_vf_of_somebody_else_that_has_a_type(self):
        # Nova gave VF 0 away, with a 16Q: nothing more fits on the card.
        foreign = vf(
            PF, 0, existing_vgpus=('234',), owner='Nova ([pci] device_spec)'
        )
        pf = dataclasses.replace(
            PF,
            vgpu_types=None,
            driver_capacity=driver_capacity.DriverCapacity(
                existing=(foreign.id,), available={'T4-1Q': 0}
            ),
        )
        reports.report(self.db, base.scan([pf, foreign, *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.denied('type_conflict', Q1=1)
        # It counts by the rule alone, too.
        reports.report(self.db, base.scan([PF, foreign, *self.cards[2:]]))
        self.assertEqual(0, self.remaining()['4Q'])
        reports.report(
            self.db,
            base.scan(
                [
                    PF,
                    dataclasses.replace(foreign, existing_vgpus=()),
                    *self.cards[2:],
                ]
            ),
        )
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())

    def test_a_vf_that_became_somebody_elses_before_it_was_clean(self):
        claim = self.ask(Q16=1)
        claims.release(self.db, base.uuids(claim))
        reports.report(self.db, base.scan([
            PF, vf(PF, 0, owner='Cyborg'), *self.cards[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.clean_all()
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())

    def test_vfs_of_a_card_that_has_no_variant_are_cards(self):
        # Some give a variant to the ids of the VFs alone.
        variant_admin.create(self.db, admin.VariantInfo(
            name='VF', vendor='10de', device='26b9'))
        reports.report(self.db, base.scan([
            dataclasses.replace(PF, device='1eb9'), *self.cards[1:]]))
        [listed] = vgpu_type_admin.list_all(self.db, 'h1')
        self.assertEqual(('passthrough', 3), (
            listed.vgpu_type, listed.remaining_capacity))

    def test_other_vfs_of_the_host_are_not_read(self):
        # There may be hundreds of them, and they are nobody's to give.
        reports.report(self.db, base.scan([
            PF, *(vf(PF, number, owner='Cyborg') for number in range(3)),
            vf(PF, 3, owner='Cyborg', existing_vgpus=('234',))]))
        with self.db.reader() as session:
            host, = session.query(models.Host)
            [group] = capacity.load(session, [host.id])[host.id]
        self.assertEqual(
            ([PF.id], [f'{PF.id}/vf3']),
            ([device.id for device in group.value.devices],
             [device.id for device in group.value.foreign_vgpus]))


class SameIDTest(vgpu_base.VGPUTestCase):
    """NVIDIA's VFs have the device id of their PF."""

    cards = (PF, *(vf(PF, index, device='1eb8') for index in range(3)))

    def test_vfs_of_a_card_that_nobody_can_have_are_no_cards(self):
        for facts in ({'owner': 'Cyborg'}, {'part_of': '0000:00:00.1'},
                      {'fault': 'it does not answer'}):
            reports.report(self.db, base.scan(
                [dataclasses.replace(PF, **facts), *self.cards[1:]]))
            self.assertEqual((), vgpu_type_admin.list_all(self.db, 'h1'))
            self.assertEqual({'unmanaged': 4}, self.states())
            self.denied('no_such_group', whole=1)
        shown = {each.stable_id: each.reason
                 for each in device_admin.list_all(self.db)}
        self.assertEqual('it does not answer', shown[PF.id])
        self.assertEqual('its GPU is unmanaged: it does not answer',
                         shown[self.cards[1].id])
        reports.report(self.db, base.scan(self.cards))
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())


class MixedTest(vgpu_base.VGPUTestCase):

    mix_policy = 'any_mix'

    def test_two_types_of_one_request_on_one_card(self):
        for again in range(2):
            claim = self.ask(Q1=2, Q4=1)
            self.assertEqual(
                [(f'{CARDS[0].id}/mdev{number}', name) for number, name in
                 enumerate(('T4-1Q', 'T4-1Q', 'T4-4Q'))],
                [(each.stable_id, each.vgpu_type)
                 for each in claim.assignments], again)
            self.end(claim)


class PlacedTest(vgpu_base.VGPUTestCase):

    mix_policy = 'mixed_size'

    def placements(self):
        """Where what is carved is, by the type."""
        with self.db.reader() as session:
            return sorted(
                (device.vgpu_type, device.placement_id) for device
                in session.query(models.Device).filter(
                    models.Device.vgpu_type.is_not(None)))

    def test_where_it_is_counted_with(self):
        self.enable('T4-8Q')
        small = self.ask(Q1=1)
        big = self.ask('i2', Q8=1)
        # What the host is told.
        self.assertEqual([0, 8], [each.placement_id for claim in (small, big)
                                  for each in claim.assignments])
        # At the beginning of a half, and in the other half.
        self.assertEqual([('T4-1Q', 0), ('T4-8Q', 8)], self.placements())
        # 16 GB have one whole half left on the other card, and on this one.
        self.assertEqual(2, self.remaining()['8Q'])
        self.end(small)
        self.assertEqual([('T4-8Q', 8)], self.placements())
        self.assertEqual(3, self.remaining()['8Q'])
