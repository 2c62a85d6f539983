# SPDX-License-Identifier: Apache-2.0
"""Tests of ``usage export``: nothing is lost, whenever it fails."""

import csv
import io
import os

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.rpc import conductor_client
from tests.unit.cmd import base


class ExportTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.path = f'{self.folder}/usage.csv'
        self.ended = self.use(3)
        self.running = [assigned.uuid for assigned in self.claim(1)]

    def use(self, count):
        uuids = [assigned.uuid for assigned in self.claim(count)]
        releases.release(self.conductor.db, uuids)
        return uuids

    def rows(self, text):
        return list(csv.DictReader(io.StringIO(text)))

    def read(self, path=None):
        with open(path or self.path, encoding='utf-8', newline='') as file:
            return self.rows(file.read())

    def export(self, path=None):
        result = self.manage('usage', 'export', path or self.path)
        self.assertEqual((0, ''), (result.code, result.out), result.err)
        return result.err

    def uuids(self, path=None):
        return {row['uuid'] for row in self.read(path)}

    def test_each_ended_usage_is_exported_once(self):
        self.assertEqual('gpgpu-manage: exported 3 usages\n', self.export())
        self.assertEqual(set(self.ended), self.uuids())
        releases.release(self.conductor.db, self.running)
        self.export(f'{self.folder}/next.csv')
        self.assertEqual(set(self.running),
                         self.uuids(f'{self.folder}/next.csv'))
        self.export(f'{self.folder}/last.csv')
        self.assertEqual([], self.read(f'{self.folder}/last.csv'))

    def test_row_has_all_that_was_recorded(self):
        self.export()
        row = self.read()[0]
        self.assertEqual(
            [base.INSTANCE, 'h1', 'H100', 'passthrough', '', '0000:00:00.0'],
            [row[name] for name in ('instance_uuid', 'host', 'variant',
                                    'vgpu_type', 'serial', 'address')])
        self.assertRegex(row['ended_at'], r'\A2\d{3}-.*T.*Z\Z')

    def test_serial_number_is_no_formula_of_a_spreadsheet(self):
        with self.conductor.db.engine.begin() as connection:
            connection.execute(sa.update(usage_db.TABLE).values(
                serial='=HYPERLINK("http://x")', flavor='gpu-1'))
        self.export()
        self.assertEqual(
            {("'=HYPERLINK(\"http://x\")", 'gpu-1')},
            {(row['serial'], row['flavor']) for row in self.read()})

    def test_what_a_pipe_gets_is_not_marked(self):
        """Its reader may fail."""
        result = self.manage('usage', 'export')
        self.assertEqual(3, len(self.rows(result.out)))
        self.assertIn('wrote 3 usages, and marked none', result.err)
        self.export()
        self.assertEqual(set(self.ended), self.uuids())

    def test_stdout_that_is_a_file_is_marked(self):
        sync = durable.sync
        with (open(self.path, 'w', encoding='utf-8') as file,
              fixtures.MockPatchObject(
                  durable, 'sync', lambda stdout: sync(file))):
            result = self.manage('usage', 'export')
        self.assertIn('exported 3 usages', result.err)
        self.assertEqual(3, len(self.rows(result.out)))
        self.assertEqual([], self.rows(self.manage('usage', 'export').out))

    def test_many_usages_are_exported_in_pages(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.objects.admin.PAGE_SIZE', 1))
        self.assertEqual('gpgpu-manage: exported 3 usages\n', self.export())
        self.assertEqual(set(self.ended), self.uuids())

    def test_file_that_exists_is_kept_and_nothing_is_marked(self):
        with open(self.path, 'w', encoding='utf-8') as file:
            file.write('not read yet')
        self.assertIn('it exists', self.refused(
            'usage', 'export', self.path))
        with open(self.path, encoding='utf-8') as file:
            self.assertEqual('not read yet', file.read())
        self.export(f'{self.folder}/next.csv')
        self.assertEqual(set(self.ended),
                         self.uuids(f'{self.folder}/next.csv'))

    def test_file_that_cannot_be_written_marks_nothing(self):
        self.assertIn('No such file', self.refused(
            'usage', 'export', f'{self.folder}/none/usage.csv'))
        self.export()
        self.assertEqual(set(self.ended), self.uuids())

    def test_crash_before_the_mark_repeats_rows(self):
        with fixtures.MockPatchObject(
                conductor_client.ConductorAPI, 'usage_mark_exported',
                side_effect=exception.ConductorUnavailable(
                    method='usage_mark_exported', timeout=1)):
            self.refused('usage', 'export', self.path)
        self.assertEqual(set(self.ended), self.uuids())
        self.export(f'{self.folder}/next.csv')
        self.assertEqual(self.read(), self.read(f'{self.folder}/next.csv'))

    def test_nothing_is_marked_before_the_file_is_on_disk(self):
        def full(fd):
            raise OSError(28, os.strerror(28))
        with fixtures.MonkeyPatch('os.fsync', full):
            self.assertIn('No space left', self.refused(
                'usage', 'export', self.path))
        self.assertEqual([], os.listdir(self.folder))
        self.export()
        self.assertEqual(set(self.ended), self.uuids())

    def test_two_exports_at_once_lose_nothing(self):
        """The second one begins before the first one has marked its rows."""
        other = f'{self.folder}/other.csv'
        mark = conductor_client.ConductorAPI.usage_mark_exported

        def after_another(api, ctxt, usages):
            with fixtures.MonkeyPatch(
                    'gpgpu_plugin.rpc.conductor_client.ConductorAPI.'
                    'usage_mark_exported', mark):
                self.assertIn('exported 3 usages', self.export(other))
            return mark(api, ctxt, usages)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.conductor_client.ConductorAPI.usage_mark_exported',
            after_another))
        said = self.export()
        self.assertIn('3 of them were exported by another run', said)
        self.assertEqual(self.uuids(other), self.uuids())
