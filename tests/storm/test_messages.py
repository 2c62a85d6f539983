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
"""Messages that are on their way arrive, although their sender died."""

import pathlib
import random

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from tests.storm import messages
from tests.storm import truth


class Client:
    """RPC client that only notes."""

    def __init__(self):
        self.sent = []
        self.is_away = False

    def prepare(self, **properties):
        return self

    def cast(self, ctxt, method, **arguments):
        if self.is_away:
            raise oslo_messaging.MessageDeliveryFailure
        self.sent.append((method, arguments))

    call = cast


class MailTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.client = Client()

    def mail(self):
        return messages.Mail(self.folder, self.client, random.Random(1),
                             truth.Truth(self.folder))

    def test_message_of_a_dead_sender_is_sent_once(self):
        self.client.is_away = True
        self.mail().send_later('claim', {'number': 1})
        self.client = Client()
        self.mail().flush()
        self.assertEqual([('claim', {'number': 1})], self.client.sent)
        self.mail().flush()
        self.assertEqual([('claim', {'number': 1})], self.client.sent)

    def test_each_fate(self):
        for fate, sent, is_answered in (
                (messages.Fate.USUAL, 1, True), (messages.Fate.TWICE, 2, True),
                (messages.Fate.REPEATED, 2, True),
                (messages.Fate.LATE, 1, False),
                (messages.Fate.UNANSWERED, 1, False)):
            mail = self.mail()
            mail.fate = lambda method, fate=fate: fate
            self.client.sent.clear()
            self.assertEqual(is_answered, self.is_answered(mail), fate)
            mail.flush()
            self.assertEqual([('claim', {})] * sent, self.client.sent, fate)

    def is_answered(self, mail):
        client = messages.UnreliableClient(
            self.client, mail, random.Random(1))
        try:
            client.call(context.admin(), 'claim')
        except oslo_messaging.MessagingTimeout:
            return False
        return True
