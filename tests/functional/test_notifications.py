# SPDX-License-Identifier: Apache-2.0
"""Notifications of what users do through Nova's REST API."""

from __future__ import annotations

import typing

import fixtures
import oslo_messaging
from nova import conf

from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import cloud

CONF = conf.CONF

_Data = dict[str, typing.Any]


class Consumer(fixtures.Fixture):
    """Endpoint that keeps the notifications of all priorities.

    :ivar received: type without prefix, and data
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.received: list[tuple[str, _Data]] = []

    def _setUp(self) -> None:
        transport = oslo_messaging.get_notification_transport(CONF, 'fake:/')
        listener = oslo_messaging.get_notification_listener(
            transport, [oslo_messaging.Target(
                exchange=rpc_transport.EXCHANGE, topic=self._topic)],
            [self], executor='threading')
        listener.start()
        self.addCleanup(transport.cleanup)
        self.addCleanup(listener.wait)
        self.addCleanup(listener.stop)

    def info(self, _ctxt: object, _publisher_id: str, event_type: str,
             payload: _Data, _metadata: object) -> None:
        """Keep a notification."""
        self.received.append((event_type.removeprefix('gpgpu.'),
                              payload['gpgpu_object.data']))

    warn = error = info

    def of(self, event_type: str) -> list[_Data]:
        """Return the data of the notifications of a type."""
        return [data for found, data in self.received if found == event_type]


class NotificationsTest(cloud.GpuCloud):
    """One HGX server with eight H100."""

    def _configure(self) -> None:
        super()._configure()
        topic = self.id()[-60:]
        self.flags(driver=['messagingv2'], topics=[topic],
                   transport_url='fake:/',
                   group='oslo_messaging_notifications')
        self.consumer = self.useFixture(Consumer(topic))

    def test_boot_begins_usage_and_delete_ends_it(self) -> None:
        server = self.boot(self.flavor(H100=2))
        self.wait_for(lambda: len(self.consumer.of('assignment.start')) == 2,
                      'two usages began')
        for data in self.consumer.of('assignment.start'):
            self.assertEqual(
                (server['id'], self.api.project_id, 'gpu1', 'H100',
                 'passthrough', server['flavor']['original_name'], None, 0),
                tuple(data[name] for name in (
                    'instance_uuid', 'project_id', 'host', 'variant',
                    'vgpu_type', 'flavor', 'ended_at', 'seconds')))
        self.assertEqual([], self.consumer.of('assignment.end'))
        self.delete(server)
        self.wait_states(available=8)
        ended = self.wait_for(
            lambda: len(self.consumer.of('assignment.end')) == 2
            and self.consumer.of('assignment.end'), 'two usages ended')
        self.assertEqual(
            {data['uuid'] for data in self.consumer.of('assignment.start')},
            {data['uuid'] for data in ended})
        usages = {row['uuid']: row for row in self.listing(
            'usage', 'list', '--instance', server['id'])}
        for data in ended:
            self.assertEqual(
                (usages[data['uuid']]['began_at'],
                 usages[data['uuid']]['ended_at'],
                 usages[data['uuid']]['seconds']),
                (data['began_at'], data['ended_at'], data['seconds']))
        self.wait_for(lambda: len(self.consumer.of('device.update')) == 10,
                      'five changes of two devices')
        last = {data['uuid']: data['state']
                for data in self.consumer.of('device.update')}
        self.assertEqual(['available'] * 2, list(last.values()))

    def test_gpu_that_is_unplugged_is_missing(self) -> None:
        [device, *_] = self.devices()
        self.unplug('gpu1', device['address'])
        self.run_once('gpu1')
        [data] = self.wait_for(
            lambda: self.consumer.of('device.missing'), 'a device is missing')
        self.assertEqual((device['uuid'], 'gpu1', False), (
            data['uuid'], data['host'], data['present']))
