# SPDX-License-Identifier: Apache-2.0
"""Tests of how usage is listed, summed and exported."""

import datetime
import itertools

import hypothesis
import sqlalchemy as sa
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from gpgpu_plugin import exception
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.objects import history
from tests.fixtures import tenant
from tests.unit.conductor import base

NOON = datetime.datetime(2026, 11, 1, 12)
Key = history.UsageKey


def hours(number):
    return NOON + datetime.timedelta(hours=number)


NOW = hours(10)


class UsageListCase(base.ConductorTestCase):

    functions = ()
    variant = False

    def add(self, uuid, began, ended, **values):
        with self.db.writer() as session:
            session.execute(sa.insert(usage_db.TABLE).values({
                'assignment_uuid': uuid, 'instance_uuid': 'i1',
                **tenant.TENANT, 'host': 'h1',
                'device_uuid': 'd1', 'address': '0000:18:00.0',
                'variant': 'H100', 'vgpu_type': 'passthrough',
                'resource_class': 'CUSTOM_GPU_H100', 'began_at': began,
                'ended_at': ended, **values}))

    def listed(self, now=NOW, limit=100, marker=None, **query):
        with self.db.reader() as session:
            return [(row.uuid, row.seconds) for row in usage_db.listed(
                session, history.UsageQuery(**query), now, limit, marker)]

    def summed(self, *by, now=NOW, limit=100, after=None, **query):
        with self.db.reader() as session:
            return [(*row.values, row.usages, row.seconds)
                    for row in usage_db.summed(
                        session, history.UsageQuery(**query), by, now, limit,
                        after)]

    def unexported(self, limit=100, marker=None):
        with self.db.reader() as session:
            return [(row.uuid, row.seconds) for row in usage_db.unexported(
                session, limit, marker)]

    def mark(self, *uuids):
        with self.db.writer() as session:
            return usage_db.mark_exported(session, uuids, hours(20))


class ListTest(UsageListCase):

    def setUp(self):
        super().setUp()
        self.add('a', hours(0), hours(2))
        self.add('b', hours(1), hours(3), project_id='p2', user_id='u2',
                 host='h2', variant='L40S', instance_uuid='i2')
        self.add('c', hours(2), None)

    def test_running_usage_counts_until_now(self):
        self.assertEqual([('a', 7200), ('b', 7200), ('c', 28800)],
                         self.listed())

    def test_period_has_only_its_part_of_a_usage(self):
        self.assertEqual([('a', 1800), ('b', 1800)],
                         self.listed(since=hours(1.5), until=hours(2)))
        self.assertEqual([('a', 3600), ('b', 3600)],
                         self.listed(since=hours(1), until=hours(2)))
        self.assertEqual([('b', 3600), ('c', 28800)],
                         self.listed(since=hours(2)))

    def test_end_of_a_period_is_not_part_of_it(self):
        self.assertEqual([], self.listed(until=hours(0)))
        self.assertEqual(
            [('c', 3600)], self.listed(since=hours(3), until=hours(4)))

    def test_running_usage_has_no_part_of_the_future(self):
        self.assertEqual([('c', 28800)], self.listed(
            since=hours(2), until=hours(99), instance_uuid='i1'))
        self.assertEqual([('c', 0)], self.listed(since=hours(50)))

    def test_filters(self):
        for query in ({'project_id': 'p2'}, {'user_id': 'u2'},
                      {'host': 'h2'}, {'variant': 'L40S'},
                      {'instance_uuid': 'i2'}):
            self.assertEqual([('b', 7200)], self.listed(**query))

    def test_pages(self):
        self.assertEqual([('a', 7200), ('b', 7200)], self.listed(limit=2))
        self.assertEqual([('c', 28800)], self.listed(marker='b'))
        self.assertRaises(exception.NotFound, self.listed, marker='x')

    def test_clock_that_is_behind_counts_nothing(self):
        self.assertIn(('c', 0), self.listed(now=hours(1)))

    def test_info_has_all_that_was_recorded(self):
        with self.db.reader() as session:
            [row] = usage_db.listed(
                session, history.UsageQuery(variant='L40S'), NOON, 9)
        self.assertEqual(history.UsageInfo(
            uuid='b', project_id='p2', user_id='u2', instance_uuid='i2',
            flavor='f1', host='h2', device_uuid='d1',
            address='0000:18:00.0', serial=None, variant='L40S',
            vgpu_type='passthrough', resource_class='CUSTOM_GPU_H100',
            began_at='2026-11-01T13:00:00Z', ended_at='2026-11-01T15:00:00Z',
            seconds=7200), row)


class SumTest(UsageListCase):

    def setUp(self):
        super().setUp()
        self.add('a', hours(0), hours(2))
        self.add('b', hours(1), None, variant=None)
        self.add('c', hours(1), hours(2), project_id='p0')
        self.add('d', hours(1), hours(2), vgpu_type='L40S-8Q', flavor='f')

    def test_sums_by_each_set_of_keys(self):
        self.assertEqual(
            [('p0', 'H100', 1, 3600), ('p1', None, 1, 32400),
             ('p1', 'H100', 2, 10800)],
            self.summed(Key.PROJECT, Key.VARIANT))
        self.assertEqual(
            [('L40S-8Q', 1, 3600), ('passthrough', 3, 43200)],
            self.summed(Key.VGPU_TYPE))
        self.assertEqual([('f', 1, 3600), ('f1', 3, 43200)],
                         self.summed(Key.FLAVOR))
        self.assertEqual([('u1', 'i1', 'h1', 4, 46800)], self.summed(
            Key.USER, Key.INSTANCE, Key.HOST))

    def test_sums_of_a_period(self):
        self.assertEqual(
            [('p0', 1, 1800), ('p1', 3, 5400)],
            self.summed(Key.PROJECT, since=hours(1), until=hours(1.5)))
        self.assertEqual([], self.summed(Key.PROJECT, until=hours(0)))

    def test_pages_of_sums(self):
        by = (Key.PROJECT, Key.VARIANT)
        found, after = [], None
        while page := self.summed(*by, limit=1, after=after):
            found += page
            after = page[-1][:2]
        self.assertEqual(self.summed(*by), found)


class ExportTest(UsageListCase):

    def setUp(self):
        super().setUp()
        self.add('late', hours(0), hours(5))
        self.add('early', hours(1), hours(2))
        self.add('same', hours(0), hours(2))
        self.add('running', hours(0), None)

    def test_ended_usage_in_the_order_of_its_end(self):
        self.assertEqual(
            [('early', 3600), ('same', 7200), ('late', 18000)],
            self.unexported())

    def test_pages(self):
        self.assertEqual(['early'], [
            uuid for uuid, _ in self.unexported(limit=1)])
        self.assertEqual(['same', 'late'], [
            uuid for uuid, _ in self.unexported(marker='early')])
        self.mark('early')
        self.assertEqual(['same', 'late'], [
            uuid for uuid, _ in self.unexported(marker='early')])
        self.assertRaises(exception.NotFound, self.unexported, marker='x')

    def test_usage_is_marked_once(self):
        self.assertEqual(2, self.mark('late', 'early'))
        self.assertEqual(1, self.mark('late', 'same'))
        self.assertEqual([], self.unexported())

    def test_usage_that_ended_after_the_export_read_is_not_marked(self):
        self.add('committed late', hours(0), hours(1))
        self.mark('early', 'same', 'late')
        self.assertEqual(['committed late'], [
            uuid for uuid, _ in self.unexported()])

    def test_running_and_unknown_usage_cannot_be_marked(self):
        self.assertEqual(0, self.mark('running', 'x'))


_TIMES = st.integers(0, 100_000)


class PartitionTest(UsageListCase):
    """The parts of a usage in consecutive periods add up to the whole."""

    # It runs on each kind of database.
    @settings(max_examples=25, suppress_health_check=list(
        hypothesis.HealthCheck))
    @given(lives=st.lists(
               st.tuples(_TIMES, st.none() | _TIMES),
               min_size=1, max_size=4),
           cuts=st.lists(_TIMES, max_size=4), now=_TIMES)
    def test_partition(self, lives, cuts, now):
        def at(seconds):
            return NOON + datetime.timedelta(seconds=seconds)
        with self.db.writer() as session:
            session.execute(sa.delete(usage_db.TABLE))
        expected = 0
        for number, (began, lasts) in enumerate(lives):
            ended = None if lasts is None else began + lasts
            self.add(str(number), at(began),
                     None if ended is None else at(ended))
            expected += max(0, (now if ended is None else ended) - began)
        borders = [None, *(at(cut) for cut in sorted(set(cuts))), None]
        parts = 0
        for since, until in itertools.pairwise(borders):
            period = {'since': since, 'until': until, 'now': at(now)}
            listed = sum(seconds for _, seconds in self.listed(**period))
            self.assertEqual(listed, sum(
                row[-1] for row in self.summed(Key.VARIANT, **period)))
            parts += listed
        self.assertEqual(expected, parts)
