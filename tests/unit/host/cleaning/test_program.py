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
"""Tests of the step that runs an operator's program."""

import dataclasses
import os
import pathlib
import time

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import program
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
        return (step or program.ProgramStep()).run(dataclasses.replace(
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

    def test_program_gets_facts_and_nothing_else(self):
        with fixtures.EnvironmentVariable('OS_PASSWORD', 'secret'):
            result = self.run_step('env')
        found = dict(line.split('=', 1)
                     for line in result.facts['output'].splitlines())
        for name in ('PWD', '_', 'SHLVL', 'OLDPWD'):
            found.pop(name, None)
        self.assertEqual(
            {'PATH': os.environ['PATH'], 'GPGPU_ADDRESS': self.address,
             'GPGPU_FUNCTIONS': self.address, 'GPGPU_STABLE_ID': self.gpu.id,
             'GPGPU_IDS': f'10de:{self.gpu.device}',
             'GPGPU_MEMORY_MIB': '80', 'GPGPU_ASSIGNMENT': 'a'}, found)

    def test_long_output_is_cut_at_its_beginning(self):
        result = self.run_step('head -c 5000 /dev/zero | tr "\\0" x; echo end')
        self.assertEqual('x' * 1996 + 'end', result.facts['output'])

    def test_program_that_takes_too_long_is_ended_with_its_children(self):
        pid = pathlib.Path(f'{self.path}.pid')
        step = program.ProgramStep()
        step.seconds = 2
        result = self.run_step(
            f'sleep 600 & echo $! > {pid}; wait', step)
        self.assertEqual('failed', result.outcome)
        self.assertIn('took longer than 2 s', result.reason)
        child = int(pid.read_text())
        deadline = time.monotonic() + 60
        while pathlib.Path(f'/proc/{child}/cmdline').exists() and (
                pathlib.Path(f'/proc/{child}/cmdline').read_bytes()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_program_that_cannot_run_blames_no_device(self):
        target = self.target()
        exc = self.assertRaises(
            exception.HostNotReady, program.ProgramStep().run, target)
        self.assertIn('cleaning_program', str(exc))
        exc = self.assertRaises(
            exception.HostNotReady, program.ProgramStep().run,
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
