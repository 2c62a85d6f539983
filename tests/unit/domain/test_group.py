# SPDX-License-Identifier: Apache-2.0
"""Tests of a group's capacity, without a database."""

import dataclasses

from oslotest import base

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from tests.fixtures import group as make

WHOLE = naming.PASSTHROUGH


class AvailableTest(base.BaseTestCase):

    def available(self, found):
        return {name.removeprefix('T4-'): found.available(offered)
                for name, offered in found.by_name.items()}

    def test_free_gpu_is_whole_or_has_vgpus(self):
        self.assertEqual({WHOLE: 1, '4Q': 4, '16Q': 1}, self.available(
            make.t4s(make.gpu(mechanism='mdev'))))

    def test_gpu_without_driver_is_only_whole(self):
        self.assertEqual({WHOLE: 1, '4Q': 0, '16Q': 0},
                         self.available(make.t4s(make.gpu())))

    def test_gpu_that_cannot_be_claimed_offers_nothing(self):
        for fields in ({'holds': frozenset({'disabled'})}, {'present': False},
                       {'state': device_rules.DeviceState.DIRTY}):
            found = make.t4s(make.gpu(mechanism='mdev', **fields))
            self.assertEqual(
                {WHOLE: 0, '4Q': 0, '16Q': 0}, self.available(found), fields)

    def test_draining_host_offers_nothing_and_has_its_states(self):
        for gpu, vf in ((make.gpu(mechanism='mdev'), None),
                        (make.gpu(mechanism='vf'), 0)):
            devices = [gpu] if vf is None else [gpu, make.vf(gpu, vf)]
            offered = make.t4s(*devices)
            found = dataclasses.replace(offered, draining=True)
            self.assertNotEqual({0}, set(self.available(offered).values()))
            self.assertEqual({0}, set(self.available(found).values()))
            self.assertEqual(
                offered.shown_states(), found.shown_states())
            self.assertEqual(
                [offered.max_instances(one) for one in offered.types],
                [found.max_instances(one) for one in found.types])

    def test_gpu_whose_vgpu_types_are_unreadable_is_not_offered_whole(self):
        found = make.t4s(make.gpu(
            function={'unreadable': ('vGPU types',)}))
        self.assertEqual(0, self.available(found)[WHOLE])

    def test_gpu_with_vfs_or_foreign_vgpus_is_not_offered_whole(self):
        for gpu in (make.gpu(function={'sriov_numvfs': 1}),
                    make.gpu(mechanism='mdev', existing=('x',)),
                    make.gpu(function={'used_by': 'boot_vga'})):
            self.assertEqual(0, self.available(make.t4s(gpu))[WHOLE], gpu)

    def test_gpu_whose_vfs_are_gone_and_clean_is_offered_whole(self):
        gpu = make.gpu()
        vf = make.vf(gpu, 0)
        for present, state, whole in (
                (True, 'available', 0), (False, 'available', 1),
                (False, 'dirty', 0), (False, 'cleaning', 0),
                (False, 'assigned', 0)):
            found = make.t4s(gpu, dataclasses.replace(
                vf, present=present, state=device_rules.DeviceState(state)))
            self.assertEqual(
                whole, self.available(found)[WHOLE], (present, state))

    def test_unsupported_gpu_is_offered_for_vgpus_alone(self):
        gpu = make.gpu(mechanism='mdev', function={'device': '2901'})
        self.assertEqual({WHOLE: 0, '4Q': 4, '16Q': 1},
                         self.available(make.t4s(gpu)))
        accepted = dataclasses.replace(make.T4, unsupported_ok=True)
        self.assertEqual({WHOLE: 1, '4Q': 4, '16Q': 1},
                         self.available(make.t4s(gpu, variant=accepted)))

    def test_capacity_of_an_unchanged_gpu_is_computed_once(self):
        gpu = make.gpu(mechanism='mdev')
        [first], [second] = (make.t4s(gpu).gpu_capacities for _ in range(2))
        self.assertIs(first, second)
        mixed = dataclasses.replace(make.T4, mix_policy='mixed_size')
        self.assertEqual('mixed_size', make.t4s(
            gpu, variant=mixed).gpu_capacities[0].mix_policy)
        # With a row of an mdev it depends on more than the GPU.
        [third] = make.t4s(gpu, make.mdev_row(
            gpu, 0, vgpu_type='T4-4Q',
            state=device_rules.DeviceState.ASSIGNED)).gpu_capacities
        self.assertEqual(1, len(third.vgpus))

    def test_vgpu_leaves_its_gpu_to_vgpus_of_its_type(self):
        gpu = make.gpu(mechanism='mdev')
        row = make.mdev_row(gpu, 0, vgpu_type='T4-4Q',
                            state=device_rules.DeviceState.ASSIGNED)
        self.assertEqual({WHOLE: 0, '4Q': 3, '16Q': 0},
                         self.available(make.t4s(gpu, row)))

    def test_free_mdev_row_uses_nothing(self):
        gpu = make.gpu(mechanism='mdev')
        found = make.t4s(gpu, make.mdev_row(gpu, 0))
        self.assertEqual({WHOLE: 1, '4Q': 4, '16Q': 1},
                         self.available(found))

    def test_disabled_type_is_not_available_but_fits(self):
        found = make.t4s(make.gpu(mechanism='mdev'))
        offered = dataclasses.replace(
            found.by_name['T4-4Q'], enabled=False)
        self.assertEqual(0, found.available(offered))
        self.assertEqual([4], found.max_instances(offered))

    def test_driver_report_limits_what_fits(self):
        gpu = make.gpu(
            mechanism='mdev', driver=vgpu.DriverCapacity(
                available={'T4-4Q': 2, 'T4-16Q': 0}))
        self.assertEqual({WHOLE: 1, '4Q': 2, '16Q': 0},
                         self.available(make.t4s(gpu)))

    def test_free_vfs_limit_what_fits_and_foreign_ones_use_the_gpu(self):
        gpu = make.gpu(mechanism='vf', function={'sriov_numvfs': 3})
        vfs = [make.vf(gpu, index) for index in range(3)]
        self.assertEqual({WHOLE: 0, '4Q': 3, '16Q': 1},
                         self.available(make.t4s(gpu, *vfs)))
        foreign = dataclasses.replace(
            vfs[2], is_managed=False, vgpu_type='T4-4Q')
        self.assertEqual(
            {WHOLE: 0, '4Q': 2, '16Q': 0}, self.available(make.t4s(
                gpu, *vfs[:2], foreign_vgpus=(foreign,))))


class DevicesTest(base.BaseTestCase):

    def test_vf_whose_pf_is_not_in_the_group_is_a_gpu(self):
        gpu = make.gpu()
        lonely = dataclasses.replace(make.vf(gpu, 0), parent_id=None)
        found = make.t4s(gpu, make.vf(gpu, 1), lonely)
        self.assertEqual((gpu, lonely), found.gpus)
        self.assertEqual([f'{gpu.id}/vf1'], [
            child.id for child in found.children[gpu.id]])

    def test_free_vfs_are_in_the_order_of_their_numbers(self):
        gpu = make.gpu(mechanism='vf')
        found = make.t4s(
            gpu, make.vf(gpu, 10), make.vf(gpu, 2),
            make.vf(gpu, 1, vgpu_type='T4-4Q'),
            make.vf(gpu, 0, holds=frozenset({'disabled'})),
            make.vf(gpu, 3, vgpus=None))
        self.assertEqual([f'{gpu.id}/vf2', f'{gpu.id}/vf10'], [
            vf.id for vf in found.free_vfs(gpu)])

    def test_free_mdev_rows_are_those_that_are_available(self):
        gpu = make.gpu(mechanism='mdev')
        found = make.t4s(gpu, make.mdev_row(gpu, 1), make.mdev_row(
            gpu, 0, state=device_rules.DeviceState.CLEANING))
        self.assertEqual([f'{gpu.id}/mdev1'], [
            row.id for row in found.free_mdev_rows(gpu)])

    def test_shown_states_count_gpus_by_their_vgpus(self):
        first, second = make.gpu(0), make.gpu(1)
        found = make.t4s(first, second, make.mdev_row(
            first, 0, state=device_rules.DeviceState.ASSIGNED))
        self.assertEqual({'assigned': 1, 'available': 1},
                         found.shown_states())

    def test_found_types_are_those_of_all_gpus(self):
        found = make.t4s(make.gpu(0), make.gpu(1, mechanism='mdev'))
        self.assertEqual({'T4-4Q', 'T4-16Q'}, found.found_types().keys())


class DesiredTest(base.BaseTestCase):

    def desired(self, *assignments):
        found = make.t4s(
            make.gpu(0, state=device_rules.DeviceState.ASSIGNED),
            make.gpu(1), assignments=assignments)
        desired = found.desired(group.OfferedType(vgpu_type=WHOLE))
        return desired.total, desired.reserved

    def test_assignment_with_an_allocation_is_not_reserved(self):
        self.assertEqual((2, 0), self.desired(make.assigned('i1')))

    def test_assignment_without_an_allocation_is_reserved(self):
        self.assertEqual((2, 1), self.desired(
            make.assigned('i1', allocated=False)))

    def test_assigned_counts_one_type(self):
        found = make.t4s(make.gpu(), assignments=(
            make.assigned('i1'), make.assigned('i2', 'T4-4Q')))
        self.assertEqual(1, found.assigned(found.by_name['T4-4Q']))

    def test_each_type_has_its_resource_class(self):
        found = make.t4s()
        self.assertEqual('CUSTOM_GPU_T4', found.resource_class(WHOLE))
        self.assertEqual('CUSTOM_VGPU_T4_T4_4Q',
                         found.resource_class('T4-4Q'))
