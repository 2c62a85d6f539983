# SPDX-License-Identifier: Apache-2.0
"""Servers that name their GPUs in a scheduler hint."""

from __future__ import annotations

import typing

from gpgpu_plugin.domain.allocation import request
from tests.fixtures import cloud

_HINTS = 'os:scheduler_hints'


class ExactCloud(cloud.GpuCloud):
    """Two HGX servers, and a project that may name devices."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.flags(exact_device_projects=[self.api.project_id],
                   group='gpgpu_conductor')
        self.plain = self.flavor_of({})

    def device(self, number: int, host: str = 'gpu1',
               ) -> dict[str, typing.Any]:
        """Return one of the GPUs of a host, by its address."""
        return sorted(self.devices('--host', host, '--variant', 'H100'),
                      key=lambda device: str(device['address']))[number]

    def post_named(self, value: object, flavor: str | None = None,
                   **extra: object) -> str:
        """Request a server with the scheduler hint and return its id."""
        return str(self.api.post_server({
            'server': {'name': 'test', 'imageRef': cloud.IMAGE,
                       'flavorRef': flavor or self.plain,
                       'networks': 'none', **extra},
            _HINTS: {request.HINT: value}})['id'])

    def named(self, value: object, flavor: str | None = None,
              **extra: object) -> dict[str, typing.Any]:
        """Boot a server with the hint; it must become active."""
        server = self.wait_status(
            self.post_named(value, flavor, **extra), 'ACTIVE', 'ERROR')
        self.assertEqual('ACTIVE', server['status'], server.get('fault'))
        return server

    def refused(self, reason: str, value: object, flavor: str | None = None,
                **extra: object) -> dict[str, typing.Any]:
        """Check that no host takes a server, and that an event says why."""
        server = self.wait_status(
            self.post_named(value, flavor, **extra), 'ACTIVE', 'ERROR')
        self.assertEqual('ERROR', server['status'])
        self.assertIn('No valid host', server['fault']['message'])
        self.check_event(server, 'filter_refused', reason)
        self.assertEqual(set(), self.devices_of(server))
        return server

    def check_event(self, server: dict[str, typing.Any], kind: str,
                    reason: str) -> dict[str, typing.Any]:
        """Wait for the event of a refusal and return it."""
        [event] = self.wait_for(
            lambda: self.listing('event', 'list', '--instance', server['id']),
            'the event of the refusal')
        self.assertEqual((kind, reason), (event['kind'], event['reason']))
        return dict(event)


class ExactDevicesTest(ExactCloud):
    """Build and delete."""

    def test_image_that_requires_a_gpu_boots_with_a_named_one(self) -> None:
        image = self.glance.create(None, {
            'name': 'gpu', 'disk_format': 'raw', 'container_format': 'bare',
            'status': 'active', 'min_ram': 0, 'min_disk': 0, 'size': 1,
            'visibility': 'public',
            'properties': {'trait:CUSTOM_GPGPU_HOST': 'required'}})['id']
        device = self.device(3)
        server = self.named(device['uuid'], imageRef=image)
        self.assertEqual({f'gpu1 {device["address"]}'},
                         self.devices_of(server))
        self.boot(self.flavor(H100=1), imageRef=image)
        # Without a GPU, neither a filter nor a host lets it pass.
        plain = self.boot(self.plain, 'ERROR', imageRef=image)
        self.check_event(plain, 'filter_refused', 'gpu_required')
        forced = self.boot(self.plain, 'ERROR', imageRef=image,
                           availability_zone='nova:gpu2')
        self.assertIn('gpu_required', str(self.listing(
            'event', 'list', '--instance', forced['id']))
            + forced['fault']['message'])

    def test_named_devices_are_assigned_and_allocated(self) -> None:
        # The second host is not the scheduler's first choice.
        first, second = self.device(3, 'gpu2'), self.device(6, 'gpu2')
        server = self.named([
            first['uuid'], f'gpu2:{second["address"]}'])
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(
            {f'gpu2 {device["address"]}' for device in (first, second)},
            self.devices_of(server))
        self.assertEqual(2, self.allocated(server, 'gpu2'))
        self.assertEqual(2, self.usage('gpu2'))
        self.wait_states('gpu2', assigned=2, available=6)
        self.wait_offered('gpu2')
        # A flavor gets none of them.
        others = self.boot(self.flavor(H100=6), availability_zone='nova:gpu2')
        self.assertTrue(self.devices_of(server).isdisjoint(
            self.devices_of(others)))
        self.delete(others, server)
        self.wait_states('gpu2', available=8)
        self.assertEqual(0, self.usage('gpu2'))
        self.wait_inventory(8, 0, 'gpu2')

    def test_project_sees_named_devices_in_its_usage(self) -> None:
        server = self.named(self.device(0)['uuid'])
        usages = self.placement.get(
            f'/usages?project_id={self.api.project_id}',
            version='1.9').body['usages']
        self.assertEqual(1, usages['CUSTOM_GPU_H100'])
        self.delete(server)

    def test_all_gpus_of_a_host_by_name(self) -> None:
        server = self.named([
            f'gpu1 {self.device(number)["address"]}' for number in range(8)])
        self.assertEqual(8, len(self.devices_of(server)))
        self.assertEqual(8, self.usage())
        self.wait_inventory(8, 0)

    def test_other_projects_are_refused(self) -> None:
        self.flags(exact_device_projects=['another'], group='gpgpu_conductor')
        server = self.refused(
            'exact_devices_not_allowed', self.device(0)['uuid'])
        self.delete(server)
        self.wait_states(available=8)

    def test_flavor_with_gpus_is_refused(self) -> None:
        self.refused('exact_devices_and_flavor', self.device(0)['uuid'],
                     self.flavor(H100=1))
        self.wait_states(available=8)

    def test_malformed_hints_are_refused(self) -> None:
        device = self.device(0)
        for value in ('H100', [], device['address'], 7, '',
                      [device['uuid']] * 2, 'gpu1 0000:3b:00',
                      [f'gpu1 0000:{bus:02x}:00.0' for bus in range(65)]):
            with self.subTest(value=value):
                self.delete(self.refused('exact_devices_invalid', value))
        # One device by its two names.
        self.refused('exact_devices_invalid', [
            device['uuid'], f'gpu1 {device["address"]}'])

    def test_unknown_devices_are_refused(self) -> None:
        for value in ('6ac9a8b2-3c63-4a0c-9f25-6e1f3f8e0f11',
                      'gpu1 0000:fe:00.0', 'gpu9 0000:19:00.0'):
            with self.subTest(value=value):
                self.delete(self.refused('exact_device_unknown', value))

    def test_devices_of_two_hosts_are_refused(self) -> None:
        self.refused('exact_device_elsewhere', [
            self.device(0)['uuid'], self.device(0, 'gpu2')['uuid']])

    def test_device_that_is_not_available_is_refused(self) -> None:
        device = self.device(2)
        server = self.named(device['uuid'])
        refused = self.refused('exact_device_unavailable', device['uuid'])
        self.delete(refused, server)
        self.wait_states(available=8)
        self.manage('hold', 'add', device['uuid'], '--kind', 'disabled')
        self.delete(self.refused(
            'exact_device_unavailable', device['uuid']))
        self.manage('hold', 'remove', device['uuid'], '--kind', 'disabled')
        self.manage('host', 'drain', 'gpu1')
        self.delete(self.refused('host_draining', device['uuid']))
        self.manage('host', 'undrain', 'gpu1')
        self.wait_offered()
        self.delete(self.named(device['uuid']))

    def test_quarantined_device_is_refused(self) -> None:
        device = self.device(2)
        server = self.named(device['uuid'])
        self.driver().gpu_tracker.backend.kernel.faults[
            f'{device["address"]}/reset'] = 5
        self.delete(server)
        self.wait_states(available=7, quarantined=1)
        self.assertEqual(0, self.usage())
        self.refused('exact_device_unavailable', device['uuid'])

    def test_two_servers_for_one_device_at_once(self) -> None:
        device = self.device(5)
        servers = [self.wait_status(server_id, 'ACTIVE', 'ERROR')
                   for server_id in [self.post_named(device['uuid'])
                                     for _ in range(2)]]
        self.assertEqual(['ACTIVE', 'ERROR'], sorted(
            server['status'] for server in servers))
        [active] = [server for server in servers
                    if server['status'] == 'ACTIVE']
        self.assertEqual({f'gpu1 {device["address"]}'},
                         self.devices_of(active))
        self.assertEqual((1, 1), (self.allocated(active), self.usage()))
        self.delete(*servers)
        self.assertEqual(0, self.usage())

    def test_claim_decides_where_no_filter_ran(self) -> None:
        # Neither for a forced host, nor if GpuFilter is not enabled.
        device, zone = self.device(1), {'availability_zone': 'nova:gpu1'}
        server = self.named(device['uuid'], **zone)
        self.assertEqual({f'gpu1 {device["address"]}'},
                         self.devices_of(server))
        self.assertEqual(1, self.allocated(server))
        for reason, value, flavor in (
                ('exact_device_unavailable', device['uuid'], None),
                ('exact_device_elsewhere', self.device(0, 'gpu2')['uuid'],
                 None),
                ('exact_devices_and_flavor', self.device(0)['uuid'],
                 self.flavor(H100=1))):
            with self.subTest(reason=reason):
                self.denied(reason, value, flavor, **zone)
        self.flags(exact_device_projects=[], group='gpgpu_conductor')
        self.denied('exact_devices_not_allowed', self.device(0)['uuid'],
                    **zone)
        self.assertEqual(1, self.usage())
        self.wait_states(assigned=1, available=7)

    def test_malformed_hint_is_denied_on_a_forced_host(self) -> None:
        server = self.wait_status(self.post_named(
            'H100', availability_zone='nova:gpu1'), 'ACTIVE', 'ERROR')
        self.assertEqual('ERROR', server['status'])
        self.assertIn('exact_devices_invalid', server['fault']['message'])

    def denied(self, reason: str, value: object, flavor: str | None = None,
               **extra: object) -> None:
        """Check that the claim on a forced host is denied."""
        server = self.wait_status(
            self.post_named(value, flavor, **extra), 'ACTIVE', 'ERROR')
        self.assertEqual('ERROR', server['status'])
        self.assertIn(reason, server['fault']['message'])
        self.check_event(server, 'claim_denied', reason)
        self.assertEqual(set(), self.devices_of(server))
        self.delete(server)

    def test_device_without_a_unit_in_placement_is_denied(self) -> None:
        # Somebody allocated all GPUs without a claim.
        consumer = self.device(0)['uuid']
        self.placement.put(
            f'/allocations/{consumer}', {
                'allocations': {self.provider(): {
                    'resources': {'CUSTOM_GPU_H100': 8}}},
                'project_id': 'p', 'user_id': 'u',
                'consumer_generation': None}, version='1.28')
        server = self.wait_status(
            self.post_named(self.device(0)['uuid']), 'ACTIVE', 'ERROR')
        self.assertEqual('ERROR', server['status'])
        self.wait_states(available=8)
        self.assertEqual(8, self.usage())
        self.placement.delete(f'/allocations/{consumer}')
        self.named(self.device(0)['uuid'])

    def test_failed_build_returns_device_and_allocation(self) -> None:
        device = self.device(4)
        self.driver().gpu_tracker.backend.kernel.faults[
            f'{device["address"]}/driver_override'] = 5
        server = self.wait_status(
            self.post_named(device['uuid']), 'ACTIVE', 'ERROR')
        self.assertEqual('ERROR', server['status'])
        self.assertEqual(0, self.usage())
        self.assertEqual(set(), self.devices_of(server))
