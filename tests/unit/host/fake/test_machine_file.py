# SPDX-License-Identifier: Apache-2.0
"""Tests of machine files from untrusted sources."""

import pathlib

import fixtures
import yaml
from oslotest import base

from gpgpu_plugin.host.fake import machine


class ReadTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'host.yaml')

    def read(self, text):
        self.path.write_text(text)
        return machine.read_machine(str(self.path))

    def refused(self, text):
        return str(self.assertRaises(ValueError, self.read, text))

    def test_text_is_returned_as_it_is(self):
        text = '# A comment\ntitle: "x"\ntree: {a: {b: [1]}}\n'
        self.assertEqual(text, self.read(text))

    def test_alias_is_refused_with_its_line(self):
        self.assertIn('line 2 has an alias',
                      self.refused('a: &a {x: 1}\nb: *a\n'))
        self.assertIn('line 2 has an alias',
                      self.refused('a: &a {x: 1}\nb: {<<: *a}\n'))

    def test_anchor_without_alias_is_harmless(self):
        self.read('a: &a {x: 1}\n')

    def test_nesting_is_limited_to_sixteen_levels(self):
        self.read('[' * 16 + ']' * 16)
        self.assertIn('line 1 has too many levels',
                      self.refused('[' * 17 + ']' * 17))
        # PyYAML 6.0.4 refuses 1,000 levels itself, in its own words.
        self.assertRegex(self.refused('[' * 200000),
                         'too many levels|maximum nesting depth')

    def test_levels_that_end_are_not_counted(self):
        self.read('\n'.join(f'a{number}: [[1], [2]]' for number in range(50)))

    def test_size_is_limited(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.host.fake.machine._MAX_SIZE', 1 << 20))
        self.read('#' * (1 << 20))
        self.assertIn('more than 1 MiB', self.refused('#' * ((1 << 20) + 1)))

    def test_endless_file_is_refused(self):
        exc = self.assertRaises(ValueError, machine.read_machine, '/dev/zero')
        self.assertIn('more than 16 MiB', str(exc))

    def test_text_that_is_no_yaml_is_refused(self):
        for text in ('{', '\0', 'a: b: c', '- a\nb'):
            self.assertIn('not YAML', self.refused(text), text)

    def test_bytes_that_are_no_text_are_refused(self):
        self.path.write_bytes(b'\xff\xfe\x00')
        self.assertRaises(ValueError, machine.read_machine, str(self.path))

    def test_missing_file_is_an_os_error(self):
        self.assertRaises(FileNotFoundError, machine.read_machine,
                          str(self.path))


class ParseTest(base.BaseTestCase):

    def test_data_is_returned(self):
        self.assertEqual({'a': [1, 'b', None]},
                         machine.parse_machine('a: [1, b, null]'))

    def test_alias_of_a_file_of_the_package_is_expanded(self):
        self.assertEqual({'a': {'x': 1}, 'b': {'x': 1}},
                         machine.parse_machine('a: &a {x: 1}\nb: *a\n'))

    def test_malformed_value_is_refused_in_one_short_line(self):
        for text in ('{', 'a: 2001-99-99', f'a: {"9" * 5000}',
                     f'a: !{"x" * 5000} b'):
            exc = self.assertRaises(ValueError, machine.parse_machine, text)
            self.assertIn('not YAML', str(exc))
            self.assertNotIn('\n', str(exc))
            self.assertLess(len(str(exc)), 300)

    def test_object_of_python_is_not_made(self):
        self.assertRaises(ValueError, machine.parse_machine,
                          yaml.dump(pathlib.PurePosixPath('x')))
