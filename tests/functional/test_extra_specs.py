# SPDX-License-Identifier: Apache-2.0
"""Extra specs of the plugin: refused by nova-api, or by the claim."""

from __future__ import annotations

import typing

from nova.tests.functional.api import client as api_client

from tests.fixtures import cloud


class FlavorTest(cloud.GpuCloud):
    """Flavors that Nova's API refuses or accepts; no host is needed."""

    machines: typing.ClassVar[dict[str, str]] = {}

    def _refused(self, **extra_specs: str) -> str:
        specs = {key.replace('__', ':'): value
                 for key, value in extra_specs.items()}
        error = self.assertRaises(
            api_client.OpenStackApiException, self.flavor_of, specs)
        self.assertEqual(400, error.response.status_code)
        return str(error.response.text)

    def test_unknown_key_is_refused_with_the_valid_ones(self) -> None:
        message = self._refused(gpgpu__topologie='any')
        self.assertIn('gpgpu:topologie', message)
        self.assertIn('gpgpu:topology', message)
        self.assertIn('gpgpu:allocation_policy', message)

    def test_wrong_value_is_refused_with_the_valid_ones(self) -> None:
        message = self._refused(gpgpu__topology='same_rack')
        for word in ('same_rack', 'any', 'same_numa', 'same_switch'):
            self.assertIn(word, message)

    def test_suffixed_class_of_the_plugin_is_refused(self) -> None:
        for key in ('resources1:CUSTOM_GPU_H100',
                    'resources_A:CUSTOM_VGPU_T4_T4_4Q'):
            error = self.assertRaises(
                api_client.OpenStackApiException, self.flavor_of, {key: '1'})
            self.assertEqual(400, error.response.status_code)
            self.assertIn(key, str(error.response.text))
        self.flavor_of({'resources1:CUSTOM_FPGA': '1'})


class ExtraSpecTest(cloud.GpuCloud):
    """One HGX server with four GPUs per NUMA node."""

    def test_valid_extra_specs_are_accepted_and_enforced(self) -> None:
        fits = self.flavor_of({'resources:CUSTOM_GPU_H100': '4',
                               'gpgpu:topology': 'same_numa'})
        server = self.boot(fits)
        self.assertEqual(1, len({d['numa_node'] for d in self.devices(
            '--used-by', server['id'])}))
        never = self.flavor_of({'resources:CUSTOM_GPU_H100': '5',
                                'gpgpu:topology': 'same_numa'})
        self.delete(server)
        self.wait_states(available=8)
        self.boot(never, 'ERROR')
        self.assertIn('topology_same_numa', self.stdlog.logger.output)
        self.wait_states(available=8)

    def _unchecked(self, extra_specs: dict[str, str]) -> str:
        """Create a flavor that Nova's API does not validate."""
        self.api.microversion = '2.85'
        flavor = self.flavor_of(extra_specs)
        self.api.microversion = 'latest'
        return flavor

    def _boot_unchecked(self, extra_specs: dict[str, str],
                        reason: str = 'extra_spec_invalid') -> None:
        self._boot_refused(self._unchecked(extra_specs), reason)

    def _boot_refused(self, flavor: str, reason: str) -> None:
        server = self.boot(flavor, 'ERROR')
        self.assertEqual(set(), self.devices_of(server))
        self.wait_states(available=8)
        self.assertIn(reason, self.stdlog.logger.output)
        self.wait_for(lambda: self.usage() == 0, 'usage 0')

    def test_suffixed_class_below_2_86_is_refused_by_the_claim(self) -> None:
        for extra_specs in (
                {'resources1:CUSTOM_GPU_H100': '1'},
                {'resources:CUSTOM_GPU_H100': '1',
                 'resources1:CUSTOM_GPU_H100': '1',
                 'group_policy': 'none'}):
            self._boot_unchecked(extra_specs, 'allocation_not_requested')

    def test_resize_to_a_suffixed_class_leaves_the_server_alone(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot(self.flavor(H100=1))
        before = self.devices_of(server)
        self.api.post_server_action(server['id'], {'resize': {
            'flavorRef': self._unchecked(
                {'resources1:CUSTOM_GPU_H100': '1'})}})
        self.wait_for(
            lambda: 'allocation_not_requested' in self.stdlog.logger.output,
            'denied claim')
        self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(before, self.devices_of(server))
        self.wait_for(lambda: self.usage() == 1, 'usage 1')

    def test_wrong_value_below_2_86_is_refused_later(self) -> None:
        self._boot_unchecked({'resources:CUSTOM_GPU_H100': '1',
                              'gpgpu:topology': 'same_rack'})

    def test_unknown_key_below_2_86_is_refused_later(self) -> None:
        self._boot_unchecked({'resources:CUSTOM_GPU_H100': '1',
                              'gpgpu:topologie': 'any'})

    def test_wrong_value_past_the_filter_is_refused_by_the_claim(
            self) -> None:
        self.restart_scheduler('ComputeFilter')
        self._boot_unchecked({'resources:CUSTOM_GPU_H100': '1',
                              'gpgpu:topology': 'same_rack'})

    def test_unknown_resource_class_finds_no_host(self) -> None:
        server = self.boot(
            self.flavor_of({'resources:CUSTOM_GPU_NO_SUCH': '1'}), 'ERROR')
        self.assertIn('No valid host', server['fault']['message'])


class OwnClassTest(cloud.GpuCloud):
    """A variant whose resource class does not begin as the plugin's do."""

    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('H100', *cloud.HGX_H100, '--resource-class', 'CUSTOM_ACCELERATOR'),)

    def test_suffixed_class_is_refused_by_the_claim(self) -> None:
        server = self.boot(
            self.flavor_of({'resources1:CUSTOM_ACCELERATOR': '1'}), 'ERROR')
        self.assertEqual(set(), self.devices_of(server))
        self.wait_states(available=8)
        self.assertIn('allocation_not_requested', self.stdlog.logger.output)
        self.delete(server)
        server = self.boot(
            self.flavor_of({'resources:CUSTOM_ACCELERATOR': '1'}))
        self.assertEqual(1, len(self.devices_of(server)))
