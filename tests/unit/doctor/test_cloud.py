# SPDX-License-Identifier: Apache-2.0
"""Tests of drifts in Placement and Nova."""

import dataclasses

from oslotest import base

from gpgpu_plugin.doctor import cloud
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import inventory

GPU = 'CUSTOM_GPU_T4'
GROUP = inventory.GroupInventory(
    variant='T4', provider_name='h1_gpu_T4', provider_uuid='p1',
    traits=('CUSTOM_GPU', 'CUSTOM_GPU_T4', 'OWNER_NOVA'),
    types=(inventory.TypeInventory(
        resource_class=GPU, total=4, reserved=1, max_unit=4),))
ASSIGNED = cloud.AssignedRow(
    uuid='a1', instance_uuid='i1', address='0000:01:00.0',
    provider_uuid='p1', resource_class=GPU, allocated=True)
RECORD = cloud.HostRecord(
    host='h1', node_uuid='n1', groups=(GROUP,), drifts=(),
    assignments=(ASSIGNED,))
PROVIDER = cloud.ProviderRecord(
    uuid='p1', name='h1_gpu_T4', root='n1',
    inventories={GPU: cloud.ProviderInventory(total=4, reserved=1)},
    traits=frozenset(GROUP.traits),
    allocations={'i1': {GPU: 1}})


class CompareTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.servers = {}

    def found(self, record=RECORD, **changes):
        provider = dataclasses.replace(PROVIDER, **changes)
        return [(one.name, one.subject, one.repair)
                for one in cloud.compare(
                    record, {'p1': provider}, self.servers.get)]

    def inventory(self, total, reserved):
        return self.found(inventories={
            GPU: cloud.ProviderInventory(total=total, reserved=reserved)})

    def test_provider_that_agrees_has_no_drift(self):
        self.assertEqual([], self.found())

    def test_missing_provider_is_offered_again(self):
        [found] = cloud.compare(RECORD, {}, self.servers.get)
        self.assertEqual(('provider_missing', drift.Repair.OFFER),
                         (found.name, found.repair))

    def test_inventory_is_larger_or_smaller_by_what_is_not_reserved(self):
        for total, reserved, name in (
                (5, 1, 'inventory_larger'), (4, 0, 'inventory_larger'),
                (3, 1, 'inventory_smaller'), (4, 2, 'inventory_smaller'),
                (5, 2, 'inventory_smaller')):
            self.assertEqual([(name, f'h1_gpu_T4 {GPU}', drift.Repair.OFFER)],
                             self.inventory(total, reserved))

    def test_class_that_one_of_them_lacks_is_found(self):
        self.assertEqual(
            ['inventory_smaller'],
            [name for name, *_ in self.found(inventories={})])
        self.assertEqual(
            ['inventory_larger'], [name for name, *_ in self.found(
                inventories={**PROVIDER.inventories, 'CUSTOM_GPU_OLD':
                             cloud.ProviderInventory(total=1, reserved=0)})])

    def test_class_that_stays_reserved_is_no_drift(self):
        self.assertEqual([], self.found(inventories={
            **PROVIDER.inventories,
            'CUSTOM_GPU_OLD': cloud.ProviderInventory(total=2, reserved=2)}))

    def test_missing_trait_is_set_again(self):
        self.assertEqual(
            [('trait_missing', 'h1_gpu_T4', drift.Repair.OFFER)],
            self.found(traits=frozenset(('CUSTOM_GPU', 'OWNER_NOVA'))))

    def test_foreign_trait_is_removed(self):
        self.assertEqual(
            [('trait_foreign', 'h1_gpu_T4', drift.Repair.OFFER)],
            self.found(traits=PROVIDER.traits | {'CUSTOM_GPU_H100'}))

    def test_assignment_whose_allocation_is_gone_is_compared(self):
        self.assertEqual(
            [('assignment_without_allocation', 'a1', drift.Repair.COMPARE)],
            self.found(allocations={}))

    def test_assignment_known_to_have_no_allocation_is_no_drift(self):
        row = dataclasses.replace(ASSIGNED, allocated=False)
        self.assertEqual([], self.found(dataclasses.replace(
            RECORD, assignments=(row,)), allocations={}))

    def test_allocation_of_a_migration_covers_its_source(self):
        self.assertEqual([], self.found(allocations={'m1': {GPU: 1}}))

    def test_allocation_that_nothing_explains_is_left(self):
        name = 'allocation_without_assignment'
        allocations = {'i1': {GPU: 1}, 'i2': {GPU: 1}}
        expected = [(name, f'i2 {GPU}', None)]
        self.assertEqual(expected, self.found(allocations=allocations))
        self.servers['i2'] = cloud.ServerRecord(host='h1', task=None)
        self.assertEqual(expected, self.found(allocations=allocations))

    def test_allocation_of_an_instance_that_is_being_built_is_no_drift(self):
        self.servers['i2'] = cloud.ServerRecord(host=None, task='spawning')
        self.assertEqual([], self.found(
            allocations={'i1': {GPU: 1}, 'i2': {GPU: 1}}))


class UnknownProvidersTest(base.BaseTestCase):

    def test_provider_below_a_node_of_no_host_is_deleted(self):
        empty = dataclasses.replace(
            PROVIDER, uuid='p9', root='n9', allocations={})
        [found] = cloud.unknown_providers([PROVIDER, empty], ['n1'])
        self.assertEqual(
            ('provider_of_unknown_host', 'p9', drift.Repair.PROVIDER),
            (found.name, found.subject, found.repair))

    def test_provider_of_a_group_that_its_host_had_is_no_drift(self):
        self.assertEqual([], list(cloud.unknown_providers(
            [dataclasses.replace(PROVIDER, uuid='p9')], ['n1'])))

    def test_provider_with_allocations_is_left(self):
        [found] = cloud.unknown_providers([PROVIDER], [])
        self.assertIsNone(found.repair)
        self.assertIn('i1', found.says['placement'])


class NovaTest(base.BaseTestCase):

    def test_host_without_a_service_is_found(self):
        [found] = cloud.services(['h1', 'h2'], {'h1', 'other'})
        self.assertEqual(('host_without_service', 'h2', None),
                         (found.name, found.host, found.repair))

    def test_flavor_of_a_class_that_no_variant_has_is_found(self):
        flavors = [
            cloud.FlavorRecord(name='good', resource_classes=(
                'CUSTOM_GPU_T4', 'VCPU', 'CUSTOM_FPGA')),
            cloud.FlavorRecord(name='bad', resource_classes=(
                'CUSTOM_VGPU_T4_T4_9Q',))]
        [found] = cloud.flavors(flavors, {'CUSTOM_GPU_T4'})
        self.assertEqual(('flavor_of_unknown_class',
                          'bad CUSTOM_VGPU_T4_T4_9Q'),
                         (found.name, found.subject))
