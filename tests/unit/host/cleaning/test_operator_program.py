# SPDX-License-Identifier: Apache-2.0
"""Tests of programs of the operator that steps run."""

import os
import pathlib
import time
from unittest import mock

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import operator_program
from tests.unit.host.cleaning import card


class RunTest(card.CardCase):

    def run_program(self, text, *, seconds=60, join_errors=False):
        return operator_program.run(
            ['/bin/sh', '-c', text, 'sh', 'first'],
            self.target(memory_mib=80), seconds, option='[gpgpu] an_option',
            join_errors=join_errors)

    def test_output_and_errors_are_separate_or_joined(self):
        text = 'echo "$1"; echo second >&2; exit 3'
        self.assertEqual(
            operator_program.EndedProgram(
                status=3, output='first', errors='second'),
            self.run_program(text))
        self.assertEqual(
            operator_program.EndedProgram(status=3, output='first\nsecond'),
            self.run_program(text, join_errors=True))

    def test_long_output_is_cut_at_its_beginning(self):
        ended = self.run_program(
            'head -c 5000 /dev/zero | tr "\\0" x; echo end')
        self.assertEqual('x' * 1996 + 'end', ended.output)

    def test_program_gets_facts_and_nothing_else(self):
        with fixtures.EnvironmentVariable('OS_PASSWORD', 'secret'):
            ended = self.run_program('env')
        found = dict(line.split('=', 1) for line in ended.output.splitlines())
        for name in ('PWD', '_', 'SHLVL', 'OLDPWD'):
            found.pop(name, None)
        self.assertEqual(
            {'PATH': os.environ['PATH'], 'GPGPU_ADDRESS': self.address,
             'GPGPU_FUNCTIONS': self.address, 'GPGPU_STABLE_ID': self.gpu.id,
             'GPGPU_IDS': f'10de:{self.gpu.device}',
             'GPGPU_MEMORY_MIB': '80', 'GPGPU_ASSIGNMENT': 'a'}, found)

    def test_program_that_takes_too_long_is_ended_with_its_children(self):
        pid = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'pid')
        ended = self.run_program(
            f'sleep 600 & echo $! > {pid}; wait', seconds=2)
        self.assertIsNone(ended.status)
        self.check_ended(int(pid.read_text()))

    def check_ended(self, child):
        deadline = time.monotonic() + 60
        while pathlib.Path(f'/proc/{child}/cmdline').exists() and (
                pathlib.Path(f'/proc/{child}/cmdline').read_bytes()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_program_that_leaves_a_process_behind_fails(self):
        pid = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'pid')
        self.useFixture(fixtures.MockPatchObject(
            operator_program, '_PATIENCE', 0.5))
        exc = self.assertRaises(
            exception.HostError, self.run_program,
            f'sleep 600 & echo $! > {pid}')
        self.assertIn('left processes behind', str(exc))
        self.check_ended(int(pid.read_text()))

    def test_output_without_end_fills_no_disk(self):
        ended = self.run_program('yes', seconds=1)
        self.assertEqual((None, 1999), (ended.status, len(ended.output)))

    def test_child_in_another_session_keeps_nobody_waiting(self):
        self.useFixture(fixtures.MockPatchObject(
            operator_program, '_PATIENCE', 0.5))
        began = time.monotonic()
        ended = self.run_program('setsid sleep 60 & sleep 0.2; echo done')
        self.assertEqual((0, 'done'), (ended.status, ended.output))
        self.assertLess(time.monotonic() - began, 50)

    def test_program_that_nobody_may_end_is_no_defect_of_the_host(self):
        """Such as what sudo runs as root."""
        with mock.patch.object(
                operator_program.os, 'killpg', side_effect=PermissionError):
            ended = self.run_program('sleep 1; echo late', seconds=0.1)
        self.assertEqual((None, 'late'), (ended.status, ended.output))

    def test_program_that_cannot_run_blames_no_device(self):
        exc = self.assertRaises(
            exception.HostNotReady, operator_program.run, ['/none'],
            self.target(), 1, option='[gpgpu] an_option', join_errors=True)
        self.assertIn('/none', str(exc))
        self.assertIn('[gpgpu] an_option', str(exc))

    def test_nothing_runs_after_the_cleaning(self):
        target = self.target()
        target.ended.set()
        self.assertRaises(
            exception.HostError, operator_program.run, ['/bin/true'], target,
            1, option='[gpgpu] an_option', join_errors=True)
