# SPDX-License-Identifier: Apache-2.0
"""Tests of ``usage list`` and ``usage summary``."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import usage as usage_db
from tests.unit.cmd import base

BEGAN = datetime.datetime(2026, 10, 31, 22)
ENDED = datetime.datetime(2026, 11, 1, 1, 30)


class UsageTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.uuids = [assigned.uuid for assigned in self.claim(2)]
        releases.release(self.conductor.db, self.uuids[:1])
        with self.conductor.db.writer() as session:
            session.execute(sa.update(usage_db.TABLE).values(
                began_at=BEGAN, project_id='p1', user_id='u1',
                flavor='gpu.large'))
            session.execute(sa.update(usage_db.TABLE)
                            .where(usage_db.TABLE.c.ended_at.is_not(None))
                            .values(ended_at=ENDED))

    def test_list(self):
        rows = self.json('usage', 'list', '--to', '2026-11-02')
        self.assertEqual(self.uuids, [row['UUID'] for row in rows])
        self.assertEqual(
            [('2026-11-01T01:30:00Z', 12600), (None, 93600)],
            [(row['Ended At'], row['Seconds']) for row in rows])
        self.assertEqual(
            {('p1', base.INSTANCE, 'gpu.large', 'h1', 'H100', 'passthrough',
              '2026-10-31T22:00:00Z')},
            {(row['Project ID'], row['Instance UUID'], row['Flavor'],
              row['Host'], row['Variant'], row['vGPU Type'],
              row['Began At']) for row in rows})
        self.assertNotIn('User ID', rows[0])

    def test_long_list_has_all_columns(self):
        [row, _] = self.json('usage', 'list', '--long')
        self.assertEqual('u1', row['User ID'])
        self.assertLess({'Device UUID', 'Serial', 'Resource Class'},
                        set(row))

    def test_period_and_filters(self):
        period = ('--from', '2026-11-01', '--to', '2026-11-01T02:00+01:00')
        self.assertEqual([3600, 3600], [
            row['Seconds'] for row in self.json('usage', 'list', *period)])
        for option, value in (
                ('--project', 'p1'), ('--user', 'u1'), ('--host', 'h1'),
                ('--instance', base.INSTANCE), ('--variant', 'H100')):
            self.assertEqual(2, len(self.json('usage', 'list', option, value)))
            other = base.INSTANCE.replace('d', 'e')
            self.assertEqual([], self.json('usage', 'list', option, other))

    def test_pages(self):
        [row] = self.json('usage', 'list', '--limit', '1')
        self.assertEqual(self.uuids[1:], [
            row['UUID'] for row in self.json(
                'usage', 'list', '--marker', row['UUID'])])

    def test_csv(self):
        lines = self.done('usage', 'list', '-f', 'csv').splitlines()
        self.assertIn('"UUID","Project ID"', lines[0])
        self.assertEqual(3, len(lines))

    def test_summary(self):
        self.assertEqual(
            [{'Project': 'p1', 'Variant': 'H100', 'vGPU Type': 'passthrough',
              'Usages': 2, 'Seconds': 106200, 'Hours': 29.5}],
            self.json('usage', 'summary', '--to', '2026-11-02'))
        self.assertEqual(
            [{'Flavor': 'gpu.large', 'Host': 'h1', 'Usages': 2,
              'Seconds': 10800, 'Hours': 3.0}],
            self.json('usage', 'summary', '--by', 'flavor,host,flavor',
                      '--from', '2026-11-01', '--to', '2026-11-01T01:30'))

    def test_wrong_options_are_refused(self):
        self.assertIn("'monday' is not a date", self.misused(
            'usage', 'list', '--from', 'monday'))
        self.assertIn("'colour' is none of project, user", self.misused(
            'usage', 'summary', '--by', 'project,colour'))
        self.assertIn('ends after it begins', self.refused(
            'usage', 'list', '--from', '2026-11-02', '--to', '2026-11-01'))
