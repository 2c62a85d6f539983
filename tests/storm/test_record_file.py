# SPDX-License-Identifier: Apache-2.0
"""Tests of files of records."""

import pathlib

import fixtures
from oslotest import base

from tests.storm import record_file


class RecordFileTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path) / 'records'

    def test_records_are_read_in_order(self):
        file = record_file.RecordFile(self.path)
        self.assertEqual([], file.read())
        file.append('first', {'n': 1})
        file.append('second', None)
        self.assertEqual([['first', {'n': 1}], ['second', None]], file.read())

    def test_record_that_is_being_written_is_not_read(self):
        record_file.RecordFile(self.path).append('first')
        with self.path.open('a') as file:
            file.write('["sec')
        self.assertEqual(
            [['first']], record_file.RecordFile(self.path).read())

    def test_next_writer_removes_the_rest_of_a_killed_one(self):
        record_file.RecordFile(self.path).append('first')
        with self.path.open('a') as file:
            file.write('["sec')
        record_file.RecordFile(self.path).append('third')
        self.assertEqual([['first'], ['third']],
                         record_file.RecordFile(self.path).read())
