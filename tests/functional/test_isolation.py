# SPDX-License-Identifier: Apache-2.0
"""Servers without GPUs beside isolated hosts, through Nova's REST API."""

from __future__ import annotations

import contextlib
import io

from gpgpu_plugin.cmd import manage
from gpgpu_plugin.conductor import isolation
from tests.fixtures import cloud

_TRAIT = 'trait:CUSTOM_GPGPU_HOST'


class IsolationCloud(cloud.GpuCloud):
    """A host with eight GPUs, and Nova's own prefilter is on."""

    def setUp(self) -> None:
        super().setUp()
        # The conductor of the cloud has begun without an aggregate.
        self.flags(isolation_aggregate='gpu-hosts',
                   exact_device_projects=[self.api.project_id],
                   group='gpgpu_conductor')
        self.flags(enable_isolated_aggregate_filtering=True,
                   group='scheduler')
        self.cloud = isolation.AggregateCloud(self.connect())
        self.plain = self.flavor_of({})

    def keep(self) -> None:
        """Keep the aggregate from now on, whenever a test asks for it."""
        self.keeper = isolation.Isolation(
            cloud.CONF, self.conductor.database, self.cloud)

    def members(self) -> list[str]:
        """Return the hosts in the aggregate after a comparison."""
        self.keeper.run_once()
        [aggregate] = self.api.api_get('/os-aggregates').body['aggregates']
        return list(aggregate['hosts'])

    def flavor_set(self, *gpus: str) -> str:
        """Make a flavor with "gpgpu-manage flavor set"."""
        flavor = self.flavor_of({})
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(0, manage.run(
                ['flavor', 'set', flavor, *gpus], cloud.CONF,
                connect=self.connect))
        return flavor

    def moves(self) -> list[str]:
        """Return the kinds of the moves, the first one first."""
        return [event['kind'] for event in reversed(
            self.listing('event', 'list'))
            if event['kind'] in ('isolate', 'unisolate')]


class AlwaysTest(IsolationCloud):
    """Servers without GPUs never come to a host with GPUs."""

    def setUp(self) -> None:
        super().setUp()
        self.keep()

    def test_servers_with_gpus_land_and_others_are_refused(self) -> None:
        before = self.boot(self.plain)
        self.assertEqual(['gpu1'], self.members())
        refused = self.boot(self.plain, 'ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertEqual(
            'ACTIVE', self.api.get_server(before['id'])['status'])
        self.assertEqual(2, len(self.devices_of(
            self.boot(self.flavor_set('--gpu', 'H100=2')))))
        # Placement alone would take it, but not Nova's prefilter.
        flavor = self.flavor(H100=1)
        self.boot(flavor, 'ERROR')
        self.assertEqual(['isolated_aggregate'], [
            row['reason'] for row in self.listing(
                'why-not', '--flavor', flavor)])
        self.assertEqual(['isolate'], self.moves())

    def test_placement_that_lost_the_aggregate_gets_it_back(self) -> None:
        self.members()
        node = self._get_provider_uuid_by_host('gpu1')
        url = f'/resource_providers/{node}/aggregates'
        before = self.placement.get(url, version='1.19').body
        # As if Nova had not reached Placement, which it only logs.
        self.placement.put(url, {**before, 'aggregates': []}, version='1.19')
        self.boot(self.plain)
        self.members()
        self.assertEqual(
            before['aggregates'],
            self.placement.get(url, version='1.19').body['aggregates'])
        self.boot(self.plain, 'ERROR')

    def test_image_is_not_enough_without_a_flavor_of_gpu_hosts(self) -> None:
        self.members()
        image = self.image('CUSTOM_GPU')
        self.assertEqual(1, len(self.devices_of(self.boot(
            self.flavor_set('--gpu', 'H100=1'), imageRef=image))))
        self.boot(self.flavor(H100=1), 'ERROR', imageRef=image)

    def image(self, trait: str) -> str:
        """Return an image that requires a trait."""
        return str(self.glance.create(None, {
            'name': trait, 'disk_format': 'raw', 'container_format': 'bare',
            'status': 'active', 'min_ram': 0, 'min_disk': 0, 'size': 1,
            'visibility': 'public',
            'properties': {f'trait:{trait}': 'required'}})['id'])

    def test_named_devices_need_the_trait_in_flavor_or_image(self) -> None:
        self.members()
        first, second, third = self.devices('--variant', 'H100')[:3]
        flavor = self.flavor_of({_TRAIT: 'required'})
        image = self.image('CUSTOM_GPGPU_HOST')
        for device, flavor_id, image_id, status in (
                (first, self.plain, cloud.IMAGE, 'ERROR'),
                (second, flavor, cloud.IMAGE, 'ACTIVE'),
                (third, self.plain, image, 'ACTIVE')):
            server = self.wait_status(self.api.post_server({
                'server': {'name': 'named', 'imageRef': image_id,
                           'flavorRef': flavor_id, 'networks': 'none'},
                'os:scheduler_hints': {'gpgpu_device': device['uuid']},
                })['id'], 'ACTIVE', 'ERROR')
            self.assertEqual(status, server['status'], server.get('fault'))
            self.assertEqual(
                {f'gpu1 {device["address"]}'} if status == 'ACTIVE' else set(),
                self.devices_of(server))
