# SPDX-License-Identifier: Apache-2.0
"""Tests of requests from flavors and images."""

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request


class RequestTest(base.BaseTestCase):

    def test_two_kinds_and_behaviour(self):
        self.assertEqual(
            request.Request(
                demands=(
                    request.Demand(resource_class='CUSTOM_GPU_A', count=2),
                    request.Demand(resource_class='CUSTOM_GPU_B', count=1)),
                topology=request.GPUTopology.SAME_SWITCH,
                allocation_policy=request.AllocationPolicy.BREADTH_FIRST),
            request.from_extra_specs({
                'resources:CUSTOM_GPU_B': '1', 'resources:CUSTOM_GPU_A': '2',
                'gpgpu:topology': 'same_switch',
                'gpgpu:allocation_policy': 'breadth_first',
                'hw:cpu_policy': 'dedicated', 'resources:VCPU': '4',
                'resources1:CUSTOM_GPU_C': '1',
                'trait:CUSTOM_GPU': 'required'}))

    def test_classes_of_variants_and_reserved_ones_are_own(self):
        found = request.from_extra_specs({
            f'resources:{name}': '1' for name in (
                'CUSTOM_GPU_GONE', 'CUSTOM_VGPU_A', 'CUSTOM_FPGA',
                'CUSTOM_MINE', 'PGPU')})
        self.assertEqual(
            ['CUSTOM_GPU_GONE', 'CUSTOM_MINE', 'CUSTOM_VGPU_A'],
            [demand.resource_class
             for demand in found.own({'CUSTOM_MINE'}).demands])
        self.assertFalse(request.from_extra_specs(
            {'resources:CUSTOM_FPGA': '1'}).own(()))

    def test_stricter_numa_policy_counts(self):
        for gpu_policy, nova_policy, expected in (
                ('none', None, None), ('none', 'preferred', 'preferred'),
                ('preferred', None, 'preferred'), (None, 'legacy', 'legacy'),
                ('preferred', 'socket', 'socket'),
                ('none', 'required', 'required'),
                ('required', 'preferred', 'required'),
                ('required', 'socket', 'required')):
            specs = {'gpgpu:numa_policy': gpu_policy} if (
                gpu_policy) else {}
            if nova_policy:
                specs['hw:pci_numa_affinity_policy'] = nova_policy
            found = request.from_extra_specs(specs)
            self.assertEqual(expected, found.numa_affinity)
            self.assertIs(expected not in (None, 'preferred'),
                          found.restricts_numa)

    def test_unknown_pci_numa_policy_is_refused(self):
        for specs, image in (
                ({'hw:pci_numa_affinity_policy': 'near'}, None),
                ({}, 'near')):
            exc = self.assertRaises(
                exception.Invalid, request.from_extra_specs, specs, image)
            self.assertIn('legacy', str(exc))

    def test_nothing_asked(self):
        self.assertFalse(request.from_extra_specs({}))
        self.assertFalse(request.from_extra_specs(
            {'resources:CUSTOM_GPU_A': '0'}))

    def test_wrong_key_value_or_count(self):
        for specs, right in (
                ({'gpgpu:colour': 'red'}, 'gpgpu:topology'),
                ({'gpgpu:topology': 'same_rack'}, 'linked'),
                ({'gpgpu:numa': 'required'}, 'gpgpu:topology'),
                ({'resources:CUSTOM_GPU_A': 'two'}, 'number'),
                ({'resources:CUSTOM_GPU_A': '-1'}, 'number')):
            exc = self.assertRaises(
                exception.Invalid, request.from_extra_specs, specs)
            self.assertIn(right, str(exc))
            self.assertIn(repr(next(iter(specs.values())))
                          if 'colour' not in str(exc)
                          and 'gpgpu:numa' not in str(exc)
                          else repr(next(iter(specs))), str(exc))

    def test_suffixed_group_of_a_possible_gpu_class_is_found(self):
        for key, found in (
                ('resources1:CUSTOM_GPU_H100', True),
                ('resources_X:VGPU', True), ('resources:VGPU', False),
                ('resources1:VCPU', False), ('trait1:CUSTOM_GPU', False)):
            self.assertEqual(
                found, request.has_suffixed_groups({key: '1'}), key)

    def test_units_beyond_the_request_are_refused(self):
        asked = request.from_extra_specs({'resources:CUSTOM_GPU_A': '2'})
        for allocated in ({}, {'CUSTOM_GPU_A': 2}, {'CUSTOM_GPU_A': 1}):
            self.assertIsNone(request.unrequested(asked, allocated))
        refusal = request.unrequested(asked, {'CUSTOM_GPU_A': 3})
        self.assertEqual('allocation_not_requested', refusal.reason)
        self.assertIn('allocated 3 of CUSTOM_GPU_A', refusal.detail)
        self.assertIn('requests 2', refusal.detail)
        self.assertIn('requests 0', request.unrequested(
            asked, {'CUSTOM_GPU_A': 2, 'CUSTOM_GPU_B': 1}).detail)
