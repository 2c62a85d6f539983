# SPDX-License-Identifier: Apache-2.0
"""Tests of the sender of choices."""

import threading

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.scheduler_filters import conductor_messages
from tests.unit.conductor import test_choices

ONE, TWO, THREE = (test_choices.choice(name) for name in ('i1', 'i2', 'i3'))


class API:
    """A conductor's client that notes what it sends."""

    def __init__(self):
        self.sent = []
        self.errors = []
        self.meanwhile = lambda: None

    def chosen(self, context, choices):
        self.sent.append(choices)
        self.meanwhile()
        if self.errors:
            raise self.errors.pop()


class ChoiceSenderTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.api = API()
        self.works = []
        self.sender = conductor_messages.ChoiceSender(
            self.api, self.works.append)

    def test_choices_before_a_message_are_sent_with_it(self):
        self.sender.send(ONE)
        self.sender.send(TWO)
        self.assertEqual([], self.api.sent)
        [work] = self.works
        work()
        self.assertEqual([(ONE, TWO)], self.api.sent)

    def test_choices_while_a_message_is_sent_follow_it(self):
        def meanwhile():
            self.api.meanwhile = lambda: None
            self.sender.send(TWO)
            self.sender.send(THREE)
        self.api.meanwhile = meanwhile
        self.sender.send(ONE)
        self.works.pop()()
        self.assertEqual([(ONE,), (TWO, THREE)], self.api.sent)
        self.assertEqual([], self.works)

    def test_error_stops_no_later_choice(self):
        for error in (exception.ConductorUnavailable(method='x', timeout=1),
                      RuntimeError('of the broker')):
            self.api.errors = [error]
            self.sender.send(ONE)
            self.works.pop()()
        self.sender.send(TWO)
        self.works.pop()()
        self.assertEqual([(ONE,), (ONE,), (TWO,)], self.api.sent)

    def test_sending_that_cannot_start_stops_no_later_choice(self):
        errors = [RuntimeError("can't start new thread")]

        def start(work):
            if errors:
                raise errors.pop()
            self.works.append(work)
        self.sender = conductor_messages.ChoiceSender(self.api, start)
        self.sender.send(ONE)
        self.sender.send(TWO)
        self.works.pop()()
        self.assertEqual([(TWO,)], self.api.sent)

    def test_decision_does_not_wait(self):
        go_on, done = threading.Event(), threading.Event()

        def meanwhile():
            go_on.wait(300)
            done.set()
        self.api.meanwhile = meanwhile
        conductor_messages.ChoiceSender(self.api).send(ONE)
        self.assertFalse(done.is_set())
        go_on.set()
        self.assertTrue(done.wait(300))
