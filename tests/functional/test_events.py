# SPDX-License-Identifier: Apache-2.0
"""Events of servers that failed, and of the requests of their users."""

from __future__ import annotations

import logging
import typing

import fixtures
from oslo_context import context as oslo_context

from tests.fixtures import cloud
from tests.fixtures import request_ids


class _Requests(logging.Handler, fixtures.Fixture):
    """The lines of a logger, with the ID of the user's request of each."""

    def __init__(self, name: str) -> None:
        logging.Handler.__init__(self)
        fixtures.Fixture.__init__(self)
        self._logger = logging.getLogger(name)
        self.lines: list[tuple[str, str | None]] = []

    def _setUp(self) -> None:
        self._logger.addHandler(self)
        self.addCleanup(self._logger.removeHandler, self)

    def emit(self, record: logging.LogRecord) -> None:
        found = oslo_context.get_current()
        self.lines.append((
            f'{record.levelname} {record.getMessage()}',
            found and found.global_request_id))

    def of(self, text: str) -> list[tuple[str, str | None]]:
        """Return the lines that contain a text."""
        return [line for line in self.lines if text in line[0]]


class EventsTest(cloud.GpuCloud):
    """Two HGX servers."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(request_ids.RequestIDs())

    def request(self, count: int, expected: str,
                **extra: str) -> tuple[str, str]:
        """Boot a server; return its UUID and the ID of the request."""
        answer = self.api.api_post('/servers', {'server': {
            'name': 'test', 'imageRef': cloud.IMAGE, 'networks': 'none',
            'flavorRef': self.flavor(H100=count), **extra}})
        server_id = str(answer.body['server']['id'])
        server = self.wait_status(server_id, 'ACTIVE', 'ERROR')
        self.assertEqual(expected, server['status'], server.get('fault'))
        return server_id, str(answer.headers['x-openstack-request-id'])

    def history(self, server_id: str) -> list[dict[str, typing.Any]]:
        found: list[dict[str, typing.Any]] = self.listing(
            'event', 'list', '--instance', server_id, '--long')
        return found[::-1]

    def test_history_of_servers_has_reasons_and_requests(self) -> None:
        log = self.useFixture(_Requests('gpgpu_plugin'))
        claims = [self.claim_directly(host, 8) for host in self.machines]
        refused, of_refused = self.request(1, 'ERROR')
        # Nobody needs to ask for GPUs again.
        [event] = self.wait_for(
            lambda: self.history(refused), 'the event of the decision', 60)
        self.assertEqual(
            ('filter_refused', of_refused, 'not_enough_available'),
            (event['kind'], event['request_id'], event['reason']))
        self.assertIn('GpuFilter refused 2 hosts (not_enough_available 2) '
                      'and left 0', event['detail'])
        # No filter runs for a forced host.
        denied, of_denied = self.request(
            1, 'ERROR', availability_zone='nova:gpu1')
        self.check_denied(denied, of_denied, log)
        for claim in claims:
            self.abandon(claim)
        self.check_booted(*self.request(2, 'ACTIVE'), log)

    def check_denied(self, server_id: str, request_id: str,
                     log: _Requests) -> None:
        [event] = self.wait_for(
            lambda: self.history(server_id), 'the event of the denial')
        self.assertEqual(
            ('claim_denied', 'gpu1', 'host gpu1', request_id,
             'not_enough_available', 1,
             '1 of CUSTOM_GPU_H100 requested, 0 available'),
            tuple(event[name] for name in (
                'kind', 'host', 'actor', 'request_id', 'reason', 'count',
                'detail')))
        self.assertEqual(
            # gpgpu-conductor's line, and that of nova-compute.
            2, len(log.of(f'Claim of {server_id} on gpu1 denied')), log.lines)

    def check_booted(self, server_id: str, request_id: str,
                     log: _Requests) -> None:
        self.assertEqual(
            [(kind, 'host gpu1', request_id)
             for kind in ('claim', 'claim', 'activate', 'activate')],
            [(event['kind'], event['actor'], event['request_id'])
             for event in self.history(server_id)])
        [(line, logged)] = log.of(f'instance {server_id}')
        self.assertRegex(line, '^INFO claim on gpu1; by host gpu1; device '
                               f'[^;]+, [^;]+; instance {server_id}$')
        self.assertEqual(request_id, logged)
        events = self.listing('event', 'list', '--request', request_id,
                              '--project', self.api.project_id)
        self.assertEqual({server_id}, {
            event['instance_uuid'] for event in events})
