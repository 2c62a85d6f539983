# SPDX-License-Identifier: Apache-2.0
"""Tests of the capacity of types on all hosts together."""

from oslotest import base

from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import inventory


def info(host, vgpu_type, *, enabled, capacity=(8, 5, 3)):
    max_capacity, remaining, assigned = capacity
    return admin.VGPUTypeInfo(
        host=host, variant='T4', vgpu_type=vgpu_type, resource_class='C',
        enabled=enabled, video_ram=None, max_heads=None,
        max_resolution_x=None, max_resolution_y=None, max_vgpu_per_pgpu=4,
        max_capacity=max_capacity, remaining_capacity=remaining,
        assigned=assigned)


class SummedTest(base.BaseTestCase):

    def test_types_of_hosts_are_added_up(self):
        self.assertEqual([
            inventory.CloudCapacity(
                variant='T4', vgpu_type='T4-4Q', hosts=1, max_capacity=12,
                remaining_capacity=5, assigned=4),
            inventory.CloudCapacity(
                variant='T4', vgpu_type='passthrough', hosts=0,
                max_capacity=8, remaining_capacity=5, assigned=3)],
            inventory.summed_capacity([
                info('h1', 'T4-4Q', enabled=True),
                info('h1', 'passthrough', enabled=False),
                info('h2', 'T4-4Q', enabled=False, capacity=(4, 0, 1))]))

    def test_no_type_is_no_row(self):
        self.assertEqual([], inventory.summed_capacity([]))
