# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-manage: usage, output formats, errors."""

import sys
from importlib import metadata

import fixtures
from oslotest import base

from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import manage
from tests.unit.cmd import base as cmd_base

LISTS = (
    ('variant', 'list'), ('host', 'list'), ('group', 'list'),
    ('device', 'list'), ('vgpu-type', 'list'))


class FormatTest(cmd_base.CommandTestCase):

    def test_list_is_printed_in_every_format(self):
        self.claim()
        for command in LISTS:
            rows = self.json(*command)
            self.assertTrue(rows, command)
            header = list(rows[0])
            table = self.done(*command, '--max-width', '0')
            self.assertEqual(
                header, [name.strip() for name in
                         table.splitlines()[1].strip('|').split('|')])
            lines = self.done(*command, '-f', 'csv').splitlines()
            self.assertEqual(','.join(f'"{name}"' for name in header),
                             lines[0])
            self.assertEqual(len(rows) + 1, len(lines))
            self.assertEqual(len(rows), len(
                self.done(*command, '-f', 'value').splitlines()))
            yaml = self.done(*command, '-f', 'yaml')
            self.assertIn(f'{header[0]}: ', yaml)
            # Tags of Python objects, which no other program reads.
            self.assertNotIn('!!', yaml)

    def test_column_that_does_not_exist_is_wrong_usage(self):
        for command, option in (
                (('host', 'list'), '-c'), (('host', 'list'), '--sort-column'),
                (('host', 'show', 'h1'), '-c')):
            self.assertRegex(
                self.refused(*command, '-c', 'Host', option, 'nosuch', code=2),
                'column nosuch does not exist; columns: Host, Node, ')
        self.done('host', 'list', '-c', 'node_uuid', '-c', 'Node UUID')

    def test_part_of_a_list_is_not_sorted(self):
        words = ('device', 'list', '--sort-column', 'Address', '--limit')
        self.assertIn('would sort only the 2 rows', self.refused(
            *words, '2', code=2))
        self.assertIn('0000:07:00.0', self.done(*words, '9'))

    def test_table_of_nothing_is_empty(self):
        words = ('device', 'list', '--state', 'missing')
        self.assertEqual('', self.done(*words))
        self.assertEqual([], self.json(*words))

    def test_table_has_dashes_and_counts(self):
        table = self.done('host', 'list')
        self.assertIn('| available 8 |', table)
        table = self.done('variant', 'show', 'H100')
        self.assertRegex(table, r'\| Subsystem +\| - +\|')

    def test_json_has_plain_values(self):
        shown = self.json('variant', 'show', 'H100')
        self.assertIsNone(shown['Subsystem'])
        self.assertEqual([], shown['Traits'])
        self.assertEqual(
            {'available': 8}, self.json('host', 'show', 'h1')['Devices'])


class UsageTest(cmd_base.CommandTestCase):

    variants = ()

    def test_every_command_has_help(self):
        names = [name for name, _ in commands.CommandManager(
            'gpgpu-manage')]
        self.assertIn('variant create', names)
        for name in names:
            result = self.manage(*name.split(), '--help')
            self.assertEqual(0, result.code)
            self.assertIn(f'usage: gpgpu-manage {name}', result.out)
            # Its docstring.
            self.assertRegex(result.out, r'\n\n[A-Z].+[.?]\n')

    def test_missing_command_shows_the_usage(self):
        self.assertIn('a command is required', self.misused())

    def test_unknown_command_shows_similar_ones(self):
        result = self.manage('hosts', 'list')
        self.assertEqual((2, ''), (result.code, result.out))
        self.assertRegex(result.err, (
            r'\Agpgpu-manage: unknown command "hosts list"; did you mean one '
            r'of: host list[^\n]{,40}\n\Z'))
        self.assertIn('did you mean one of: group links, group list, group s',
                      self.manage('group', 'paint').err)
        self.assertIn('unknown command "foo"; see gpgpu-manage --help',
                      self.manage('foo').err)

    def test_option_before_its_command_is_named(self):
        result = self.manage('-f', 'json', 'host', 'list')
        self.assertEqual((2, ''), (result.code, result.out))
        self.assertRegex(result.err, (
            r'\Agpgpu-manage: option -f is not one of gpgpu-manage itself; '
            r'.*after its name.*\n\Z'))

    def test_help_lists_every_command_below_its_heading(self):
        result = self.manage('--help')
        self.assertEqual((0, ''), (result.code, result.err))
        self.assertNotIn('cannot be loaded', result.out)
        self.assertEqual(result, self.manage('help'))
        listed = result.out.partition('\n\nHosts and devices:\n')[2]
        self.assertLess(listed.index('device list'),
                        listed.index('\nInstances:\n'))
        # One column for all descriptions.
        self.assertEqual({21}, {
            line.index(line[2:].split('  ')[-1].strip())
            for line in listed.splitlines() if line.startswith('  ')})
        for name, _ in commands.CommandManager('gpgpu-manage'):
            self.assertRegex(result.out, rf'\n  {name} +[A-Z]')

    def test_command_that_cannot_be_imported_stops_no_other(self):
        manager = commands.CommandManager('gpgpu-manage')
        manager.commands['broken show'] = metadata.EntryPoint(
            'broken_show', 'gpgpu_plugin.nowhere:Show', 'gpgpu-manage')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.commands.CommandManager', lambda _: manager))
        self.assertEqual(
            "gpgpu-manage: ModuleNotFoundError: No module named "
            "'gpgpu_plugin.nowhere'\n", self.refused('broken', 'show'))
        self.assertIn('Traceback', self.manage(
            '--debug', 'broken', 'show').err)
        self.done('host', 'list')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.commands.PROGRAMS', {'gpgpu-manage': {
                'Any': {'broken show': ()}}}))
        self.assertIn('  broken show  (cannot be loaded: No module',
                      self.done('--help'))

    def test_unknown_option_is_named(self):
        self.assertIn('--colour', self.misused('host', 'list', '--colour'))

    def test_version_is_printed(self):
        result = self.manage('--version')
        self.assertEqual(0, result.code)


class ErrorTest(cmd_base.CommandTestCase):

    variants = ()

    def test_debug_shows_the_traceback(self):
        result = self.manage('--debug', 'host', 'show', 'h9')
        self.assertEqual(1, result.code)
        self.assertIn('Traceback', result.err)
        self.assertIn('gpgpu-manage: host h9 does not exist; see '
                      '"gpgpu-manage host list"\n', result.err)

    def test_missing_conductor_is_one_line(self):
        self.conductor.stop()
        self.assertEqual(
            'gpgpu-manage: No gpgpu-conductor answered host_list within 60 '
            's; check that one is running and uses the message broker at '
            'localhost (no transport_url is configured), as this command '
            'does\n', self.refused('host', 'list'))


class ProgramTest(base.BaseTestCase):

    def test_program_reads_the_arguments_of_the_process(self):
        self.useFixture(fixtures.MonkeyPatch(
            'sys.argv', ['gpgpu-manage', 'nonsense']))
        err = self.useFixture(fixtures.StringStream('stderr')).stream
        self.useFixture(fixtures.MonkeyPatch('sys.stderr', err))
        self.assertIs(err, sys.stderr)
        self.assertEqual((2, 2), (manage.main(), manage.host_main()))
