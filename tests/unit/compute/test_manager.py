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
"""Tests of a host's RPC endpoint, which calls the resource tracker."""

from unittest import mock

from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.compute import manager
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import compute_api
from tests.unit.compute import make


class ComputeManagerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.calls = mock.Mock(
            spec=['refresh', 'assignments_changed', 'usage'])
        self.manager = manager.ComputeManager(
            self.calls.refresh, self.calls.assignments_changed,
            self.calls.usage)

    def test_call_reaches_its_function_alone(self):
        for name in ('refresh', 'assignments_changed'):
            self.calls.reset_mock()
            self.assertIsNone(getattr(self.manager, name)(context.admin()))
            self.assertEqual([getattr(mock.call, name)()],
                             self.calls.mock_calls)

    def test_usage_is_determined_by_the_given_function(self):
        self.calls.usage.return_value = (
            claim.Usage(uuid='a1', used=False, reason='deleted'),)
        answer = self.manager.assignment_usage(
            context.admin(), assignments=[
                codec.to_primitive(make.assignment())])
        self.assertEqual(
            [{'uuid': 'a1', 'used': False, 'reason': 'deleted'}], list(answer))
        self.assertEqual([mock.call.usage([make.assignment()])],
                         self.calls.mock_calls)

    def test_ping_is_answered_without_work(self):
        self.assertIsNone(self.manager.ping(context.admin()))
        self.assertEqual([], self.calls.mock_calls)

    def test_version_is_that_of_the_client(self):
        self.assertEqual(compute_api.VERSION, self.manager.target.version)

    def test_error_of_the_function_reaches_the_caller(self):
        self.calls.refresh.side_effect = RuntimeError('x')
        self.assertRaises(RuntimeError, self.manager.refresh, context.admin())
