# SPDX-License-Identifier: Apache-2.0
"""Tests of a host's RPC endpoint, which calls the resource tracker."""

import time
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import service
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import compute_api
from tests.unit.compute import make


class ComputeManagerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.calls = mock.Mock(spec=[
            'refresh', 'assignments_changed', 'usage', 'examine', 'answer'])
        self.manager = service.ComputeManager(
            self.calls.refresh, self.calls.assignments_changed,
            self.calls.usage, self.calls.examine, self.calls.answer)

    def ask(self, *assignments, age=0):
        self.assertIsNone(self.manager.ask(
            context.admin(), question='q1', asked_at=time.time() - age,
            assignments=codec.to_primitive(assignments)))

    def examine(self, *repairs, age=0):
        self.assertIsNone(self.manager.examine(
            context.admin(), question='q1', asked_at=time.time() - age,
            repairs=list(repairs)))

    def answered(self, usages=(), drifts=()):
        return mock.call.answer(question='q1', usages=usages, drifts=drifts)

    def test_call_reaches_its_function_alone(self):
        for name in ('refresh', 'assignments_changed'):
            self.calls.reset_mock()
            self.assertIsNone(getattr(self.manager, name)(context.admin()))
            self.assertEqual([getattr(mock.call, name)()],
                             self.calls.mock_calls)

    def test_usage_is_determined_and_sent_as_the_answer(self):
        self.calls.usage.return_value = (
            claim.Usage(uuid='a1', used=False, reason='deleted'),)
        self.ask(make.assignment())
        self.assertEqual(
            [mock.call.usage([make.assignment()]),
             self.answered(usages=self.calls.usage.return_value)],
            self.calls.mock_calls)

    def test_question_about_nothing_is_answered_without_work(self):
        self.ask()
        self.assertEqual([self.answered()], self.calls.mock_calls)

    def test_drifts_that_the_repairs_leave_are_the_answer(self):
        self.calls.examine.return_value = (
            drift.of('instance_deleted', 'h1', 'a1', nova='gone'),)
        self.examine('offer')
        self.assertEqual(
            [mock.call.examine([drift.Repair.OFFER]),
             self.answered(drifts=self.calls.examine.return_value)],
            self.calls.mock_calls)

    def test_question_that_waited_while_the_host_was_down_is_dropped(self):
        self.ask(make.assignment(), age=3600)
        self.examine('offer', age=3600)
        self.assertEqual([], self.calls.mock_calls)

    def test_answer_that_no_conductor_takes_is_logged(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.service'))
        self.calls.answer.side_effect = exception.ConductorUnavailable(
            method='answer', timeout=10)
        self.ask()
        self.assertIn('Cannot answer a question of gpgpu-conductor',
                      log.output)

    def test_version_is_that_of_the_client(self):
        self.assertEqual(compute_api.VERSION, self.manager.target.version)

    def test_error_of_the_function_reaches_the_caller(self):
        self.calls.refresh.side_effect = RuntimeError('x')
        self.assertRaises(RuntimeError, self.manager.refresh, context.admin())
