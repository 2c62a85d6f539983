# SPDX-License-Identifier: Apache-2.0
"""Why a server does not fit, and that it does after the proposed change."""

from __future__ import annotations

import typing

from tests.fixtures import cloud

L40S = 'resources:CUSTOM_GPU_L40S'


class WhyNotTest(cloud.GpuCloud):
    """One server with four L40S on two NUMA nodes."""

    machines = {'gpu1': 'pcie-l40s-4'}
    variants = (('L40S', '--vendor', '10de', '--device', '26b9'),)

    def why_not(self, *arguments: str) -> list[dict[str, typing.Any]]:
        return list(self.listing('why-not', *arguments))

    def refusals(self, flavor: str) -> set[tuple[str, str]]:
        return {(row['by'], row['reason'])
                for row in self.why_not('--flavor', flavor, '--host', 'gpu1')
                if row['by'] != 'change'}

    def fragment(self) -> None:
        """Leave one GPU free on each NUMA node."""
        flavor = self.flavor(L40S=1)
        servers = [self.boot(flavor) for _ in range(4)]
        nodes = {row['used_by']: row['numa_node'] for row in self.devices(
            '--variant', 'L40S')}
        for node in (0, 1):
            self.delete(next(server for server in servers
                             if nodes[server['id']] == node))
        self.wait_states(variant='L40S', assigned=2, available=2)
        self.wait_inventory(4, 0, variant='L40S')

    def test_server_fits_after_the_instance_that_is_named_has_gone(
            self) -> None:
        self.fragment()
        flavor = self.flavor_of({L40S: '2', 'gpgpu:topology': 'same_numa'})
        failed = self.boot(flavor, 'ERROR')
        rows = self.why_not('--server', failed['id'])
        self.assertEqual([
            ('gpu1', False, 'gpgpu', 'topology_same_numa'),
            ('gpu1', False, 'change', 'move'),
            ('gpu1', False, 'change', 'topology'),
            ('gpu1', False, 'change', 'fewer'),
        ], [(row['host'], row['fits'], row['by'], row['reason'])
            for row in rows])
        [moving] = [row['used_by'] for row in self.devices(
            '--variant', 'L40S') if row['used_by']
            and row['used_by'] in rows[1]['detail']]
        self.delete(failed, {'id': moving})
        self.wait_states(variant='L40S', assigned=1, available=3)
        self.wait_inventory(4, 0, variant='L40S')
        [row] = self.why_not('--flavor', flavor)
        self.assertEqual((True, None), (row['fits'], row['by']))
        self.assertEqual(2, len(self.devices_of(self.boot(flavor))))

    def test_placement_is_examined_as_it_decides(self) -> None:
        for specs, reason in (
                ({L40S: '5'}, 'placement_no_capacity'),
                ({L40S: '1', 'resources:VCPU': '100000'},
                 'placement_no_capacity'),
                ({L40S: '1', 'trait:HW_CPU_X86_VMX': 'required'},
                 'placement_trait_missing'),
                ({L40S: '1', 'trait:CUSTOM_GPU': 'forbidden'},
                 'placement_trait_forbidden'),
                ({L40S: '1', 'resources:CUSTOM_GPU_H100': '1'},
                 'placement_no_inventory'),
                ({L40S: '1', 'trait:CUSTOM_GPU': 'required'}, None)):
            self._create_trait('CUSTOM_GPU')
            if 'resources:CUSTOM_GPU_H100' in specs:
                self._create_resource_class('CUSTOM_GPU_H100')
            flavor = self.flavor_of(specs)
            found = {reason for by, reason in self.refusals(flavor)
                     if by == 'placement'}
            self.assertEqual({reason} - {None}, found, specs)
            self.delete(self.boot(flavor, 'ERROR' if reason else 'ACTIVE'))

    def test_disabled_nova_compute_is_named(self) -> None:
        [service] = self.api.get_services(
            host='gpu1', binary='nova-compute')
        self.api.put_service(service['id'], {
            'status': 'disabled', 'disabled_reason': 'a fan'})
        self.assertIn(('nova', 'service_disabled'), self.refusals(
            self.flavor(L40S=1)))
