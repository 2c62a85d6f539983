# SPDX-License-Identifier: Apache-2.0
"""Filters of lists in a cloud with a server, by the commands of operators."""

from __future__ import annotations

from tests.fixtures import cloud


class ListFilterTest(cloud.GpuCloud):
    """One server with eight GPUs."""

    def test_filters_find_what_a_server_of_a_project_uses(self) -> None:
        server = self.boot(self.flavor(H100=2))
        used = {device['uuid'] for device in self.devices(
            '--instance', server['id'])}
        free = next(device for device in self.devices(
            '--state', 'available') if device['variant'] == 'H100')
        self.manage('hold', 'add', free['uuid'], '--kind', 'quarantined',
                    '--reason', 'fan')
        project = self.api.project_id

        for filters, expected in (
                (('--project', project), used),
                (('--project', project, '--state', 'assigned', '--variant',
                  'H100', '--type', 'gpu', '--host', 'gpu1'), used),
                (('--project', project, '--state', 'available'), set()),
                (('--project', 'other'), set()),
                (('--state', 'quarantined', '--type', 'gpu'), {free['uuid']}),
                (('--health', 'ok', '--project', project), used),
                (('--health', 'failed'), set()),
                (('--vgpu-type', 'H100-4C'), set())):
            self.assertEqual(expected, {
                device['uuid'] for device in self.devices(*filters)}, filters)
        self.assertEqual(used, {event['device_uuid'] for event in self.listing(
            'event', 'list', '--project', project, '--kind', 'claim',
            '--host', 'gpu1', '--instance', server['id'])})
        self.assertEqual(used, {usage['device_uuid'] for usage in self.listing(
            'usage', 'list', '--project', project, '--variant', 'H100',
            '--host', 'gpu1', '--long')})
        self.assertEqual([], self.listing(
            'usage', 'list', '--project', project, '--host', 'gpu2'))
        [group] = self.listing(
            'group', 'list', '--host', 'gpu1', '--variant', 'H100')
        self.assertEqual((8, 2, 5), (
            group['total'], group['assigned'], group['remaining']))
