# SPDX-License-Identifier: Apache-2.0
"""Tests of questions to hosts."""

import dataclasses

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import host_messages
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim
from gpgpu_plugin.rpc import conductor_contract
from tests.unit.compute import make

USAGE = claim.Usage(uuid='a1', used=False, reason='it was deleted')


class QueryCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.asked = []
        self.probes = 0
        self.query = host_messages.HostQuery(self)
        for name in ('USAGE', 'PING', 'EXAMINE', 'REPAIR'):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.rpc.compute_api.{name}_TIMEOUT', 0.1))

    # -- the client of nova-computes ----------------------------------------

    def ask(self, ctxt, host, question, about):
        if host == 'broken':
            raise exception.BrokerUnavailable(hosts='b', reason='down')
        self.asked.append((host, question, about))
        self.reply(host, question)

    examine = ask

    def probe(self):
        self.probes += 1

    def reply(self, host, question):
        """Do nothing, as a host that is down."""

    def answer(self, host, question, usages=(), drifts=()):
        self.query.answer(host, question, usages, drifts)


class UsagesTest(QueryCase):

    def usages(self, *hosts):
        return self.query.usages(context.admin(), [
            make.assignment(host=host) for host in hosts])

    def test_answers_are_returned_by_host(self):
        self.reply = lambda host, question: self.answer(
            host, question, [USAGE])
        self.assertEqual({'h1': [USAGE], 'h2': [USAGE]},
                         self.usages('h1', 'h2', 'h1'))
        self.assertEqual([('h1', 2), ('h2', 1)], [
            (host, len(about)) for host, _, about in self.asked])

    def test_host_that_is_silent_is_left_out(self):
        self.reply = lambda host, question: (
            host == 'h2' and self.answer(host, question, [USAGE]))
        self.assertEqual({'h2': [USAGE]}, self.usages('h1', 'h2'))

    def test_answer_of_another_host_is_dropped(self):
        def reply(host, question):
            self.answer('h2', question, [USAGE])
            self.answer(host, question)
        self.reply = reply
        self.assertEqual({'h1': ()}, self.usages('h1'))

    def test_second_answer_does_not_replace_the_first_one(self):
        def reply(host, question):
            for usages in ([USAGE], []):
                self.answer(host, question, usages)
        self.reply = reply
        self.assertEqual({'h1': [USAGE]}, self.usages('h1'))

    def test_answer_for_which_nobody_waits_is_dropped(self):
        self.usages('h1')
        [(host, question, _)] = self.asked
        self.answer(host, question, [USAGE])
        self.answer(host, 'of another conductor', [USAGE])
        self.assertEqual({}, self.query._waiting)

    def test_broker_that_is_down_is_an_error(self):
        error = exception.BrokerUnavailable(hosts='b', reason='down')
        self.useFixture(fixtures.MockPatchObject(
            self, 'probe', side_effect=error))
        self.assertRaises(exception.BrokerUnavailable, self.usages, 'h1')
        self.assertEqual([], self.asked)


class IsAnsweredTest(QueryCase):

    def test_any_answer_shows_that_the_host_runs(self):
        self.reply = self.answer
        self.assertTrue(self.query.is_answered(context.admin(), 'h1'))
        self.assertEqual(1, self.probes)

    def test_silence_means_something_if_the_broker_takes_messages(self):
        self.assertFalse(self.query.is_answered(context.admin(), 'h1'))
        self.assertEqual(2, self.probes)

    def test_question_that_cannot_be_sent_is_no_silence(self):
        self.assertRaises(exception.BrokerUnavailable,
                          self.query.is_answered, context.admin(), 'broken')


def found(host, name='instance_deleted', repair=drift.Repair.COMPARE):
    return dataclasses.replace(drift.of(
        'instance_deleted', host, 'a1', nova='it is deleted'),
        name=name, repair=repair)


class DriftsTest(QueryCase):

    def setUp(self):
        super().setUp()
        self.found = {}

    def reply(self, host, question):
        if host in self.found:
            self.answer(host, question, drifts=self.found[host])

    def drifts(self, *hosts, repairs=()):
        return self.query.drifts(context.admin(), hosts, repairs)

    def test_all_hosts_are_asked_before_one_is_waited_for(self):
        def reply(host, question):
            if host == 'h2':
                for host, question, _ in self.asked:
                    self.answer(host, question, drifts=[found(host)])
        self.reply = reply
        self.assertEqual(
            (found('h1'), found('h2')),
            self.drifts('h1', 'h2', repairs=[drift.Repair.COMPARE]))
        self.assertEqual([('h1', 'compare'), ('h2', 'compare')], [
            (host, *repairs) for host, _, repairs in self.asked])
        self.assertEqual(1, self.probes)

    def test_silence_is_a_drift_of_each_silent_host(self):
        self.found = {'h1': [found('h1')], 'h4': []}
        for hosts in (('h1', 'h2', 'broken', 'h4'), ('broken', 'h2')):
            silent = [one for one in self.drifts(*hosts)
                      if one != found('h1')]
            self.assertEqual({'h2', 'broken'}, {one.host for one in silent})
            for one in silent:
                self.assertEqual(
                    ('host_not_examined', drift.DriftSeverity.UNKNOWN,
                     {'host': 'nova-compute did not answer within 0.1 s'}),
                    (one.name, one.severity, one.says))

    def test_host_finds_nothing_that_others_find_or_that_is_elsewhere(self):
        for forged in (
                found('h2'), found(None),
                found('h1', 'provider_of_unknown_host',
                      drift.Repair.PROVIDER),
                found('h1', repair=drift.Repair.PROVIDER),
                found('h1', repair=drift.Repair.ADOPT),
                found('h1', 'device_assigned_twice', None),
                found('h1', 'no_such_kind')):
            self.found = {'h1': [found('h1'), forged], 'h2': [found('h2')]}
            # Nothing of such an answer is believed.
            [refused, other] = self.drifts('h1', 'h2')
            self.assertEqual(('host_not_examined', 'h1'),
                             (refused.name, refused.host))
            self.assertIn('its answer is refused', refused.says['host'])
            self.assertEqual(found('h2'), other)

    def test_host_may_say_why_it_does_not_repair(self):
        self.found = {'h1': [found('h1', repair=None)]}
        self.assertEqual((found('h1', repair=None),), self.drifts('h1'))

    def test_too_many_hosts_and_foreign_repairs_are_refused(self):
        self.assertRaises(exception.Invalid, self.drifts, *map(str, range(
            conductor_contract.HOSTS_AT_ONCE + 1)))
        self.assertRaises(exception.Invalid, self.drifts, 'h1',
                          repairs=[drift.Repair.PROVIDER])
        self.assertEqual([], self.asked)
