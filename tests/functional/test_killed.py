# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed in the middle of each operation and started again.

At its start Nova completes some operations and not others. In all cases no
other instance gets the devices meanwhile, and all devices are free in the end.
"""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable

import fixtures

from tests.fixtures import cloud
from tests.fixtures import patience
from tests.functional import test_moves
from tests.functional import test_operations

DOMAIN = test_operations.DOMAIN
DRIVER = test_moves.DRIVER


class KilledCase(test_moves.MovesCase):
    """Base class of tests that kill nova-compute.

    :cvar prepare: method that prepares a device
    """

    prepare = (
        'gpgpu_plugin.host.backends.whole_function.PassthroughBackend.prepare'
    )

    def killed_in(self, target: str, operation: Callable[[], object],
                  host: str = 'gpu1') -> None:
        """Kill nova-compute at the beginning of a call, and start it again."""
        reached = threading.Event()

        def dies(*args: object, **kwargs: object) -> typing.NoReturn:
            reached.set()
            raise SystemExit
        with fixtures.MonkeyPatch(target, dies):
            operation()
            self.assertTrue(reached.wait(patience.LONG), target)
            self.computes[host].stop()
        self._start_compute(host)

    def acting(self, action: str, body: object = None) -> Callable[[], object]:
        return lambda: self.act(action, body)

    def wait_error(self) -> None:
        """Wait for ERROR, which Nova sets at its start without a fault."""
        self.wait_for(lambda: self.api.get_server(
            self.server['id'])['status'] == 'ERROR', 'ERROR')

    def given_back(self) -> None:
        """Delete the server in any state; its devices must become free."""
        self.act('os-resetState', {'state': 'error'})
        self.delete(self.server)
        for host in self.machines:
            # A host that Nova did not tell finds it once the guest is gone.
            if self._has_domain(self.server, host):
                domain = self.connections[host].lookupByUUIDString(
                    self.server['id'])
                domain.destroy()
                domain.undefine()
            self.driver(host).gpu_tracker.request_reconcile()
            self.run_once(host)
        self.wait_facts(self.server, {
            **self.nothing_assigned,
            'usage': self.facts(self.server)['usage']})


class SameHostTest(KilledCase):
    """Operations on a server that stays where it is."""

    def test_hard_reboot_is_repeated_at_start(self) -> None:
        # Nova begins it anew.
        self.killed_in(f'{DOMAIN}.createWithFlags',
                       self.acting('reboot', {'type': 'HARD'}))
        self.done()

    def test_stop_start_and_pause_are_completed_at_start(self) -> None:
        self.killed_in(f'{DOMAIN}.destroy', self.acting('os-stop'))
        self.done('SHUTOFF')
        self.killed_in(f'{DOMAIN}.createWithFlags', self.acting('os-start'))
        self.done()
        self.killed_in(f'{DOMAIN}.suspend', self.acting('pause'))
        self.done()

    def test_rescue_keeps_devices_until_hard_reboot(self) -> None:
        self.make_folder()
        self.killed_in(f'{DOMAIN}.createWithFlags', self.acting('rescue'))
        self.wait_facts(self.server, self.gpus_assigned)
        self.act('os-resetState', {'state': 'active'})
        self.act('reboot', {'type': 'HARD'})
        self.done()

    def test_rebuild_keeps_devices_until_hard_reboot(self) -> None:
        self.killed_in(f'{DOMAIN}.createWithFlags', self.acting(
            'rebuild', {'imageRef': cloud.IMAGE}))
        self.wait_error()
        self.assertEqual(self.gpus_assigned['assigned'],
                         self.facts(self.server)['assigned'])
        self.act('reboot', {'type': 'HARD'})
        self.done()

    def test_soft_delete_keeps_devices_until_delete(self) -> None:
        self.flags(reclaim_instance_interval=3600)
        self.killed_in(f'{DOMAIN}.destroy', lambda: self.api.delete_server(
            self.server['id']))
        self.wait_facts(self.server, self.gpus_assigned)
        self.flags(reclaim_instance_interval=0)
        self.given_back()


class ReleaseTest(KilledCase):
    """Operations that release or claim devices."""

    def test_delete_is_completed_at_start(self) -> None:
        # Nova goes on with it.
        self.killed_in(f'{DOMAIN}.undefineFlags', lambda: (
            self.api.delete_server(self.server['id'])))
        self.wait_for(lambda: self._gone(self.server['id']), 'deleted')
        self.wait_facts(self.server, self.nothing_assigned)

    def test_delete_without_guest_is_completed_at_start(self) -> None:
        self.killed_in('gpgpu_plugin.compute.resource_tracker.ResourceTracker'
                       '.release_instance', lambda: self.api.delete_server(
                           self.server['id']))
        self.wait_for(lambda: self._gone(self.server['id']), 'deleted')
        self.wait_facts(self.server, self.nothing_assigned)

    def test_shelve_keeps_devices_until_delete(self) -> None:
        self.killed_in(f'{DOMAIN}.undefineFlags', self.acting('shelve'))
        self.wait_facts(self.server, self.gpus_assigned)
        self.given_back()

    def test_unshelve_with_guest_keeps_devices_until_delete(self) -> None:
        self.act('shelve')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.killed_in(f'{DOMAIN}.createWithFlags', self.acting('unshelve'))
        # libvirt has the guest, so nobody else gets its devices.
        self.wait_states('gpu1', 'L40S', provisioning=2, available=2)
        self.given_back()

    def test_boot_without_guest_is_released_at_start(self) -> None:
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)
        self.killed_in(self.prepare, self._boot)
        self.wait_error()
        # The usage is the server's that failed, until it is deleted.
        self.wait_facts(self.server, self.expected({}, gpu1=2))
        self.given_back()

    def test_boot_with_guest_keeps_devices_until_delete(self) -> None:
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)
        self.killed_in(f'{DOMAIN}.createWithFlags', self._boot)
        self.wait_error()
        self.wait_states('gpu1', 'L40S', provisioning=2, available=2)
        self.given_back()

    def _boot(self) -> None:
        self.server = {'id': self.post_server(self.flavor(L40S=2))}


class MovesTest(KilledCase):
    """Cold migration, resize and evacuation."""

    def check_both_assigned(self, new: list[str]) -> None:
        """Check that source and destination still have their devices."""
        self.assertEqual(
            {'gpu1': sorted(self.gpus), 'gpu2': sorted(new)},
            self.facts(self.server)['assigned'])

    def _migrate_until(self, target: str, host: str) -> None:
        self.killed_in(target, self.acting('migrate'), host)

    def test_source_killed_after_the_claim_leaves_server_on_source(
            self) -> None:
        self._migrate_until('gpgpu_plugin.virt.mixin.GPUMixin'
                            '.migrate_disk_and_power_off', 'gpu1')
        # Nova ends the migration, and starts the guest where it was.
        self.wait_status(self.server['id'], 'ACTIVE')
        # As the conductor tells it when the lease of the claim is over.
        self.driver('gpu2').gpu_tracker.assignments_changed()
        self.run_once('gpu2')
        self.wait_facts(self.server, {
            **self.gpus_assigned, 'usage': self.facts(self.server)['usage']})
        self.given_back()

    def test_destination_killed_before_the_guest_keeps_both_claims(
            self) -> None:
        self._migrate_until(
            'gpgpu_plugin.compute.resource_tracker.ResourceTracker.prepare',
            'gpu2')
        facts = self.facts(self.server)
        self.assertEqual({'gpu1': 2, 'gpu2': 2}, {
            host: len(assigned)
            for host, assigned in facts['assigned'].items()})
        self.given_back()

    def test_destination_killed_with_the_guest_keeps_both_claims(self) -> None:
        self._migrate_until(f'{DOMAIN}.createWithFlags', 'gpu2')
        new = self.hostdevs(self.server, 'gpu2')
        both = {'gpu1': self.gpus, 'gpu2': new}
        self.wait_facts(self.server, self.expected(both))
        self.given_back()

    def test_confirmation_killed_in_the_driver_keeps_both_claims(self) -> None:
        self.act('migrate')
        new = self.moved()
        self.killed_in(f'{DOMAIN}.undefineFlags',
                       self.acting('confirmResize'))
        self.check_both_assigned(new)
        self.given_back()

    def test_confirmation_killed_before_it_is_sent_frees_the_old_set(
            self) -> None:
        self.act('migrate')
        new = self.moved()
        self.killed_in('gpgpu_plugin.compute.resource_tracker.ResourceTracker'
                       '.confirm_migration', self.acting('confirmResize'))
        # Nova's part is done: the old guest cannot come back.
        self.wait_facts(self.server, self.expected({'gpu2': new}))
        self.given_back()

    def test_revert_killed_on_destination_keeps_both_claims(self) -> None:
        self.act('migrate')
        new = self.moved()
        self.killed_in(f'{DOMAIN}.undefineFlags',
                       self.acting('revertResize'), 'gpu2')
        self.wait_facts(self.server, self.expected(
            {'gpu1': self.gpus, 'gpu2': new}))
        self.given_back()

    def test_revert_killed_on_source_leaves_server_on_source(self) -> None:
        self.act('migrate')
        self.moved()
        self.killed_in(f'{DOMAIN}.createWithFlags',
                       self.acting('revertResize'))
        self.wait_facts(self.server, self.gpus_assigned)
        self.given_back()

    def test_evacuation_killed_with_guest_keeps_devices_until_delete(
            self) -> None:
        self.computes['gpu1'].stop()
        [service] = self.api.get_services(
            binary='nova-compute', host='gpu1')
        self.api.put_service_force_down(service['id'], True)
        self.killed_in(f'{DOMAIN}.createWithFlags',
                       self.acting('evacuate', {}), 'gpu2')
        self.wait_states('gpu2', 'L40S', provisioning=2, available=2)
        self.wait_states('gpu1', 'L40S', assigned=2, available=2)
        self._start_compute('gpu1')
        self.api.put_service_force_down(service['id'], False)
        self.given_back()
