# SPDX-License-Identifier: Apache-2.0
"""Tests of files of link partitions."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import group


class ReadTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).join('partitions.json'))

    def refused(self, kind):
        return str(self.assertRaises(kind, group.read_link_file, self.path))

    def test_table_is_normalized(self):
        self.path.write_text('{"partitions": [[1, 0]],\n "named_by": "order"}')
        self.assertEqual(
            '{"named_by":"order","fabric":true,"partitions":{"0":["1","0"]}}',
            group.read_link_file(self.path))

    def test_file_that_does_not_exist_is_named(self):
        self.assertIn(str(self.path), self.refused(exception.NotFound))

    def test_file_that_cannot_be_read_is_named(self):
        self.path.write_bytes(b'\xff{}')
        self.assertIn(str(self.path), self.refused(exception.Invalid))
        self.path = self.path.parent
        self.assertIn('a file of JSON', self.refused(exception.Invalid))

    def test_wrong_table_is_refused(self):
        self.path.write_text('{}')
        self.assertIn('named_by', self.refused(exception.Invalid))
