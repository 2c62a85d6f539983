# SPDX-License-Identifier: Apache-2.0
"""Tests of files with a version: round trip, or refusal."""

import dataclasses
import json
import pathlib

import fixtures
import hypothesis
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import versioned_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    number: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    name: str
    inner: tuple[Inner, ...] = ()
    by_name: dict[str, str | None] = dataclasses.field(default_factory=dict)


class VersionedFileTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.folder / 'content.json'

    def read(self, version=3):
        return versioned_file.read_versioned(self.path, Content, version)

    @hypothesis.given(st.builds(Content, inner=st.lists(
        st.builds(Inner, number=st.none() | st.integers(-2**63, 2**63 - 1)),
        max_size=2).map(tuple)))
    @hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
    def test_content_that_was_written_is_read_again(self, content):
        with fixtures.MonkeyPatch('os.fsync', lambda fd: None):
            versioned_file.write_versioned(self.path, content, 3)
        self.assertEqual(content, self.read())

    def test_version_is_beside_the_fields(self):
        versioned_file.write_versioned(self.path, Content(name='a'), 3)
        self.assertEqual(
            {'version': 3, 'name': 'a', 'inner': [], 'by_name': {}},
            json.loads(self.path.read_text()))

    def test_missing_file_has_no_content(self):
        self.assertIsNone(self.read())
        self.assertEqual([], list(self.folder.iterdir()))

    def test_file_of_a_newer_version_is_refused_and_named(self):
        versioned_file.write_versioned(self.path, Content(name='a'), 4)
        exc = self.assertRaises(exception.Invalid, self.read)
        self.assertEqual(('version', 4),
                         (exc.kwargs['field'], exc.kwargs['value']))
        self.assertIn('reads 3', str(exc))

    def test_file_of_an_older_version_is_refused(self):
        versioned_file.write_versioned(self.path, Content(name='a'), 2)
        self.assertRaises(exception.Invalid, self.read)

    def test_file_with_a_field_that_is_not_known_is_read(self):
        self.path.write_text('{"version": 3, "name": "a", "more": 1}')
        self.assertEqual(Content(name='a'), self.read())

    def test_file_with_other_content_is_refused(self):
        for text in (b'', b'{"version": 3, "na', b'\xff\xfe\x00', b'null',
                     b'[]', b'"text"', b'{"name": "a"}',
                     b'{"version": "3", "name": "a"}', b'{"version": 3}',
                     b'{"version": 3, "name": 1}',
                     b'{"version": 3, "name": "a", "inner": {}}'):
            with self.subTest(text):
                self.path.write_bytes(text)
                self.assertRaises(exception.Invalid, self.read)
                self.assertEqual(text, self.path.read_bytes())

    def test_file_that_cannot_be_opened_is_an_os_error(self):
        self.path.mkdir()
        self.assertRaises(IsADirectoryError, self.read)

    def test_write_that_fails_keeps_the_file(self):
        versioned_file.write_versioned(self.path, Content(name='a'), 3)
        with fixtures.MockPatch('os.replace', side_effect=OSError(28, 'full')):
            self.assertRaises(OSError, versioned_file.write_versioned,
                              self.path, Content(name='b'), 3)
        self.assertEqual(Content(name='a'), self.read())
