# SPDX-License-Identifier: Apache-2.0
"""Tests of the book's file: full disks, missing permissions."""

import dataclasses
import logging
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import versioned_file
from gpgpu_plugin.compute import assignment_file
from tests.fixtures import disk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """Content of a file of these tests."""

    text: str = ''


class BookFileTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path) / 'h1.json'
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.assignment_file', level=logging.WARNING))
        self.file = self.make()

    def make(self):
        return assignment_file.BookFile(
            str(self.path),
            lambda path: versioned_file.read_versioned(path, Content, 1), 1)

    def test_content_that_cannot_be_written_is_logged_once(self):
        with disk.full_disk():
            for text in ('a', 'b'):
                self.file.try_write(Content(text=text))
        self.assertEqual(
            1, self.log.output.count('No space left on device'))
        self.assertIn(f'{self.path}: cannot be written', self.log.output)
        self.assertIn('Free space', self.log.output)
        self.assertIsNone(self.make().read())
        self.assertIsNotNone(self.file.error)

        self.file.try_write(Content(text='c'))
        self.assertIsNone(self.file.error)
        self.assertIn('on disk', self.log.output)
        self.assertEqual(Content(text='c'), self.make().read())

    def test_content_that_must_be_written_names_the_cause(self):
        with disk.full_disk():
            exc = self.assertRaises(exception.HostNotReady, self.file.write,
                                    Content())
        self.assertIn(str(self.path), str(exc))
        self.assertIn('No space left on device', str(exc))

    def test_folder_that_cannot_be_searched_is_named_in_the_log(self):
        self.path.write_text('?')
        denied = PermissionError(13, 'Permission denied')
        for method in ('read_bytes', 'exists', 'rename'):
            self.useFixture(fixtures.MockPatch(
                f'pathlib.Path.{method}', side_effect=denied))
        self.assertIsNone(self.file.read())
        self.assertIn('cannot be renamed', self.log.output)
        self.assertIn('Permission denied', self.log.output)
