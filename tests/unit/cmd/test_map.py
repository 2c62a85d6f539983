# SPDX-License-Identifier: Apache-2.0
"""Tests of ``map``."""

import io
import json
import os
import pathlib
import uuid
from unittest import mock

import fixtures

from gpgpu_plugin.cmd import map as map_cmd
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.rpc import conductor_client
from tests.unit.cmd import base
from tests.unit.conductor import base as machine

CONTROL = '\x1b[31mred\u202e'
"""Text that would change the colour and direction of a terminal's text."""


class MapTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def report_other_host(self, name='h2', **facts):
        self.report([machine.function(0, device='56c0', **facts)], name,
                    node_uuid=str(uuid.uuid4()))

    def test_map_has_a_line_of_letters_for_each_host(self):
        self.claim(2)
        self.report_other_host()
        lines = self.done('map').splitlines()
        self.assertIn('GPUs of all hosts', lines[0])
        self.assertEqual(
            [f'h1  N0[A A F F]  N1[F F F F]  {"." * 23}\u2582', 'h2  N0[U]'],
            lines[-2:])

    def test_map_has_the_history_of_each_host(self):
        self.claim(4)
        history = f'{"." * 23}\u2584\n'
        self.assertIn(f'N1[F F F F]  {history}', self.done('map'))
        self.assertIn(history, self.done('map', '--variant', 'H100'))
        self.assertIn('N1[F F F F]\n', self.done('map', '--no-history'))
        file = self.folder / 'map.html'
        self.done('map', '--html', str(file))
        self.assertIn('at least 0, at most 4, now 4 of 8</title>',
                      file.read_text())

    def test_history_takes_one_call(self):
        for arguments, expected in (((), 1), (('--no-history',), 0),
                                    (('--host', 'h1'), 1)):
            with mock.patch.object(
                    conductor_client.ConductorAPI, 'usage_list',
                    return_value=()) as called:
                self.done('map', *arguments)
            self.assertEqual(expected, called.call_count)

    def test_map_by_owner_names_projects(self):
        self.claim(1)
        shown = self.done('map', '--by', 'owner')
        self.assertIn('A p1: 1 GPU\n', shown)
        self.assertIn('h1  N0[A - - -]', shown)
        self.assertIn('invalid choice', self.misused('map', '--by', 'age'))

    def test_link_partitions_are_read_where_there_are_some(self):
        with mock.patch.object(
                conductor_client.ConductorAPI, 'group_list') as called:
            self.done('map')
        called.assert_not_called()
        file = self.folder / 'links.json'
        file.write_text(json.dumps({
            'named_by': 'order', 'partitions': [
                list(range(8)), [0, 1], [2, 3]]}))
        self.done('group', 'set', 'h1', 'H100', '--link-partitions',
                  str(file))
        self.claim(2)
        self.report_other_host()
        for arguments in ((), ('--host', 'h1'), ('--variant', 'H100')):
            self.assertIn('    H100, 2 linked GPUs: 1 free, 1 taken\n'
                          '    H100, 8 linked GPUs: 1 overlapped\n',
                          self.done('map', *arguments))

    def test_map_of_a_host_or_variant_has_no_other(self):
        self.report_other_host()
        self.assertNotIn('h1', self.done('map', '--host', 'h2'))
        shown = self.done('map', '--variant', 'H100')
        self.assertIn('GPUs of variant H100 of all hosts', shown)
        self.assertNotIn('h2', shown)

    def test_unknown_host_or_variant_is_refused(self):
        self.assertIn('host h9 does not exist',
                      self.refused('map', '--host', 'h9'))
        self.assertIn('variant H9 does not exist',
                      self.refused('map', '--variant', 'H9'))

    def test_text_of_hosts_does_not_control_the_terminal(self):
        self.report_other_host(f'h2{CONTROL}')
        file = self.folder / 'map.html'
        for shown in (self.done('map'),
                      self.done('map', '--html', str(file))
                      + file.read_text(encoding='utf-8')):
            self.assertNotIn('\x1b', shown)
            self.assertNotIn('\u202e', shown)
        self.assertIn('h2\\x1b[31mred\\u202e', file.read_text())

    def test_page_replaces_the_file(self):
        file = self.folder / 'map.html'
        file.write_text('old')
        (self.folder / 'map.new').write_text('of the operator')
        self.assertEqual(f'8 GPUs of 1 host drawn in {file}\n',
                         self.done('map', '--html', str(file)))
        self.assertIn('<h3>h1</h3>', file.read_text())
        self.assertEqual(['map.html', 'map.new'],
                         sorted(os.listdir(self.folder)))

    def test_page_replaces_the_file_behind_a_link(self):
        link = self.folder / 'link.html'
        link.symlink_to('map.html')
        self.done('map', '--html', str(link))
        self.assertTrue(link.is_symlink())
        self.assertIn('<h3>h1</h3>', (self.folder / 'map.html').read_text())

    def test_path_that_cannot_be_a_file_is_refused(self):
        self.assertIn('it is not a regular file; name a file, such as '
                      'map.html', self.refused(
                          'map', '--html', str(self.folder)))
        self.assertIn('it is not a regular file',
                      self.refused('map', '--html', '/dev/null'))
        self.assertIn(f'{self.folder}/none is not a directory', self.refused(
            'map', '--html', f'{self.folder}/none/map.html'))

    def test_file_that_cannot_be_written_is_refused(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.durable.replace',
            side_effect=OSError(28, 'No space left on device')))
        self.assertIn('cannot be written: No space left on device',
                      self.refused('map', '--html',
                                   str(self.folder / 'map.html')))


class Terminal(io.StringIO):

    def isatty(self):
        return True


class LevelsTest(base.ConfiguredTestCase):

    def test_terminal_without_blocks_gets_digits(self):
        for encoding, levels in (('utf-8', text.BLOCKS),
                                 ('iso-8859-1', text.DIGITS)):
            self.assertEqual(levels, map_cmd.levels(
                io.TextIOWrapper(io.BytesIO(), encoding=encoding)))
        self.assertEqual(text.BLOCKS, map_cmd.levels(io.StringIO()))


class ColoursTest(base.ConfiguredTestCase):

    def environment(self, **values):
        for name in ('NO_COLOR', 'TERM'):
            self.useFixture(fixtures.EnvironmentVariable(
                name, values.get(name)))

    def test_terminal_gets_colours(self):
        self.environment(TERM='xterm-256color')
        self.assertTrue(map_cmd.wants_colours(Terminal()))

    def test_file_gets_no_colours(self):
        self.environment(TERM='xterm-256color')
        self.assertFalse(map_cmd.wants_colours(io.StringIO()))

    def test_terminal_without_colours_gets_none(self):
        for values in ({'NO_COLOR': '1', 'TERM': 'xterm'}, {'TERM': 'dumb'}):
            self.environment(**values)
            self.assertFalse(map_cmd.wants_colours(Terminal()), values)
