# SPDX-License-Identifier: Apache-2.0
"""Tests of the step that runs an operator's program."""

import dataclasses
import pathlib

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import operator_program
from tests.unit.host.cleaning import card


class ProgramTest(card.CardCase):

    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'clean')

    def run_step(self, text, step=None):
        self.path.write_text(f'#!/bin/sh\n{text}\n')
        self.path.chmod(0o755)
        target = self.target(memory_mib=80)
        return (step
                or operator_program.ProgramStep()).run(dataclasses.replace(
       target, access=dataclasses.replace(
           target.access, cleaning_program=str(self.path))))

    def test_status_0_passes_and_output_is_evidence(self):
        result = self.run_step('echo "cleared all"; echo done >&2')
        self.assertEqual('passed', result.outcome)
        self.assertEqual(
            {'program': str(self.path), 'output': 'cleared all\ndone',
             'status': '0'}, result.facts)

    def test_other_status_fails_with_the_output(self):
        result = self.run_step('echo no tool; exit 3')
        self.assertEqual('failed', result.outcome)
        self.assertIn('ended with status 3: no tool', result.reason)

    def test_program_that_takes_too_long_fails(self):
        step = operator_program.ProgramStep()
        step.seconds = 0.5
        result = self.run_step('echo begun; sleep 600', step)
        self.assertEqual('failed', result.outcome)
        self.assertIn('took longer than 0.5 s', result.reason)
        self.assertEqual('begun', result.facts['output'])

    def test_program_that_cannot_run_blames_no_device(self):
        target = self.target()
        exc = self.assertRaises(
            exception.HostNotReady, operator_program.ProgramStep().begin,
            target)
        self.assertIn('cleaning_program', str(exc))
        exc = self.assertRaises(
            exception.HostNotReady, operator_program.ProgramStep().run,
            dataclasses.replace(target, access=dataclasses.replace(
                target.access, cleaning_program='/none')))
        self.assertIn('/none', str(exc))

    def test_policy_can_name_it(self):
        self.path.write_text('#!/bin/sh\nexit 0\n')
        self.path.chmod(0o755)
        # All backends have it; it never changes while a host lives.
        object.__setattr__(
            self.host.access, 'cleaning_program', str(self.path))
        self.use()
        _, results = self.clean('reset+settings+program+canary')
        self.assertIn('canary', results)
