# SPDX-License-Identifier: Apache-2.0
"""Requests without a candidate in Placement, as Nova notifies of them."""

from __future__ import annotations

import typing

import fixtures
import oslo_messaging
import sqlalchemy as sa
from nova import rpc

from tests.fixtures import cloud
from tests.fixtures import request_ids

TOPIC = 'gpgpu_notifications'


class NoCandidateTest(cloud.GpuCloud):
    """One server with eight GPUs, and a conductor that reads notifications."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(request_ids.RequestIDs())
        # In place of that of Nova's fixture, which sends nothing.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.rpc.NOTIFIER', oslo_messaging.Notifier(
                oslo_messaging.get_notification_transport(
                    cloud.CONF, url='fake:/'),
                serializer=rpc.RequestContextSerializer(
                    rpc.JsonPayloadSerializer()),
                driver='messagingv2', topics=[TOPIC])))

    def _configure(self) -> None:
        super()._configure()
        self.flags(nova_notifications_topic=TOPIC, group='gpgpu_conductor')

    def test_request_for_more_gpus_than_exist_is_in_the_history(self) -> None:
        answer = self.api.api_post('/servers', {'server': {
            'name': 'test', 'imageRef': cloud.IMAGE, 'networks': 'none',
            'flavorRef': self.flavor(H100=9)}})
        server_id = str(answer.body['server']['id'])
        self.wait_status(server_id, 'ERROR')
        [event] = self.wait_for(
            lambda: self.listing('event', 'list', '--instance', server_id,
                                 '--long'),
            'the event')
        self.assertEqual(
            ('no_candidate', answer.headers['x-openstack-request-id'],
             'no_candidate', 1),
            tuple(event[name] for name in (
                'kind', 'request_id', 'reason', 'count')))
        self.assertIn('requests 9 of CUSTOM_GPU_H100', event['detail'])
        self.assertTrue(event['actor'].startswith('Nova (nova-conductor:'))
        [listed] = self.listing('event', 'list', '--kind', 'no_candidate',
                                '--project', self.api.project_id)
        self.assertEqual(server_id, listed['instance_uuid'])
        self.wait_for(self.is_in_the_mix, 'the request in the mix')

    def is_in_the_mix(self) -> bool:
        """Return whether the request was counted, once."""
        with self.conductor.database.engine.connect() as connection:
            return list(connection.scalars(sa.text(
                'SELECT arrivals FROM request_kinds WHERE '
                "resource_class = 'CUSTOM_GPU_H100' AND units = 9"))) == [1]
