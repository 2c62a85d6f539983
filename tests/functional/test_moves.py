#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Resize and cold migration: both sides hold devices until it is decided."""

from __future__ import annotations

import typing

import fixtures
from nova import exception as nova_exception

from tests.fixtures import cloud

FINISH = 'nova.virt.fake.FakeDriver.finish_migration'
POWER_OFF = 'nova.virt.fake.FakeDriver.migrate_disk_and_power_off'


def _fails(*args: object, **kwargs: object) -> typing.NoReturn:
    raise nova_exception.VirtualInterfaceCreateException('no interface')


class _Moves(cloud.GpuCloud):

    def resize(self, flavor: str) -> None:
        self.api.post_server_action(self.server['id'], {
            'resize': {'flavorRef': flavor}})

    def migrate(self) -> None:
        self.api.post_server_action(self.server['id'], {'migrate': None})

    def decide(self, action: str, *statuses: str) -> None:
        """``confirmResize`` or ``revertResize``."""
        self.api.post_server_action(self.server['id'], {action: None})
        self.wait_status(self.server['id'], *(statuses or ('ACTIVE',)))

    def hosts_held(self) -> dict[str, int]:
        """How many devices the server holds on each host."""
        result: dict[str, int] = {}
        for each in self.held(self.server):
            host = each.partition(' ')[0]
            result[host] = result.get(host, 0) + 1
        return result

    def wait_held(self, **expected: int) -> None:
        """Wait until it holds so many on each host, and no others are."""
        self.wait_for(lambda: self.hosts_held() == expected,
                      f'held: {expected}')
        for host in self.machines:
            count = expected.get(host, 0)
            self.wait_states(host, **{
                name: number for name, number in (
                    ('assigned', count), ('available', 8 - count))
                if number})
            self.wait_inventory(8, 0, host)

    def wait_usage(self, **expected: int) -> None:
        """Wait until Placement counts so many on each host."""
        self.wait_for(
            lambda: {host: self.usage(host) for host in self.machines} == {
                host: expected.get(host, 0) for host in self.machines},
            f'usage: {expected}')


class TwoHostsTest(_Moves):
    """Two HGX servers; the instance is on the first."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2), host='gpu1')
        self.before = self.held(self.server)

    def _moved(self, flavor: str | None = None) -> None:
        if flavor is None:
            self.migrate()
        else:
            self.resize(flavor)
        server = self.wait_status(
            self.server['id'], 'VERIFY_RESIZE', 'ERROR')
        self.assertEqual('VERIFY_RESIZE', server['status'])
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])

    def test_resize_confirmed(self) -> None:
        self._moved(self.flavor(H100=4))
        # Both sides, also in Placement.
        self.wait_held(gpu1=2, gpu2=4)
        self.wait_usage(gpu1=2, gpu2=4)
        self.assertLessEqual(self.before, self.held(self.server))
        self.decide('confirmResize')
        self.wait_held(gpu2=4)
        self.wait_usage(gpu2=4)
        self.delete(self.server)
        self.wait_held()
        self.wait_usage()

    def test_resize_reverted(self) -> None:
        self._moved(self.flavor(H100=4))
        self.decide('revertResize')
        self.wait_held(gpu1=2)
        self.wait_usage(gpu1=2)
        self.assertEqual(self.before, self.held(self.server))
        self.assertIn('vfio-pci', self.bound_drivers('gpu1').values())
        self.assertNotIn('vfio-pci', self.bound_drivers('gpu2').values())

    def test_cold_migration_and_back(self) -> None:
        self._moved()
        self.decide('confirmResize')
        self.wait_held(gpu2=2)
        self.migrate()
        self.wait_status(self.server['id'], 'VERIFY_RESIZE')
        self.decide('confirmResize')
        self.wait_held(gpu1=2)
        self.wait_usage(gpu1=2)

    def test_to_a_flavor_without_gpus_and_back(self) -> None:
        self._moved(self.flavor_of({}))
        self.wait_held(gpu1=2)
        self.decide('confirmResize')
        self.wait_held()
        self.wait_usage()
        self.resize(self.flavor(H100=8))
        self.wait_status(self.server['id'], 'VERIFY_RESIZE')
        self.decide('confirmResize')
        self.wait_held(gpu1=8)

    def test_deleted_before_it_is_decided(self) -> None:
        self._moved(self.flavor(H100=4))
        self.delete(self.server)
        self.wait_held()
        self.wait_usage()

    def _stays(self) -> None:
        self.wait_for(
            lambda: [m['status'] for m in self.api.get_migrations()] == [
                'error'], 'migration error')
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual(('ACTIVE', 'gpu1'), (
            server['status'], server['OS-EXT-SRV-ATTR:host']))
        self.assertEqual(self.before, self.held(self.server))
        self.wait_usage(gpu1=2)

    def test_denied_stays_as_it_is(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.claim_directly('gpu2', 6)
        self.resize(self.flavor(H100=4))
        self._stays()
        self.assertIn('not_enough_available', self.stdlog.logger.output)

    def test_conductor_down_stays_as_it_is(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.conductor.stop()
        self.migrate()
        self.wait_for(
            lambda: self.api.get_migrations()
            and self.api.get_migrations()[0]['status'] == 'error',
            'migration error', timeout=30)
        self.conductor.start()
        # It finds the claim, for which nobody waits any more, in its queue.
        self.wait_states('gpu2', provisioning=2, available=6)
        self.driver('gpu2').gpu_tracker.suspect()
        self.look('gpu2')
        self.wait_states('gpu2', available=8)
        self._stays()

    def test_source_fails_after_the_claim(self) -> None:
        with fixtures.MonkeyPatch(POWER_OFF, _fails):
            self.migrate()
            self.wait_status(self.server['id'], 'ERROR')
        # Never touched on the destination, so free at once.
        self.wait_held(gpu1=2)
        self.delete(self.server)
        self.wait_held()
        self.wait_usage()

    def test_destination_fails(self) -> None:
        with fixtures.MonkeyPatch(FINISH, _fails):
            self.migrate()
            self.wait_status(self.server['id'], 'ERROR')
        # Nova leaves it there, to be rebooted or deleted; the old side stays.
        self.wait_held(gpu1=2, gpu2=2)
        self.delete(self.server)
        self.wait_for(lambda: 'gpu2' not in self.hosts_held(), 'gpu2 free')
        # Nova does not tell the source; its comparison finds it, once the
        # guest is gone, which FakeDriver keeps when it is powered off.
        self.driver('gpu1')._test_remove_vm(self.server['id'])
        self.driver('gpu1').gpu_tracker.suspect()
        self.look('gpu1')
        self.wait_held()

    def test_claim_that_is_never_used_ends(self) -> None:
        destination = self.driver('gpu2').gpu_tracker

        def dies(*args: object, **kwargs: object) -> typing.NoReturn:
            raise SystemExit
        with fixtures.MonkeyPatch(POWER_OFF, dies):
            self.migrate()
            self.wait_states('gpu2', provisioning=2, available=6)
        # While Nova migrates it, it is waited for.
        destination.suspect()
        self.look('gpu2')
        self.wait_states('gpu2', provisioning=2, available=6)
        self.restart_compute('gpu1')
        destination.suspect()
        self.look('gpu2')
        self.wait_states('gpu2', available=8)
        self.assertEqual(self.before, self.held(self.server))


class OneHostTest(_Moves):
    """Both sides on one HGX server."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.server = self.boot(self.flavor(H100=2))
        self.before = self.held(self.server)
        self.resize(self.flavor(H100=4))
        self.wait_status(self.server['id'], 'VERIFY_RESIZE')
        self.wait_states(assigned=6, available=2)
        self.assertLess(self.before, self.held(self.server))

    def test_confirmed(self) -> None:
        new = self.held(self.server) - self.before
        self.decide('confirmResize')
        self.wait_held(gpu1=4)
        self.assertEqual(new, self.held(self.server))

    def test_reverted(self) -> None:
        self.decide('revertResize')
        self.wait_held(gpu1=2)
        self.assertEqual(self.before, self.held(self.server))

    def test_no_room_for_both_sides(self) -> None:
        self.decide('confirmResize')
        self.wait_held(gpu1=4)
        before = self.held(self.server)
        self.resize(self.flavor(H100=8))
        self.wait_for(
            lambda: 'No valid host' in self.stdlog.logger.output,
            'no valid host')
        self.wait_status(self.server['id'], 'ACTIVE')
        self.assertEqual(before, self.held(self.server))
        self.wait_usage(gpu1=4)
