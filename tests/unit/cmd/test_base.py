# SPDX-License-Identifier: Apache-2.0
"""Tests of the options that every command has."""

import io
import types

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base as cmd_base


class _Command(cmd_base.Command):
    """Do something whose description takes more than one line of a terminal,
    so that it is filled."""

    def take_action(self, parsed_args):
        raise NotImplementedError


class CommandTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.command = _Command(types.SimpleNamespace(
            NAME='gpgpu-manage', stderr=io.StringIO(),
            interactive_mode=False), None)

    def test_note_is_a_line_on_stderr(self):
        self.command.note('nothing matched')
        self.assertEqual('gpgpu-manage: nothing matched\n',
                         self.command.app.stderr.getvalue())

    def test_application_is_that_of_the_command(self):
        self.assertIs(self.command.app, self.command.manage)

    def test_help_has_one_example_a_line_and_fills_the_rest(self):
        for program in ('', 'gpgpu-manage '):
            text = self.command.get_parser(
                f'{program}group set').format_help()
            self.assertIn(
                '\nExample:\n\n    gpgpu-manage group set gpu1 H100 '
                '--allocation-policy breadth_first\n    gpgpu-manage group '
                'set gpu1 H100 --unset', text)
            self.assertNotIn('terminal,\nso that', text)

    def test_command_without_an_example_has_no_epilog(self):
        self.assertIsNone(self.command.get_parser('x y').epilog)

    def test_error_is_one_line(self):
        self.assertEqual('host h9 does not exist', self.command.explain(
            exception.NotFound(kind='host', name='h9')))
        self.assertEqual('OSError: one',
                         self.command.explain(OSError('one\ntwo')))
