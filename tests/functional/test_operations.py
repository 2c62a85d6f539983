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

    def test_resize_is_refused(self) -> None:
        self.api.post_server_action(self.server['id'], {
            'resize': {'flavorRef': self.flavor(H100=4)}})
        self.assertNotEqual('', self._refusal('resize'))
        self._assert_untouched()

    def test_cold_migration_is_refused(self) -> None:
        self.api.post_server_action(self.server['id'], {'migrate': None})
        self.assertNotEqual('', self._refusal('migrate'))
        self._assert_untouched()

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
