# SPDX-License-Identifier: Apache-2.0
"""Tests that a group's types follow the lists of its GPUs' drivers."""

import dataclasses
from unittest import mock

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.domain import vgpu
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class SyncTest(vgpu_base.VGPUTestCase):

    def report(self, *types):
        hosts.store(self.db, base.scan([
            dataclasses.replace(gpu, vgpu_types=types)
            for gpu in self.functions]))

    def types(self):
        return {info.vgpu_type: (info.enabled, info.video_ram)
                for info in group.list_types(self.db)}

    def test_type_that_was_never_enabled_goes_with_its_driver(self):
        self.assertIn('T4-2Q', self.types())
        self.report(vgpu_base.TYPES[0])
        self.assertNotIn('T4-2Q', self.types())

    def test_type_that_placement_may_know_stays(self):
        self.enable('T4-4Q', enabled=False)
        self.report(vgpu_base.TYPES[0])
        self.assertEqual((False, 4096), self.types()['T4-4Q'])

    def test_new_type_is_disabled_and_has_its_properties(self):
        self.report(*vgpu_base.TYPES, vgpu.VGPUType(
            name='T4-2B', type_id='x', video_ram=2048, max_instances=8))
        self.assertEqual((False, 2048), self.types()['T4-2B'])

    def test_properties_follow_the_driver(self):
        self.report(dataclasses.replace(vgpu_base.TYPES[0], video_ram=1000))
        self.assertEqual((True, 1000), self.types()['T4-1Q'])

    def test_whole_gpu_has_the_memory_of_its_variant_or_model(self):
        self.assertEqual((True, 16384), self.types()['passthrough'])
        self.report(*vgpu_base.TYPES[:1])
        self.assertEqual((True, 16384), self.types()['passthrough'])
        self.report()
        self.assertEqual((True, 16384), self.types()['passthrough'])
        [known] = variant_admin.list_all(self.db)
        variant_admin.set_(self.db, dataclasses.replace(
            known, memory_mib=15360), caller=variant_sweep.PATIENT)
        self.assertEqual((True, 15360), self.types()['passthrough'])
        self.report(*vgpu_base.TYPES)
        self.assertEqual((True, 15360), self.types()['passthrough'])

    def test_unknown_model_has_the_memory_of_its_largest_type(self):
        with mock.patch.object(type_sync, 'video_ram_of_model',
                               return_value=None):
            for types, expected in ((vgpu_base.TYPES, 16384),
                                    (vgpu_base.TYPES[:1], 1024), ((), None)):
                self.report(*types)
                self.assertEqual(
                    (True, expected), self.types()['passthrough'])

    def test_plain_vf_has_its_part_of_the_memory(self):
        self.report(vgpu.type_of_plain_vfs(4))
        self.assertEqual((False, 4096), self.types()['vf4'])

    def test_claimed_type_that_no_gpu_has_any_more_keeps_its_inventory(self):
        claim = self.ask(Q1=1)
        hosts.store(self.db, base.scan(
            [dataclasses.replace(gpu, vgpu_types=vgpu_base.TYPES[2:3])
             for gpu in self.functions]))
        listed = {info.vgpu_type: info
                  for info in group.list_types(self.db)}
        self.assertNotIn('T4-2Q', listed)
        self.assertEqual((0, 0, 1), (
            listed['T4-1Q'].max_capacity,
            listed['T4-1Q'].remaining_capacity, listed['T4-1Q'].assigned))
        # Placement must not lose a class on which there is an allocation.
        self.assertEqual((1, 0), self.offered_to_placement(
            claims.activate(self.db, base.uuids(claim)))['1Q'])
