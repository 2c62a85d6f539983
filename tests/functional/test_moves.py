# SPDX-License-Identifier: Apache-2.0
"""Resize, cold migration and evacuation.

Source and destination have devices until Nova confirms or reverts.
"""

from __future__ import annotations

import threading
import typing

import fixtures

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import cloud
from tests.fixtures import libvirt_cloud
from tests.fixtures import patience
from tests.functional import test_operations

DRIVER = 'nova.virt.libvirt.driver.LibvirtDriver'


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
                for assignment in conductor_client.ConductorAPI(
                    cloud.CONF).instance_assignments(
                    gpgpu_context.admin(), self.server['id'])}

    def both(self, count: int) -> list[str]:
        """Wait for VERIFY_RESIZE on the second of two hosts.

        The server must have devices on both.

        :param count: GPUs of the new flavor
        :returns: the guest's new devices
        """
        new = self.moved()
        self.assertEqual(count, len(new))
        both = {'gpu1': self.gpus, 'gpu2': new}
        self.wait_facts(self.server, self.expected(
            # The source's domain is off, and defined until it is decided.
            {host: gpus for host, gpus in both.items() if gpus} | {
                'gpu2': new}, both))
        self.assertTrue(self.guest_is_off('gpu1'))
        return new

    def guest_is_off(self, host: str) -> bool:
        """Return whether the server's domain on a host is off."""
        domain = self.connections[host].lookupByUUIDString(self.server['id'])
        return not domain.isActive()


class TwoHostsTest(MovesCase):
    """Moves from the first host to the second."""

    def test_confirmed_resize_leaves_devices_of_destination(self) -> None:
        self.resize(self.flavor(L40S=4))
        new = self.both(4)
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_reverted_resize_leaves_devices_of_source(self) -> None:
        self.resize(self.flavor(L40S=4))
        self.both(4)
        self.decide('revertResize')
        self.wait_facts(self.server, self.gpus_assigned)

    def test_cold_migration_there_and_back_changes_roles(self) -> None:
        self.act('migrate')
        new = self.both(2)
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

    def test_resize_to_flavor_without_gpus_and_back(self) -> None:
        self.resize(self.flavor_of({}))
        self.both(0)
        self.decide('revertResize')
        self.wait_facts(self.server, self.gpus_assigned)
        self.resize(self.flavor_of({}))
        self.both(0)
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
        ('L40S', *cloud.HGX_H100),)

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


class EvacuateCase(MovesCase):
    """Base class of tests of evacuation from the first of two hosts."""

    def setUp(self) -> None:
        super().setUp()
        self.computes['gpu1'].stop()
        self.force_down(True)

    def force_down(self, down: bool) -> None:
        [service] = self.api.get_services(
            binary='nova-compute', host='gpu1')
        self.api.put_service_force_down(service['id'], down)

    def gpu1_comes_back(self) -> None:
        self._start_compute('gpu1')
        self.force_down(False)

    def evacuate(self, status: str) -> None:
        self.act('evacuate', {})
        self.wait_migration(status)


class EvacuateTest(EvacuateCase):
    """Evacuation from the first of two hosts."""

    def check_evacuated_usage(self) -> list[tuple[object, ...]]:
        """Check that usage moved in one second; return what was recorded."""
        rows = self.listing('usage', 'list', '--instance', self.server['id'])
        [left] = {row['ended_at'] for row in rows if row['host'] == 'gpu1'}
        self.assertEqual({(left, None)}, {
            (row['began_at'], row['ended_at'])
            for row in rows if row['host'] == 'gpu2'})
        return [(row['uuid'], row['began_at'], row['ended_at'])
                for row in rows]

    def test_returned_host_releases_devices_of_evacuated_server(self) -> None:
        self.evacuate('done')
        server = self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE')
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        new = self.hostdevs(self.server, 'gpu2')
        self.assertEqual(2, len(new))
        # A dead host's guest may still use its GPUs.
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}))
        used = self.check_evacuated_usage()
        self.gpu1_comes_back()
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.assertEqual(used, self.check_evacuated_usage())
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_denied(self) -> None:
        self.restart_scheduler('ComputeFilter')
        claim = self.claim_directly('gpu2', 4, 'L40S')
        self.evacuate('failed')
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual(('ACTIVE', 'gpu1'), (
            server['status'], server['OS-EXT-SRV-ATTR:host']))
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        self.abandon(claim)
        self.wait_facts(self.server, self.gpus_assigned)
        self.gpu1_comes_back()
        self.wait_facts(self.server, self.gpus_assigned)
