# SPDX-License-Identifier: Apache-2.0

import typing

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from tests.fixtures import cleaned

_GPU = '/devices/pci0000:00/01.0'


def result(step, outcome='passed', **facts):
    return cleaning.StepResult(
        step=step, outcome=cleaning.StepOutcome(outcome), reason='why',
        facts=facts)


class PolicyTest(base.BaseTestCase):

    def test_names_and_steps_are_policies(self):
        for policy in (*cleaning.POLICIES, 'reset+settings',
                       'flr+settings+acme-scrub+canary'):
            self.assertEqual(policy, cleaning.check_policy(policy))

    def test_other_texts_are_refused(self):
        for text in ('', 'none', 'settings+reset', 'reset', 'reset+reset',
                     'reset+Scrub', 'reset+', 'canary+scrub', 'reset scrub',
                     'reset+host-driver', 'reset+canary+acme-scrub',
                     'reset+' + '+'.join(f'a{n}' for n in range(99))):
            exc = self.assertRaises(
                exception.Invalid, cleaning.check_policy, text)
            self.assertIn('default, scrub, reset-only', str(exc))

    def test_scrub_guest_needs_settings_after_it(self):
        for text in ('reset+scrub-guest', 'reset+settings+scrub-guest',
                     'reset+settings+scrub-guest+canary'):
            exc = self.assertRaises(
                exception.Invalid, cleaning.check_policy, text)
            self.assertIn('settings after scrub-guest', str(exc))
        for text in ('reset+scrub-guest+settings',
                     'flr+scrub-guest+settings+canary'):
            self.assertEqual(text, cleaning.check_policy(text))

    def test_policy_is_of_whole_gpus(self):
        whole = ('reset', 'settings', 'scrub', 'canary')
        for stable_id, makes_mdevs, expected in (
                (_GPU, False, whole), (_GPU, True, whole),
                (f'{_GPU}/mdev3', False, ('host-driver',)),
                (f'{_GPU}/vf0', True, ('host-driver',)),
                (f'{_GPU}/vf0', False, ('host-driver', 'reset', 'settings'))):
            self.assertEqual(expected, cleaning.required(
                'scrub', stable_id, makes_mdevs=makes_mdevs), stable_id)


class FailureTest(base.BaseTestCase):

    STEPS = ('reset', 'settings', 'canary')

    def test_all_required_steps_passed(self):
        self.assertIsNone(cleaning.failure(
            cleaned.results(self.STEPS), self.STEPS))

    def test_missing_step_is_named(self):
        self.assertEqual(
            'canary is required, and the host did not do it',
            cleaning.failure(
                cleaned.results(('reset', 'settings')), self.STEPS))
        self.assertIn('reset is required', cleaning.failure((), self.STEPS))

    def test_step_that_says_nothing_is_no_evidence(self):
        self.assertEqual('canary inapplicable: why', cleaning.failure(
            [*cleaned.results(('reset', 'settings')),
             result('canary', 'inapplicable')], self.STEPS))

    def test_step_that_is_not_required_may_say_nothing(self):
        self.assertIsNone(cleaning.failure(
            [*cleaned.results(self.STEPS), result('other', 'inapplicable')],
            self.STEPS))

    def test_failure_is_not_outweighed_although_not_required(self):
        self.assertEqual('canary failed: why', cleaning.failure(
            [*cleaned.results(('reset', 'settings')),
             result('canary', 'failed')], ('reset', 'settings')))

    def test_scrub_of_a_part_is_no_scrub(self):
        mib = 1024 ** 2
        for verified, memory, variant, expected in (
                (8 * mib, 8 * mib, None, None),
                (8 * mib, 8 * mib, 8, None),
                (8 * mib - 1, 8 * mib, None, f'{8 * mib - 1} of {8 * mib}'),
                # The host believes that the GPU has less.
                (8 * mib, 8 * mib, 16, f'{8 * mib} of {16 * mib}'),
                (0, 0, None, '0 of 0')):
            for step in ('scrub', 'scrub-guest'):
                reason = cleaning.failure(
                    [result(step, bytes_verified=verified,
                            bytes_of_memory=memory)], (step,), variant)
                if expected is None:
                    self.assertIsNone(reason)
                else:
                    self.assertIn(f'{step} verified {expected}', reason)

    def test_scrub_of_less_than_the_bar_shows_is_no_scrub(self):
        self.assertIn('scrub verified 8 of 16 bytes', cleaning.failure(
            [result('scrub', bytes_verified=8, bytes_of_memory=8,
                    bytes_of_window=16)], ('scrub',)))

    def test_scrub_without_numbers_is_no_scrub(self):
        for facts in ({}, {'bytes_verified': 'all', 'bytes_of_memory': 'x'}):
            self.assertIn('0 of 0', cleaning.failure(
                [result('scrub', **facts)], ('scrub',)))

    def test_of_two_results_the_worse_one_counts(self):
        both = [result('a', 'inapplicable'), result('a')]
        for results in (both, both[::-1]):
            self.assertEqual('a inapplicable: why', cleaning.failure(
                results, ('a',)))


class HarmlessTest(base.BaseTestCase):

    def test_cleaning_that_found_nothing_proves_nothing_but_does_no_harm(self):
        steps = FailureTest.STEPS
        for results, expected in (
                (cleaned.results(steps), True),
                (cleaned.mute('canary'), True),
                ([*cleaned.mute('canary'), result('scrub', 'inapplicable')],
                 True),
                # A step that is missing, or failed, is the device's or host's.
                (cleaned.mute('canary')[1:], False),
                ([*cleaned.mute('canary'), result('scrub', 'failed')], False),
                ([result('reset', 'failed'), *cleaned.mute('reset')], False),
                (cleaned.failed('why'), False)):
            self.assertIs(expected, cleaning.is_harmless(results, steps),
                          [str(found) for found in results])

    def test_scrub_of_a_part_is_no_scrub(self):
        results = [result('scrub', bytes_verified=1, bytes_of_memory=2),
                   result('canary', 'inapplicable')]
        self.assertIs(False, cleaning.is_harmless(
            results, ('scrub', 'canary')))


class ModelTest(base.BaseTestCase):
    """Facts of a model that are known before a GPU of it was cleaned."""

    H100, V100, MI300X = ('10de', '2330'), ('10de', '1db4'), ('1002', '74a1')

    def test_policy_of_a_model_is_what_it_passes_without_its_driver(self):
        for model, expected in (
                (self.H100, 'reset+memory-clear+settings'),
                (self.V100, 'default'), (self.MI300X, 'default')):
            policy = cleaning.of_model(*model)
            self.assertEqual((expected, expected), (
                policy, cleaning.check_policy(policy)))

    def test_policy_that_most_gpus_cannot_pass_is_doubted(self):
        for policy, model, expected in (
                ('default', self.H100, 'canary of its cleaning policy can '
                 'say nothing about most GPUs without their driver'),
                ('default', self.H100, 'policy: reset+memory-clear+settings '),
                ('scrub', self.V100, 'scrub and canary of its'),
                ('default', self.V100, 'policy: reset+scrub-guest+settings p'),
                ('default', self.MI300X, 'reset-only passes and proves noth'),
                ('reset+memory-clear+knobs', self.V100,
                 'memory-clear and knobs of')):
            text = cleaning.doubt(policy, *model)
            self.assertIn(expected, text)

    def test_other_policies_are_not_doubted(self):
        for policy, model in (
                ('reset+memory-clear+knobs+settings', self.H100),
                ('reset-only', self.V100), ('reset+acme-scrub', self.MI300X),
                ('reset+scrub-guest+settings', self.V100)):
            self.assertIsNone(cleaning.doubt(policy, *model))


class ProvenTest(base.BaseTestCase):

    def test_device_that_passed_all_that_is_required_is_proven(self):
        for passed, steps, expected in (
                ('reset+settings', ('reset', 'settings'), True),
                ('reset+settings', ('reset', 'settings', 'canary'), False),
                ('reset+settings+canary', ('reset', 'settings'), True),
                ('', ('reset',), False),
                # It is new on its host.
                (None, ('reset',), False)):
            self.assertIs(expected, cleaning.is_proven(passed, steps),
                          (passed, steps))


class ChangedSettingsTest(base.BaseTestCase):

    SHAPES: typing.ClassVar = {
        '/devices/a': {'vendor': '10de', 'revision': 'a1'},
        '/devices/b': {'vendor': '10de'}}

    @staticmethod
    def result(facts):
        return cleaning.StepResult(
            step='settings', outcome=cleaning.StepOutcome.PASSED, reason='',
            facts=facts)

    def changes(self, now):
        return cleaning.changed_settings(
            self.result(cleaning.settings_facts(
                self.SHAPES, {'option ROM': 'aa', 'VPD': ''})),
            self.result(now))

    def test_same_settings(self):
        self.assertEqual([], self.changes(cleaning.settings_facts(
            self.SHAPES, {'option ROM': 'aa', 'VPD': ''})))

    def test_what_is_looked_at_for_the_first_time_is_no_change(self):
        more = {**self.SHAPES, '/devices/c': {'vendor': '1234'}}
        self.assertEqual([], self.changes(cleaning.settings_facts(
            more, {'option ROM': 'aa', 'VPD': '', 'new': 'x'})))

    def test_each_change_is_named(self):
        shapes = {'/devices/a': {'vendor': '10de', 'revision': 'a2'}}
        self.assertEqual(
            ['option_rom_sha256 was aa, is bb',
             'revision of /devices/a was a1, is a2',
             'vendor of /devices/b was 10de, is none',
             'vpd_sha256 was none, is cc'],
            self.changes(cleaning.settings_facts(
                shapes, {'option ROM': 'bb', 'VPD': 'cc'})))

    def test_settings_that_are_not_said_are_changes(self):
        for configuration in ('', '[]', '{"a": 1}', '{'):
            with self.subTest(configuration=configuration):
                self.assertEqual(
                    4, len(self.changes({'configuration': configuration})))
