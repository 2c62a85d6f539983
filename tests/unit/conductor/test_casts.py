# SPDX-License-Identifier: Apache-2.0
"""Tests of messages to hosts."""

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.conductor import host_messages


class TellTest(base.BaseTestCase):

    def test_message_is_sent_to_the_host(self):
        sent = []
        host_messages.notify_hosts(lambda ctxt, host: sent.append(host),
                                   context.admin(),
                   'h1')
        self.assertEqual(['h1'], sent)

    def test_error_is_logged_and_not_raised(self):
        def fail(ctxt, host):
            raise oslo_messaging.MessageDeliveryFailure(host)
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.host_messages'))
        host_messages.notify_hosts(fail, context.admin(), 'h1')
        self.assertIn('Cannot notify h1', log.output)
