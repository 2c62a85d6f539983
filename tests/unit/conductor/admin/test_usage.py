# SPDX-License-Identifier: Apache-2.0
"""Tests of what operators may ask about usage."""

import dataclasses
import datetime

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.objects import history as history_obj
from tests.unit.conductor import base

ALL = history_obj.UsageQuery()
DAY = datetime.datetime(2026, 11, 1)


class UsageTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.running = base.uuids(self.boot(1, 'i1'))
        self.ended = base.uuids(self.boot(2, 'i2'))
        releases.release(self.db, self.ended)

    def summary(self, by=('instance',), **options):
        return self.still(history.usage_summary(self.db, ALL, by, **options))

    def still(self, found):
        """Return rows without the seconds of usage that goes on."""
        return tuple(dataclasses.replace(row, seconds=0) for row in found)

    def test_list_and_sums_have_running_and_ended_usage(self):
        self.assertEqual(
            [*self.running, *self.ended],
            [row.uuid for row in history.list_usage(self.db, ALL)])
        self.assertEqual(
            [(('i1',), 1), (('i2',), 2)],
            [(row.values, row.usages) for row in self.summary()])

    def test_key_that_is_repeated_counts_once(self):
        self.assertEqual(self.summary(), self.summary(['instance'] * 2))

    def test_export_has_what_has_ended_once(self):
        found = [row.uuid for row in history.unexported(self.db)]
        self.assertEqual(set(self.ended), set(found))
        self.assertEqual(2, history.mark_exported(
            self.db, [*found, *self.running]))
        self.assertEqual((), history.unexported(self.db))

    def test_pages(self):
        [first, *rest] = self.still(history.list_usage(self.db, ALL))
        self.assertEqual((first,), self.still(
            history.list_usage(self.db, ALL, 1)))
        self.assertEqual(tuple(rest), self.still(history.list_usage(
            self.db, ALL, 9, first.marker)))
        [first, *rest] = self.summary()
        self.assertEqual((first,), self.summary(limit=1))
        self.assertEqual(tuple(rest), self.summary(marker=first.marker))

    def refused(self, what, call, *args, **kwargs):
        exc = self.assertRaises(exception.Invalid, call, *args, **kwargs)
        self.assertIn(what, str(exc))

    def test_period_that_ends_before_it_begins_is_refused(self):
        for until in (DAY, DAY - datetime.timedelta(days=1)):
            query = history_obj.UsageQuery(since=DAY, until=until)
            for call, args in ((history.list_usage, ()),
                               (history.usage_summary, (['host'],))):
                self.refused('ends after it begins', call, self.db, query,
                             *args)

    def test_unknown_key_is_refused(self):
        for by in ([], ['host', 'colour']):
            self.refused('project, user', self.summary, by)

    def test_marker_of_another_sum_is_refused(self):
        for marker in ('x', '["a", "b"]', '{}', '[1]'):
            self.refused('["VALUE"]', self.summary, marker=marker)
