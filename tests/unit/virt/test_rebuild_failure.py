# SPDX-License-Identifier: Apache-2.0
"""Tests of rebuilds that fail: a call before Nova removes the allocation."""

from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin.virt import lifecycle


class RebuildFailureTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.calls = mock.Mock()
        self.instance = mock.Mock(uuid='i1')
        self.tracker = mock.Mock(spec=[])
        self.tracker.delete_allocation_for_evacuated_instance = (
            self.removes)
        lifecycle.notify_rebuild_failure(self.tracker, self.calls.noted)

    def removes(self, context, instance, node, node_type='source'):
        self.calls.nova(context, instance, node, node_type)

    def remove(self):
        """Do what Nova does after a rebuild that failed."""
        self.tracker.delete_allocation_for_evacuated_instance(
            'context', self.instance, 'node', node_type='destination')

    def test_removal_is_noted_before_nova_removes(self):
        self.remove()
        self.assertEqual([
            mock.call.noted(self.instance),
            mock.call.nova('context', self.instance, 'node', 'destination'),
        ], self.calls.mock_calls)

    def test_nova_removes_although_the_plugin_fails(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.calls.noted.side_effect = RuntimeError('x')
        self.remove()
        self.assertTrue(self.calls.nova.called)
        self.assertIn('i1', log.output)
