# SPDX-License-Identifier: Apache-2.0
"""Builds that fail release their devices; denied ones go to another host."""

from __future__ import annotations

import threading
import typing

import fixtures
from nova import exception as nova_exception

from tests.fixtures import cloud
from tests.fixtures import cloud_views
from tests.fixtures import disk
from tests.fixtures import patience

SPAWN = 'nova.virt.fake.FakeDriver.spawn'


class FailedBuildTest(cloud.GpuCloud):
    """One HGX server."""

    def _fail_spawn(self) -> fixtures.MonkeyPatch:
        def spawn(*args: object, **kwargs: object) -> None:
            raise nova_exception.VirtualInterfaceCreateException(
                'no interface')
        return fixtures.MonkeyPatch(SPAWN, spawn)

    def test_spawn_that_fails_after_prepare_frees_its_devices(self) -> None:
        bound = self.bound_drivers('gpu1')
        flavor = self.flavor(H100=2)
        with self._fail_spawn():
            server = self.boot(flavor, 'ERROR')
        self.assertEqual(set(), self.devices_of(server))
        self.wait_states(available=8)
        self.wait_for(lambda: self.usage() == 0, 'usage 0')
        self.wait_inventory(8, 0)
        self.assertEqual(bound, self.bound_drivers('gpu1'))
        self.assertEqual(2, len(self.devices_of(self.boot(flavor))))

    def test_claim_of_killed_nova_compute_is_released(self) -> None:
        reached, killed = threading.Event(), threading.Event()
        self.addCleanup(killed.set)

        def spawn(*args: object, **kwargs: object) -> None:
            reached.set()
            killed.wait(patience.LONG)
            raise SystemExit('killed')

        with fixtures.MonkeyPatch(SPAWN, spawn):
            server_id = self.post_server(self.flavor(H100=2))
            self.assertTrue(reached.wait(patience.LONG))
        self.wait_states(provisioning=2, available=6)

        self.restart_compute('gpu1')
        # Nova itself sets it at start, without a fault.
        self.wait_for(lambda: self.api.get_server(
            server_id)['status'] == 'ERROR', 'ERROR')
        self.wait_states(available=8)
        self.wait_inventory(8, 0)
        # Six, as Nova keeps a failed server's allocation until its deletion.
        # What the dead process does afterwards touches nobody's device.
        owner = self.boot(self.flavor(H100=6))
        killed.set()
        self.delete({'id': server_id})
        self.wait_states(assigned=6, available=2)
        self.assertEqual(6, len(self.devices_of(owner)))
        self.wait_inventory(8, 0)


    def test_delete_on_a_full_disk_frees_devices(self) -> None:
        server = self.boot(self.flavor(H100=2))
        with disk.full_disk():
            self.delete(server)
            self.wait_states(available=8)
            # A guest must not run with GPUs that are not in the book.
            self.boot(self.flavor(H100=1), 'ERROR')
            self.wait_states(available=8)
        self.wait_offered()
        self.boot(self.flavor(H100=8))


    def test_operator_ends_what_no_instance_uses(self) -> None:
        server = self.boot(self.flavor(H100=2))
        [lost] = self.claim_directly('gpu1', 1).assignments
        used = {row['uuid']: (row['used'], row['instance_uuid'])
                for row in self.listing('assignment', 'list')}
        self.assertEqual(('no', lost.instance_uuid), used.pop(lost.uuid))
        self.assertEqual([('yes', server['id'])] * 2, list(used.values()))
        for uuid in used:
            refused = self.assertRaises(
                cloud_views.CommandFailed, self.manage, 'assignment', 'end',
                uuid)
            self.assertIn(f'instance {server["id"]} is on gpu1',
                          str(refused))
        self.manage('assignment', 'end', lost.uuid)
        self.wait_states(assigned=2, available=6)


class DeniedTest(cloud.GpuCloud):
    """Denied claims on hosts that Placement and the filter accept."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def test_denied_claim_goes_to_another_host(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.claim_directly('gpu1', 8)
        server = self.boot(self.flavor(H100=1))
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        self.assertEqual([f'Claim of {server["id"]} on gpu1 denied'], [
            line[line.index('Claim of'):].partition(':')[0]
            for line in self.stdlog.logger.output.splitlines()
            if '[gpgpu_plugin.virt.' in line and 'Claim of' in line])
        # Nova's conductor logs why it tries another host.
        for words in ('\n  File ', 'ERROR [nova.compute'):
            self.assertNotIn(words, self.stdlog.logger.output)
        self.assertEqual(0, self.usage('gpu1'))
        self.assertEqual(1, self.usage('gpu2'))

    def test_reason_of_denied_build_is_logged_and_in_the_fault(self) -> None:
        # As doc/source/admin/refusals.rst says.
        self.restart_scheduler('ComputeFilter')
        for host in self.machines:
            self.claim_directly(host, 8)
        flavor, reason = self.flavor(H100=1), 'denied: not_enough_available'

        server = self.boot(flavor, 'ERROR')
        for host in self.machines:
            self.assertIn(
                'INFO [gpgpu_plugin.conductor.manager] Claim of '
                f'{server["id"]} on {host} {reason}',
                self.stdlog.logger.output)
            self.assertIn(f'Error from last host: {host}',
                          self.stdlog.logger.output)
        self.assertIn('Exhausted all hosts', server['fault']['message'])
        self.assertNotIn('denied', str(server['fault']))

        for attempts, fault in (
                (len(self.machines), 'Last exception: the claim of GPUs was '),
                (1, '^the claim of GPUs was ')):
            self.flags(max_attempts=attempts, group='scheduler')
            server = self.boot(flavor, 'ERROR')
            with self.subTest(max_attempts=attempts):
                self.assertRegex(
                    server['fault']['message'], f'{fault}{reason}$')

    def _denials(self, server: dict[str, typing.Any]) -> list[tuple[str, str]]:
        """Return host and reason of each denied claim, as the user sees it."""
        [action] = self.api.get_instance_actions(server['id'])
        found = self.api.api_get(
            f'/servers/{server["id"]}/os-instance-actions/'
            f'{action["request_id"]}').body['instanceAction']
        self.message = found['message']
        return sorted(
            (event['host'], event['details']) for event in found['events']
            if event['event'] == 'gpgpu_claim')

    def test_action_of_a_build_names_why_each_host_denied_it(self) -> None:
        self.restart_scheduler('ComputeFilter')
        reason = ('Claim of {} on {} denied: not_enough_available (1 of '
                  'CUSTOM_GPU_H100 requested, 0 available)')
        for full in (['gpu1'], ['gpu1', 'gpu2']):
            self.claim_directly(full[-1], 8)
            server = self.boot(
                self.flavor(H100=1), 'ACTIVE' if len(full) == 1 else 'ERROR')
            self.assertEqual(
                [(host, reason.format(server['id'], host)) for host in full],
                self._denials(server))
            # The denial of one host is no failure of the whole action.
            self.assertIsNone(self.message)
            self.delete(server)
            self.wait_for(lambda: self.usage('gpu2') == 0, 'free')
            self.run_once('gpu2')

    def test_denied_build_on_a_forced_host_leaves_no_allocation(self) -> None:
        claim = self.claim_directly('gpu1', 8)
        server = self.boot(self.flavor(H100=1), 'ERROR',
                           availability_zone='nova:gpu1')
        self.assertIn('not_enough_available', server['fault']['message'])
        self.assertEqual(0, self.usage('gpu1'))
        self.assertEqual({}, self.placement.get(
            f'/allocations/{server["id"]}').body['allocations'])
        self.abandon(claim)
        self.boot(self.flavor(H100=8), availability_zone='nova:gpu1')

    def test_denied_build_without_retries_leaves_no_allocation(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.flags(max_attempts=1, group='scheduler')
        self.claim_directly('gpu1', 8)
        self.boot(self.flavor(H100=1), 'ERROR')
        self.assertEqual(0, self.usage('gpu1'))

    def test_filter_refuses_what_placement_still_shows(self) -> None:
        for host in self.machines:
            self.claim_directly(host, 8)
        server = self.boot(self.flavor(H100=1), 'ERROR')
        self.assertIn('No valid host', server['fault']['message'])
        log = self.stdlog.logger.output
        self.assertIn('not_enough_available', log)
        self.assertIn('GpuFilter', log)

    def test_double_allocation_in_placement_is_denied(self) -> None:
        self.restart_scheduler('ComputeFilter')
        owner = self.boot(self.flavor(H100=8), host='gpu1')
        before = self.devices_of(owner)
        self._lose_allocation(owner)
        second = self.boot(self.flavor(H100=1), 'ERROR', host='gpu1')
        self.assertEqual(set(), self.devices_of(second))
        self.assertEqual(before, self.devices_of(owner))
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        # An allocation that was lost stays lost.
        self.delete(owner)

    def _lose_allocation(self, server: dict[str, typing.Any]) -> None:
        """Remove the GPUs from a server's allocation in Placement."""
        url = f'/allocations/{server["id"]}'
        body = self.placement.get(url, version='1.36').body
        del body['allocations'][self.provider('gpu1')]
        for allocation in body['allocations'].values():
            del allocation['generation']
        response = self.placement.put(url, body, version='1.36')
        self.assertEqual(204, response.status, response.body)
