# SPDX-License-Identifier: Apache-2.0
"""Tests of which device a unit of a claim gets."""

from oslotest import base

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import offer
from tests.fixtures import group as make


class OfUnitTest(base.BaseTestCase):

    def of_unit(self, *devices, vgpu_type='T4-4Q', taken=()):
        return group.device_of_unit(make.t4s(*devices), offer.Selection(
            gpu_id=devices[0].id, vgpu_type=vgpu_type, placement_id=None),
            taken)

    def test_whole_gpu_is_its_own_device(self):
        gpu = make.gpu()
        self.assertEqual(gpu, self.of_unit(
            gpu, vgpu_type=naming.PASSTHROUGH))

    def test_vf_that_is_free_and_not_taken_is_given(self):
        gpu = make.gpu(mechanism='vf')
        vfs = [make.vf(gpu, index) for index in range(2)]
        self.assertEqual(vfs[0], self.of_unit(gpu, *vfs))
        self.assertEqual(vfs[1], self.of_unit(gpu, *vfs, taken={vfs[0].id}))

    def test_free_mdev_row_comes_before_a_new_one(self):
        gpu = make.gpu(mechanism='mdev')
        row = make.mdev_row(gpu, 0)
        self.assertEqual(row, self.of_unit(gpu, row))
        new = self.of_unit(gpu, row, taken={row.id})
        self.assertEqual(
            ('/gpu0/mdev1', gpu.id, device_rules.DeviceKind.MDEV),
            (new.id, new.parent_id, new.kind))

    def test_new_row_has_the_lowest_free_number(self):
        self.assertEqual('/gpu0/mdev1', group.free_mdev_id(
            '/gpu0', {'/gpu0/mdev0', '/gpu0/mdev2'}))
