# SPDX-License-Identifier: Apache-2.0
"""Tests of the endpoint by which a host is examined."""

import time

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import doctor
from gpgpu_plugin.doctor import drift

FOUND = (drift.of('instance_deleted', 'h1', 'a1', nova='gone'),)


class DoctorManagerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.repairs = []
        self.answers = []
        self.manager = doctor.DoctorManager(
            'h1', self.examine, lambda *answer: self.answers.append(answer))

    def examine(self, repairs):
        self.repairs.append(repairs)
        return FOUND

    def ask(self, age=0, repairs=()):
        self.manager.examine(
            None, question='q1', asked_at=time.time() - age,
            repairs=list(repairs))

    def test_drifts_are_the_answer(self):
        self.ask(repairs=[drift.Repair.OFFER])
        self.assertEqual([('q1', FOUND)], self.answers)
        self.assertEqual([['offer']], self.repairs)

    def test_question_that_waited_for_nova_compute_is_dropped(self):
        self.ask(age=3600, repairs=[drift.Repair.OFFER])
        self.assertEqual(([], []), (self.answers, self.repairs))

    def test_error_is_a_drift_and_never_consistency(self):
        self.manager._examine = lambda repairs: 1 / 0
        self.ask()
        [(_, [found])] = self.answers
        self.assertEqual('host_not_examined', found.name)
        self.assertIn('ZeroDivisionError', found.says['host'])

    def test_answer_that_cannot_be_sent_is_logged(self):
        def fail(question, drifts):
            raise exception.ConductorUnavailable(method='examined', timeout=1)
        self.manager._answer = fail
        self.ask()
        self.assertIn('Cannot report the drifts of', self.log.output)
