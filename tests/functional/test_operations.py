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
"""Operations on running instances: refused, kept, or given back."""

from __future__ import annotations

import time

from nova import context as nova_context
from nova.tests.functional.api import client as api_client

from tests.fixtures import cloud


class OperationTest(cloud.GpuCloud):
    """Two servers, so that there is somewhere to move to."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2))
        self.host = self.server['OS-EXT-SRV-ATTR:host']
        self.before = self.held(self.server)

    def _assert_untouched(self) -> None:
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual('ACTIVE', server['status'])
        self.assertEqual(self.host, server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(self.before, self.held(server))
        self.wait_states(self.host, assigned=2, available=6)
        for host in self.machines:
            self.wait_for(
                lambda h=host: self.usage(h) == (  # type: ignore[misc]
                    2 if h == self.host else 0),
                f'usage of {host} as before')

    def _refusal(self, action: str) -> str:
        """Wait for the action's end; why it was refused."""
        def finished() -> str | None:
            for entry in self.api.get_instance_actions(self.server['id']):
                if entry['action'] != action:
                    continue
                detail = self.api.api_get(
                    f'/servers/{self.server["id"]}/os-instance-actions/'
                    f'{entry["request_id"]}').body['instanceAction']
                failed = [e for e in detail['events']
                          if e['result'] == 'Error']
                if failed:
                    return ' '.join(
                        str(e.get('details') or e.get('traceback'))
                        for e in failed)
            return None
        return str(self.wait_for(finished, f'{action} refused'))

    def test_live_migration_is_refused(self) -> None:
        try:
            self.api.post_server_action(self.server['id'], {
                'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
        except api_client.OpenStackApiException as refused:
            self.assertEqual(400, refused.response.status_code)
        else:
            self._refusal('live-migration')
        self._assert_untouched()

    def test_suspend_is_refused(self) -> None:
        self.api.post_server_action(self.server['id'], {'suspend': None})
        self._refusal('suspend')
        self._assert_untouched()

    def test_rebuild_keeps_the_devices(self) -> None:
        self.api.post_server_action(self.server['id'], {
            'rebuild': {'imageRef': cloud.IMAGE}})
        self.wait_for(
            lambda: any(
                a['action'] == 'rebuild'
                for a in self.api.get_instance_actions(self.server['id'])),
            'rebuild')
        self._assert_untouched()

    def test_hard_reboot_keeps_the_devices(self) -> None:
        self.api.post_server_action(self.server['id'], {
            'reboot': {'type': 'HARD'}})
        self._assert_untouched()

    def test_stop_and_start_keep_the_devices(self) -> None:
        self.api.post_server_action(self.server['id'], {'os-stop': None})
        self.wait_status(self.server['id'], 'SHUTOFF')
        self.assertEqual(self.before, self.held(self.server))
        self.api.post_server_action(self.server['id'], {'os-start': None})
        self._assert_untouched()

    def test_soft_delete_keeps_and_restore_has_the_same(self) -> None:
        self.flags(reclaim_instance_interval=3600)
        self.api.delete_server(self.server['id'])
        self.wait_status(self.server['id'], 'SOFT_DELETED')
        self.assertEqual(self.before, self.held(self.server))
        self.api.post_server_action(self.server['id'], {'restore': None})
        self._assert_untouched()
        # What Nova reclaims is given back.
        self.api.delete_server(self.server['id'])
        self.wait_status(self.server['id'], 'SOFT_DELETED')
        self.flags(reclaim_instance_interval=1)
        time.sleep(1.1)
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.host_mappings[self.host].cell_mapping) as cell:
            self.computes[self.host].manager._reclaim_queued_deletes(cell)
        self.wait_states(self.host, available=8)

    def test_pause_rescue_and_snapshot_keep_the_devices(self) -> None:
        for do, status, undo in (('pause', 'PAUSED', 'unpause'),
                                 ('rescue', 'RESCUE', 'unrescue')):
            self.api.post_server_action(self.server['id'], {do: None})
            self.wait_status(self.server['id'], status)
            self.assertEqual(self.before, self.held(self.server))
            self.api.post_server_action(self.server['id'], {undo: None})
            self._assert_untouched()
        self.api.post_server_action(self.server['id'], {
            'createImage': {'name': 'snap'}})
        self._assert_untouched()

    def test_shelve_gives_back_and_unshelve_claims_again(self) -> None:
        self.api.post_server_action(self.server['id'], {'shelve': None})
        self.wait_status(self.server['id'], 'SHELVED', 'SHELVED_OFFLOADED')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.assertEqual(set(), self.held(self.server))
        self.wait_states(self.host, available=8)
        self.wait_for(lambda: self.usage(self.host) == 0, 'usage 0')

        self.api.post_server_action(self.server['id'], {'unshelve': None})
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual('ACTIVE', server['status'])
        self.assertEqual(2, len(self.held(server)))
        host = server['OS-EXT-SRV-ATTR:host']
        self.wait_states(host, assigned=2, available=6)
        self.assertEqual(2, self.usage(host))


class EvacuateTest(cloud.GpuCloud):
    """The first of two servers dies with an instance on it."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2), host='gpu1')
        self.computes['gpu1'].stop()
        self._force_down(True)

    def _gpu1_comes_back(self) -> None:
        self.restart_compute('gpu1')
        self._force_down(False)

    def _force_down(self, down: bool) -> None:
        [service] = self.api.get_services(
            binary='nova-compute', host='gpu1')
        self.api.put_service_force_down(service['id'], down)

    def _evacuate(self) -> None:
        self.api.post_server_action(self.server['id'], {'evacuate': {}})

    def _migration(self, status: str) -> None:
        self.wait_for(
            lambda: [m['status'] for m in self.api.get_migrations()] == [
                status], f'migration {status}')

    def test_claims_elsewhere_and_the_dead_host_gives_back(self) -> None:
        self._evacuate()
        self._migration('done')
        server = self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE')
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        # A dead host's guest may still use its cards.
        self.wait_states('gpu1', assigned=2, available=6)
        self.wait_states('gpu2', assigned=2, available=6)
        self.assertEqual(2, self.usage('gpu2'))

        self._gpu1_comes_back()
        self.wait_states('gpu1', available=8)
        self.assertEqual({'gpu2'}, {
            each.partition(' ')[0] for each in self.held(server)})
        self.wait_for(lambda: self.usage('gpu1') == 0, 'usage of gpu1 0')
        self.delete(server)
        self.wait_states('gpu2', available=8)

    def test_denied_leaves_the_instance_as_it_was(self) -> None:
        self.restart_scheduler('ComputeFilter')
        before = self.held(self.server)
        self.claim_directly('gpu2', 8)
        self._evacuate()
        self._migration('failed')
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual('gpu1', server['OS-EXT-SRV-ATTR:host'])
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        self.assertEqual(before, self.held(server))
        self.wait_for(lambda: (self.usage('gpu1'), self.usage('gpu2')) == (
            2, 0), 'usage as before')

        self._gpu1_comes_back()
        self.assertEqual(before, self.held(server))
        self.wait_states('gpu1', assigned=2, available=6)


class RebuildTest(cloud.GpuCloud):
    """A rebuild in place keeps its devices, and asks nobody for them."""

    def test_conductor_down(self) -> None:
        server = self.boot(self.flavor(H100=2))
        before = self.held(server)
        self.conductor.stop()
        self.api.post_server_action(server['id'], {
            'rebuild': {'imageRef': cloud.IMAGE}})
        self.wait_for(
            lambda: self.api.get_server(server['id'])['status'] == 'REBUILD',
            'REBUILD')
        self.wait_status(server['id'], 'ACTIVE')
        self.conductor.start()
        self.assertEqual(before, self.held(server))
        self.assertEqual(2, self.usage())
