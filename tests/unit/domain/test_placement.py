# SPDX-License-Identifier: Apache-2.0
"""Tests of why Placement has no candidate on a host."""

from oslotest import base

from gpgpu_plugin.domain import placement

GPU = 'CUSTOM_GPU_H100'


def inventory(total, used=0, **fields):
    return placement.PlacementInventory(total=total, used=used, **fields)


def tree(gpus=8, used=0, root_traits=(), gpu_traits=('CUSTOM_GPU',),
         vcpus=64, **fields):
    return [
        placement.PlacementProvider(
            name='h1', traits=frozenset(root_traits), inventories={
                'VCPU': inventory(vcpus, 60, allocation_ratio=1.0),
                'MEMORY_MB': inventory(1024), 'DISK_GB': inventory(100)}),
        placement.PlacementProvider(
            name='h1_gpu_H100', traits=frozenset(gpu_traits),
            inventories={GPU: inventory(gpus, used, **fields)})]


def findings(host, **fields):
    needed = placement.needs(**{
        'vcpus': 4, 'ram': 512, 'disk': 10,
        'extra_specs': {f'resources:{GPU}': '2'}, **fields})
    return {found.reason: found.detail
            for found in placement.findings(host, needed)}


class FindingsTest(base.BaseTestCase):

    def test_host_with_room_has_no_reason(self):
        self.assertEqual({}, findings(tree()))

    def test_shortage_names_the_numbers_of_the_inventory(self):
        self.assertEqual({
            'placement_no_capacity':
                '2 of CUSTOM_GPU_H100 requested; h1_gpu_H100: 1 free: total '
                '8, reserved 3, allocation ratio 1, used 4'},
            findings(tree(used=4, reserved=3)))

    def test_all_shortages_are_named(self):
        host = tree(used=8)
        needed = placement.needs(
            vcpus=5, ram=2048, disk=10, extra_specs={f'resources:{GPU}': '1'})
        self.assertEqual(3, len(placement.findings(host, needed)))

    def test_allocation_ratio_counts(self):
        self.assertEqual(60, inventory(
            64, 68, allocation_ratio=2.0).free)

    def test_limits_of_one_allocation_count(self):
        for fields, word in (({'max_unit': 1}, 'between 1 and 1'),
                             ({'min_unit': 4}, 'between 4'),
                             ({'step_size': 4}, 'multiples of 4')):
            [detail] = findings(tree(**fields)).values()
            self.assertIn(word, detail)

    def test_class_that_nobody_has(self):
        self.assertEqual(
            {'placement_no_inventory': 'no provider of this host has PCPU'},
            findings(tree(), extra_specs={'hw:cpu_policy': 'dedicated'}))

    def test_required_trait_may_be_on_any_provider_or_the_root(self):
        specs = {f'resources:{GPU}': '1', 'trait:CUSTOM_GPU': 'required',
                 'trait:CUSTOM_ROOT': 'required'}
        self.assertEqual({}, findings(
            tree(root_traits=['CUSTOM_ROOT']), extra_specs=specs))
        self.assertEqual(
            {'placement_trait_missing':
                'no provider of its resources has CUSTOM_ROOT'},
            findings(tree(), extra_specs=specs))

    def test_provider_with_a_forbidden_trait_gives_nothing(self):
        self.assertEqual(
            {'placement_trait_forbidden':
                'h1_gpu_H100 has CUSTOM_GPU_H100, and CUSTOM_GPU, which the '
                'flavor forbids'},
            findings(tree(), extra_specs={
                f'resources:{GPU}': '1', 'trait:CUSTOM_GPU': 'forbidden'}))


class NeedsTest(base.BaseTestCase):

    def test_query_is_that_of_nova(self):
        needed = placement.needs(
            vcpus=4, ram=512, disk=0, extra_specs={
                f'resources:{GPU}': '2', 'resources:VCPU': '0',
                'trait:CUSTOM_A': 'required', 'trait:CUSTOM_B': 'forbidden',
                'resources1:CUSTOM_C': '1', 'hw:x': 'y'})
        self.assertEqual({
            'resources': 'CUSTOM_GPU_H100:2,MEMORY_MB:512',
            'required': 'CUSTOM_A,!CUSTOM_B'}, needed.query)

    def test_swap_is_rounded_up(self):
        self.assertEqual(13, placement.gib(root=10, ephemeral=2, swap=1))
        self.assertEqual(12, placement.gib(root=10, ephemeral=2, swap=0))
