# SPDX-License-Identifier: Apache-2.0
"""Tests of event rows, which outlive the rows they record."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import usage as usage_db
from tests.fixtures import clocks
from tests.unit.conductor import base as conductor_base
from tests.unit.db import base


def events(session):
    return session.execute(sa.select(event_db.TABLE).order_by(
        event_db.TABLE.c.id)).all()


class NowTest(base.DatabaseTestCase):

    def test_now_is_utc_without_a_zone(self):
        before = datetime.datetime.now(datetime.UTC)
        now = clocks.now()
        self.assertIsNone(now.tzinfo)
        self.assertLessEqual(before, now.replace(tzinfo=datetime.UTC))
        self.assertLessEqual(now.replace(tzinfo=datetime.UTC),
                             datetime.datetime.now(datetime.UTC))


class AddTest(base.DatabaseTestCase):

    def test_event_without_device_has_its_kind_host_and_detail(self):
        with self.db.writer() as session:
            event_db.add(session, 'host_delete', 'h1', detail='by hand')
        with self.db.reader() as session:
            [event] = events(session)
            self.assertEqual(
                ('host_delete', 'h1', 'by hand', None, None, None),
                (event.kind, event.host, event.detail, event.device_uuid,
                 event.assignment_uuid, event.instance_uuid))
            self.assertIsNotNone(event.at)

    def test_event_of_a_transaction_that_failed_is_not_stored(self):
        def work(session):
            event_db.add(session, 'claim', 'h1')
            session.flush()
            raise RuntimeError('power cut')
        self.assertRaises(RuntimeError, self.db.write, work)
        with self.db.reader() as session:
            self.assertEqual([], events(session))


class AddAllTest(conductor_base.ConductorTestCase):

    def test_events_of_several_devices_are_one_statement(self):
        self.boot(2)
        with self.statements() as found, self.db.writer() as session:
            host = host_db.lock(session, 'h1')
            rows = host_rows.load_one(session, host).assignments
            event_db.add_all(session, 'h1', [event_db.Event('claim', [
                (rows[0].device, rows[0]), (rows[1].device, None)],
                'why'), event_db.Event('claim', [])])
            event_db.add_all(session, 'h1', [])
        self.assertEqual(1, len([
            text for text in found if 'INTO events' in text]), found)
        with self.db.reader() as session:
            self.assertEqual(
                [('claim', 'h1', 'why', rows[0].device.uuid, rows[0].uuid,
                  'i1'),
                 ('claim', 'h1', 'why', rows[1].device.uuid, None, None)],
                [(event.kind, event.host, event.detail, event.device_uuid,
                  event.assignment_uuid, event.instance_uuid)
                 for event in events(session)[-2:]])


class PublishedTest(conductor_base.ConductorTestCase):
    """Tests of the notifications that events have."""

    def setUp(self):
        super().setUp()
        self.db.publish_as('gpgpu-conductor:c1')

    def published(self):
        """Return the kinds of events that wait, and what they notify of."""
        with self.db.reader() as session:
            return [(row.kind, [message['event_type'].removeprefix('gpgpu.')
                                for message in row.messages])
                    for row in outbox.waiting(session, 100)]

    def test_event_has_all_that_happened_to_its_device_and_assignment(self):
        releases.release(self.db, conductor_base.uuids(self.boot()))
        self.assertEqual([
            ('claim', ['device.update']),
            ('activate', ['device.update', 'assignment.start']),
            ('release', ['device.update', 'assignment.end'])],
            self.published())

    def test_last_event_of_a_device_is_published_and_no_other(self):
        def rule(rows):
            [device, *_] = rows.devices
            rows = rows.hold(device, 'quarantined', 'why')
            return rows.note('disable', [device]).note('quarantine', [device])
        self.settle(rule)
        self.assertEqual([('quarantine', ['device.quarantine'])],
                         self.published())

    def test_change_without_event_has_one_for_its_notification(self):
        self.settle(lambda rows: rows.hold(
            rows.devices[0], 'quarantined', 'why'))
        self.assertEqual([('update', ['device.quarantine'])],
                         self.published())
        uuids = conductor_base.uuids(self.boot())
        with self.db.writer() as session:
            usage_db.end(session, uuids, datetime.datetime(2100, 1, 1))
        self.assertEqual(('usage', ['assignment.end']), self.published()[-1])
        with self.db.reader() as session:
            event = events(session)[-1]
        self.assertEqual(('h1', uuids[0], 'i1'), (
            event.host, event.assignment_uuid, event.instance_uuid))

    def settle(self, rule):
        self.db.write(lambda session: settle.change(
            session, host_db.lock(session, 'h1'), rule))


class LedgerTest(conductor_base.ConductorTestCase):

    def test_event_names_device_assignment_and_instance(self):
        [assignment] = self.claim(1).assignments
        with self.db.reader() as session:
            event = events(session)[-1]
            self.assertEqual(
                ('claim', 'h1', assignment.device_uuid, assignment.uuid,
                 'i1'),
                (event.kind, event.host, event.device_uuid,
                 event.assignment_uuid, event.instance_uuid))

    def test_events_outlive_their_host(self):
        granted = self.claim(1)
        releases.release(self.db, conductor_base.uuids(granted))
        with self.db.reader() as session:
            before = len(events(session))
        host_admin.delete(self.db, 'h1', force=True)
        with self.db.reader() as session:
            self.assertEqual(before + 1, len(events(session)))
