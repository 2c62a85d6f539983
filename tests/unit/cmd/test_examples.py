# SPDX-License-Identifier: Apache-2.0
"""Tests of the help of every command, and of its examples."""

import contextlib
import io
import re
import shlex

from cliff import lister
from cliff import show
from oslotest import base

from gpgpu_plugin.cmd import commands


class _List(lister.Lister):
    def take_action(self, parsed_args):
        raise NotImplementedError


class _Show(show.ShowOne):
    def take_action(self, parsed_args):
        raise NotImplementedError


# The options of cliff itself.
FOREIGN = {action.dest for command in (_List, _Show)
           for action in command(None, None).get_parser('x')._actions}


def parsers(*programs):
    """Return the parser of each command by name, by default of all programs.

    Completion is a command of each.
    """
    return {name: entry_point.load()(None, None).get_parser(
        f'{program} {name}') for program in programs or commands.PROGRAMS
        for name, entry_point in commands.CommandManager(program)}


def examples(name):
    """Return the examples of a command, as arguments after its name."""
    return [arguments for groups in commands.PROGRAMS.values()
            for group in groups.values()
            for arguments in group.get(name, ())[1:]]


class ExampleTest(base.BaseTestCase):

    def test_every_command_has_one(self):
        self.assertEqual([], [
            name for name in parsers() if not examples(name)])

    def test_every_example_is_understood(self):
        for name, parser in parsers().items():
            for arguments in examples(name):
                with self.subTest(f'{name} {arguments}'):
                    error = io.StringIO()
                    try:
                        with contextlib.redirect_stderr(error):
                            parser.parse_args(shlex.split(arguments))
                    except SystemExit:
                        self.fail(error.getvalue())


class HelpTest(base.BaseTestCase):

    def test_every_argument_says_what_it_is_in_one_form(self):
        wrong = []
        for name, parser in parsers().items():
            for action in parser._actions:
                if action.dest not in FOREIGN and not re.match(
                        r'([a-z0-9]|(CSV|GPUs|MiB|PCI|UUID)\b)(.*[^.])?$',
                        action.help or '', re.DOTALL):
                    wrong.append((name, action.dest, action.help))
        self.assertEqual([], wrong)

    def test_every_description_is_sentences_that_fit_the_list(self):
        for name, parser in parsers().items():
            with self.subTest(name):
                first = parser.description.splitlines()[0]
                self.assertRegex(first, r'^[A-Z].*\.$')
                self.assertLessEqual(len(first), 79)
