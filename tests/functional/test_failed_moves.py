# SPDX-License-Identifier: Apache-2.0
"""Moves that fail, meet a delete, or follow each other."""

from __future__ import annotations

import threading
import typing

import fixtures
from nova.compute import manager as nova_manager
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from gpgpu_plugin import exception
from gpgpu_plugin.compute import tasks
from tests.fixtures import cloud
from tests.fixtures import patience
from tests.functional import test_moves

DRIVER = test_moves.DRIVER


def _fails(*args: object, **kwargs: object) -> typing.NoReturn:
    raise fakelibvirt.libvirtError('it is broken')


class TwoHostsTest(test_moves.MovesCase):
    """Moves from the first host to the second that fail in the middle."""

    def _stays(self) -> None:
        self.wait_migration('error')
        self.done()

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

    def test_confirmation_without_conductor_is_sent_later(self) -> None:
        self.resize(self.flavor(L40S=4))
        new = self.moved()
        self.conductor.stop()
        self.decide('confirmResize')
        self.conductor.start()
        self.run_once('gpu1')
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.assertEqual({('gpu2', 'instance')}, self.roles())

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
        new = self.both(4)
        both = self.facts(self.server)
        self.restart_compute('gpu1')
        self.restart_compute('gpu2')
        self.wait_facts(self.server, both)
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))

    def test_migration_without_conductor_leaves_server_on_source(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.conductor.stop()
        self.act('migrate')
        self.wait_migration('error')
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

    def test_claim_that_was_not_activated_is_by_hard_reboot(self) -> None:
        def silent(*args: object, **kwargs: object) -> typing.NoReturn:
            raise exception.ConductorUnavailable(method='activate', timeout=60)
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.rpc.conductor_client.ConductorAPI.activate',
                silent):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_states('gpu2', 'L40S', provisioning=2, available=2)
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_states('gpu2', 'L40S', assigned=2, available=2)
        self.wait_for(
            lambda: self.roles() == {('gpu2', 'instance')}, 'one set')
        self.assertEqual(['gpu2'] * 2, [row['host'] for row in self.listing(
            'usage', 'list', '--instance', self.server['id'])
            if row['ended_at'] is None])
        # A reboot that fails before there is a guest takes nothing away.
        self._forget_guest('gpu2')
        self.compare('gpu2')
        self.wait_states('gpu2', 'L40S', assigned=2, available=2)

    def test_source_notices_that_a_migration_failed_elsewhere(self) -> None:
        with fixtures.MonkeyPatch(f'{DRIVER}.finish_migration', _fails):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_migration('error')
        # By Nova's periodic task, without a comparison or a hard reboot.
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.compute.leftovers.UNEXPECTED_PATIENCE', 0):
            self.run_periodics('gpu1')
        self.wait_for(lambda: self.roles() == {('gpu2', 'destination')},
                      'one set')
        self._forget_guest('gpu1')
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_guest_that_runs_after_its_migration_failed_is_used(self) -> None:
        finish = libvirt_driver.LibvirtDriver.finish_migration

        def fails_late(*args: object, **kwargs: object) -> typing.NoReturn:
            finish(*args, **kwargs)
            _fails()
        with fixtures.MonkeyPatch(f'{DRIVER}.finish_migration', fails_late):
            self.act('migrate')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_migration('error')
        new = self.hostdevs(self.server, 'gpu2')
        # As doctor --fix does. No hard reboot is needed.
        self.compare('gpu1')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}, {'gpu2': new}))
        self.wait_for(
            lambda: self.roles() == {('gpu2', 'instance')}, 'one set')
        self.assertEqual(['gpu2'] * 2, [row['host'] for row in self.listing(
            'usage', 'list', '--instance', self.server['id'])
            if row['ended_at'] is None])

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


class SeriesTest(test_moves.MovesCase):
    """Moves of a server that was moved before."""

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


class OneHostTest(test_moves.MovesCase):
    """Resize on one host whose guest cannot be created again."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'hgx-h100-8'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', *cloud.HGX_H100),)

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
        # They would not fit beside what the resize claimed. Nova finds no host
        # until Placement knows that it is released.
        flavor = self.flavor(L40S=4)

        def resized() -> bool:
            self.resize(flavor)
            return bool(self.wait_status(
                self.server['id'], 'VERIFY_RESIZE', 'ACTIVE',
            )['status'] == 'VERIFY_RESIZE')
        self.wait_for(resized, 'a resize that finds a host')
        new = self.moved('gpu1')
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu1': new}))
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)


class EvacuateTest(test_moves.EvacuateCase):
    """Evacuations that fail, or whose host returns without its guest."""

    def test_evacuation_that_fails_can_be_repeated(self) -> None:
        with self.broken('createWithFlags'):
            self.evacuate('failed')
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_facts(self.server, self.gpus_assigned)
        # It can be tried again.
        self.evacuate('done')
        self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE', 'ERROR')
        self.gpu1_comes_back()
        self.wait_facts(self.server, self.expected(
            {'gpu2': self.hostdevs(self.server, 'gpu2')}))

    def test_host_that_returns_without_its_guest_frees_devices(self) -> None:
        self.evacuate('done')
        server = self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE')
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        domain = self.connections['gpu1'].lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()
        self.gpu1_comes_back()
        self.wait_facts(self.server, self.expected(
            {'gpu2': self.hostdevs(self.server, 'gpu2')}))
