# SPDX-License-Identifier: Apache-2.0
"""Tests of questions to hosts."""

import dataclasses

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import questions
from gpgpu_plugin.db import host_answer as host_answer_db
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import doctor_contract
from tests.unit.compute import make
from tests.unit.conductor import base

USAGE = claim.Usage(uuid='a1', used=False, reason='it was deleted')


class QuestionsBase(base.ConductorTestCase):

    functions = ()
    variant = False

    def setUp(self):
        super().setUp()
        self.asked = []
        self.probes = 0
        self.error = None
        self.now = 0.0
        self.waits = []
        self.questions = questions.Questions(
            self.db, self, self.wait, lambda: self.now)
        # Any conductor takes the answer.
        self.other = questions.Questions(self.db, self)

    # -- the client of nova-computes ----------------------------------------

    def ask(self, ctxt, host, question, assignments):
        if self.error is not None:
            raise self.error
        self.asked.append((host, question, assignments))

    def examine(self, ctxt, host, question, repairs):
        if host == 'broken':
            raise exception.BrokerUnavailable(hosts='b', reason='down')
        self.asked.append((host, question, repairs))

    def probe(self):
        self.probes += 1

    def wait(self, seconds):
        self.now += seconds
        self.waits.append(seconds)
        if len(self.waits) == 3:
            self.reply()

    def reply(self):
        """Do nothing."""

    def rows(self):
        with self.db.reader() as session:
            return len(session.execute(sa.select(host_answer_db.TABLE)).all())


class QuestionsTest(QuestionsBase):

    def answer_as(self, host, usages=(USAGE,)):
        self.reply = lambda: self.other.answer(
            host, self.asked[-1][1], usages)

    def test_answer_comes_through_another_conductor(self):
        self.answer_as('h1')
        assignments = [make.assignment()]
        self.assertEqual((USAGE,), self.questions.usage(
            context.admin(), 'h1', assignments))
        [(host, _, asked)] = self.asked
        self.assertEqual(('h1', assignments), (host, asked))
        self.assertEqual(0, self.rows())

    def test_silence_ends_in_time(self):
        self.assertIsNone(self.questions.usage(context.admin(), 'h1', []))
        self.assertLess(self.now, compute_api.USAGE_TIMEOUT + 1)
        self.assertEqual(0, self.rows())
        self.assertFalse(self.questions.is_answered(context.admin(), 'h1'))
        # Silence means something only if the broker could have carried it.
        self.assertEqual(1, self.probes)

    def test_any_answer_shows_that_the_host_runs(self):
        self.answer_as('h1', ())
        self.assertTrue(self.questions.is_answered(context.admin(), 'h1'))
        self.assertEqual(0, self.probes)

    def test_broker_that_is_down_is_an_error(self):
        self.error = exception.BrokerUnavailable(hosts='b', reason='down')
        self.assertRaises(
            exception.BrokerUnavailable, self.questions.is_answered,
            context.admin(), 'h1')
        self.assertEqual(0, self.rows())

    def test_answer_of_another_host_is_dropped(self):
        self.answer_as('h2')
        self.assertIsNone(self.questions.usage(context.admin(), 'h1', []))

    def test_late_and_second_answers_are_dropped(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.questions'))
        self.answer_as('h1')
        self.questions.usage(context.admin(), 'h1', [])
        self.reply()
        self.assertIn('h1 answered too late', log.output)
        self.assertEqual(0, self.rows())

    def test_second_answer_does_not_replace_the_first_one(self):
        def reply():
            for usages in ((USAGE,), ()):
                self.other.answer('h1', self.asked[-1][1], usages)
        self.reply = reply
        self.assertEqual((USAGE,), self.questions.usage(
            context.admin(), 'h1', []))

    def test_question_of_a_dead_conductor_is_deleted_by_a_later_one(self):
        self.db.write(lambda session: session.execute(
            sa.insert(host_answer_db.TABLE).values(
                question='old', host='h1', asked_at=0.0)))
        self.questions.usage(context.admin(), 'h1', [])
        self.assertEqual(0, self.rows())

    def test_answer_that_cannot_be_deleted_is_an_answer(self):
        self.answer_as('h1')
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.host_answer.forget',
            side_effect=exception.DatabaseBusy(reason='locked')))
        self.assertEqual((USAGE,), self.questions.usage(
            context.admin(), 'h1', []))


def found(host, name='instance_deleted', repair=drift.Repair.COMPARE):
    return dataclasses.replace(drift.of(
        'instance_deleted', host, 'a1', nova='it is deleted'),
        name=name, repair=repair)


class DriftsTest(QuestionsBase):

    def drifts(self, *hosts, **kwargs):
        return {answer.host: answer.drifts for answer
                in self.questions.drifts(context.admin(), hosts, **kwargs)}

    def answer_as(self, *hosts):
        def reply():
            for host, question, _ in self.asked:
                if host in hosts:
                    self.other.examined(host, question, (found(host),))
        self.reply = reply

    def test_hosts_are_asked_at_the_same_time(self):
        self.answer_as('h1', 'h2')
        self.assertEqual(
            {'h1': (found('h1'),), 'h2': (found('h2'),)},
            self.drifts('h1', 'h2', repairs=[drift.Repair.COMPARE]))
        self.assertEqual({('h1', 'compare'), ('h2', 'compare')}, {
            (host, *repairs) for host, _, repairs in self.asked})
        self.assertEqual((3, 0, 1), (len(self.waits), self.rows(),
                                     self.probes))

    def test_host_that_is_silent_has_no_answer(self):
        self.answer_as('h1')
        self.assertEqual({'h1': (found('h1'),), 'h2': None}, self.drifts(
            'h1', 'h2'))
        self.assertLess(self.now, doctor_contract.EXAMINE_TIMEOUT + 1)

    def test_host_that_cannot_be_asked_does_not_keep_others(self):
        self.answer_as('h2')
        self.assertEqual({'broken': None, 'h2': (found('h2'),)}, self.drifts(
            'broken', 'h2'))

    def test_host_cannot_answer_for_another(self):
        self.reply = lambda: self.other.examined(
            'h2', self.asked[0][1], ())
        self.assertEqual({'h1': None}, self.drifts('h1'))

    def test_host_finds_nothing_that_others_find_or_that_is_elsewhere(self):
        def forge(*drifts):
            self.reply = lambda: self.assertRaises(
                exception.Invalid, self.other.examined, 'h1',
                self.asked[-1][1], (found('h1'), *drifts))
            self.waits.clear()
            return self.drifts('h1')
        for forged in (
                found('h2'), found(None),
                found('h1', 'provider_of_unknown_host',
                      drift.Repair.PROVIDER),
                found('h1', repair=drift.Repair.PROVIDER),
                found('h1', repair=drift.Repair.ADOPT),
                found('h1', 'device_assigned_twice', None),
                found('h1', 'no_such_kind')):
            # Nothing of such an answer is believed.
            self.assertEqual({'h1': None}, forge(forged))

    def test_host_may_say_why_it_does_not_repair(self):
        self.reply = lambda: self.other.examined(
            'h1', self.asked[0][1], (found('h1', repair=None),))
        self.assertEqual({'h1': (found('h1', repair=None),)},
                         self.drifts('h1'))

    def test_too_many_hosts_and_foreign_repairs_are_refused(self):
        self.assertRaises(exception.Invalid, self.drifts, *map(str, range(
            doctor_contract.HOSTS_AT_ONCE + 1)))
        self.assertRaises(exception.Invalid, self.drifts, 'h1',
                          repairs=[drift.Repair.PROVIDER])
        self.assertEqual([], self.asked)
