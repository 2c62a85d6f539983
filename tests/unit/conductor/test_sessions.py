# SPDX-License-Identifier: Apache-2.0
"""Tests of sessions: the start that may report for a host."""

import uuid

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import report
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.unit.conductor import base

SAME = host_rules.MachineIdentity(boot_id='b1', machine_id='h1')
OTHER = host_rules.MachineIdentity(boot_id='b2', machine_id='h2')


class CloudTest(base.ConductorTestCase):

    functions = ()

    def begin(self, cloud):
        return hosts.begin(self.db, 'h1', base.NODE, start_uuid='s1',
                           identity=SAME, cloud=cloud)

    def test_host_of_another_cloud_is_refused_until_that_is_accepted(self):
        own = self.db.write(caller_key.cloud)
        lost = str(uuid.uuid4())
        exc = self.assertRaises(exception.Conflict, self.begin, lost)
        self.assertIn(f'db restored --cloud {lost}', str(exc))
        self.db.write(
            lambda session: caller_key.set_cloud(session, lost))
        self.assertEqual(lost, self.begin(lost).cloud)
        self.assertRaises(exception.Conflict, self.begin, own)

    def test_cloud_with_hosts_is_not_given_up_for_that_of_one_host(self):
        own = self.begin('').cloud
        staging = str(uuid.uuid4())
        exc = self.assertRaises(exception.Conflict, self.begin, staging)
        self.assertIn('move its file', str(exc))
        exc = self.assertRaises(
            exception.Conflict, self.db.write,
            lambda session: caller_key.set_cloud(session, staging))
        self.assertIn('1 of its hosts', str(exc))
        self.assertEqual(own, self.begin(own).cloud)
        self.db.write(lambda session: caller_key.set_cloud(session, own))


class SessionCase(base.ConductorTestCase):

    functions = ()

    def begin(self, start, expected=0, identity=SAME, **fields):
        return hosts.begin(
            self.db, 'h1', base.NODE, start_uuid=start, identity=identity,
            expected=expected, **fields)

    def origin(self, start, number, generation=0):
        return report.Origin(
            host='h1', node_uuid=base.NODE, start_uuid=start,
            session=number, generation=generation)

    def report(self, origin, functions=base.EIGHT, number=1,
               assignments=()):
        return reports.report(
            self.db, base.scan(functions, number=number,
                               assignments=assignments), origin)

    def started(self, start='s1'):
        """Return the origin of a session that has reported."""
        expected = self.number()
        granted = self.begin(start, expected)
        origin = self.origin(start, granted.number)
        self.report(origin)
        return origin

    def number(self):
        with self.db.reader() as session:
            host = host_db.find(session, 'h1')
            return 0 if host is None else host.session


class BeginTest(SessionCase):

    def test_first_start_gets_session_one(self):
        granted = self.begin('s1')
        self.assertEqual((1, False), (granted.number, granted.restored))

    def test_same_start_again_gets_the_same_session(self):
        self.begin('s1')
        self.assertEqual(1, self.begin('s1').number)

    def test_restart_on_the_same_machine_is_taken_at_once(self):
        self.begin('s1')
        self.assertEqual(2, self.begin('s2', 1).number)

    def test_late_begin_of_an_ended_start_is_refused(self):
        self.begin('s1')
        self.begin('s3', 1)
        exc = self.assertRaises(
            exception.SessionOutdated, self.begin, 's2', 1)
        self.assertEqual(2, exc.kwargs['current'])
        self.assertEqual(2, self.number())

    def test_start_on_another_machine_is_fenced(self):
        self.begin('s1')
        exc = self.assertRaises(
            exception.Fenced, self.begin, 's2', 1, OTHER)
        self.assertIn('machine id is h2 instead of h1', str(exc))
        self.assertIn('gpgpu-manage host takeover h1', str(exc))
        self.assertEqual(1, self.number())

    def test_start_on_another_machine_is_taken_after_silence(self):
        self.begin('s1')
        self.age(901)
        self.assertEqual(2, self.begin('s2', 1, OTHER).number)

    def test_call_ends_the_silence(self):
        origin = self.started('s1')
        self.age(800)
        sessions.digest(self.db, origin)
        self.age(800)
        self.assertRaises(exception.Fenced, self.begin, 's2', 1, OTHER)

    def test_conductor_whose_clock_is_ahead_takes_no_live_host_over(self):
        self.begin('s1')
        with clocks.ConductorClock(3600):
            self.assertRaises(exception.Fenced, self.begin, 's2', 1, OTHER)
        self.assertEqual(1, self.number())

    def test_host_heard_by_a_clock_that_was_ahead_is_not_fenced_longer(self):
        with clocks.ConductorClock(3600):
            origin = self.started('s1')
            self.age(120)
            self.report(origin, base.EIGHT[:2], number=2)
            sessions.digest(self.db, origin)
        self.age(901)
        self.assertEqual(2, self.begin('s2', 1, OTHER).number)

    def test_conductor_whose_clock_is_behind_takes_a_silent_host_over(self):
        self.begin('s1')
        self.age(901)
        with clocks.ConductorClock(-3600):
            self.assertEqual(2, self.begin('s2', 1, OTHER).number)

    def test_start_on_another_machine_is_taken_once_after_takeover(self):
        self.begin('s1')
        sessions.allow_takeover(self.db, 'h1')
        self.assertEqual(2, self.begin('s2', 1, OTHER).number)
        self.assertRaises(exception.Fenced, self.begin, 's3', 2, SAME)

    def test_takeover_of_an_unknown_host_is_refused(self):
        self.assertRaises(
            exception.NotFound, sessions.allow_takeover, self.db, 'h9')

    def test_superseded_start_does_not_take_the_host_back(self):
        self.begin('s1')
        self.begin('s2', 1)
        self.assertRaises(
            exception.Fenced, self.begin, 's1', 2, superseded=True)
        self.age(901)
        self.assertEqual(3, self.begin('s1', 2, superseded=True).number)

    def test_host_with_another_node_is_refused(self):
        self.begin('s1')
        exc = self.assertRaises(
            exception.Conflict, hosts.begin, self.db, 'h1', 'n2')
        self.assertIn('delete the host', str(exc))

    def test_session_that_the_database_does_not_know_is_adopted(self):
        self.begin('s1')
        granted = self.begin('s7', 6)
        self.assertEqual((7, True), (granted.number, granted.restored))

    def test_higher_generation_of_the_host_is_kept(self):
        self.begin('s1')
        granted = self.begin('s1', 1, generation=50)
        self.assertTrue(granted.restored)
        self.assertGreater(granted.generation, 50)

    def test_number_that_no_host_can_have_is_refused(self):
        sent = codec.to_primitive(report.SessionRequest(
            host='h1', node='h1', node_uuid='n1', start_uuid='s1',
            version='1', identity=SAME, expected=2 ** 62, generation=2 ** 62))
        codec.received(report.SessionRequest, sent)
        for field in ('expected', 'generation'):
            for number in (2 ** 62 + 1, -1, 2 ** 63 - 2, 2 ** 64):
                exc = self.assertRaises(
                    exception.Invalid, codec.received,
                    report.SessionRequest, {**sent, field: number})
                self.assertIn(field, str(exc))

    def test_highest_numbers_leave_room_for_changes_and_sessions(self):
        self.begin('s1')
        first = self.begin('s2', 2 ** 62, generation=2 ** 62)
        self.assertEqual(['h1'], sessions.mark_restored(self.db))
        again = self.begin(
            's3', first.number, generation=first.generation)
        self.assertGreater(again.number, first.number)
        host_admin.delete(self.db, 'h1', force=True)
        self.assertGreater(self.begin('s4').generation, again.generation)

    def test_doubt_of_the_host_counts_as_a_restore(self):
        self.begin('s1')
        self.assertTrue(self.begin('s1', 1, doubted=True).restored)


    def test_start_says_which_version_the_host_has(self):
        for start, sent, stored in (
                ('s1', '1.2.3', '1.2.3'), ('s2', 'x' * 100, 'x' * 64)):
            self.begin(start, self.number(), version=sent)
            self.assertEqual(stored, host_admin.show(self.db, 'h1').version)


class CheckTest(SessionCase):

    def test_call_of_the_present_session_is_taken(self):
        origin = self.started()
        claims.claim(self.db, self.request(1), 60, origin)

    def test_every_call_of_an_older_session_is_fenced(self):
        old = self.started('s1')
        granted = claims.claim(self.db, self.request(1), 60, old)
        [used] = base.uuids(
            claims.claim(self.db, self.request(1, 'i2'), 60, old))
        releases.release(self.db, [used], old)
        [task] = cleaning.tasks(self.db, 'h1')
        new = self.started('s2')
        before = self.states()
        uuids = base.uuids(granted)
        for call in (
                lambda: self.report(old, number=9),
                lambda: claims.claim(self.db, self.request(1, 'i3'), 60, old),
                lambda: claims.activate(self.db, uuids, None, old),
                lambda: releases.release(self.db, uuids, old),
                lambda: releases.abort(
                    self.db, uuids, touched=False, fault=None, origin=old),
                lambda: cleaning.started(
                    self.db, task.device_uuid, task.token, 'a1', old),
                lambda: claims.of_origin(self.db, old, ()),
                lambda: sessions.digest(self.db, old)):
            self.assertRaises(exception.Fenced, call)
        self.assertEqual(before, self.states())
        claims.activate(self.db, uuids, None, new)

    def test_session_without_a_report_neither_claims_nor_cleans(self):
        old = self.started('s1')
        [used] = base.uuids(claims.claim(self.db, self.request(1), 60, old))
        releases.release(self.db, [used], old)
        [task] = cleaning.tasks(self.db, 'h1')
        self.begin('s2', 1)
        new = self.origin('s2', 2)
        exc = self.assertRaises(
            exception.ClaimDenied, claims.claim, self.db, self.request(1),
            60, new)
        self.assertEqual('host_unknown', exc.reason)
        self.assertRaises(
            exception.Conflict, cleaning.started, self.db, task.device_uuid,
            task.token, 'a1', new)
        self.assertRaises(
            exception.Conflict, claims.of_origin, self.db, new, ())

    def test_generation_that_the_database_does_not_know_is_a_lost_session(
            self):
        origin = self.started()
        later = self.origin('s1', origin.session, generation=1000)
        self.assertRaises(
            exception.SessionLost, claims.claim, self.db, self.request(1),
            60, later)
        self.assertEqual({'available': 8}, self.states())

    def test_list_that_lacks_an_assignment_of_the_book_is_a_lost_session(
            self):
        origin = self.started()
        known = base.uuids(claims.claim(self.db, self.request(1), 60, origin))
        claims.of_origin(self.db, origin, known)
        exc = self.assertRaises(
            exception.SessionLost, claims.of_origin, self.db, origin,
            (*known, 'unknown'))
        self.assertIn('does not have assignments unknown', str(exc))

    def test_session_of_a_deleted_host_is_lost(self):
        origin = self.started()
        host_admin.delete(self.db, 'h1')
        self.assertRaises(exception.SessionLost, self.report, origin)

    def test_claim_whose_caller_gave_up_is_not_granted(self):
        origin = self.started()

        def give_up():
            raise exception.RequestExpired(
                method='claim', subject='i1', wanted=3, waited=4.0)
        self.assertRaises(
            exception.RequestExpired, claims.claim, self.db, self.request(1),
            60, origin, give_up)
        self.assertEqual({'available': 8}, self.states())


class ReportOrderTest(SessionCase):

    def test_report_that_was_overtaken_is_dropped(self):
        origin = self.started()
        self.report(origin, base.EIGHT[1:], number=3)
        # Scanned before the GPU was pulled, delivered after.
        self.report(origin, base.EIGHT, number=2)
        self.assertEqual({'available': 7, 'missing': 1}, self.states())

    def test_unchanged_report_overtakes_an_earlier_one(self):
        origin = self.started()
        self.report(origin, base.EIGHT, number=3)
        self.report(origin, base.EIGHT[1:], number=2)
        self.assertEqual({'available': 8}, self.states())

    def test_host_that_begins_beside_a_new_variant_is_matched(self):
        self.assertEqual(1, self.begin('s1').number)
        self.report(self.origin('s1', 1))
        self.assertEqual({'available': 8}, self.states())


class RestoreTest(SessionCase):

    def test_marked_restore_ends_every_session(self):
        origin = self.started()
        self.assertEqual(['h1'], sessions.mark_restored(self.db))
        self.assertRaises(
            exception.SessionLost, claims.claim, self.db, self.request(1),
            60, origin)
        self.assertTrue(self.begin('s1', 1).restored)

    def test_another_machine_is_fenced_after_a_marked_restore(self):
        self.started()
        self.age(10**6)
        sessions.mark_restored(self.db)
        self.assertRaises(exception.Fenced, self.begin, 's2', 1, OTHER)
        self.assertTrue(self.begin('s3', 1).restored)

    def test_report_after_a_restore_without_the_book_is_refused(self):
        self.started()
        sessions.mark_restored(self.db)
        granted = self.begin('s1', 1)
        exc = self.assertRaises(
            exception.Invalid, self.report,
            self.origin('s1', granted.number), assignments=None)
        self.assertIn('restored', str(exc))

    def test_free_devices_are_cleaned_after_a_restore(self):
        self.started()
        sessions.mark_restored(self.db)
        granted = self.begin('s1', 1)
        self.report(self.origin('s1', granted.number))
        self.assertEqual({'dirty': 8}, self.states())
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_disabled_devices_stay_disabled(self):
        self.started()
        device = device_admin.list_all(self.db)[0]
        device_admin.set_(self.db, device.uuid, 'op', enabled=False)
        sessions.mark_restored(self.db)
        granted = self.begin('s1', 1)
        self.report(self.origin('s1', granted.number))
        self.clean_all()
        self.assertEqual({'available': 7, 'disabled': 1}, self.states())


class DigestTest(SessionCase):

    def test_digest_is_that_of_generation_and_assignments(self):
        origin = self.started()
        empty = sessions.digest(self.db, origin)
        granted = claims.claim(self.db, self.request(2), 60, origin)
        self.assertNotEqual(empty, sessions.digest(self.db, origin))
        self.assertEqual(
            report.digest(granted.inventory.generation, (
                (row.uuid, row.instance_uuid, row.role, '')
                for row in granted.assignments)),
            sessions.digest(self.db, origin))

    def test_digest_of_a_host_makes_few_statements(self):
        origin = self.started()
        with self.statements() as found:
            sessions.digest(self.db, origin)
        self.assertEqual(
            ['BEGIN', 'SELECT', 'SELECT', 'UPDATE', 'SELECT'],
            [statement.split()[0] for statement in found])
