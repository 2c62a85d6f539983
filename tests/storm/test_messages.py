# SPDX-License-Identifier: Apache-2.0
"""Tests of faults of messages, and of messages whose sender was killed."""

import pathlib
import random

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from tests.storm import ground_truth
from tests.storm import messages


class Client:
    """RPC client that only records what is sent."""

    def __init__(self):
        self.sent = []
        self.is_away = False
        self.errors = []

    def prepare(self, **properties):
        return self

    def cast(self, ctxt, method, **arguments):
        if self.is_away:
            raise oslo_messaging.MessageDeliveryFailure
        if self.errors:
            raise self.errors.pop()
        self.sent.append((method, arguments))

    call = cast


class DelayedMessagesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.client = Client()

    def messages(self):
        return messages.DelayedMessages(
            self.folder, self.client, random.Random(1),
            ground_truth.GroundTruth(self.folder))

    def test_message_of_killed_sender_is_sent_once(self):
        self.client.is_away = True
        self.messages().send_later('claim', {'number': 1})
        self.client = Client()
        self.messages().flush()
        self.assertEqual([('claim', {'number': 1})], self.client.sent)
        self.messages().flush()
        self.assertEqual([('claim', {'number': 1})], self.client.sent)

    def test_message_is_sent_again_after_any_error(self):
        self.client.errors += [
            OSError('cut'), oslo_messaging.MessageDeliveryFailure('away')]
        delayed = self.messages()
        delayed.send_later('claim', {'number': 1})
        delayed.flush()
        self.assertEqual([('claim', {'number': 1})], self.client.sent)

    def test_each_fault(self):
        for fault, sent, is_answered in (
                (messages.MessageFault.NONE, 1, True),
                (messages.MessageFault.DUPLICATED, 2, True),
                (messages.MessageFault.REPEATED, 2, True),
                (messages.MessageFault.DELAYED, 1, False),
                (messages.MessageFault.UNANSWERED, 1, False)):
            delayed = self.messages()
            delayed.draw_fault = lambda method, fault=fault: fault
            self.client.sent.clear()
            self.assertEqual(is_answered, self.is_answered(delayed), fault)
            delayed.flush()
            self.assertEqual([('claim', {})] * sent, self.client.sent, fault)

    def is_answered(self, delayed):
        client = messages.UnreliableClient(
            self.client, delayed, random.Random(1))
        try:
            client.call(context.admin(), 'claim')
        except oslo_messaging.MessagingTimeout:
            return False
        return True
