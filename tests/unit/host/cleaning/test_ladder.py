# SPDX-License-Identifier: Apache-2.0

import threading
import time
import types
from unittest import mock

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import ladder
from gpgpu_plugin.host.cleaning import steps as steps_host
from tests.fixtures import cleaned
from tests.unit.host.cleaning import card

CALLS = []


def make(name, outcome='passed', error=None, begin=None, limit=60.0):
    """Return a class of steps that note what is called."""
    class Made(steps_host.CleaningStep):

        def begin(self, card):
            CALLS.append(f'begin {name}')
            if begin is not None:
                raise begin

        def run(self, card):
            CALLS.append(name)
            if error is not None:
                raise error
            return getattr(self, outcome)('why')
    Made.name, Made.limit = name, limit
    return Made


class LadderTest(card.CardCase):

    def setUp(self):
        super().setUp()
        del CALLS[:]

    def installed(self, *kinds):
        by_name = {kind.name: kind for kind in kinds}

        def load(namespace, name):
            if name not in by_name:
                raise exception.ConfigInvalid(
                    option=name, reason='no such entry point')
            return by_name[name]
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.extensions.load', load))

    def clean(self, *kinds, steps=None):
        self.installed(*kinds)
        return [(result.step, str(result.outcome), result.reason)
                for result in ladder.clean(self.target(
                    steps=steps or tuple(kind.name for kind in kinds)))]

    def test_all_begin_before_the_first_is_taken(self):
        self.assertEqual(
            [('a', 'passed', 'why'), ('b', 'inapplicable', 'why'),
             ('c', 'passed', 'why')],
            self.clean(make('a'), make('b', 'inapplicable'), make('c')))
        self.assertEqual(['begin a', 'begin b', 'begin c', 'a', 'b', 'c'],
                         CALLS)

    def test_order_is_that_of_the_policy(self):
        self.assertEqual(['b', 'a'], [name for name, _, _ in self.clean(
            make('a'), make('b'), make('c'), steps=('b', 'a'))])

    def test_no_step_follows_a_failure(self):
        self.assertEqual(
            [('a', 'passed', 'why'), ('b', 'failed', 'why')],
            self.clean(make('a'), make('b', 'failed'), make('c')))

    def test_nothing_is_done_if_a_step_cannot_begin(self):
        self.assertEqual(
            [('b', 'failed', 'x: no')], self.clean(
                make('a'), make('b', begin=exception.HostError(
                    path='x', reason='no')), make('c')))
        self.assertEqual(['begin a', 'begin b'], CALLS)

    def test_error_is_a_failure(self):
        for error, reason in (
                (exception.HostError(path='x', reason='no'), 'x: no'),
                (RuntimeError('surprise'), 'RuntimeError: surprise'),
                (SystemExit(1), 'SystemExit: 1')):
            self.assertEqual(
                [('a', 'failed', reason)],
                self.clean(make('a', error=error), make('b')))

    def test_host_that_is_not_ready_gives_no_verdict(self):
        for kind in (make('a', error=exception.HostNotReady(
                         path='x', reason='no helper')),
                     make('a', begin=exception.HostNotReady(
                         path='x', reason='no helper'))):
            self.assertRaises(exception.HostNotReady, self.clean, kind)

    def test_step_that_is_not_installed_gives_no_verdict(self):
        """A step that a host lacks is no fault of a device."""
        for steps in (('a', 'acme'), ('reset', 'a')):
            exc = self.assertRaises(exception.HostNotReady, self.clean,
                                    make('a'), make('b'), steps=steps)
            self.assertIn('no such entry point', str(exc))
            self.assertEqual([], CALLS)

    def test_broken_step_is_no_matter_for_policies_without_it(self):
        self.assertEqual([('a', 'passed', 'why')], self.clean(
            make('a'), mock.Mock(side_effect=SyntaxError), steps=('a',)))

    def hang(self):
        """Let a step hang; return what lets it go on."""
        going_on = threading.Event()
        self.addCleanup(going_on.set)
        hanging = make('a', limit=0.05)

        def run(step, target):
            going_on.wait(600)
            target.vfio.scrub(self.address, 1024)
        hanging.run = run
        self.assertEqual(
            [('a', 'failed', 'it took longer than 0.05 s')],
            self.clean(hanging, make('b')))
        return going_on

    def test_step_that_hangs_fails_and_is_not_waited_for(self):
        self.hang()

    def test_step_may_take_longer_for_a_device(self):
        targets = []

        def limit_for(step, target):
            targets.append(target.address)
            return 60.0
        slow = make('a', limit=0.0)
        slow.run = lambda step, target: time.sleep(0.2) or step.passed('why')
        slow.limit_for = limit_for
        self.assertEqual([('a', 'passed', 'why')], self.clean(slow))
        self.assertEqual({self.address}, set(targets))

    def test_device_with_a_late_step_is_neither_cleaned_nor_assigned(self):
        going_on = self.hang()
        for work in (lambda: self.clean(make('a')),
                     lambda: self.host.prepare(self.device()),
                     lambda: ladder.check_idle(self.gpu.id)):
            exc = self.assertRaises(exception.HostError, work)
            self.assertIn('step a of an earlier cleaning', str(exc))
        going_on.set()
        ladder._late[self.gpu.id].join(60)
        self.host.prepare(self.device())

    def test_late_step_does_not_touch_the_device(self):
        scrubbed = []
        self.vfio.scrub = lambda *args: scrubbed.append(args)
        going_on = self.hang()
        going_on.set()
        ladder._late[self.gpu.id].join(60)
        self.assertEqual([], scrubbed)

    def test_result_has_its_duration(self):
        times = [100.0]
        slow = make('a')
        slow.run = lambda self, card: (
            times.append(102.5) or self.passed('why'))
        self.installed(slow)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.host.cleaning.ladder.time', types.SimpleNamespace(
                monotonic=lambda: times[-1])))
        [result] = ladder.clean(self.target(steps=('a',)))
        self.assertEqual(2.5, result.seconds)


class OutcomeTest(card.CardCase):

    def test_gpu_that_failed_stays_bound_to_vfio_pci(self):
        self.vfio.outlasting.add(self.address)
        self.use()
        self.assertFalse(self.clean()[0].passed)
        found = next(function for function in self.host.scan().functions
                     if function.id == self.gpu.id)
        self.assertEqual('vfio-pci', found.driver)

    def test_evidence_names_what_was_checked(self):
        self.use()
        verdict, _ = self.clean()
        for words in ('was reset', 'matches its baseline',
                      'none of 16 marks'):
            self.assertIn(words, cleaned.reasons(verdict))
