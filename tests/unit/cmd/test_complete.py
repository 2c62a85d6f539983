# SPDX-License-Identifier: Apache-2.0
"""Tests of ``complete``, in a real bash."""

import pathlib
import shlex
import subprocess

from oslotest import base as oslo_base

from gpgpu_plugin.cmd import commands
from tests.unit.cmd import base


class CompleteTest(oslo_base.BaseTestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.result = base.run('complete')

    def bash(self, script):
        """Return the words that a script prints beside the function."""
        done = subprocess.run(
            ['bash', '--norc', '--noprofile', '-eu', '-c',
             f'{self.result.out}\n{script}'],
            capture_output=True, text=True, check=False)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.split()

    def completed(self, line):
        """Return what bash proposes for the last word of a line."""
        words = line.split(' ')
        return self.bash(
            f'set +eu; COMP_WORDS=({shlex.join(words)}); '
            f'COMP_CWORD={len(words) - 1}; _gpgpu_manage; '
            f'echo "${{COMPREPLY[@]}}"')

    def test_function_is_that_of_the_program(self):
        self.assertEqual((0, ''), (self.result.code, self.result.err))
        self.assertEqual(
            ['complete', '-F', '_gpgpu_manage', 'gpgpu-manage'],
            self.bash('complete -p gpgpu-manage'))

    def test_every_command_is_completed_word_by_word(self):
        for name, _ in commands.CommandManager('gpgpu-manage'):
            words = name.split()
            for number, word in enumerate(words):
                before = ' '.join(['gpgpu-manage', *words[:number]])
                self.assertIn(word, self.completed(f'{before} '), name)
                self.assertIn(word, self.completed(f'{before} {word[:2]}'))

    def test_options_are_those_of_the_command(self):
        self.assertEqual(
            ['--host'], self.completed('gpgpu-manage device list --ho'))
        self.assertEqual(
            ['--unset'], self.completed('gpgpu-manage variant set V --unse'))
        self.assertEqual(['--marker'], self.completed(
            'gpgpu-manage vgpu-type list --host gpu1 --mar'))
        self.assertEqual(
            ['--allocation-policy'],
            self.completed('gpgpu-manage group set --al'))

    def test_arguments_may_be_files(self):
        name = pathlib.Path(__file__).name
        self.assertEqual([], self.completed(
            'gpgpu-manage variant import no-su'))
        self.assertIn(name, self.bash(
            f'cd {shlex.quote(str(pathlib.Path(__file__).parent))}; set +eu; '
            f'COMP_WORDS=(gpgpu-manage variant import test_comp); '
            f'COMP_CWORD=3; '
            f'_gpgpu_manage; echo "${{COMPREPLY[@]}}"'))
