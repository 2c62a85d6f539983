# SPDX-License-Identifier: Apache-2.0
"""Tests of releasing assignments."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.fixtures import notified
from tests.unit.conductor import base


class EndTest(base.ConductorTestCase):

    def test_abort(self):
        for touched, state in ((False, 'available'), (True, 'dirty')):
            granted = self.claim(1, instance=f'i-{touched}')
            releases.abort(self.db, base.uuids(granted), touched=touched,
                         fault=None)
            self.assertEqual(8, self.states().get(state, 0)
                             + (7 if touched else 0))
        granted = self.claim(1, instance='i3')
        releases.abort(self.db, base.uuids(granted), touched=True,
                     fault='bind failed')
        [device] = device_admin.list_all(self.db, state='quarantined')
        self.assertEqual('bind failed', device.reason)

    def test_late_end_never_touches_the_next_owner(self):
        old = base.uuids(self.boot(8))
        releases.release(self.db, old)
        self.clean_all()
        new = self.boot(8, instance='i2')
        for _ in range(2):
            releases.release(self.db, old)
            releases.abort(self.db, old, touched=True, fault='late')
        self.assertEqual({'assigned': 8}, self.states())
        self.assertEqual(len(new.assignments),
                         len(claims.of_instance(self.db, 'i2')))

    def test_assignment_that_ended_says_when(self):
        granted = self.boot(1)
        # MariaDB stores whole seconds.
        before = clocks.now().replace(microsecond=0)
        releases.release(self.db, base.uuids(granted))
        with self.db.reader() as session:
            row = session.execute(sa.select(tables.ASSIGNMENTS)).one()
            self.assertIsNone(row.active)
            self.assertLessEqual(before, row.ended_at)
            self.assertLessEqual(row.claimed_at, row.ended_at)

    def test_device_that_was_never_activated_is_cleaned_too(self):
        releases.release(self.db, base.uuids(self.claim(1)))
        self.assertEqual({'available': 7, 'dirty': 1}, self.states())

    def test_part_of_a_claim_is_not_activated(self):
        uuids = base.uuids(self.claim(2))
        releases.release(self.db, uuids[:1])
        self.assertRaises(
            exception.NotFound, claims.activate, self.db, uuids)
        self.assertEqual({'available': 6, 'dirty': 1, 'provisioning': 1},
                         self.states())

    def test_assignments_of_two_hosts_are_refused_and_stay(self):
        self.report_second_host()
        both = [*base.uuids(self.claim(1)),
                *base.uuids(self.claim(1, host='h2'))]
        for refused in (
                lambda: claims.activate(self.db, both),
                lambda: releases.release(self.db, both),
                lambda: releases.abort(
                    self.db, both, touched=False, fault=None)):
            exc = self.assertRaises(exception.Invalid, refused)
            self.assertIn('one host', str(exc))
        self.assertEqual({'provisioning'}, {
            assignment.state
            for assignment in claims.of_instance(self.db, 'i1')})

    def test_unknown_assignments(self):
        self.assertIsNone(releases.release(self.db, ['nobody']))
        self.assertIsNone(releases.abort(
            self.db, ['nobody'], touched=False, fault=None))
        self.assertRaises(
            exception.NotFound, claims.activate, self.db, ['nobody'])

    def test_activate_of_an_ended_claim(self):
        granted = base.uuids(self.claim(1))
        releases.abort(self.db, granted, touched=False, fault=None)
        self.assertRaises(
            exception.NotFound, claims.activate, self.db, granted)

    def test_abort_of_an_active_one_is_refused(self):
        granted = base.uuids(self.boot(1))
        self.assertRaises(
            exception.Conflict, releases.abort, self.db, granted,
            touched=False, fault=None)
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())


NOON = datetime.datetime(2026, 11, 24, 12)
HOUR = datetime.timedelta(hours=1)


class LateTest(base.ConductorTestCase):
    """Tests of releases that waited until a conductor answered their host.

    A guest on h1 ends at noon.
    """

    def setUp(self):
        super().setUp()
        self.now = NOON - HOUR
        self.useFixture(clocks.Clocks(lambda: self.now))
        self.restart()
        self.db.publish_as(notified.PUBLISHER)

    def restart(self):
        """Let the session of h1 begin now."""
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).where(
                tables.HOSTS.c.name == 'h1').values(session_began_at=self.now))

    def release(self, granted, ages, host='h1'):
        """Send a release at three o'clock."""
        self.now = NOON + 3 * HOUR
        releases.release(
            self.db, base.uuids(granted),
            host and hosts.origin(host, base.node_uuid(host)), ages)

    def ended(self, host='h1'):
        with self.db.reader() as session:
            return session.scalars(
                sa.select(usage_db.TABLE.c.ended_at)
                .where(usage_db.TABLE.c.host == host)
                .order_by(usage_db.TABLE.c.id)).all()

    def boot_elsewhere(self, at, instance='i1'):
        """Let the instance begin to use a GPU of another host."""
        self.report_second_host()
        self.now = at
        self.boot(1, instance, host='h2')

    def test_usage_ends_when_the_host_released_the_devices(self):
        granted = self.boot(3)
        first, second, third = base.uuids(granted)
        self.release(granted, {first: 3 * 3600, second: 7200})
        self.assertEqual([NOON, NOON + HOUR, NOON + 3 * HOUR], self.ended())
        self.assertEqual(
            {first: 3600, second: 7200, third: 4 * 3600},
            {data['uuid']: data['seconds'] for data in (
                message['payload']['gpgpu_object.data']
                for message in notified.messages(self.db)
                if message['event_type'] == 'gpgpu.assignment.end')})

    def test_assignment_ends_when_the_conductor_ends_it(self):
        # Cleanings are compared with this time, so a host must not choose it.
        granted = self.boot(1)
        self.release(granted, dict.fromkeys(base.uuids(granted), 3 * 3600))
        with self.db.reader() as session:
            self.assertEqual([NOON + 3 * HOUR], session.scalars(
                sa.select(tables.ASSIGNMENTS.c.ended_at)).all())

    def test_age_that_is_not_possible_is_cut(self):
        for age, expected in ((-3600, NOON + 3 * HOUR),
                              (5 * 3600, NOON - HOUR),
                              (2 ** 70, NOON - HOUR)):
            self.now = NOON - HOUR
            granted = self.boot(1, f'i{age}')
            self.release(granted, dict.fromkeys(base.uuids(granted), age))
            self.assertEqual(expected, self.ended()[-1])

    def test_other_caller_does_not_say_when_usage_ends(self):
        granted = self.boot(1)
        self.release(granted, dict.fromkeys(base.uuids(granted), 3 * 3600),
                     host=None)
        self.assertEqual([NOON + 3 * HOUR], self.ended())

    def test_instance_that_was_unshelved_elsewhere_is_not_used_twice(self):
        granted = self.boot(1)
        self.boot_elsewhere(NOON + HOUR / 2)
        self.release(granted, dict.fromkeys(base.uuids(granted), 3 * 3600))
        self.assertEqual(([NOON], [None]), (self.ended(), self.ended('h2')))

    def test_host_that_was_restarted_only_shortens_the_usage(self):
        """It may have been down when the instance went elsewhere."""
        for age, expected in ((3 * 3600, NOON), (7200, NOON + HOUR / 2)):
            self.now = NOON - HOUR
            granted = self.boot(1, f'i{age}')
            self.boot_elsewhere(NOON + HOUR / 2, f'i{age}')
            self.now = NOON + 2 * HOUR
            self.restart()
            self.release(granted, dict.fromkeys(base.uuids(granted), age))
            self.assertEqual(expected, self.ended()[-1])

    def test_host_that_was_not_restarted_had_the_guest_until_then(self):
        """Whatever another host says of the instance."""
        granted = self.boot(1)
        self.boot_elsewhere(NOON)
        self.release(granted, dict.fromkeys(base.uuids(granted), 7200))
        self.assertEqual([NOON + HOUR], self.ended())
