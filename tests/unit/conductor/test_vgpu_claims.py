# SPDX-License-Identifier: Apache-2.0
"""Tests of claims of vGPUs: rows, GPU and placement id."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import tables
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

GPUS = vgpu_base.GPUS


class MdevClaimTest(vgpu_base.VGPUTestCase):

    def test_mdev_row_is_shown_with_its_gpu_and_used_again(self):
        claim = self.ask(Q4=2)
        self.assertEqual(
            [f'{GPUS[0].id}/mdev0', f'{GPUS[0].id}/mdev1'],
            [assignment.stable_id for assignment in claim.assignments])
        self.assertEqual(
            {('T4-4Q', 'T4', GPUS[0].address)},
            {(assignment.vgpu_type, assignment.variant, assignment.address)
             for assignment in claim.assignments})
        claims.activate(self.db, base.uuids(claim))
        shown = {device.stable_id: device
                 for device in device_admin.list_all(self.db)}
        gpu = shown[GPUS[0].id]
        self.assertEqual(('assigned', None), (gpu.shown_state, gpu.used_by))
        row = shown[f'{GPUS[0].id}/mdev0']
        self.assertEqual((gpu.uuid, 'T4-4Q', 'i1'),
                         (row.parent, row.vgpu_type, row.used_by))
        self.assertEqual({'assigned': 1, 'available': 1}, self.states())
        self.end(claim)
        again = self.ask(Q1=1)
        self.assertEqual(claim.assignments[0].device_uuid,
                         again.assignments[0].device_uuid)
        self.assertNotEqual(claim.assignments[0].uuid,
                            again.assignments[0].uuid)
        self.assertEqual(4, len(device_admin.list_all(self.db)))

    def test_assignment_has_the_new_address_of_its_gpu(self):
        claim = self.ask(Q4=1)
        moved = [dataclasses.replace(gpu, address=f'0000:{number:02x}:00.0')
                 for number, gpu in enumerate(GPUS, start=9)]
        hosts.store(self.db, base.scan(moved))
        [assigned] = claims.of_host(self.db, 'h1')
        self.assertEqual('0000:09:00.0', assigned.address)
        self.assertEqual(claim.assignments[0].uuid, assigned.uuid)

    def test_same_request_again_gives_the_same_rows(self):
        self.assertEqual(base.uuids(self.ask(Q4=2)),
                         base.uuids(self.ask(Q4=2)))

    def test_statements_do_not_grow_with_what_is_assigned(self):
        counts = []
        for number in range(3):
            self.ask(f'before{number}', Q1=3 * number + 1)
            with self.statements() as found:
                self.ask(f'counted{number}', Q1=1)
            counts.append(len(found))
        self.assertEqual(1, len(set(counts)), counts)
        # A whole GPU costs ten statements; an mdev row that is made costs one
        # more, and so do the other vGPUs of its GPU.
        self.assertLessEqual(counts[0], 13, found)

    def test_untouched_vgpus_are_available_at_once(self):
        releases.abort(self.db, base.uuids(self.ask(Q4=1)), touched=False,
                     fault=None)
        self.assertEqual(32, self.remaining()['1Q'])

    def test_gpu_keeps_its_group_while_a_vgpu_is_assigned(self):
        claim = self.ask(Q4=1)
        hosts.store(self.db, base.scan(
            [dataclasses.replace(gpu, fault='it does not answer')
             for gpu in GPUS]))
        self.assertEqual('T4', claims.of_host(self.db, 'h1')[0].variant)
        self.end(claim)
        hosts.store(self.db, base.scan(
            [dataclasses.replace(gpu, fault='it does not answer at all')
             for gpu in GPUS]))
        self.assertEqual({'unmanaged': 2}, self.states())

    def test_instance_gets_a_whole_gpu_and_vgpus_together(self):
        claim = self.ask(whole=1, Q4=2)
        self.assertEqual(
            {'passthrough', 'T4-4Q'},
            {assignment.vgpu_type for assignment in claim.assignments})
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 2, '16Q': 0},
                         self.remaining())

    def test_types_that_do_not_fit_together_are_denied(self):
        self.ask(whole=1)
        self.assertIn('not all of them together', self.denied(
            'type_conflict', Q1=1, Q4=1))

    def test_breadth_first_takes_vgpus_of_several_gpus(self):
        group_admin.set_(self.db, 'h1', 'T4', 'breadth_first')
        claim = self.ask(Q4=2)
        self.assertEqual(
            [f'{gpu.id}/mdev0' for gpu in GPUS],
            [assignment.stable_id for assignment in claim.assignments])


class AnyMixTest(vgpu_base.VGPUTestCase):

    mix_policy = 'any_mix'

    def test_two_types_of_one_request_share_a_gpu(self):
        for again in range(2):
            claim = self.ask(Q1=2, Q4=1)
            self.assertEqual(
                [(f'{GPUS[0].id}/mdev{number}', name) for number, name in
                 enumerate(('T4-1Q', 'T4-1Q', 'T4-4Q'))],
                [(assignment.stable_id, assignment.vgpu_type)
                 for assignment in claim.assignments], again)
            self.end(claim)

    def test_policy_that_gets_stricter_leaves_vgpus_where_they_are(self):
        claim = self.ask(Q1=1, Q4=1)
        before = claims.of_host(self.db, 'h1')
        variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, 'T4'), mix_policy='same_type'))
        self.assertEqual(before, claims.of_host(self.db, 'h1'))
        # What the other GPU has.
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        self.ask('i2', Q1=1)
        self.assertEqual({'passthrough': 0, '1Q': 15, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 1, '1Q': 31, '4Q': 4, '16Q': 1},
                         self.remaining())


class MixedSizeTest(vgpu_base.VGPUTestCase):

    mix_policy = 'mixed_size'

    def placements(self):
        """Return the placement ids of the vGPUs by type."""
        with self.db.reader() as session:
            return sorted(
                (device.vgpu_type, device.placement_id) for device
                in session.execute(sa.select(tables.DEVICES).where(
                    tables.DEVICES.c.vgpu_type.is_not(None))))

    def test_placement_ids_are_stored_and_counted(self):
        self.enable('T4-8Q')
        small = self.ask(Q1=1)
        big = self.ask('i2', Q8=1)
        # What the host is told.
        self.assertEqual([0, 8], [
            assignment.placement_id for claim in (small, big)
            for assignment in claim.assignments])
        # At the beginning of a half, and in the other half.
        self.assertEqual([('T4-1Q', 0), ('T4-8Q', 8)], self.placements())
        # 16 GB have one whole half left on the other GPU, and on this one.
        self.assertEqual(2, self.remaining()['8Q'])
        self.end(small)
        self.assertEqual([('T4-8Q', 8)], self.placements())
        self.assertEqual(3, self.remaining()['8Q'])
