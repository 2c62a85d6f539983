# SPDX-License-Identifier: Apache-2.0
"""Tests of the publisher of notifications: a failure is seen."""

import fixtures
import kombu
from oslo_messaging._drivers import impl_rabbit
from oslo_messaging.notify import _impl_test
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture

MESSAGE = {'message_id': 'm1', 'publisher_id': 'gpgpu-conductor:c1',
           'event_type': 'gpgpu.device.missing', 'priority': 'WARN',
           'payload': {}, 'timestamp': '2026-11-24 12:00:00.000000'}


class PublisherCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        rpc_transport.register_notification_opts(self.conf)

    def set(self, **values):
        for name, value in values.items():
            self.conf.set_override(
                name, value, 'oslo_messaging_notifications')

    def publisher(self, *drivers):
        self.set(driver=list(drivers))
        made = rpc_transport.Publisher(self.conf)
        self.addCleanup(made.close)
        return made

    def sent(self, made):
        """Return what a publisher sends from now on."""
        found = []
        self.useFixture(fixtures.MockPatchObject(
            made._transport, '_send_notification',
            side_effect=lambda *args, **kwargs: found.append((args, kwargs))))
        return found


class DriversTest(PublisherCase):

    def test_notifications_are_off_by_default(self):
        self.assertEqual([], rpc_transport.notification_drivers(self.conf))

    def test_noop_is_off(self):
        self.set(driver=['noop'])
        self.assertEqual([], rpc_transport.notification_drivers(self.conf))

    def test_driver_that_hides_errors_is_refused(self):
        self.set(driver=['messagingv2', 'routing'])
        self.assertRaises(exception.ConfigInvalid,
                          rpc_transport.notification_drivers, self.conf)

    def test_unknown_driver_is_refused(self):
        exc = self.assertRaises(
            exception.ConfigInvalid, self.publisher, 'mesagingv2')
        self.assertIn('[oslo_messaging_notifications] driver', str(exc))


class PublishTest(PublisherCase):

    def test_message_goes_to_each_topic_in_our_exchange(self):
        self.set(topics=['notifications', 'billing'])
        made = self.publisher('messagingv2')
        found = self.sent(made)
        made.publish(MESSAGE)
        self.assertEqual(
            [('gpgpu', 'notifications.warn'), ('gpgpu', 'billing.warn')],
            [(target.exchange, target.topic) for (target, *_), _ in found])
        for (_, _, message), arguments in found:
            self.assertEqual(MESSAGE, message)
            self.assertEqual({'version': 2.0, 'retry': 1}, arguments)

    def test_failure_of_the_transport_is_raised(self):
        made = self.publisher('messagingv2')
        self.useFixture(fixtures.MockPatchObject(
            made._transport, '_send_notification',
            side_effect=ConnectionError('refused')))
        exc = self.assertRaises(
            exception.BrokerUnavailable, made.publish, MESSAGE)
        self.assertIn('refused', str(exc))

    def test_other_drivers_get_the_message(self):
        _impl_test.reset()
        self.addCleanup(_impl_test.reset)
        self.publisher('test', 'noop').publish(MESSAGE)
        self.assertEqual([({}, MESSAGE, 'WARN', 1)],
                         _impl_test.NOTIFICATIONS)

    def test_published_message_stays_as_it_is(self):
        made, message = self.publisher('messagingv2'), dict(MESSAGE)
        made.publish(message)
        self.assertEqual(MESSAGE, message)


class RabbitTest(PublisherCase):

    def test_broker_confirms_messages(self):
        found = []

        class Stop(Exception):
            pass

        def connect(url, **arguments):
            found.append(arguments['transport_options'])
            raise Stop
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_messaging._drivers.impl_rabbit.kombu.connection.'
            'Connection', connect))
        self.assertIs(kombu, impl_rabbit.kombu)
        self.set(transport_url='rabbit://u:p@127.0.0.1:1/')
        self.assertRaises(exception.BrokerUnavailable,
                          self.publisher('messagingv2').publish, MESSAGE)
        self.assertTrue(found[0]['confirm_publish'])

    def test_broker_that_is_away_is_named_without_its_password(self):
        self.set(transport_url='rabbit://user:secret@127.0.0.1:1/')
        exc = self.assertRaises(
            exception.BrokerUnavailable,
            self.publisher('messagingv2').publish, MESSAGE)
        self.assertIn('127.0.0.1:1', str(exc))
        self.assertNotIn('secret', str(exc))
