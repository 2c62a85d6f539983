# SPDX-License-Identifier: Apache-2.0
"""Tests of the group of each device: plan, then apply."""

import dataclasses

from oslotest import base

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import variant
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from tests.fixtures import group as make
from tests.fixtures import hosts
from tests.unit.conductor import base as conductor_base

VF = variant.check(variant.Variant(name='VF', vendor='10de', device='26b9'))
B200 = variant.check(variant.Variant(
    name='B200', vendor='10de', device='2901'))
B200_OK = dataclasses.replace(B200, unsupported_ok=True)


class PlanTest(base.BaseTestCase):

    def plan(self, *devices, variants=(make.T4,), current=None):
        places = variant_matching.plan(variants, devices, current or {})
        self.assertEqual({device.id for device in devices}, places.keys())
        return [places[device.id] for device in devices]

    def variants_of(self, *devices, **kwargs):
        return [place.variant for place in self.plan(*devices, **kwargs)]

    def test_free_vf_of_a_kept_gpu_shares_a_variant_that_is_deleted(self):
        gpu = make.gpu()
        vf = dataclasses.replace(make.gpu('b'), parent_id=gpu.id)
        kept = dataclasses.replace(gpu, state='assigned')
        self.plan(kept, vf, variants=(), current={gpu.id: 'T4', vf.id: 'T4'})

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

    def b200(self, number=0, **fields):
        return make.gpu(number, function={'device': '2901'}, **fields)

    def test_unsupported_gpu_is_in_no_group_and_says_what_to_do(self):
        [place] = self.plan(self.b200(), variants=[B200])
        self.assertIsNone(place.variant)
        self.assertIn('NVSwitches', place.reason)
        self.assertIn('variant set B200 --unsupported-ok', place.reason)

    def test_unsupported_gpu_is_in_the_group_of_a_variant_that_accepts_it(
            self):
        self.assertEqual(['B200'], self.variants_of(
            self.b200(), variants=[B200_OK]))

    def test_unsupported_gpu_with_vgpus_is_in_the_group_for_them(self):
        gpu = self.b200(mechanism='vf')
        self.assertEqual(['B200', 'B200'], self.variants_of(
            gpu, make.vf(gpu, 0), variants=[B200]))

    def test_vf_of_an_unsupported_gpu_has_its_own_variant(self):
        gpu = self.b200()
        self.assertEqual([None, 'VF'], self.variants_of(
            gpu, make.vf(gpu, 0), variants=[B200, VF]))

    def test_unsupported_gpu_that_is_assigned_keeps_its_group(self):
        assigned = self.b200(state=device_rules.DeviceState.ASSIGNED)
        free = self.b200(1)
        self.assertEqual(['B200', None], self.variants_of(
            assigned, free, variants=[B200],
            current={assigned.id: 'B200', free.id: 'B200'}))

    def test_unsupported_gpu_that_was_adopted_gets_its_group(self):
        self.assertEqual(['B200'], self.variants_of(
            self.b200(state=device_rules.DeviceState.ASSIGNED),
            variants=[B200]))

    def test_dirty_device_changes_its_group(self):
        gpu = make.gpu(state=device_rules.DeviceState.DIRTY)
        self.assertEqual(['T4'], self.variants_of(
            gpu, current={gpu.id: 'old'}))


class UnsupportedTest(conductor_base.ConductorTestCase):
    """H100 behind NVSwitches that a later scan has found."""

    H100 = admin.VariantInfo(name='H100', vendor='10de', device='2330')

    def setUp(self):
        super().setUp()
        self.claims = self.boot(1)
        hosts.store(self.db, conductor_base.scan([
            conductor_base.replace(number, nvswitches=4)
            for number in range(8)]))

    def set(self, **fields):
        variant_admin.set_(self.db, dataclasses.replace(self.H100, **fields))

    def offered_now(self):
        with self.db.reader() as session:
            return self.offered(capacity.host_inventory(
                session, host_db.get(session, 'h1')))

    def test_free_gpus_are_unmanaged_and_the_assigned_one_is_not(self):
        self.assertEqual({'assigned': 1, 'unmanaged': 7}, self.states())
        [device] = device_admin.list_all(self.db, state='assigned')
        self.assertEqual(('H100', None), (device.variant, device.reason))
        free = device_admin.list_all(self.db, state='unmanaged')[0]
        self.assertIn('its host has 4 NVSwitches', free.reason)

    def test_gpus_are_accepted_while_one_is_assigned(self):
        self.set(unsupported_ok=True)
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())
        self.assertEqual((8, 0), self.offered_now())
        self.boot(7, 'i2')

    def test_acceptance_is_taken_back_while_one_is_assigned(self):
        self.set(unsupported_ok=True)
        self.set(unsupported_ok=False)
        self.assertEqual({'assigned': 1, 'unmanaged': 7}, self.states())

    def test_gpu_that_is_clean_again_is_unmanaged_without_a_report(self):
        releases.release(self.db, conductor_base.uuids(self.claims))
        self.assertEqual({'dirty': 1, 'unmanaged': 7}, self.states())
        self.clean_all()
        self.assertEqual({'unmanaged': 8}, self.states())

    def test_acceptance_offers_gpus_that_stay_for_their_vgpus(self):
        self.report_second_host([conductor_base.replace(
            0, nvswitches=4, vgpu_mechanism=vgpu.VGPUMechanism.MDEV)])
        remaining, generations = [], []
        for accepted in (False, True, False):
            self.set(unsupported_ok=accepted)
            remaining += [
                info.remaining_capacity for info in group_admin.list_types(
                    self.db, host='h2')]
            generations.append(host_admin.show(self.db, 'h2').generation)
        self.assertEqual([0, 1, 0], remaining)
        # Placement must hear of it, although no device moved.
        self.assertEqual(3, len(set(generations)), generations)

    def test_released_gpu_is_cleaned_and_then_unmanaged(self):
        releases.release(self.db, conductor_base.uuids(self.claims))
        self.clean_all()
        hosts.store(self.db, conductor_base.scan([
            conductor_base.replace(number, nvswitches=4, slot='x')
            for number in range(8)]))
        self.assertEqual({'unmanaged': 8}, self.states())


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
            self.assertGreater(self.generation(), before)

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
        group_admin.set_type_enabled(
            self.db, 'H100', 'passthrough', None, enabled=False)
        self.report_second_host()
        self.assertEqual([False, False], [
            info.enabled for info in group_admin.list_types(self.db)])
