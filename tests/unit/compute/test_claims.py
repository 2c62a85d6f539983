# SPDX-License-Identifier: Apache-2.0

from unittest import mock

import fixtures

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import cleaning
from tests.fixtures import disk
from tests.unit.compute import base
from tests.unit.compute import make


class ClaimsTest(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute'))

    def test_claim_sends_pending_releases_first(self):
        self.tracker.assignments.add_pending(self.boot(2))
        self.tracker.claim(self.request(1, 'i2'))
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
                self.assertRaises(type(exc), self.tracker.claim,
                                  self.request(1))
            self.assertIs(compared, compare.called)

    def test_ended_claim_leaves_devices_available(self):
        self.tracker.claim(self.request(2))
        self.tracker.release_instance('i1')
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))
        # Nobody had them: the next claim may have them at once.
        self.assertEqual(8, len(self.tracker.claim(
            self.request(8)).assignments))

    def test_claim_that_cannot_be_ended_is_released_later(self):
        self.tracker.claim(self.request(2))
        away = exception.ConductorUnavailable(method='x', timeout=1)
        with (fixtures.MockPatchObject(self.api, 'abort', side_effect=away),
              fixtures.MockPatchObject(
                  self.api, 'release', side_effect=away)):
            self.tracker.release_instance('i1')
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
        self.assertRaises(exception.HostNotReady, self.tracker.claim,
                          self.request(8, 'i2'))
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual(8, len(self.tracker.claim(
            self.request(8, 'i2')).assignments))

    def make_outdated(self, count=2):
        """End assignments of i1 in the conductor; the book has them still.

        Their devices are cleaned.
        """
        uuids = self.boot(count)
        self.tracker.session.call(self.api.release, uuids)
        for task in self.api.clean_tasks(context.admin(), 'h1'):
            cleaning.clean(self.tracker._host(), task)
        self.assertEqual({'available': 8}, self.states())

    def test_claim_of_a_device_in_an_outdated_book_gets_another(self):
        self.make_outdated(2)
        outdated = {assignment.stable_id for assignment
                    in self.tracker.assignments.of_instance('i1')}
        granted = self.tracker.claim(self.request(6, 'i2'))
        self.assertFalse(outdated.intersection(
            assignment.stable_id for assignment in granted.assignments))
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))
        self.assertIn('have ended in gpgpu-conductor', self.log.output)

    def test_outdated_book_does_not_end_the_session(self):
        self.make_outdated(2)
        number = self.tracker.assignments.session()
        # Somebody may have used them since they were cleaned.
        self.assertRaises(exception.ClaimDenied, self.tracker.claim,
                          self.request(8, 'i2'))
        self.tracker.run_once()
        self.assertEqual(8, len(self.tracker.claim(
            self.request(8, 'i2')).assignments))
        self.assertEqual(number, self.tracker.assignments.session())

    def test_instance_s_own_outdated_assignments_are_removed(self):
        self.make_outdated(2)
        with self.tracker.builds.running('i1'):
            granted = self.tracker.claim(self.request(6))
        self.assertEqual(granted.assignments,
                         self.tracker.assignments.of_instance('i1'))
        self.assertTrue(self.tracker.session.is_active)

    def doubted(self, instance='i2'):
        """Claim what the book contradicts.

        :returns: whether the next session doubts the database
        """
        self.assertRaises(exception.HostNotReady, self.tracker.claim,
                          self.request(8, instance))
        with fixtures.MockPatchObject(
                self.api, 'begin_session',
                wraps=self.api.begin_session) as begin:
            self.tracker.run_once()
        return [call.args[1].doubted for call in begin.mock.mock_calls]

    def test_database_that_does_not_know_the_user_is_doubted(self):
        self.make_outdated(1)
        with fixtures.MockPatchObject(
                self.api, 'host_assignments',
                side_effect=exception.SessionLost(
                    host='h1', session=1, reason='x')):
            self.assertTrue(self.doubted()[0])

    def test_device_of_a_guest_being_created_stays_in_the_book(self):
        self.make_outdated(1)
        with self.tracker.builds.running('i1'):
            self.assertEqual([True], self.doubted())
            self.assertTrue(self.tracker.assignments.of_instance('i1'))

    def test_claim_that_cannot_be_ended_is_compared_later(self):
        self.make_outdated(1)
        compare = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        self.useFixture(fixtures.MockPatchObject(
            self.api, 'abort', side_effect=exception.ConductorUnavailable(
                method='abort', timeout=60)))
        self.assertRaises(exception.ConductorUnavailable, self.tracker.claim,
                          self.request(8, 'i2'))
        compare.assert_called_once_with()

    def test_end_of_an_empty_claim_makes_no_call(self):
        with fixtures.MockPatchObject(
                self.api, 'abort', side_effect=AssertionError):
            self.tracker.release_instance('i1')


class OpenClaimsTest(base.ComputeTestCase):
    """How a claim ends whose guest was not activated."""

    def setUp(self):
        super().setUp()
        self.claimed = self.tracker.claim(self.request(2)).assignments

    def release(self):
        self.tracker.release_instance('i1')
        self.assertEqual((), self.tracker.assigned('i1'))
        return self.states()

    def test_device_that_was_prepared_is_taken_back_and_cleaned(self):
        self.tracker.prepare(self.claimed[:1])
        release = self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'release')).mock
        self.assertEqual({'available': 7, 'dirty': 1}, self.release())
        [call] = release.call_args_list
        self.assertEqual(self.claimed[0].address, call.args[0].address)

    def test_after_a_restart_every_device_is_cleaned(self):
        self.useFixture(fixtures.MockPatchObject(
            self, 'is_orphaned', return_value=False))
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.assertEqual({'available': 6, 'dirty': 2}, self.release())

    def test_claim_that_is_made_again_knows_what_was_prepared(self):
        self.tracker.prepare(self.claimed[:1])
        self.useFixture(fixtures.MockPatchObject(
            self, 'is_orphaned', return_value=False))
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.tracker.find_orphans = mock.Mock(side_effect=RuntimeError('x'))
        again = self.tracker.claim(self.request(2)).assignments
        self.assertEqual(make.uuids(self.claimed), make.uuids(again))
        self.assertEqual({'available': 7, 'dirty': 1}, self.release())

    def prepare(self, error):
        """Let the preparation of both devices raise an error."""
        with fixtures.MockPatchObject(
                self.tracker.backend, 'prepare', side_effect=error):
            for assignment in self.claimed:
                self.assertRaises(
                    type(error), self.tracker.prepare, [assignment])

    def test_device_that_failed_is_quarantined(self):
        self.prepare(exception.HostError(path='x', reason='broken'))
        self.assertEqual({'available': 6, 'quarantined': 2}, self.release())

    def test_device_that_failed_once_and_was_ready_later_is_not(self):
        self.prepare(exception.HostError(path='x', reason='broken'))
        self.tracker.prepare(self.claimed)
        self.assertEqual({'available': 6, 'dirty': 2}, self.release())

    def test_error_that_nobody_foresaw_may_have_changed_the_device(self):
        self.prepare(KeyError('x'))
        self.assertEqual({'available': 6, 'dirty': 2}, self.release())

    def test_device_that_was_prepared_before_stays_touched(self):
        self.tracker.prepare(self.claimed)
        self.prepare(exception.HostNotReady(path='x', reason='no helper'))
        self.assertEqual({'available': 6, 'dirty': 2}, self.release())

    def test_active_claim_is_released(self):
        self.tracker.prepare(self.claimed)
        self.tracker.activate('i1', self.claimed)
        with fixtures.MockPatchObject(
                self.api, 'abort', side_effect=AssertionError):
            self.assertEqual({'available': 6, 'dirty': 2}, self.release())

    def test_claim_that_ended_otherwise_is_forgotten_with_the_next(self):
        book = self.tracker.assignments
        book.remove('i1', make.uuids(self.claimed))
        [other] = self.tracker.claim(self.request(1, 'i2')).assignments
        for assignment in (*self.claimed, other):
            self.assertIs(assignment == other,
                          assignment in self.tracker._open_claims)
