# SPDX-License-Identifier: Apache-2.0
"""Tests of trees: what they hold, and that no file lands elsewhere."""

import os
import pathlib

import fixtures
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.fake import tree
from gpgpu_plugin.host.fake import vgpu_driver


class TreeTest(base.BaseTestCase):

    def write(self, data):
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'sys')
        tree.write(data, root)
        return root

    def test_entries_of_all_kinds_are_written(self):
        root = self.write({
            'a/b': {'text': '1\n2', 'empty': '', 'up': tree.link('../c'),
                    'top': tree.link('../..'), 'down': tree.link('x/y'),
                    'bytes': tree.binary(b'\0' * 20 + b'\1' + b'\0' * 20),
                    'none': tree.binary(b''),
                    'gone': tree.unreadable(OSError(5, 'broken'))},
            'a/c': {}})
        folder = root / 'a/b'
        self.assertEqual('1\n2\n', (folder / 'text').read_text())
        self.assertEqual('', (folder / 'empty').read_text())
        self.assertEqual((root / 'a/c').resolve(), (folder / 'up').resolve())
        self.assertEqual(b'\0' * 20 + b'\1' + b'\0' * 20,
                         (folder / 'bytes').read_bytes())
        self.assertEqual(b'', (folder / 'none').read_bytes())
        self.assertRaises(OSError, (folder / 'gone').read_text)
        self.assertEqual({'b', 'c'}, set(os.listdir(root / 'a')))

    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(st.binary(max_size=4096))
    def test_bytes_are_written_as_recorded(self, data):
        entry = tree.binary(data)
        self.assertEqual(
            data, tree._bytes('x', entry['size'], entry['hex']))

    def test_bytes_have_the_form_of_lspci(self):
        self.assertEqual(
            {'size': 48, 'hex': '010: 00 ff' + ' 00' * 14},
            tree.binary(b'\0' * 17 + b'\xff' + b'\0' * 30))

    def test_malformed_or_outside_tree_is_refused(self):
        for data in (
                None, [], {'/etc': {}}, {'a//b': {}}, {'a/../../b': {}},
                {'..': {}}, {'': {}}, {1: {}}, {'a\0b': {}}, {'a': None},
                {'a': {'../b': ''}}, {'a': {'..': ''}}, {'a': {'': ''}},
                # Files of the fake driver itself, which it trusts.
                {'a': {vgpu_driver.RULE: '{}'}},
                {'a': {vgpu_driver.PLACEMENT: tree.link('b')}},
                {'a': {'b': {'link': vgpu_driver.RULE}}},
                {f'a/{vgpu_driver.PLACEMENT}': {}},
                {'a': {1: ''}}, {'a': {'b': None}}, {'a': {'b': 1}},
                {'a': {'b': {}}}, {'a': {'b': {'link': 1}}},
                {'a': {'b': {'link': ''}}}, {'a': {'b': {'link': '/etc'}}},
                {'a': {'b': {'link': '../..'}}},
                {'a': {'b': {'link': '../../etc'}}},
                # If c is a link itself, this is somewhere else.
                {'a': {'b': {'link': 'c/../d'}}},
                {'a': {'b': {'link': 'c/./d'}}},
                {'a': {'b': {'link': 'c', 'unreadable': 'EIO'}}},
                {'a': {'b': {'size': 4097, 'hex': ''}}},
                {'a': {'b': {'size': -1, 'hex': ''}}},
                {'a': {'b': {'size': 1, 'hex': '000: 00 00'}}},
                {'a': {'b': {'size': 1, 'hex': '-1: 00'}}},
                {'a': {'b': {'size': 1, 'hex': 'x: 00'}}},
                {'a': {'b': {'size': 1, 'hex': '000: 0g'}}},
                {'a': {'b': {'size': 1, 'hex': 0}}}):
            root = pathlib.Path(
                self.useFixture(fixtures.TempDir()).path, 'sys')
            with self.subTest(data):
                self.assertRaises(exception.Invalid, tree.write, data, root)
                self.assertFalse(root.exists())

    def test_folder_with_the_name_of_a_link_is_refused(self):
        # The folder is made first, and stays.
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'sys')
        exc = self.assertRaises(
            exception.HostError, tree.write,
            {'a': {'b': tree.link('../c')}, 'a/b': {'x': '1'}, 'c': {}},
            root)
        self.assertIn('a/b', str(exc))
        self.assertEqual([], os.listdir(root / 'c'))
