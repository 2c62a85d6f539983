# SPDX-License-Identifier: Apache-2.0
"""Tests of db purge: what goes, what stays, and in which steps."""

import datetime
import itertools
from concurrent import futures
from unittest import mock

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import purge
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from tests.fixtures import clocks
from tests.fixtures import database
from tests.fixtures import released
from tests.unit.conductor import base

DAY = datetime.timedelta(days=1)


class PurgeTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now = clocks.now()
        self.uuids = [self.life(number) for number in range(3)]

    def life(self, number):
        """Let an instance have the only free GPU for a while."""
        [uuid] = base.uuids(self.boot(1, f'i{number}'))
        releases.release(self.db, [uuid])
        self.clean_all()
        return uuid

    def count(self, model, *where):
        with self.db.reader() as session:
            return session.scalar(
                sa.select(sa.func.count()).select_from(model).where(*where))

    def age(self, uuid, days):
        """Let an assignment have ended some days ago."""
        with self.db.writer() as session:
            session.execute(
                sa.update(tables.ASSIGNMENTS)
                .where(tables.ASSIGNMENTS.c.uuid == uuid)
                .values(ended_at=self.now - days * DAY))

    def test_conductor_deletes_what_is_older_than_some_days(self):
        self.age(self.uuids[0], 11)
        self.age(self.uuids[1], 9)
        for days, number in ((0, 3), (10, 2), (8, 1)):
            purge.purge_old(self.db, days)
            self.assertEqual(number, self.count(tables.ASSIGNMENTS))

    def test_conductor_tries_again_if_the_database_is_busy(self):
        log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin'))
        with mock.patch.object(
                purge, 'purge', side_effect=exception.ConductorUnavailable(
                    method='purge', reason='busy', timeout=1)):
            purge.purge_old(self.db, 1)
        self.assertIn('history_days', log.output)

    def purge(self, days=-1, **kwargs):
        return purge.purge(self.db, self.now - days * DAY, **kwargs)

    def test_events_stay_until_their_notifications_were_sent(self):
        self.db.publish_as('gpgpu-conductor:c1')
        self.life(3)
        waiting = self.count(event_db.UNSENT)
        self.assertGreater(waiting, 3)
        self.purge()
        self.assertEqual(waiting, self.count(event_db.TABLE))
        with self.db.writer() as session:
            outbox.delete(session, outbox.waiting(session, 100))
        self.assertEqual(waiting, self.purge().events)
        self.assertEqual(0, self.count(event_db.TABLE))

    def left(self):
        with self.db.reader() as session:
            return set(session.scalars(sa.select(tables.ASSIGNMENTS.c.uuid)))

    def test_everything_old_goes_but_the_last_assignment_of_a_device(self):
        events = self.count(event_db.TABLE)
        self.assertGreater(events, 12)
        purged = self.purge()
        self.assertEqual((events, 2, True), (
            purged.events, purged.assignments, purged.complete))
        self.assertEqual({self.uuids[2]}, self.left())
        self.assertEqual(3, self.count(usage_db.TABLE))
        self.assertEqual(0, self.count(event_db.TABLE))

    def abort(self):
        """Let a claim of the GPU end before a guest ran."""
        [uuid] = base.uuids(self.claim(1, 'aborted'))
        releases.abort(self.db, [uuid], touched=True, fault=None)
        return uuid

    def test_device_that_a_guest_had_before_an_aborted_claim_is_known(self):
        aborted = self.abort()
        self.clean_all(passed=False)
        self.assertEqual(2, self.purge().assignments)
        self.assertEqual({self.uuids[2], aborted}, self.left())
        [device] = device_admin.list_all(self.db, state='quarantined')
        released.release(self.db, device.uuid, 'root')
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertTrue(task.had_guest)

    def test_aborted_claims_go_but_the_last_assignment_of_a_device(self):
        for _ in range(2):
            self.abort()
            self.clean_all()
        self.uuids.append(self.life(3))
        self.hear(60)
        self.assertEqual(5, self.purge().assignments)
        self.assertEqual({self.uuids[3]}, self.left())

    def test_what_is_younger_stays(self):
        self.age(self.uuids[0], 10)
        purged = self.purge(days=5)
        self.assertEqual((0, 1), (purged.events, purged.assignments))
        self.assertEqual(set(self.uuids[1:]), self.left())

    def test_active_assignment_stays(self):
        active = base.uuids(self.boot(1, 'i9'))
        self.purge()
        self.assertEqual(set(active), self.left())

    def test_purged_assignment_is_known(self):
        self.purge()
        with self.db.reader() as session:
            self.assertEqual(set(self.uuids), assignment_db.known(
                session, [*self.uuids, 'other']))

    def test_late_release_of_a_purged_assignment_changes_nothing(self):
        self.purge()
        active = base.uuids(self.boot(1, 'i9'))
        releases.release(self.db, self.uuids)
        self.assertEqual(tuple(active), tuple(
            row.uuid for row in claims.of_host(self.db, 'h1')))

    def test_no_more_rows_than_asked_for_are_deleted(self):
        events = self.count(event_db.TABLE)
        purged = self.purge(max_rows=events + 1)
        self.assertEqual((events, 1, False), (
            purged.events, purged.assignments, purged.complete))
        purged = self.purge(max_rows=2)
        self.assertEqual((0, 1, True), (
            purged.events, purged.assignments, purged.complete))

    def test_one_transaction_deletes_one_chunk(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.purge.CHUNK', 2))
        with self.statements() as found:
            sa.event.listen(self.db.engine, 'commit',
                            lambda connection: found.append('COMMIT'))
            self.purge()
        for chunk in ' '.join(found).split('COMMIT'):
            self.assertLessEqual(chunk.count('DELETE'), 1)
        self.assertEqual(3, self.count(usage_db.TABLE))

    def export(self, *uuids):
        with self.db.writer() as session:
            usage_db.mark_exported(session, uuids, self.now)

    def hear(self, seconds):
        """Let the host have called some seconds after now."""
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).values(
                heard_at=clock.now() + seconds))

    def test_usage_is_kept_until_it_was_exported(self):
        self.hear(60)
        self.export(self.uuids[0])
        purged = self.purge()
        self.assertEqual((2, 1, 2), (
            purged.assignments, purged.usages, purged.unexported))
        self.assertEqual(set(self.uuids[1:]), self.kept())
        self.export(*self.uuids)
        purged = self.purge()
        self.assertEqual((1, 0), (purged.usages, purged.unexported))
        # That of the last assignment of the device.
        self.assertEqual({self.uuids[2]}, self.kept())

    def test_exported_usage_is_not_made_again(self):
        self.hear(60)
        self.export(*self.uuids)
        self.purge()
        self.uuids.append(self.life(3))
        self.purge()
        self.purge()
        self.assertEqual({self.uuids[3]}, self.kept())

    def test_running_usage_stays(self):
        [uuid] = base.uuids(self.boot(1, 'i9'))
        self.export(uuid)
        self.purge()
        self.assertIn(uuid, self.kept())

    def test_usage_after_the_date_is_neither_deleted_nor_counted(self):
        self.hear(60)
        self.export(self.uuids[0])
        purged = self.purge(days=5)
        self.assertEqual((0, 0), (purged.usages, purged.unexported))

    def test_assignments_stay_known_to_a_host_that_is_away(self):
        """Its book may have them."""
        self.uuids += base.uuids(self.claim(1, 'i8'))
        releases.release(self.db, self.uuids[3:])
        self.clean_all()
        self.life(9)
        self.export(*self.uuids)
        self.hear(-60)
        self.purge()
        with self.db.reader() as session:
            self.assertEqual(set(self.uuids), assignment_db.known(
                session, self.uuids))
        self.hear(60)
        self.purge()
        self.assertEqual(set(), self.kept() & set(self.uuids))

    def test_reverted_migration_stays_known_to_a_host_that_is_away(self):
        uuids = base.uuids(self.claim_destination(1, 'm1'))
        claims.activate(self.db, uuids)
        releases.release(self.db, uuids)
        self.clean_all()
        self.life(9)
        self.hear(-60)
        self.purge()
        with self.db.reader() as session:
            self.assertEqual(
                set(uuids), assignment_db.known(session, uuids))

    def test_interrupted_purge_goes_on(self):
        """Each usage is kept once, wherever a run ended."""
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.purge.CHUNK', 1))
        for writes in itertools.count(1):
            with database.cut_after(self.db.engine, writes) as seen:
                self.purge()
            self.assertEqual(set(self.uuids), self.left() | self.kept())
            if len(seen) < writes:
                break
        self.assertEqual({self.uuids[2]}, self.left())

    def kept(self):
        with self.db.reader() as session:
            return set(session.scalars(
                sa.select(usage_db.TABLE.c.assignment_uuid)))

    def test_two_runs_at_once_keep_each_usage_once(self):
        with futures.ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(self.purge) for _ in range(2)]
            purged = [run.result() for run in runs]
        self.assertEqual({self.uuids[2]}, self.left())
        self.assertEqual(set(self.uuids), self.kept())
        self.assertTrue(all(run.complete for run in purged))
