# SPDX-License-Identifier: Apache-2.0
"""Tests of the step that resets settings in the firmware."""

import dataclasses
import json
import pathlib

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import operator_program
from tests.unit.host.cleaning import card

DEFAULTS = {'ecc': 'on', 'cc': 'off', 'ppcie': 'off'}

# A GPU whose settings a reset of the card applies: it keeps what is set until
# the file of the test says that it was reset.
PROGRAM = '''\
#!/bin/sh
cd "$(dirname "$0")" && echo "$*" >> calls
case $1 in
query) cat now;;
reset) cat defaults > next;;
esac
'''


class KnobsCase(card.CardCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.program(PROGRAM)
        self.put('defaults', DEFAULTS)
        self.put('now', DEFAULTS)
        hot_reset = self.vfio.hot_reset

        def apply(address, functions):
            hot_reset(address, functions)
            with (self.folder / 'calls').open('a') as calls:
                calls.write('card is reset\n')
            if (self.folder / 'next').exists():
                (self.folder / 'next').rename(self.folder / 'now')
        self.vfio.hot_reset = apply

    def program(self, text):
        self.path = self.folder / 'knobs'
        self.path.write_text(text)
        self.path.chmod(0o755)

    def put(self, name, values):
        (self.folder / name).write_text(json.dumps(values))

    def calls(self):
        return (self.folder / 'calls').read_text().splitlines()

    def run_step(self, command=None, step=None, **changes):
        target = self.target()
        return (step or operator_program.KnobsStep()).run(dataclasses.replace(
            target, functions=(dataclasses.replace(
                self.gpu, **{'device': '2330', **changes}),),
            read=lambda: (dataclasses.replace(self.gpu, device='2330'),),
            access=dataclasses.replace(
                target.access, knobs_command=command or str(self.path))))

    def failed(self, *words, **kwargs):
        result = self.run_step(**kwargs)
        self.assertEqual('failed', result.outcome, result.reason)
        for word in words:
            self.assertIn(word, result.reason)
        return result


class KnobsTest(KnobsCase):

    def test_knobs_at_their_defaults_are_only_read(self):
        result = self.run_step()
        self.assertEqual('passed', result.outcome, result.reason)
        self.assertEqual(
            {'command': str(self.path),
             'before': '{"cc": "off", "ecc": "on", "ppcie": "off"}'},
            result.facts)
        self.assertEqual([f'query {self.address}'], self.calls())

    def test_other_values_are_reset_and_read_back(self):
        self.put('now', {**DEFAULTS, 'ecc': 'off'})
        result = self.run_step()
        self.assertEqual('passed', result.outcome, result.reason)
        self.assertIn('before, ecc is off, not on', result.reason)
        self.assertEqual(('off', 'on'), tuple(
            json.loads(result.facts[name])['ecc']
            for name in ('before', 'after')))
        self.assertEqual(
            [f'query {self.address}', f'reset {self.address}',
             'card is reset', f'query {self.address}'], self.calls())

    def test_value_that_stays_fails_with_its_name(self):
        self.put('now', {**DEFAULTS, 'ecc': 'off'})
        self.put('defaults', {**DEFAULTS, 'cc': 'on'})
        result = self.failed('after they were set and the card was reset: '
                             'cc is on, not off')
        self.assertEqual({'command', 'before', 'after'}, set(result.facts))

    def test_knob_that_is_not_shown_fails(self):
        for shown in ('now', 'defaults'):
            self.put(shown, {'ecc': 'on', 'cc': 'off'})
        self.failed('ppcie is unknown, not off')

    def test_other_knobs_are_evidence_only(self):
        self.put('now', {**DEFAULTS, 'nvlink_blocked': 'none'})
        result = self.run_step()
        self.assertEqual('passed', result.outcome)
        self.assertIn('nvlink_blocked', result.facts['before'])

    def test_command_may_have_arguments(self):
        result = self.run_step(command=f'/usr/bin/env "{self.path}"')
        self.assertEqual('passed', result.outcome, result.reason)

    def test_output_that_is_no_object_fails(self):
        self.program('#!/bin/sh\necho "ECC is enabled"\n')
        self.failed("'ECC is enabled'", 'JSON object')

    def test_warnings_are_not_parsed(self):
        self.program(PROGRAM + 'echo "sudo: a warning" >&2\n')
        self.assertEqual('passed', self.run_step().outcome)

    def test_program_that_fails_is_a_failure_with_its_errors(self):
        self.program('#!/bin/sh\necho "no such GPU" >&2; exit 3\n')
        self.failed('query ended with status 3: no such GPU')
        self.put('now', {**DEFAULTS, 'ecc': 'off'})
        self.program(PROGRAM.replace('cat defaults > next', 'exit 3'))
        result = self.failed('reset ended with status 3')
        self.assertIn('"ecc": "off"', result.facts['before'])
        self.assertNotIn('card is reset', self.calls())

    def test_host_that_is_not_set_up_blames_no_device(self):
        for text in ('echo "sudo: a password is required" >&2; exit 1',
                     'exit 127'):
            self.program(f'#!/bin/sh\n{text}\n')
            exc = self.assertRaises(exception.HostNotReady, self.run_step)
            self.assertIn('query ended with status', str(exc))

    def test_program_that_takes_too_long_fails(self):
        self.program('#!/bin/sh\nsleep 600\n')
        step = operator_program.KnobsStep()
        step.seconds = 0.3
        self.failed('query took longer than 0.3 s', step=step)

    def test_gpu_with_another_identity_after_the_reset_fails(self):
        self.put('now', {**DEFAULTS, 'ecc': 'off'})
        self.failed('serial was', serial='another')

    def test_unknown_model_and_vf_are_inapplicable(self):
        for changes, word in (({'device': '1db6'}, '10de:1db6'),
                              ({'pf': '/devices/pf'}, 'VF')):
            result = self.run_step(**changes)
            self.assertEqual('inapplicable', result.outcome)
            self.assertIn(word, result.reason)
        self.assertFalse((self.folder / 'calls').exists())

    def test_host_without_the_command_blames_no_device(self):
        for command, words in ((' ', 'no command is configured'),
                               ('a "b', 'cannot be split'),
                               ('/none', '/none')):
            exc = self.assertRaises(
                exception.HostNotReady, self.run_step, command)
            self.assertIn(words, str(exc))
            self.assertIn('[gpgpu_compute] knobs_command', str(exc))

    def test_policy_can_name_it(self):
        # All backends have it; it never changes while a host lives.
        object.__setattr__(
            self.host.access, 'knobs_command', str(self.path))
        self.put('now', {'ecc': 'off'})
        self.use()
        verdict, results = self.clean('reset+memory-clear+knobs+settings')
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertIn('ecc is off', results['knobs'].reason)
