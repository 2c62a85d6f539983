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
"""Tests of the group of each device: plan, then apply."""

import dataclasses

from oslotest import base

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import variant
from gpgpu_plugin.objects import admin
from tests.fixtures import group as make
from tests.fixtures import hosts
from tests.unit.conductor import base as conductor_base

VF = variant.check(variant.Variant(name='VF', vendor='10de', device='26b9'))


class PlanTest(base.BaseTestCase):

    def plan(self, *devices, variants=(make.T4,), current=None):
        places = variant_matching.plan(variants, devices, current or {})
        self.assertEqual({device.id for device in devices}, places.keys())
        return [places[device.id] for device in devices]

    def variants_of(self, *devices, **kwargs):
        return [place.variant for place in self.plan(*devices, **kwargs)]

    def test_gpu_is_in_the_group_of_its_variant(self):
        self.assertEqual([variant_matching.Place(variant='T4')],
                         self.plan(make.gpu()))

    def test_gpu_without_variant_says_its_ids(self):
        [place] = self.plan(make.gpu(), variants=[VF])
        self.assertIsNone(place.variant)
        self.assertIn('no variant for 10de:1eb8', place.reason)

    def test_two_variants_that_match_equally_well_are_the_reason(self):
        [place] = self.plan(make.gpu(), variants=[
            make.T4, dataclasses.replace(make.T4, name='other')])
        self.assertIn('equally well', place.reason)

    def test_gpu_that_no_guest_can_have_is_in_no_group(self):
        [place] = self.plan(make.gpu(function={'fault': 'dead'}))
        self.assertEqual(variant_matching.Place(reason='dead'), place)

    def test_vfs_and_mdev_rows_are_in_the_group_of_their_gpu(self):
        gpu = make.gpu(mechanism='vf')
        self.assertEqual(
            ['T4', 'T4', 'T4'], self.variants_of(
                make.mdev_row(gpu, 0), make.vf(gpu, 0), gpu,
                variants=[make.T4, VF]))

    def test_vf_of_a_gpu_without_variant_has_its_own(self):
        gpu = make.gpu(mechanism='vf')
        self.assertEqual([None, 'VF'], self.variants_of(
            gpu, make.vf(gpu, 0), variants=[VF]))

    def test_vf_of_a_gpu_that_no_guest_can_have_is_in_no_group(self):
        gpu = make.gpu(mechanism='vf', function={'owner': 'Cyborg'})
        _, place = self.plan(gpu, make.vf(gpu, 0), variants=[VF])
        self.assertIn('its GPU is unmanaged', place.reason)
        self.assertIn('Cyborg', place.reason)

    def test_vf_that_no_guest_can_have_leaves_its_gpus_group(self):
        gpu = make.gpu(mechanism='vf')
        self.assertEqual(['T4', None], self.variants_of(
            gpu, make.vf(gpu, 0, function={'owner': 'Nova'})))

    def test_mdev_row_of_an_unmanaged_gpu_is_in_no_group(self):
        gpu = make.gpu()
        _, place = self.plan(gpu, make.mdev_row(gpu, 0), variants=[])
        self.assertEqual('its GPU is unmanaged', place.reason)

    def test_assigned_device_keeps_its_group(self):
        gpu = make.gpu(state=device_rules.DeviceState.ASSIGNED)
        self.assertEqual(['old'], self.variants_of(
            gpu, current={gpu.id: 'old'}))

    def test_gpu_with_an_assigned_vgpu_keeps_its_group(self):
        gpu = make.gpu(mechanism='mdev')
        row = make.mdev_row(gpu, 0,
                            state=device_rules.DeviceState.PROVISIONING)
        self.assertEqual(['old', 'old'], self.variants_of(
            gpu, row, current={gpu.id: 'old', row.id: 'old'}))

    def test_dirty_device_changes_its_group(self):
        gpu = make.gpu(state=device_rules.DeviceState.DIRTY)
        self.assertEqual(['T4'], self.variants_of(
            gpu, current={gpu.id: 'old'}))


class ApplyTest(conductor_base.ConductorTestCase):

    def device(self, **filters):
        return device_admin.list_all(self.db, **filters)[0]

    def generation(self):
        [host] = host_admin.list_all(self.db)
        return host.generation

    def report(self, *functions):
        return hosts.store(self.db, conductor_base.scan(functions))

    def test_group_that_lost_its_last_device_is_deleted(self):
        self.report(*(conductor_base.replace(number, fault='dead')
                      for number in range(8)))
        self.assertEqual((), group_admin.list_all(self.db))

    def test_device_that_joins_or_leaves_a_group_changes_its_host(self):
        for change in (lambda: variant_admin.delete(self.db, 'H100'),
                       self.create):
            before = self.generation()
            change()
            self.assertGreaterEqual(self.generation(), before + 8)

    def create(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))

    def test_quarantined_device_keeps_the_reason_of_its_quarantine(self):
        releases.release(self.db, conductor_base.uuids(self.boot(1)))
        self.clean_all(passed=False)
        before = self.device(state='quarantined').reason
        self.assertIn('looked at', before)
        variant_admin.delete(self.db, 'H100')
        self.create()
        self.assertEqual(
            before, self.device(state='quarantined').reason)

    def test_device_that_joins_a_group_loses_the_reason_why_it_had_none(self):
        variant_admin.delete(self.db, 'H100')
        self.assertIn('no variant', self.device().reason)
        self.create()
        self.assertIsNone(self.device().reason)

    def test_new_group_offers_whole_gpus_unless_they_are_disabled(self):
        vgpu_type_admin.set_enabled(
            self.db, 'H100', 'passthrough', None, enabled=False)
        self.report_second_host()
        self.assertEqual([False, False], [
            info.enabled for info in vgpu_type_admin.list_all(self.db)])
