# SPDX-License-Identifier: Apache-2.0
"""Tests of commands, which are imported when they are called."""

import sys

import fixtures
from oslotest import base

from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import host


class CommandManagerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.manager = commands.CommandManager('gpgpu-manage')

    def test_command_is_found_by_its_words(self):
        kind, name, rest = self.manager.find_command(
            ['host', 'show', 'h1', '--max-width', '0'])
        self.assertEqual((host.HostShow, 'host show'), (kind, name))
        self.assertEqual(['h1', '--max-width', '0'], rest)

    def test_unknown_command_is_refused(self):
        self.assertRaises(ValueError, self.manager.find_command,
                          ['host', 'paint'])

    def test_every_program_has_its_own_commands(self):
        self.assertEqual(
            {'complete'}, dict(self.manager).keys() & dict(
                commands.CommandManager('gpgpu-host')).keys())

    def test_command_that_is_not_called_is_not_imported(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.commands.PROGRAMS',
            {'another': {'Any': {'x y': ('nowhere:XY', '')}}}))
        manager = commands.CommandManager('another')
        self.assertEqual(['x y'], [name for name, _ in manager])
        self.assertNotIn('gpgpu_plugin.cmd.nowhere', sys.modules)
        self.assertRaises(ModuleNotFoundError, manager.find_command,
                          ['x', 'y'])


class EpilogTest(base.BaseTestCase):

    def test_each_example_is_a_line(self):
        expected = ['Example::', '', '    gpgpu-manage group show gpu1 H100']
        for name in ('group show', 'gpgpu-manage group show'):
            self.assertEqual(expected, commands.epilog(name).splitlines())
        self.assertIsNone(commands.epilog('group'))
