# SPDX-License-Identifier: Apache-2.0
"""Tests of the history as operators read it: filters and pages."""

import dataclasses
import datetime

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import transaction
from gpgpu_plugin.objects import history as history_obj
from tests.unit.conductor import base

REQUEST = 'req-11111111-1111-1111-1111-111111111111'


class EventListTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        [self.first] = self.boot_of('p1', 1, 'i1', self.db.by(
            transaction.Author(actor='host h1', request_id=REQUEST)))
        self.boot_of('p2', 2, 'i2', self.db)
        releases.release(self.db, [self.first.uuid])

    def boot_of(self, project, count, instance, db):
        granted = claims.claim(db, dataclasses.replace(
            self.request(count, instance), project_id=project), lease=60)
        claims.activate(db, base.uuids(granted))
        return granted.assignments

    def kinds(self, **wanted):
        """Return the kinds of events, the oldest first."""
        return [found.kind for found in history.list_events(
            self.db, history_obj.EventFilter(**wanted))][::-1]

    def test_event_has_all_that_is_known(self):
        [*_, claim] = history.list_events(
            self.db, history_obj.EventFilter(instance='i1'))
        self.assertEqual(
            ('claim', 'h1', self.first.device_uuid, self.first.uuid, 'i1',
             'p1', 'host h1', REQUEST, None, 1),
            (claim.kind, claim.host, claim.device_uuid,
             claim.assignment_uuid, claim.instance_uuid, claim.project_id,
             claim.actor, claim.request_id, claim.reason, claim.count))
        datetime.datetime.fromisoformat(claim.at)

    def test_each_filter_leaves_out_the_others(self):
        of_first = ['claim', 'activate', 'release']
        of_second = ['claim'] * 2 + ['activate'] * 2
        for wanted, expected in (
                ({'instance': 'i1'}, of_first),
                ({'instance': 'i9'}, []),
                ({'project': 'p1'}, of_first),
                ({'project': 'p2'}, of_second),
                ({'request': REQUEST}, of_first[:2]),
                ({'kind': 'release'}, ['release']),
                ({'host': 'h1', 'kind': 'claim'}, ['claim'] * 3),
                ({'host': 'h9'}, []),
                ({'device': self.first.device_uuid, 'project': 'p1'},
                 of_first)):
            self.assertEqual(expected, self.kinds(**wanted), wanted)

    def test_period_includes_its_begin_and_not_its_end(self):
        noon = datetime.datetime(2026, 11, 24, 12)
        with self.db.writer() as session:
            session.execute(sa.update(event_db.TABLE).where(
                event_db.TABLE.c.kind == 'release').values(at=noon))
        second = datetime.timedelta(seconds=1)
        for since, until, expected in (
                (noon, noon + second, ['release']),
                (noon - second, noon, []),
                (noon + second, None, []),
                (None, noon + second, ['release'])):
            self.assertEqual(expected, self.kinds(
                kind='release', since=since, until=until), (since, until))

    def test_period_that_ends_before_it_begins_is_refused(self):
        noon = datetime.datetime(2026, 11, 24, 12)
        self.assertRaises(exception.Invalid, self.kinds,
                          since=noon, until=noon)

    def test_pages_go_on_after_the_marker(self):
        everything = history.list_events(self.db, history_obj.EventFilter())
        self.assertEqual(
            sorted((found.id for found in everything), reverse=True),
            [found.id for found in everything])
        self.assertEqual(everything[2:5], history.list_events(
            self.db, history_obj.EventFilter(), limit=3,
            marker=everything[1].marker))


class RefusedTest(base.base.BaseTestCase):

    def refused(self, marker=None, **wanted):
        # Before the database is asked.
        return self.assertRaises(
            exception.Invalid, history.list_events, None,
            history_obj.EventFilter(**wanted), marker=marker)

    def test_unknown_kind_is_refused_with_those_that_are_known(self):
        self.assertIn('claim_denied', str(self.refused(kind='clam')))

    def test_marker_that_is_no_number_is_refused(self):
        self.assertIn('the number of an event', str(self.refused('x')))
