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
"""Tests of the check of the methods of Nova's resource tracker."""

import types
from unittest import mock

from nova.compute import resource_tracker
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import move_claim
from gpgpu_plugin.virt import nova_tracker
from gpgpu_plugin.virt import rebuild_failure


def virtapi(tracker):
    return types.SimpleNamespace(
        _compute=types.SimpleNamespace(rt=tracker))


def tracker_of_nova():
    return resource_tracker.ResourceTracker.__new__(
        resource_tracker.ResourceTracker)


class NovaTrackerTest(base.BaseTestCase):

    def test_tracker_of_this_nova_is_accepted(self):
        tracker = tracker_of_nova()
        self.assertIs(tracker, nova_tracker.of(virtapi(tracker)))

    def test_other_nova_is_refused_by_name(self):
        class Other:
            def resize_claim(self, context, instance, node):
                """Claim in another way."""
        for api in (virtapi(Other()), virtapi(object()),
                    types.SimpleNamespace()):
            exc = self.assertRaises(
                exception.ConfigInvalid, nova_tracker.of, api)
            self.assertIn('resize_claim', str(exc))
            self.assertIn('(context, instance, flavor, nodename', str(exc))

    def test_other_removal_of_allocations_is_refused_by_name(self):
        class Other(resource_tracker.ResourceTracker):
            def delete_allocation_for_evacuated_instance(self, instance):
                """Remove in another way."""
        exc = self.assertRaises(
            exception.ConfigInvalid, nova_tracker.of,
            virtapi(Other.__new__(Other)))
        self.assertIn('delete_allocation_for_evacuated_instance', str(exc))

    def test_wrapped_tracker_is_accepted_again(self):
        tracker = tracker_of_nova()
        move_claim.claim_with(tracker, mock.Mock())
        rebuild_failure.notify(tracker, mock.Mock())
        self.assertIs(tracker, nova_tracker.of(virtapi(tracker)))
