# SPDX-License-Identifier: Apache-2.0
"""Tests of commands, which are imported when they are called."""

import sys
from importlib import metadata

import fixtures
from oslotest import base

from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import complete
from gpgpu_plugin.cmd import host
from gpgpu_plugin.cmd import manage


class CommandManagerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.manager = commands.CommandManager(manage.NAMESPACE)

    def test_command_is_found_by_its_words(self):
        kind, name, rest = self.manager.find_command(
            ['host', 'show', 'h1', '--max-width', '0'])
        self.assertEqual((host.HostShow, 'host show'), (kind, name))
        self.assertEqual(['h1', '--max-width', '0'], rest)

    def test_unknown_command_is_refused(self):
        self.assertRaises(ValueError, self.manager.find_command,
                          ['host', 'paint'])

    def test_every_entry_point_is_a_command(self):
        self.assertEqual(
            {point.name.replace('_', ' ') for point
             in metadata.entry_points(group=manage.NAMESPACE)},
            {name for name, _ in self.manager
             if name != 'help'})
        self.assertIs(complete.Complete, self.manager.find_command(
            ['complete'])[0])

    def test_command_that_is_not_called_is_not_imported(self):
        point = metadata.EntryPoint(
            'x_y', 'gpgpu_plugin.nowhere:XY', manage.NAMESPACE)
        self.useFixture(fixtures.MockPatch(
            'importlib.metadata.entry_points', return_value=[point]))
        self.manager.load_commands('another')
        self.assertIn('x y', dict(self.manager))
        self.assertNotIn('gpgpu_plugin.nowhere', sys.modules)
        self.assertRaises(ModuleNotFoundError, self.manager.find_command,
                          ['x', 'y'])
