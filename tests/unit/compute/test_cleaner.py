# SPDX-License-Identifier: Apache-2.0
"""Tests of cleaning one device, with mocks of conductor and host."""

import dataclasses
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import cleaning
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import cleaned
from tests.unit.compute import make

TASK = claim_obj.CleanTask(
    had_guest=True, device_uuid='d1', stable_id='/devices/x',
    address='0000:3b:00.0', variant='H100', token='t1',
    assignment_uuid='a1', vgpu_type='H100-4Q', request='r1',
    steps=('reset',))
DEVICE = host_base.HostDevice.to_clean(TASK)


class CleanTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.task = TASK
        self.api = mock.create_autospec(
            conductor_client.ConductorAPI, instance=True)
        folder = self.useFixture(fixtures.TempDir()).path
        self.book = assignment_file.AssignmentFile(f'{folder}/h1.json')
        self.backend = mock.create_autospec(host_base.ComputeHost,
                                            instance=True)
        self.verdict = cleaned.verdict(DEVICE)
        self.backend.clean.return_value = self.verdict
        self.api.clean_failure.return_value = None
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.cleaning'))

    def clean(self):
        return cleaning.clean(host_mod.HostParts(
            name='h1', backend=self.backend, api=self.api, client=None,
            assignments=self.book,
            session=make.session(self.api, self.book)), self.task)

    def finished(self):
        """Return the calls that the conductor received."""
        [((_, _, device_uuid, token, attempt), _)] = (
            self.api.clean_started.call_args_list)
        self.assertEqual(('d1', 't1'), (device_uuid, token))
        [((_, _, device_uuid, ended, steps, results), sent)] = (
            self.api.clean_finished.call_args_list)
        # The verdict is on this attempt, not on the assignment that ended.
        self.assertEqual(('d1', attempt), (device_uuid, ended))
        self.assertNotIn(attempt, ('t1', 'a1'))
        self.assertEqual(TASK.steps, steps)
        return results, sent['driver_capacities']

    def test_clean_device_is_reported_with_the_driver_s_capacity(self):
        self.backend.driver_capacity.return_value = {'/devices/x': 'capacity'}
        self.assertIs(self.api.clean_finished.return_value, self.clean())
        self.assertEqual(
            (self.verdict.results, {'/devices/x': 'capacity'}),
            self.finished())
        self.backend.clean.assert_called_once_with(DEVICE)
        self.backend.driver_capacity.assert_called_once_with([DEVICE])
        self.assertEqual('', self.log.output)

    def test_clean_device_leaves_the_book_before_the_conductor_hears(self):
        self.book.add('i1', [make.assignment()])
        self.book.remove('i1', ['a1'])
        granted = [make.assignment(uuid='a2', instance_uuid='i2')]
        self.assertTrue(self.book.contradictions(granted))
        self.api.clean_finished.side_effect = exception.ConductorUnavailable(
            method='clean_finished', timeout=1)
        self.assertRaises(exception.ConductorUnavailable, self.clean)
        self.assertEqual([], self.book.contradictions(granted))

    def test_device_is_given_back_when_the_conductor_says_it_is_clean(self):
        order = mock.Mock()
        order.attach_mock(self.api.clean_failure, 'judge')
        order.attach_mock(self.backend.give_back, 'give_back')
        order.attach_mock(self.api.clean_finished, 'finish')
        self.clean()
        self.assertEqual(['judge', 'give_back', 'finish'],
                         [call[0] for call in order.mock_calls])
        self.backend.give_back.assert_called_once_with(DEVICE)

    def test_device_that_only_the_conductor_fails_stays_unclean(self):
        self.book.add('i1', [make.assignment()])
        self.book.remove('i1', ['a1'])
        self.api.clean_failure.return_value = 'option ROM was aa, is bb'
        self.clean()
        self.assertEqual((self.verdict.results, mock.ANY), self.finished())
        self.assertEqual([], self.backend.give_back.mock_calls)
        self.assertEqual({'/devices/x'}, self.book.unclean())
        self.assertIn('option ROM was aa, is bb', self.log.output)

    def test_device_that_was_prepared_may_have_had_a_guest(self):
        """The guest ran, and its claim was not activated."""
        self.task = dataclasses.replace(TASK, had_guest=False)
        self.book.add('i1', [make.assignment()])
        self.book.remove('i1', ['a1'])
        self.clean()
        self.book.prepare([make.assignment()])
        for _ in range(2):
            self.clean()
        self.assertEqual([False, True, False], [
            call.args[0].had_guest
            for call in self.backend.clean.call_args_list])

    def test_guest_of_the_device_before_is_none_of_the_replacement(self):
        self.task = dataclasses.replace(
            TASK, had_guest=False, replaces=True)
        self.book.add('i1', [make.assignment()])
        self.book.prepare([make.assignment()])
        self.clean()
        [call] = self.backend.clean.call_args_list
        self.assertEqual((False, True), (
            call.args[0].had_guest, call.args[0].replaces))

    def test_device_without_a_verdict_stays_unclean(self):
        self.book.add('i1', [make.assignment()])
        self.book.remove('i1', ['a1'])
        self.api.clean_failure.side_effect = exception.ConductorUnavailable(
            method='clean_failure', timeout=1)
        self.assertRaises(exception.ConductorUnavailable, self.clean)
        self.assertEqual([], self.backend.give_back.mock_calls)
        self.assertEqual([], self.api.clean_finished.mock_calls)
        self.assertEqual({'/devices/x'}, self.book.unclean())

    def test_device_that_cannot_be_given_back_is_quarantined(self):
        self.book.add('i1', [make.assignment()])
        self.book.remove('i1', ['a1'])
        self.backend.give_back.side_effect = exception.HostError(
            path='0000:3b:00.0', reason='driver nvidia did not bind')
        self.clean()
        [result], _ = self.finished()
        self.assertEqual('failed', result.outcome)
        self.assertIn('did not bind', result.reason)
        self.assertEqual({'/devices/x'}, self.book.unclean())

    def test_device_that_is_not_clean_is_reported_and_logged(self):
        self.backend.clean.return_value = host_base.CleanVerdict.failed(
            DEVICE, 'device was 2330, is 2339')
        self.api.clean_failure.return_value = (
            'reset failed: device was 2330, is 2339')
        self.clean()
        [result], _ = self.finished()
        self.assertEqual('failed', result.outcome)
        for words in ('0000:3b:00.0', 'device was 2330, is 2339',
                      'gpgpu-manage device release d1'):
            self.assertIn(words, self.log.output)

    def test_device_without_a_guest_is_unclean_until_it_passed(self):
        self.backend.clean.return_value = host_base.CleanVerdict.failed(
            DEVICE, 'it does not answer')
        self.clean()
        self.assertEqual({DEVICE.stable_id}, self.book.unclean())
        self.backend.clean.return_value = self.verdict
        self.clean()
        self.assertEqual(set(), self.book.unclean())

    def test_error_of_the_host_quarantines_the_device(self):
        self.backend.clean.side_effect = RuntimeError('surprise')
        self.api.clean_failure.return_value = 'RuntimeError: surprise'
        self.clean()
        [result], _ = self.finished()
        self.assertEqual(('failed', 'RuntimeError: surprise'),
                         (result.outcome, result.reason))

    def test_host_that_is_not_ready_gives_no_verdict(self):
        self.backend.clean.side_effect = exception.HostNotReady(
            path='/sys', reason='no helper')
        self.assertRaises(exception.HostNotReady, self.clean)
        self.assertEqual([], self.api.clean_finished.mock_calls)
        [((_, _, _, _, attempt), _)] = self.api.clean_started.call_args_list
        [((_, _, *sent), _)] = self.api.clean_postponed.call_args_list
        self.assertEqual(['d1', attempt], sent[:2])
        self.assertIn('no helper', sent[2])

    def test_device_that_another_cleaning_has_is_not_touched(self):
        self.api.clean_started.side_effect = exception.Conflict(
            kind='device', name='d1', reason='cleaned by t2')
        self.assertIsNone(self.clean())
        self.assertEqual([], self.backend.clean.mock_calls)
        self.assertEqual([], self.api.clean_finished.mock_calls)

    def test_device_is_not_touched_before_the_conductor_answers(self):
        self.api.clean_started.side_effect = exception.ConductorUnavailable(
            method='clean_started', timeout=1)
        self.assertRaises(exception.ConductorUnavailable, self.clean)
        self.assertEqual([], self.backend.clean.mock_calls)
