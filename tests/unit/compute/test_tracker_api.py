# SPDX-License-Identifier: Apache-2.0
"""Tests of the contract of resource trackers."""

import inspect

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.compute import tracker_api
from tests.unit.compute import base


class ContractTest(base.ComputeTestCase):

    def test_virt_layer_uses_at_most_15_methods(self):
        members = {name for name in vars(tracker_api.ResourceTrackerBase)
                   if not name.startswith('_')}
        self.assertEqual(
            members, tracker_api.ResourceTrackerBase.__abstractmethods__)
        self.assertLessEqual(len(members), 15)

    def test_every_method_says_what_it_does(self):
        for name, member in inspect.getmembers(
                tracker_api.ResourceTrackerBase):
            if not name.startswith('_'):
                self.assertTrue(inspect.getdoc(member), name)

    def test_tracker_that_lacks_a_method_cannot_be_made(self):
        class Half(tracker_api.ResourceTrackerBase):
            """Tracker of a test."""

        exc = self.assertRaises(TypeError, Half, self.conf, 'h1', None)
        self.assertIn('release_instance', str(exc))


class LateTest(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.tracker_api'))
        self.claimed = self.tracker.claim(self.request(2)).assignments

    def test_one_device_that_cannot_be_prepared_stops_no_other(self):
        prepared = []

        def prepare(device):
            prepared.append(device.address)
            if len(prepared) == 1:
                raise exception.HostError(path=device.address, reason='x')
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare', prepare))
        tracker_api.restore(self.tracker, self.claimed)
        self.assertEqual(
            [assignment.address for assignment in self.claimed], prepared)
        self.assertIn(f'Cannot prepare device {prepared[0]} on h1',
                      self.log.output)

    def test_claim_of_a_guest_that_runs_is_activated(self):
        tracker_api.activate_late(self.tracker, 'i1', self.claimed)
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        with fixtures.MockPatchObject(
                self.tracker, 'activate', side_effect=AssertionError):
            tracker_api.activate_late(
                self.tracker, 'i1', self.tracker.assigned('i1'))

    def test_activation_that_fails_is_compared_later(self):
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        with fixtures.MockPatchObject(
                self.api, 'activate', side_effect=RuntimeError('x')):
            tracker_api.activate_late(self.tracker, 'i1', self.claimed)
        self.assertTrue(reconcile.called)
        self.assertIn('Cannot activate the assignments of instance i1',
                      self.log.output)
