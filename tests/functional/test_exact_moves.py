# SPDX-License-Identifier: Apache-2.0
"""Operations and moves of a server that names its GPUs.

Such a server keeps its devices and their allocation; no operation takes it to
another host.
"""

from __future__ import annotations

import typing

from gpgpu_plugin.domain.allocation import request
from tests.fixtures import cloud
from tests.functional import test_moves


class ExactOperationCase(test_moves.MovesCase):
    """Base class of tests of a server that names two L40S of the host."""

    def boot_first(self) -> dict[str, typing.Any]:
        """Boot the server with the last two GPUs of the first host."""
        self.flags(exact_device_projects=[self.api.project_id],
                   group='gpgpu_conductor')
        self.plain = self.flavor_of({})
        devices = sorted(
            device['address'] for device in self.devices('--host', 'gpu1')
            if device['variant'])
        return self.boot_named([f'gpu1 {address}' for address in devices[2:]])

    def boot_named(self, names: list[str],
                   expected: str = 'ACTIVE') -> dict[str, typing.Any]:
        """Boot a server that names devices."""
        server = self.wait_status(self.api.post_server({
            'server': {'name': 'test', 'imageRef': cloud.IMAGE,
                       'flavorRef': self.plain, 'networks': 'none'},
            'os:scheduler_hints': {request.HINT: names}})['id'],
            'ACTIVE', 'ERROR')
        self.assertEqual(expected, server['status'], server.get('fault'))
        return server

    def no_host(self) -> None:
        """Wait until the scheduler has found no host; the server stays."""
        self.wait_for(lambda: 'No valid host' in self.stdlog.logger.output,
                      'no valid host')
        self.done()

    def names(self) -> list[str]:
        """Return the names of the server's devices."""
        return [f'gpu1 {address}' for address in self.gpus]


class ExactOperationsTest(ExactOperationCase):
    """Operations on the host."""

    def test_reboot_stop_and_restart_keep_devices(self) -> None:
        self.act('reboot', {'type': 'HARD'})
        self.done()
        self.act('os-stop')
        self.done('SHUTOFF')
        self.restart_compute()
        self.compare('gpu1')
        self.act('os-start')
        self.done()
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_rebuild_keeps_devices(self) -> None:
        self.act('rebuild', {'imageRef': cloud.IMAGE})
        self.done()
        # The project is not asked again for what it has.
        self.flags(exact_device_projects=[], group='gpgpu_conductor')
        self.act('rebuild', {'imageRef': cloud.IMAGE})
        self.done()

    def test_failed_rebuild_keeps_devices_reserved(self) -> None:
        with self.broken('createWithFlags'):
            self.act('rebuild', {'imageRef': cloud.IMAGE})
            self.failed('rebuild', 'libvirtError')
            self.wait_status(self.server['id'], 'ERROR')
        without = {'gpu1': self.gpus}
        self.wait_facts(self.server, {
            **self.expected({}, without, gpu1=0),
            'offered': {'gpu1 L40S': (4, 2), 'gpu2 L40S': (4, 0)}})
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_suspend_is_refused(self) -> None:
        self.act('suspend')
        self.failed('suspend', 'not supported for instances with GPUs')
        self.done()

    def test_failed_spawn_returns_allocation(self) -> None:
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)
        with self.broken('createWithFlags'):
            server = self.boot_named(self.names(), 'ERROR')
        self.wait_facts(server, self.expected({}))

    def test_shelve_frees_devices_and_unshelve_claims_them_again(
            self) -> None:
        self.flags(shelved_offload_time=0)
        self.act('shelve')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.wait_facts(self.server, self.nothing_assigned)
        other = self.boot_named(self.names()[:1])
        self.act('unshelve')
        self.wait_for(lambda: 'No valid host' in self.stdlog.logger.output,
                      'no valid host')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.delete(other)
        self.wait_facts(self.server, self.nothing_assigned)
        with self.broken('createWithFlags'):
            self.act('unshelve')
            self.failed('unshelve', 'libvirtError')
            self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
            self.wait_facts(self.server, self.nothing_assigned)
        self.act('unshelve')
        self.done()

    def test_lost_allocation_is_added_again(self) -> None:
        allocations = self._get_allocations_by_server_uuid(self.server['id'])
        gpus = self.provider('gpu1', 'L40S')
        body = self.placement.get(
            f'/allocations/{self.server["id"]}', version='1.28').body
        self.placement.put(f'/allocations/{self.server["id"]}', {
            'allocations': {
                provider: {'resources': allocation['resources']}
                for provider, allocation in allocations.items()
                if provider != gpus},
            'project_id': body['project_id'], 'user_id': body['user_id'],
            'consumer_generation': body['consumer_generation'],
        }, version='1.28')
        self.assertEqual(0, self.usage('gpu1', 'L40S'))
        self.compare('gpu1')
        self.done()


class ExactMovesTest(ExactOperationCase):
    """Moves to the second host, which are refused."""

    def test_migrations_are_refused(self) -> None:
        self.act('migrate')
        self.no_host()

    def test_live_migration_is_refused(self) -> None:
        self.act('os-migrateLive', {'host': None, 'block_migration': 'auto'})
        self.no_host()

    def test_resize_is_refused_on_another_host(self) -> None:
        self.act('resize', {'flavorRef': self.flavor_of({})})
        self.no_host()

    def test_resize_to_flavor_with_gpus_is_refused(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.resize(self.flavor(L40S=1))
        self.no_host()
        self.assertIn('exact_devices_and_flavor', self.stdlog.logger.output)

    def test_move_is_denied_where_no_filter_ran(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.act('migrate')
        self.wait_migration('error')
        self.failed('migrate', 'exact_device_elsewhere')
        self.done()
        self.resize(self.flavor(L40S=1))
        self.failed('resize', 'exact_devices_and_flavor')
        self.done()


class ExactResizeTest(ExactOperationCase):
    """Resize on one host, which keeps the named devices."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'pcie-l40s-4'}

    def setUp(self) -> None:
        super().setUp()
        # Nothing is left for a second unit of the server.
        self.other = self.boot(self.flavor(L40S=2))
        self.flags(allow_resize_to_same_host=True)

    def expect(self) -> dict[str, typing.Any]:
        """Return the facts while both servers have their GPUs."""
        others = self.hostdevs(self.other)
        return {**self.expected({'gpu1': self.gpus + others}),
                'guest': {'gpu1': self.gpus},
                'assigned': {'gpu1': sorted(self.gpus)}}

    def test_resize_keeps_devices_and_their_allocation(self) -> None:
        for action in ('revertResize', 'confirmResize', 'confirmResize'):
            self.resize(self.flavor_of({}))
            self.assertEqual(self.gpus, self.moved('gpu1'))
            self.wait_facts(self.server, self.expect())
            self.assertEqual({('gpu1', 'instance')}, self.roles())
            self.decide(action)
            self.wait_facts(self.server, self.expect())
            # Nova's own allocation, of the new flavor, has none at first.
            self.wait_for(
                lambda: self.allocated(self.server, variant='L40S') == 2,
                'two GPUs in the allocation of the server')
        self.compare('gpu1')
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, self.expect())
        self.delete(self.server, self.other)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_delete_of_resized_server_frees_devices(self) -> None:
        self.resize(self.flavor_of({}))
        self.moved('gpu1')
        self.delete(self.server, self.other)
        self.wait_facts(self.server, {
            **self.nothing_assigned,
            'guest': self.facts(self.server)['guest']})


class ExactEvacuateTest(test_moves.EvacuateCase, ExactOperationCase):
    """Evacuation, which finds no host with the devices."""

    def test_evacuation_is_refused_and_keeps_allocation(self) -> None:
        self.act('evacuate', {})
        self.wait_migration('error')
        self.check_stays()

    def test_evacuation_is_denied_where_no_filter_ran(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.evacuate('failed')
        self.assertIn('exact_device_elsewhere', self.stdlog.logger.output)
        self.check_stays()

    def check_stays(self) -> None:
        """Check that the server keeps all, also when its host is back."""
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual('gpu1', server['OS-EXT-SRV-ATTR:host'])
        self.wait_facts(self.server, self.gpus_assigned)
        self.gpu1_comes_back()
        self.compare('gpu1')
        self.wait_facts(self.server, self.gpus_assigned)
