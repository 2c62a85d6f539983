# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of the methods of Nova's resource tracker."""

import types
from unittest import mock

from nova.compute import resource_tracker
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import lifecycle
from gpgpu_plugin.virt import migration
from gpgpu_plugin.virt import nova_devices


def virtapi(tracker):
    return types.SimpleNamespace(
        _compute=types.SimpleNamespace(rt=tracker))


def tracker_of_nova():
    return resource_tracker.ResourceTracker.__new__(
        resource_tracker.ResourceTracker)


class NovaTrackerTest(base.BaseTestCase):

    def test_tracker_of_this_nova_is_accepted(self):
        tracker = tracker_of_nova()
        self.assertIs(tracker, nova_devices.tracker_of(virtapi(tracker)))

    def test_other_nova_is_refused_by_name(self):
        class Other:
            def resize_claim(self, context, instance, node):
                """Claim in another way."""
        for api in (virtapi(Other()), virtapi(object()),
                    types.SimpleNamespace()):
            exc = self.assertRaises(
                exception.ConfigInvalid, nova_devices.tracker_of, api)
            self.assertIn('resize_claim', str(exc))
            self.assertIn('(context, instance, flavor, nodename', str(exc))

    def test_other_removal_of_allocations_is_refused_by_name(self):
        class Other(resource_tracker.ResourceTracker):
            def delete_allocation_for_evacuated_instance(self, instance):
                """Remove in another way."""
        exc = self.assertRaises(
            exception.ConfigInvalid, nova_devices.tracker_of,
            virtapi(Other.__new__(Other)))
        self.assertIn('delete_allocation_for_evacuated_instance', str(exc))

    def test_wrapped_tracker_is_accepted_again(self):
        tracker = tracker_of_nova()
        migration.claim_with(tracker, mock.Mock())
        lifecycle.notify_rebuild_failure(tracker, mock.Mock())
        self.assertIs(tracker, nova_devices.tracker_of(virtapi(tracker)))
