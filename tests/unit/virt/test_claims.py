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

import fixtures

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.virt import claims
from tests.fixtures import disk
from tests.unit.compute import base


class ClaimsTest(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.claims'))

    def test_claim_sends_pending_releases_first(self):
        self.tracker.assignments.add_pending(self.boot(2))
        claims.claim(self.tracker, self.request(1, 'i2'))
        self.assertEqual([], self.tracker.assignments.pending())
        self.assertEqual(1, self.states()['provisioning'])

    def test_claim_of_unknown_outcome_is_compared_later(self):
        for exc, compared in (
                (RuntimeError('lost'), True),
                (exception.ClaimDenied(instance='i', host='h', reason='x',
                                       detail='y'), False)):
            compare = self.useFixture(fixtures.MockPatchObject(
                self.tracker, 'request_reconcile')).mock
            with fixtures.MockPatchObject(
                    self.api, 'claim', side_effect=exc):
                self.assertRaises(type(exc), claims.claim, self.tracker,
                                  self.request(1))
            self.assertIs(compared, compare.called)

    def test_ended_claim_leaves_devices_available(self):
        granted = claims.claim(self.tracker, self.request(2))
        self.tracker.assignments.add('i1', granted.assignments)
        claims.end(self.tracker, 'i1', granted.assignments)
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))
        # Nobody had them: the next claim may have them at once.
        self.assertEqual(8, len(claims.claim(
            self.tracker, self.request(8)).assignments))

    def test_claim_that_cannot_be_ended_is_released_later(self):
        granted = claims.claim(self.tracker, self.request(2))
        self.tracker.assignments.add('i1', granted.assignments)
        away = exception.ConductorUnavailable(method='x', timeout=1)
        with (fixtures.MockPatchObject(self.api, 'abort', side_effect=away),
              fixtures.MockPatchObject(
                  self.api, 'release', side_effect=away)):
            claims.end(self.tracker, 'i1', granted.assignments)
        self.assertIn('they will be released', self.log.output)
        self.tracker.run_once()
        self.assertEqual((), self.api.instance_assignments(
            context.admin(), 'i1'))

    def test_cleaning_that_a_full_disk_lost_is_repeated_after_a_restart(self):
        self.boot(2)
        self.tracker.release_instance('i1')
        with disk.full_disk():
            self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        # By its book two of them were not cleaned.
        self.assertRaises(exception.HostNotReady, claims.claim,
                          self.tracker, self.request(8, 'i2'))
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual(8, len(claims.claim(
            self.tracker, self.request(8, 'i2')).assignments))

    def test_end_of_an_empty_claim_makes_no_call(self):
        with fixtures.MockPatchObject(
                self.api, 'abort', side_effect=AssertionError):
            claims.end(self.tracker, 'i1', ())
