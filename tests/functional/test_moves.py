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
"""Resize, cold migration and evacuation, including failures in the middle.

Source and destination have devices until Nova confirms or reverts.
"""

from __future__ import annotations

import threading
import typing

import fixtures
from nova.compute import manager as nova_manager
from nova.tests.fixtures import libvirt as fakelibvirt

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.rpc import conductor_api
from tests.fixtures import cloud
from tests.fixtures import libvirt_cloud
from tests.fixtures import patience
from tests.functional import test_operations

DRIVER = 'nova.virt.libvirt.driver.LibvirtDriver'


def _fails(*args: object, **kwargs: object) -> typing.NoReturn:
    raise fakelibvirt.libvirtError('it is broken')


class MovesCase(test_operations.OperationCase):
    """Base class of tests that move a server with two L40S."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(libvirt_cloud.Moves())

    def compare(self, host: str) -> None:
        """Compare a host's assignments with Nova's instances."""
        self.driver(host).gpu_tracker.request_reconcile()
        self.run_once(host)

    def fail_cleaning(self) -> None:
        """Make cleaning the guest's devices on the first host fail."""
        for address in self.gpus:
            self.driver().gpu_tracker.backend.kernel.faults[
                f'{address}/reset'] = 5

    def resize(self, flavor: str) -> None:
        self.act('resize', {'flavorRef': flavor})

    def moved(self, host: str = 'gpu2') -> list[str]:
        """Wait for VERIFY_RESIZE and return the guest's devices."""
        server = self.wait_status(
            self.server['id'], 'VERIFY_RESIZE', 'ERROR')
        self.assertEqual('VERIFY_RESIZE', server['status'])
        self.assertEqual(host, server['OS-EXT-SRV-ATTR:host'])
        return self.hostdevs(self.server, host)

    def decide(self, action: str) -> None:
        """Confirm or revert: ``confirmResize`` or ``revertResize``."""
        self.act(action)
        self.wait_status(self.server['id'], 'ACTIVE')

    def roles(self) -> set[tuple[str, str]]:
        """Return the hosts and roles of the server's assignments."""
        return {(assignment.host, str(assignment.role))
                for assignment in conductor_api.ConductorAPI(
                    cloud.CONF).instance_assignments(
                    gpgpu_context.admin(), self.server['id'])}

    def wait_migration(self, status: str) -> None:
        """Wait for the status of the latest migration."""
        self.wait_for(
            lambda: [migration['status'] for migration in sorted(
                self.api.get_migrations(),
                key=lambda migration: migration['id'])][-1:] == [status],
            f'migration {status}')

    def guest_is_off(self, host: str) -> bool:
        """Return whether the server's domain on a host is off."""
        domain = self.connections[host].lookupByUUIDString(self.server['id'])
        return not domain.isActive()


class TwoHostsTest(MovesCase):
    """Moves from the first host to the second."""

    def _both(self, count: int) -> list[str]:
        new = self.moved()
        self.assertEqual(count, len(new))
        both = {'gpu1': self.gpus, 'gpu2': new}
        self.wait_facts(self.server, self.expected(
            # The source's domain is off, and defined until it is decided.
            {host: gpus for host, gpus in both.items() if gpus} | {
                'gpu2': new}, both))
        self.assertTrue(self.guest_is_off('gpu1'))
        return new

    def test_confirmed_resize_leaves_devices_of_destination(self) -> None:
        self.resize(self.flavor(L40S=4))
        new = self._both(4)
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_reverted_resize_leaves_devices_of_source(self) -> None:
        self.resize(self.flavor(L40S=4))
        self._both(4)
        self.decide('revertResize')
        self.wait_facts(self.server, self.gpus_assigned)

    def test_cold_migration_there_and_back_changes_roles(self) -> None:
        self.act('migrate')
        new = self._both(2)
        self.assertEqual(
            {('gpu1', 'instance'), ('gpu2', 'destination')}, self.roles())
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.assertEqual({('gpu2', 'instance')}, self.roles())
        self.act('migrate')
        back = self.moved('gpu1')
        self.assertEqual(
            {('gpu2', 'instance'), ('gpu1', 'destination')}, self.roles())
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu1': back}))
        self.assertEqual({('gpu1', 'instance')}, self.roles())

    def test_repeated_resizes_leave_one_set_of_devices(self) -> None:
        for host, count in (('gpu2', 4), ('gpu1', 3), ('gpu2', 2)):
            self.resize(self.flavor(L40S=count))
            new = self.moved(host)
            self.decide('confirmResize')
            self.wait_facts(self.server, self.expected({host: new}))
            self.assertEqual({(host, 'instance')}, self.roles())
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_evacuation_after_confirmed_resize_leaves_one_set(self) -> None:
        self.resize(self.flavor(L40S=3))
        self.moved()
        self.decide('confirmResize')
        self.computes['gpu2'].stop()
        [service] = self.api.get_services(
            binary='nova-compute', host='gpu2')
        self.api.put_service_force_down(service['id'], True)
        self.act('evacuate', {})
        self.wait_migration('done')
        self._start_compute('gpu2')
        self.api.put_service_force_down(service['id'], False)
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.hostdevs(self.server, 'gpu1')}))
        self.assertEqual({('gpu1', 'instance')}, self.roles())

    def test_confirmation_without_conductor_is_sent_later(self) -> None:
        self.resize(self.flavor(L40S=4))
        new = self.moved()
        self.conductor.stop()
        self.decide('confirmResize')
        self.conductor.start()
        self.run_once('gpu1')
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.assertEqual({('gpu2', 'instance')}, self.roles())

    def test_resize_to_flavor_without_gpus_and_back(self) -> None:
        self.resize(self.flavor_of({}))
        self._both(0)
        self.decide('revertResize')
        self.wait_facts(self.server, self.gpus_assigned)
        self.resize(self.flavor_of({}))
        self._both(0)
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': []}, {}))
        self.resize(self.flavor(L40S=4))
        new = self.moved('gpu1')
        self.wait_facts(self.server, self.expected(
            {'gpu1': new, 'gpu2': []}, {'gpu1': new}))
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu1': new}))

    def test_delete_of_resized_server_frees_both_sets(self) -> None:
        self.resize(self.flavor(L40S=4))
        self.moved()
        self.delete(self.server)
        self.wait_facts(self.server, {
            **self.nothing_assigned,
            'guest': self.facts(self.server)['guest']})

    def test_delete_while_disks_are_copied_frees_both_sets(self) -> None:
        copying, end, over = (threading.Event() for _ in range(3))
        resize = nova_manager.ComputeManager.resize_instance
        self.addCleanup(end.set)

        def copies(*args: object, **kwargs: object) -> typing.NoReturn:
            copying.set()
            # Longer than the test waits: its failure ends the claim, too.
            end.wait(2 * patience.LONG)
            _fails()

        def resize_instance(*args: object, **kwargs: object) -> None:
            try:
                resize(*args, **kwargs)
            finally:
                over.set()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager.resize_instance',
            resize_instance))
        with fixtures.MonkeyPatch(
                f'{DRIVER}.migrate_disk_and_power_off', copies):
            self.resize(self.flavor(L40S=4))
            self.assertTrue(copying.wait(patience.LONG))
            self.assertEqual(4, len(self.devices_on(self.server, 'gpu2')))
            self.delete(self.server)
            for host in self.machines:
                self.wait_states(host, 'L40S', available=4)
            end.set()
            self.assertTrue(over.wait(patience.LONG))

    def test_delete_after_the_destination_failed_frees_both_sets(self) -> None:
        with fixtures.MonkeyPatch(f'{DRIVER}.finish_migration', _fails):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        self.assertEqual(
            {('gpu1', 'instance'), ('gpu2', 'destination')}, self.roles())
        self.delete(self.server)
        for host in self.machines:
            self.wait_states(host, 'L40S', available=4)

    def test_restarts_before_confirmation_keep_both_sets(self) -> None:
        self.resize(self.flavor(L40S=4))
        new = self._both(4)
        both = self.facts(self.server)
        self.restart_compute('gpu1')
        self.restart_compute('gpu2')
        self.wait_facts(self.server, both)
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))

    # -- failures -----------------------------------------------------------

    def _stays(self) -> None:
        self.wait_migration('error')
        self.done()

    def test_denied(self) -> None:
        self.restart_scheduler('ComputeFilter')
        claim = self.claim_directly('gpu2', 2, 'L40S')
        self.resize(self.flavor(L40S=4))
        self.wait_migration('error')
        self.wait_status(self.server['id'], 'ACTIVE')
        self.failed('resize', 'not_enough_available')
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        self.abandon(claim)
        self.done()

    def test_migration_without_conductor_leaves_server_on_source(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.conductor.stop()
        self.act('migrate')
        self.wait_for(
            lambda: self.api.get_migrations()
            and self.api.get_migrations()[0]['status'] == 'error',
            'migration error')
        self.conductor.start()
        # It finds the claim, for which nobody waits any more, in its queue.
        self.wait_states('gpu2', 'L40S', provisioning=2, available=2)
        self.driver('gpu2').gpu_tracker.request_reconcile()
        self.run_once('gpu2')
        self._stays()

    def test_source_that_fails_after_the_claim_keeps_server(self) -> None:
        with fixtures.MonkeyPatch(
                f'{DRIVER}.migrate_disk_and_power_off', _fails):
            self.act('migrate')
            self.done('ERROR')
        self.act('reboot', {'type': 'HARD'})
        self.done()

    def test_destination_that_fails_is_repaired_by_hard_reboot(self) -> None:
        with fixtures.MonkeyPatch(f'{DRIVER}.finish_migration', _fails):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        # Nova leaves it on the destination, where a reboot mends it, and takes
        # the source's allocation back, which finds it by its comparison.
        new = self.devices_on(self.server, 'gpu2')
        self.assertEqual(2, len(new))
        self.compare('gpu1')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus}, {'gpu2': new}))
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}, {'gpu2': new}))
        self._forget_guest('gpu1')
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_source_notices_that_a_migration_failed_elsewhere(self) -> None:
        with fixtures.MonkeyPatch(f'{DRIVER}.finish_migration', _fails):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_migration('error')
        # By Nova's periodic task, without a comparison or a hard reboot.
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.compute.unexpected.PATIENCE', 0):
            self.run_periodics('gpu1')
        self.wait_for(lambda: self.roles() == {('gpu2', 'destination')},
                      'one set')
        self._forget_guest('gpu1')
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_migration_after_a_failed_one_leaves_one_set(self) -> None:
        with fixtures.MonkeyPatch(f'{DRIVER}.finish_migration', _fails):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        # The conductor has notified the source.
        self.wait_for(
            lambda: self.roles() == {('gpu2', 'instance')}, 'one set')
        self.act('migrate')
        back = self.moved('gpu1')
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu1': back}))
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, self.expected({'gpu1': back}))
        self.assertEqual({('gpu1', 'instance')}, self.roles())
        self.act('migrate')
        new = self.moved()
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))

    def _forget_guest(self, host: str) -> None:
        domain = self.connections[host].lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()

    def _fail_confirmation(self, count: int) -> list[str]:
        self.resize(self.flavor(L40S=count))
        new = self.moved()
        with self.broken('undefineFlags', 'undefine'):
            self.act('confirmResize')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_migration('error')
        return new

    def test_confirmation_that_fails_frees_the_old_set(self) -> None:
        new = self._fail_confirmation(4)
        # Nova takes the migration's allocation back all the same. The old
        # guest is off.
        self.compare('gpu1')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}, {'gpu2': new}))
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}, {'gpu2': new}))
        self.assertEqual({('gpu2', 'instance')}, self.roles())

    def test_unshelve_ends_what_an_earlier_stay_left(self) -> None:
        # The first host does not compare what it has.
        self.driver('gpu1').gpu_tracker._run[
            tasks.Task.RECONCILE] = lambda: None
        self._fail_confirmation(1)
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self._forget_guest('gpu1')
        self.act('shelve')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.assertEqual(
            sorted(self.gpus), self.devices_on(self.server, 'gpu1'))
        self.act('unshelve')
        server = self.wait_status(
            self.server['id'], 'ACTIVE', 'SHELVED_OFFLOADED')
        self.assertEqual('gpu1', server['OS-EXT-SRV-ATTR:host'])
        new = self.hostdevs(self.server, 'gpu1')
        self.assertEqual(1, len(new))
        self.wait_facts(self.server, self.expected({'gpu1': new}))

    def test_revert_that_fails_on_destination_frees_the_old_set(self) -> None:
        self.resize(self.flavor(L40S=4))
        new = self.moved()
        with self.broken('undefineFlags', 'undefine'):
            self.act('revertResize')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_migration('error')
        # Nova leaves it on the destination with the new flavor.
        self.compare('gpu1')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}, {'gpu2': new}, gpu1=2))

    def test_revert_that_fails_on_source_is_repaired_by_hard_reboot(
            self) -> None:
        self.resize(self.flavor(L40S=4))
        self.moved()
        with self.broken('createWithFlags'):
            self.act('revertResize')
            self.done('ERROR', domain=False)
        self.act('reboot', {'type': 'HARD'})
        self.done()

    def test_inventory_stays_while_nova_confirms(self) -> None:
        self.resize(self.flavor(L40S=4))
        self.moved()
        # Two fewer are offered afterwards, as their cleaning fails.
        self.fail_cleaning()
        client = self.driver()._gpu_client
        delete = client.delete_allocation_for_instance
        seen: list[tuple[int, int]] = []
        cleaned = threading.Event()

        def slow(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            self.wait_states('gpu1', 'L40S', quarantined=2, available=2)
            for _ in range(3):
                self.run_once('gpu1')
                seen.append(self.inventory('gpu1', 'L40S'))
            cleaned.set()
            return delete(*args, **kwargs)
        with fixtures.MockPatchObject(
                client, 'delete_allocation_for_instance', slow):
            self.decide('confirmResize')
            self.assertTrue(cleaned.wait(patience.LONG))
        self.assertEqual({(4, 0)}, set(seen))
        self.wait_inventory(4, 2, variant='L40S')

    def test_claim_of_dead_source_ends_after_its_migration(self) -> None:
        destination = self.driver('gpu2').gpu_tracker

        died = threading.Event()

        def dies(*args: object, **kwargs: object) -> typing.NoReturn:
            died.set()
            raise SystemExit
        with fixtures.MonkeyPatch(
                f'{DRIVER}.migrate_disk_and_power_off', dies):
            self.act('migrate')
            self.wait_states('gpu2', 'L40S', provisioning=2, available=2)
            # The destination has claimed; now it is the source's turn.
            self.assertTrue(died.wait(patience.LONG))
        # While Nova migrates it, it is waited for.
        destination.request_reconcile()
        self.run_once('gpu2')
        self.wait_states('gpu2', 'L40S', provisioning=2, available=2)
        self.restart_compute('gpu1')

        def is_freed() -> bool:
            # The conductor notifies the host until the claim ends; Nova
            # ends the migration some time after the start of the source.
            destination.request_reconcile()
            self.run_once('gpu2')
            return bool(self.states('gpu2', 'L40S') == {'available': 4})
        self.wait_for(is_freed, 'the end of the claim')
        # Nova leaves the migration's allocation.
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, {
            **self.gpus_assigned, 'usage': self.facts(self.server)['usage']})
        self.delete(self.server)


class VariantTest(MovesCase):
    """The second host has other GPUs."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'intel-flex170-2'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '26b9'),
        ('FLEX', '--vendor', '8086', '--device', '56c0'))

    def test_resize(self) -> None:
        for action in ('revertResize', 'confirmResize'):
            self.resize(self.flavor(FLEX=1))
            new = self.moved()
            self.assertEqual(1, len(new))
            self.wait_facts(self.server, self.expected(
                {'gpu1': self.gpus, 'gpu2': new}))
            self.decide(action)
            self.wait_facts(self.server, self.expected(
                {'gpu2': new} if action == 'confirmResize'
                else {'gpu1': self.gpus}))


class VariantOnOneHostTest(MovesCase):
    """The only host has one GPU of each kind."""

    count = 1
    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'wide-domains'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '2342'),
        ('L4', '--vendor', '10de', '--device', '27b8'))

    def test_resize(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        for action in ('revertResize', 'confirmResize'):
            self.resize(self.flavor(L4=1))
            new = self.moved('gpu1')
            self.wait_facts(self.server, self.expected(
                {'gpu1': new}, {'gpu1': self.gpus + new}))
            self.decide(action)
            self.wait_facts(self.server, self.expected(
                {'gpu1': new if action == 'confirmResize' else self.gpus}))


class OneHostTest(MovesCase):
    """Source and destination on one host."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'hgx-h100-8'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '2330'),)

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.resize(self.flavor(L40S=4))
        self.new = self.moved('gpu1')
        self.assertEqual(4, len(self.new))
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.new}, {'gpu1': self.gpus + self.new}))

    def test_confirmed_resize_on_one_host_frees_the_old_set(self) -> None:
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu1': self.new}))
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, self.expected({'gpu1': self.new}))
        # The host has no capacity for the old and the new set.
        self.resize(self.flavor(L40S=8))
        self.wait_for(
            lambda: 'No valid host' in self.stdlog.logger.output,
            'no valid host')
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, self.expected({'gpu1': self.new}))

    def test_reverted_resize_on_one_host_frees_the_new_set(self) -> None:
        self.decide('revertResize')
        self.wait_facts(self.server, self.gpus_assigned)


class OneHostFailedTest(MovesCase):
    """Resize on one host whose guest cannot be created again."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'hgx-h100-8'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '2330'),)

    def test_hard_reboot_after_failed_resize_frees_the_new_set(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        with self.broken('createWithFlags'):
            self.resize(self.flavor(L40S=4))
            self.wait_status(self.server['id'], 'ERROR')
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        # Nova has given it its old flavor again.
        self.assertEqual(self.gpus, self.hostdevs(self.server))
        self.wait_for(
            lambda: self.devices_on(self.server) == sorted(self.gpus),
            'what the resize claimed is released')
        self.wait_states('gpu1', 'L40S', assigned=2, available=6)
        # They would not fit beside what the resize claimed.
        self.resize(self.flavor(L40S=4))
        new = self.moved('gpu1')
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu1': new}))
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)


class EvacuateTest(MovesCase):
    """Evacuation from the first of two hosts."""

    def setUp(self) -> None:
        super().setUp()
        self.computes['gpu1'].stop()
        self._force_down(True)

    def _force_down(self, down: bool) -> None:
        [service] = self.api.get_services(
            binary='nova-compute', host='gpu1')
        self.api.put_service_force_down(service['id'], down)

    def _gpu1_comes_back(self) -> None:
        self._start_compute('gpu1')
        self._force_down(False)

    def _evacuate(self, status: str) -> None:
        self.act('evacuate', {})
        self.wait_migration(status)

    def test_returned_host_releases_devices_of_evacuated_server(self) -> None:
        self._evacuate('done')
        server = self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE')
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        new = self.hostdevs(self.server, 'gpu2')
        self.assertEqual(2, len(new))
        # A dead host's guest may still use its GPUs.
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}))
        self._gpu1_comes_back()
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_host_that_returns_without_its_guest_frees_devices(self) -> None:
        self._evacuate('done')
        server = self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE')
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        domain = self.connections['gpu1'].lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()
        self._gpu1_comes_back()
        self.wait_facts(self.server, self.expected(
            {'gpu2': self.hostdevs(self.server, 'gpu2')}))

    def test_denied(self) -> None:
        self.restart_scheduler('ComputeFilter')
        claim = self.claim_directly('gpu2', 4, 'L40S')
        self._evacuate('failed')
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual(('ACTIVE', 'gpu1'), (
            server['status'], server['OS-EXT-SRV-ATTR:host']))
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        self.abandon(claim)
        self.wait_facts(self.server, self.gpus_assigned)
        self._gpu1_comes_back()
        self.wait_facts(self.server, self.gpus_assigned)

    def test_evacuation_that_fails_can_be_repeated(self) -> None:
        with self.broken('createWithFlags'):
            self._evacuate('failed')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_facts(self.server, self.gpus_assigned)
        # It can be tried again.
        self._evacuate('done')
        self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE', 'ERROR')
        self._gpu1_comes_back()
        self.wait_facts(self.server, self.expected(
            {'gpu2': self.hostdevs(self.server, 'gpu2')}))
