# SPDX-License-Identifier: Apache-2.0
"""A host that is drained, through Nova's REST API."""

from __future__ import annotations

from tests.fixtures import cloud
from tests.fixtures import cloud_views


class HostDrainTest(cloud.GpuCloud):
    """Two HGX servers with eight H100 each."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def test_servers_leave_a_draining_host_and_none_comes(self) -> None:
        flavor = self.flavor(H100=4)
        left = self.boot(flavor)
        drained = left['OS-EXT-SRV-ATTR:host']
        [other] = {'gpu1', 'gpu2'} - {drained}
        self.manage('host', 'drain', drained)
        self.wait_inventory(8, 4, host=drained)
        self.assertEqual(
            {drained: 'draining', other: 'up'},
            {device['host']: device['host_state'] for device in self.listing(
                'device', 'list')})
        # A reboot keeps what the server has.
        self.api.post_server_action(left['id'], {'reboot': {'type': 'HARD'}})
        self.wait_status(left['id'], 'ACTIVE')
        self.assertEqual(4, len(self.devices_of(left)))
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual([other] * 2, [
            server['OS-EXT-SRV-ATTR:host'] for server in servers])
        self.boot(flavor, 'ERROR')

        self.delete(servers[0])
        self.wait_states(host=other, assigned=4, available=4)
        self.wait_offered(other)
        self.api.post_server_action(left['id'], {'migrate': None})
        self.wait_status(left['id'], 'VERIFY_RESIZE')
        self.api.post_server_action(left['id'], {'confirmResize': None})
        moved = self.wait_status(left['id'], 'ACTIVE')
        self.assertEqual(other, moved['OS-EXT-SRV-ATTR:host'])
        self.wait_states(host=drained, available=8)
        self.wait_inventory(8, 8, host=drained)

        self.manage('host', 'undrain', drained)
        self.wait_inventory(8, 0, host=drained)
        self.assertEqual(
            drained, self.boot(flavor)['OS-EXT-SRV-ATTR:host'])

    def test_server_lands_where_what_if_says(self) -> None:
        flavor = self.flavor(H100=4)
        server = self.boot(flavor)
        drained = server['OS-EXT-SRV-ATTR:host']
        [other] = {'gpu1', 'gpu2'} - {drained}
        moving, left = self.listing('what-if', 'drain', drained)
        self.assertEqual(
            ('instance', server['id'], other, None),
            (moving['what'], moving['name'], moving['target'],
             moving['reason']))
        self.assertIn(f'openstack server migrate --host {other} '
                      f'{server["id"]}', moving['detail'])
        # Asking has drained nothing.
        self.wait_inventory(8, 0, host=drained)

        self.manage('host', 'drain', drained)
        self.api.post_server_action(server['id'], {
            'migrate': {'host': moving['target']}})
        self.wait_status(server['id'], 'VERIFY_RESIZE')
        self.api.post_server_action(server['id'], {'confirmResize': None})
        moved = self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(other, moved['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(4, len(self.devices_of(moved)))
        self.assertEqual(left['after'], sum(
            row['remaining'] for row in self.listing('group', 'list')))

        # Now nobody could leave the other host.
        failed = self.assertRaises(
            cloud_views.CommandFailed, self.listing, 'what-if', 'drain',
            other)
        self.assertIn('0 of 1 instance can leave', str(failed))
