# SPDX-License-Identifier: Apache-2.0
"""Tests of a host's RPC endpoint, which calls the resource tracker."""

import time
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import manager
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import compute_api
from tests.unit.compute import make


class ComputeManagerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.calls = mock.Mock(
            spec=['refresh', 'assignments_changed', 'usage', 'answer'])
        self.manager = manager.ComputeManager(
            self.calls.refresh, self.calls.assignments_changed,
            self.calls.usage, self.calls.answer)

    def test_call_reaches_its_function_alone(self):
        for name in ('refresh', 'assignments_changed'):
            self.calls.reset_mock()
            self.assertIsNone(getattr(self.manager, name)(context.admin()))
            self.assertEqual([getattr(mock.call, name)()],
                             self.calls.mock_calls)

    def test_usage_is_determined_and_sent_as_the_answer(self):
        self.calls.usage.return_value = (
            claim.Usage(uuid='a1', used=False, reason='deleted'),)
        self.assertIsNone(self.manager.ask(
            context.admin(), question='q1', asked_at=time.time(),
            assignments=[codec.to_primitive(make.assignment())]))
        self.assertEqual(
            [mock.call.usage([make.assignment()]),
             mock.call.answer('q1', self.calls.usage.return_value)],
            self.calls.mock_calls)

    def test_question_about_nothing_is_answered_without_work(self):
        self.manager.ask(context.admin(), question='q1',
                         asked_at=time.time(), assignments=[])
        self.assertEqual([mock.call.answer('q1', ())], self.calls.mock_calls)

    def test_question_that_waited_while_the_host_was_down_is_dropped(self):
        self.manager.ask(
            context.admin(), question='q1', asked_at=time.time() - 3600,
            assignments=[codec.to_primitive(make.assignment())])
        self.assertEqual([], self.calls.mock_calls)

    def test_answer_that_no_conductor_takes_is_logged(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.manager'))
        self.calls.answer.side_effect = exception.ConductorUnavailable(
            method='answer', timeout=10)
        self.manager.ask(context.admin(), question='q1',
                         asked_at=time.time(), assignments=[])
        self.assertIn('Cannot report the use of assignments',
                      log.output)

    def test_version_is_that_of_the_client(self):
        self.assertEqual(compute_api.VERSION, self.manager.target.version)

    def test_error_of_the_function_reaches_the_caller(self):
        self.calls.refresh.side_effect = RuntimeError('x')
        self.assertRaises(RuntimeError, self.manager.refresh, context.admin())
