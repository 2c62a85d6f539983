# SPDX-License-Identifier: Apache-2.0
"""Hosts that GpuWeigher chooses, through Nova's REST API."""

from __future__ import annotations

import threading
import typing
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.scheduler_weights import gpu_weigher
from tests.fixtures import cloud
from tests.fixtures import cloud_views
from tests.fixtures import patience

CLAIM = 'gpgpu_plugin.conductor.claims.claim'
_KINDS = sa.text(
    'SELECT resource_class, units, arrivals FROM request_kinds')
WEIGHERS = ['nova.scheduler.weights.all_weighers',
            'gpgpu_plugin.scheduler_weights.all_weighers']


class WeigherTest(cloud.GpuCloud):
    """Two HGX servers, and one whose GPUs no variant matches.

    Nova's RAM weigher would spread all servers over them.
    """

    machines = {'cpu1': 'pcie-l40s-4', 'gpu1': 'hgx-h100-8',
                'gpu2': 'hgx-h100-8'}
    weight_policy: typing.ClassVar[str] = 'pack'

    def _configure(self) -> None:
        super()._configure()
        self.flags(weight_policy=self.weight_policy, group='gpgpu_scheduler')
        self.flags(weight_classes=WEIGHERS, group='filter_scheduler')
        self.restart_scheduler('ComputeFilter', 'GpuFilter')

    def hosts_of(self, *servers: str) -> list[str]:
        """Return the hosts of servers, as soon as all are active."""
        return [self.wait_status(server, 'ACTIVE', 'ERROR')[
            'OS-EXT-SRV-ATTR:host'] for server in servers]

    def denials(self) -> list[dict[str, typing.Any]]:
        """Return the claims that a host denied."""
        return list(self.listing('event', 'list', '--kind', 'claim_denied'))

    def multi_create(self, flavor: str, count: int) -> list[str]:
        """Request several servers at once, and return their ids."""
        reservation = self.api.api_post('/servers', {'server': {
            'name': 'many', 'imageRef': cloud.IMAGE, 'flavorRef': flavor,
            'networks': 'none', 'min_count': count, 'max_count': count,
            'return_reservation_id': True}}).body['reservation_id']
        return [server['id'] for server in self.api.get_servers(
            detail=False, search_opts={'reservation_id': reservation})]


class PackTest(WeigherTest):
    """Servers under the default policy."""

    def test_host_is_filled_and_the_other_keeps_eight_gpus(self) -> None:
        small = self.flavor(H100=2)
        first = [self.hosts_of(self.post_server(small))[0]
                 for _ in range(4)]
        self.assertEqual(1, len(set(first)), first)
        [other] = {'gpu1', 'gpu2'} - set(first)
        self.assertEqual(
            other, self.boot(self.flavor(H100=8))['OS-EXT-SRV-ATTR:host'])

    def test_server_lands_on_the_host_that_why_not_ranks_first(self) -> None:
        flavor = self.flavor(H100=2)
        self.boot(flavor)
        ranked = {row['rank']: row['host'] for row in self.listing(
            'why-not', '--flavor', flavor)}
        self.assertEqual({1, 2}, set(ranked))
        self.assertEqual(
            ranked[1], self.boot(flavor)['OS-EXT-SRV-ATTR:host'])

    def test_servers_without_gpus_stay_away_from_gpu_hosts(self) -> None:
        # They are the first requests of a scheduler.
        plain = self.flavor_of({})
        self.assertEqual(['cpu1'] * 4, self.hosts_of(
            *[self.post_server(plain) for _ in range(4)]))

    def test_servers_without_gpus_take_the_fewest_capabilities(self) -> None:
        for tags, host in (('fast-network,nvme', 'cpu1'),
                           ('fast-network', 'gpu2')):
            aggregate = self.api.post_aggregate(
                {'aggregate': {'name': host}})['id']
            self.api.post_aggregate_action(aggregate, {'set_metadata': {
                'metadata': {'gpgpu:tags': tags}}})
            self.api.add_host_to_aggregate(aggregate, host)
        # gpu1 has the tag GPU alone; the two others have two tags each.
        self.assertEqual(['gpu1'], self.hosts_of(
            self.post_server(self.flavor_of({}))))

    def test_multi_create_fills_one_host_without_denials(self) -> None:
        servers = self.multi_create(self.flavor(H100=1), 8)
        self.assertEqual(8, len(servers))
        found = self.hosts_of(*servers)
        self.assertEqual(1, len(set(found)), found)
        self.assertEqual([], self.denials())

    def test_boots_in_a_row_fill_one_host_without_denials(self) -> None:
        flavor = self.flavor(H100=1)
        found = self.hosts_of(
            *[self.post_server(flavor) for _ in range(8)])
        self.assertEqual(1, len(set(found)), found)
        self.assertEqual([], self.denials())

    def test_requests_of_all_servers_are_counted_once(self) -> None:
        plain, gpu = self.flavor_of({}), self.flavor(H100=2)
        self.hosts_of(*[self.post_server(flavor) for flavor in (
            plain, plain, gpu, gpu)])
        # More than any host has: Placement knows, so that no filter runs, and
        # Nova's notifications are off.
        self.boot(self.flavor(H100=9), 'ERROR')
        self.hosts_of(self.post_server(gpu))

        def counts() -> dict[tuple[str, int], int]:
            with self.conductor.database.engine.connect() as connection:
                return {(resource_class, units): arrivals
                        for resource_class, units, arrivals
                        in connection.execute(_KINDS)}
        expected = {('', 0): 2, ('CUSTOM_GPU_H100', 2): 3}
        self.wait_for(lambda: counts() == expected, f'{expected} counted')

    def test_scheduler_begins_with_the_flavors_of_the_cloud(self) -> None:
        self.flavor_of({'resources:CUSTOM_GPU_H100': '3'})
        self.restart_scheduler('ComputeFilter', 'GpuFilter')
        [weigher] = [
            weigher for weigher
            in self.scheduler_service.manager.host_manager.weighers
            if isinstance(weigher, gpu_weigher.GpuWeigher)]
        self.boot(self.flavor(H100=1))
        # Nova's own flavors have no GPUs.
        self.assertEqual([3], [
            slot.gpus for slot in weigher._ranking._policy._scarcity.classes])

    def test_node_that_a_pending_server_takes_is_not_chosen(self) -> None:
        three, two = (self.flavor_of({
            'resources:CUSTOM_GPU_H100': count,
            'gpgpu:topology': 'same_numa'}) for count in ('3', '2'))
        claimed = threading.Event()
        self.addCleanup(claimed.set)
        claim = claims.claim

        def claim_later(*args: typing.Any) -> claim_obj.Claim:
            claimed.wait(patience.LONG)
            return claim(*args)

        with fixtures.MonkeyPatch(CLAIM, claim_later):
            servers = [self.post_server(three) for _ in range(2)]
            # The scheduler need not take requests in the order of the API's.
            self.wait_for(
                lambda: len(self.conductor.choices()) == 2, 'choices')
            # Each NUMA node of one host has one GPU left then, so that
            # Placement offers two, and neither claim has been made yet.
            servers.append(self.post_server(two))
            self.wait_for(
                lambda: len(self.conductor.choices()) == 3, 'choices')
            claimed.set()
            found = self.hosts_of(*servers)
        self.assertEqual(found[0], found[1])
        self.assertNotEqual(found[0], found[2])
        self.assertEqual([], self.denials())

    def test_nodes_that_another_schedulers_servers_take_are_not_chosen(
            self) -> None:
        def on_node(count: int) -> request.Request:
            return request.Request(
                demands=(request.Demand(
                    resource_class='CUSTOM_GPU_H100', count=count),),
                topology=request.GPUTopology.SAME_NUMA)
        first = self.boot(self.flavor(H100=1))['OS-EXT-SRV-ATTR:host']
        # What this scheduler chose went to the conductors.
        [sent] = self.wait_for(self.conductor.choices, 'the choice')
        self.assertEqual(cloud_views.node_uuid(first), sent.node_uuid)
        # One GPU of each NUMA node is left then, so that Placement offers
        # two, and none of these servers has claimed yet.
        conductor_client.ConductorAPI(cloud.CONF).chosen(context.admin(), [
            scheduling.SchedulerChoice(
                scheduler='other', node_uuid=sent.node_uuid,
                request=on_node(count), instance_uuid=str(uuid.uuid4()))
            for count in (2, 3)])
        self.wait_for(lambda: len(self.conductor.choices()) == 3, 'choices')
        server = self.boot(self.flavor_of({
            'resources:CUSTOM_GPU_H100': '2', 'gpgpu:topology': 'same_numa'}))
        self.assertNotEqual(first, server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual([], self.denials())


class SpreadTest(WeigherTest):
    """Servers under the policy ``spread``."""

    weight_policy = 'spread'

    def test_servers_alternate(self) -> None:
        found = self.hosts_of(*self.multi_create(self.flavor(H100=2), 4))
        self.assertEqual({'gpu1': 2, 'gpu2': 2}, {
            host: found.count(host) for host in set(found)})
        self.assertEqual([], self.denials())
