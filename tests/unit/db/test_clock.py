# SPDX-License-Identifier: Apache-2.0
"""Tests of the database's clock on SQLite."""

import collections
import datetime
import time
import uuid

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import refusals as refusals_mod
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import transaction
from gpgpu_plugin.objects import scheduling
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.unit.conductor import base as conductor_base
from tests.unit.db import base


class ClockTest(base.DatabaseTestCase):

    def test_it_is_seconds_since_the_epoch_in_utc(self):
        with self.db.reader() as session:
            # The same machine; a day is more than any time zone.
            self.assertAlmostEqual(time.time(), session.scalar(
                sa.select(clock.now())), delta=600)

    def test_it_goes_on_within_a_transaction(self):
        with self.db.reader() as session:
            first = session.scalar(sa.select(clock.now()))
            while session.scalar(sa.select(clock.now())) == first:
                pass

    def test_seconds_of_a_stored_time_are_whole(self):
        at = datetime.datetime(2026, 10, 31, 1, 2, 3, 987654)
        with self.db.writer() as session:
            session.execute(sa.insert(event_db.TABLE).values(
                at=at, kind='x', actor='me'))
            self.assertEqual(
                int(at.replace(tzinfo=datetime.UTC).timestamp()),
                session.scalar(sa.select(clock.seconds(event_db.TABLE.c.at))))

    def test_time_of_a_transaction_is_read_once(self):
        with self.db.reader() as session:
            first = clock.epoch(session)
            self.assertEqual(first, clock.epoch(session))
            self.assertEqual(clock.utc(session), clock.utc(session, -1)
                             - datetime.timedelta(seconds=1))


class SharedTimesTest(conductor_base.ConductorTestCase):
    """All times of rows, whatever the clock of the conductor that wrote."""

    def use(self):
        """Have most tables filled, by one conductor."""
        self.db.publish_as('gpgpu-conductor:c1')
        hosts.begin(self.db, 'h1', conductor_base.NODE)
        self.report_second_host()
        granted = self.boot(2)
        self.claim(1, 'i2')
        refusals = refusals_mod.RefusalRecorder(self.db)
        refusals.denied(
            transaction.CONDUCTOR, self.request(9), self.assertRaises(
                exception.ClaimDenied, self.claim, 9, 'i3'))
        refusals.run_once()
        releases.release(self.db, conductor_base.uuids(granted)[:1])
        self.clean_all()
        counted = scheduler_feed.CountedMix(self.db)
        counted.add([scheduling.ArrivedRequests(scheduling.RequestKind(
            resource_class='PGPU', vcpus=1, memory_mib=1, units=1),
            (str(uuid.uuid4()),))])
        counted.run_once()
        with self.db.writer() as session:
            caller_key.add(session, 'host', 'h1', 'm')

    def times(self):
        """Return the times in all rows, in seconds, by column."""
        found = collections.defaultdict(set)
        with self.db.reader() as session:
            for table in migration.METADATA.sorted_tables:
                for column in table.columns:
                    if column.type.python_type is datetime.datetime:
                        found[str(column)] = {
                            at.replace(tzinfo=datetime.UTC).timestamp()
                            for at in session.scalars(sa.select(column))
                            if at is not None and at.year > 2000}
                    elif isinstance(column.type, sa.Double):
                        found[str(column)] = {
                            at for at in session.scalars(sa.select(column))
                            if at}
        return {name: at for name, at in found.items() if at}

    def check(self, ahead):
        with self.db.reader() as session:
            now = clock.epoch(session)
        with clocks.ConductorClock(ahead):
            self.use()
        found = self.times()
        # What decays, and grows with the time.
        found.pop('request_kinds.weight', None)
        self.assertEqual({}, {
            name: at for name, at in found.items()
            if not all(abs(time - now) < 600 for time in at)})
        self.assertLessEqual({
            'hosts.heard_at', 'hosts.changed_at', 'hosts.session_began_at',
            'assignments.claimed_at', 'assignments.ended_at',
            'assignments.lease_expires_at', 'usages.began_at',
            'usages.ended_at', 'events.at', 'caller_keys.created_at',
            'counted_instances.at'}, set(found))

    def test_clock_of_a_conductor_that_is_ahead(self):
        self.check(3600)

    def test_clock_of_a_conductor_that_is_behind(self):
        self.check(-3600)
