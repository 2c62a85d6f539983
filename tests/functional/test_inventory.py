# SPDX-License-Identifier: Apache-2.0
"""Inventory in Placement follows hardware and operators without a restart."""

from __future__ import annotations

from tests.fixtures import cloud
from tests.fixtures import cloud_views


class InventoryTest(cloud.GpuCloud):
    """One HGX server with eight H100."""

    def test_group_without_gpus_offers_nothing(self) -> None:
        for device in self.devices('--host', 'gpu1', '--variant', 'H100'):
            self.unplug('gpu1', device['address'])
        self.run_once('gpu1')
        self.wait_for(lambda: self.inventory()[0] == self.inventory()[1],
                      'reserved = total, or the provider gone')
        server = self.boot(self.flavor(H100=1), 'ERROR')
        self.assertIn('No valid host', server['fault']['message'])

    def test_assigned_gpu_that_vanishes_stays_assigned(self) -> None:
        server = self.boot(self.flavor(H100=1))
        device, = self.devices('--used-by', server['id'])
        for gpu in self.devices('--host', 'gpu1', '--variant', 'H100'):
            self.unplug('gpu1', gpu['address'])
        self.run_once('gpu1')

        self.wait_for(lambda: not self.listing(
            'device', 'show', device['uuid'])['present'], 'shown missing')
        self.assertEqual(
            {f'gpu1 {device["address"]}'}, self.devices_of(server))
        # Its provider stays while Placement shows usage on it; nothing of it
        # is free: 7 of 8 reserved, the eighth used.
        self.wait_inventory(8, 7)
        self.assertEqual(1, self.usage())
        self.boot(self.flavor(H100=1), 'ERROR')

        self.delete(server)
        self.wait_for(lambda: self.inventory()[0] == self.inventory()[1],
                      'nothing offered after the delete')
        self.assertNotIn('available', self.states())

    def test_disabled_device_is_offered_once_enabled(self) -> None:
        device = self.devices('--host', 'gpu1', '--variant', 'H100')[0]
        self.manage('hold', 'add', device['uuid'], '--kind', 'disabled')
        self.wait_inventory(8, 1)
        self.boot(self.flavor(H100=8), 'ERROR')
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(f'gpu1 {device["address"]}', self.devices_of(server))
        self.manage('hold', 'remove', device['uuid'], '--kind', 'disabled')
        self.wait_inventory(8, 0)
        self.boot(self.flavor(H100=1))

    def test_change_of_a_busy_group_is_no_error_of_nova(self) -> None:
        # Each allocation changes the provider's generation in Placement.
        self.boot(self.flavor(H100=1))
        device = self.devices('--state', 'available')[0]
        for reserved, verb in ((1, 'add'), (0, 'remove')):
            self.manage('hold', verb, device['uuid'], '--kind', 'disabled')
            self.wait_inventory(8, reserved)
            self.boot(self.flavor(H100=1))
        self.assertNotIn('Failed to update inventory',
                         self.stdlog.logger.output)

    def test_host_that_is_disabled_in_nova_is_shown(self) -> None:
        service = self.api.get_services(binary='nova-compute', host='gpu1')[0]
        for status, shown in (
                ('disabled', ('disabled', 0)), ('enabled', ('up', 8))):
            self.api.put_service(service['id'], {'status': status})
            for _ in range(2):  # Nova sets its trait after the plugin's turn
                self.run_periodics('gpu1')
            self.wait_for(lambda shown=shown: shown == tuple(
                self.listing('group', 'show', 'gpu1', 'H100')[name]
                for name in ('host_state', 'remaining')), f'shown {status}')

    def test_disabled_device_stays_assigned_to_its_instance(
            self) -> None:
        server = self.boot(self.flavor(H100=1))
        device, = self.devices('--used-by', server['id'])
        self.manage('hold', 'add', device['uuid'], '--kind', 'disabled')
        self.assertEqual(
            {f'gpu1 {device["address"]}'}, self.devices_of(server))
        self.delete(server)
        self.wait_inventory(8, 1)
        self.wait_states(available=7, disabled=1)

    def test_variant_in_use_is_not_deleted(self) -> None:
        server = self.boot(self.flavor(H100=1))
        refused = self.assertRaises(
            cloud_views.CommandFailed, self.manage, 'variant', 'delete',
            'H100')
        self.assertIn('H100', str(refused))
        self.delete(server)
        self.wait_states(available=8)


    def test_offer_of_a_variant_in_use_changes_and_its_server_stays(
            self) -> None:
        self.manage('variant', 'set', 'H100', '--cleaning-policy',
                    'reset-only')
        server = self.boot(self.flavor(H100=1))
        devices = self.devices_of(server)
        allocations = self.usage()
        self.manage('variant', 'set', 'H100', '--trait', 'CUSTOM_FAST',
                    '--mix-policy', 'any_mix', '--cleaning-policy',
                    'default')
        self.wait_for(lambda: 'CUSTOM_FAST' in self._get_provider_traits(
            self.provider()), 'the trait in Placement')
        self.assertEqual((devices, allocations),
                         (self.devices_of(server), self.usage()))
        self.assertEqual('ACTIVE', self.api.get_server(
            server['id'])['status'])
        refused = self.assertRaises(
            cloud_views.CommandFailed, self.manage, 'variant', 'set',
            'H100', '--device', '1111')
        self.assertIn('device cannot change', str(refused))
        flavor = self.flavor_of({'resources:CUSTOM_GPU_H100': '1',
                                 'trait:CUSTOM_FAST': 'required'})
        self.boot(flavor)
        self.manage('variant', 'set', 'H100', '--unset', 'trait')
        self.wait_for(lambda: 'CUSTOM_FAST' not in self._get_provider_traits(
            self.provider()), 'no such trait in Placement')
        self.boot(flavor, 'ERROR')
        self.assertEqual(devices, self.devices_of(server))
        [device] = self.devices('--used-by', server['id'])
        self.delete(server)
        self.wait_states(available=7, assigned=1)
        # What is required now is required of its GPU.
        [record] = self.listing('device', 'cleanings', device['uuid'])
        self.assertEqual('default', record['policy'])

    def test_policy_of_a_variant_is_that_of_a_group_without_its_own(
            self) -> None:
        server = self.boot(self.flavor(H100=1))
        devices = self.devices_of(server)
        self.manage('variant', 'set', 'H100',
                    '--allocation-policy', 'breadth_first')
        shown = self.listing('group', 'show', 'gpu1', 'H100')
        self.assertEqual(('breadth_first', 'variant'), (
            shown['allocation_policy'], shown['policy_source']))
        self.assertEqual(devices, self.devices_of(server))


class VariantTest(cloud.GpuCloud):
    """One HGX server without variants."""

    variants = ()

    def test_variant_created_at_run_time_is_offered(self) -> None:
        self.assertEqual({'unmanaged'}, {
            d['shown_state'] for d in self.devices('--host', 'gpu1')})
        self.assertEqual((0, 0), self.inventory())
        self.manage('variant', 'create', 'H100', *cloud.HGX_H100)
        self.wait_inventory(8, 0)
        self.assertLessEqual(
            {'CUSTOM_GPU', 'CUSTOM_GPU_H100', 'OWNER_NOVA'},
            set(self._get_provider_traits(self.provider())))
        self.boot(self.flavor(H100=1))

    def test_gpus_that_no_guest_can_use_are_offered_once_accepted(
            self) -> None:
        *ids, _ = cloud.HGX_H100
        self.manage('variant', 'create', 'H100', *ids)
        flavor = self.flavor(H100=1)
        self.boot(flavor, 'ERROR')
        self.assertEqual(8, sum(
            'its host has 4 NVSwitches' in (device['reason'] or '')
            for device in self.devices('--state', 'unmanaged')))
        self.manage('variant', 'set', 'H100', '--unsupported-ok')
        self.wait_inventory(8, 0)
        server = self.boot(flavor)
        self.manage('variant', 'set', 'H100', '--no-unsupported-ok')
        self.assertEqual(1, len(self.devices_of(server)))
        self.delete(server)
        self.wait_for(lambda: {'unmanaged'} == {
            device['shown_state'] for device in self.devices()},
            'the GPU is cleaned and unmanaged')

    def test_variant_deleted_at_run_time_is_not_offered(self) -> None:
        self.manage('variant', 'create', 'H100', *cloud.HGX_H100)
        self.wait_inventory(8, 0)
        self.manage('variant', 'delete', 'H100')
        self.wait_for(lambda: self.inventory()[0] == self.inventory()[1],
                      'nothing offered')

    def test_tie_is_refused_and_nothing_is_written(self) -> None:
        self.manage('variant', 'create', 'H100', *cloud.HGX_H100)
        self.wait_inventory(8, 0)
        refused = self.assertRaises(
            cloud_views.CommandFailed, self.manage, 'variant', 'create',
            'TWIN', *cloud.HGX_H100)
        self.assertIn('H100', str(refused))
        self.assertEqual(
            ['H100'], [v['name'] for v in self.listing('variant', 'list')])
