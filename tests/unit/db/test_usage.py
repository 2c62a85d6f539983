# SPDX-License-Identifier: Apache-2.0
"""Tests of when usage begins and ends, and of what it outlives."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import test_adoption
from tests.unit.conductor import vgpu_base

START = datetime.datetime(2026, 11, 1)
TENANT = {'project_id': 'p1', 'user_id': 'u1', 'flavor': 'gpu.large'}


class UsageMixin:
    """A clock of which each reading is 1.5 seconds later."""

    def setUp(self):
        self.readings = 0
        super().setUp()
        self.useFixture(clocks.Clocks(self.now))

    def now(self):
        self.readings += 1
        return START + datetime.timedelta(seconds=1.5 * self.readings)

    def used(self, **where):
        with self.db.reader() as session:
            rows = [dict(row) for row in session.execute(
                sa.select(usage_db.TABLE)
                .order_by(usage_db.TABLE.c.id)).mappings()]
        return [row for row in rows
                if all(row[name] == value for name, value in where.items())]

    def running(self, **where):
        return [row['assignment_uuid']
                for row in self.used(ended_at=None, **where)]

    def lifetimes(self):
        """Return host, beginning and end of each usage."""
        return [(row['host'], row['began_at'], row['ended_at'])
                for row in self.used()]


class LongSerialTest(UsageMixin, base.ConductorTestCase):

    functions = (base.replace(0, serial='x' * 1000), *base.EIGHT[1:])

    def test_serial_number_is_cut_to_what_the_column_takes(self):
        """SQLite would take all of it; other databases would refuse."""
        self.boot(1)
        self.assertEqual('x' * 255, self.used()[0]['serial'])


class UsageTest(UsageMixin, base.ConductorTestCase):

    functions = (base.replace(0, serial='1321020'), *base.EIGHT[1:])

    def move(self, count=1, host='h2', migration='m1'):
        granted = self.claim_destination(count, migration, host=host)
        claims.activate(self.db, base.uuids(granted))
        return base.uuids(granted)

    def confirm(self, source, migration='m1'):
        claims.confirm(self.db, claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid=migration,
            source_assignments=tuple(source)))

    def test_usage_says_who_has_which_device_since_when(self):
        granted = claims.claim(self.db, base.dataclasses.replace(
            self.request(1), **TENANT), lease=60)
        [assignment] = granted.assignments
        self.assertEqual([], self.used())
        claims.activate(self.db, [assignment.uuid])
        [found] = self.used()
        self.assertEqual({
            'id': found['id'], 'assignment_uuid': assignment.uuid,
            'instance_uuid': 'i1', **TENANT,
            'host': 'h1', 'device_uuid': assignment.device_uuid,
            'address': assignment.address, 'serial': '1321020',
            'variant': 'H100', 'vgpu_type': 'passthrough',
            'resource_class': 'CUSTOM_GPU_H100',
            'began_at': found['began_at'], 'ended_at': None,
            'exported_at': None}, found)
        self.assertGreater(found['began_at'], START)
        releases.release(self.db, [assignment.uuid])
        [ended] = self.used()
        self.assertGreater(ended['ended_at'], ended['began_at'])
        self.assertEqual({**found, 'ended_at': ended['ended_at']}, ended)

    def test_times_are_whole_seconds(self):
        releases.release(self.db, base.uuids(self.boot(1)))
        [(_, began, ended)] = self.lifetimes()
        self.assertEqual((0, 0), (began.microsecond, ended.microsecond))

    def test_usage_does_not_end_before_it_begins(self):
        """The clock of the conductor that ends it is behind."""
        uuids = base.uuids(self.boot(1))
        self.readings -= 100
        releases.release(self.db, uuids)
        [(_, began, ended)] = self.lifetimes()
        self.assertEqual(began, ended)

    def test_claim_that_no_guest_used_is_no_usage(self):
        for touched in (True, False):
            releases.abort(self.db, base.uuids(self.claim(1)),
                           touched=touched, fault=None)
        releases.release(self.db, base.uuids(self.claim(1)))
        self.assertEqual([], self.used())

    def test_activation_that_is_repeated_begins_nothing(self):
        uuids = base.uuids(self.boot(2))
        before = self.used()
        claims.activate(self.db, uuids)
        self.assertEqual(before, self.used())

    def test_release_that_is_repeated_ends_nothing(self):
        uuids = base.uuids(self.boot(2))
        releases.release(self.db, uuids)
        before = self.used()
        releases.release(self.db, uuids)
        self.assertEqual(before, self.used())

    def test_confirmed_migration_has_neither_gap_nor_overlap(self):
        self.report_second_host()
        source = base.uuids(self.boot(2))
        moved = self.move(2)
        self.assertEqual(source, self.running())
        self.confirm(source)
        self.assertEqual(moved, self.running(host='h2'))
        self.assertEqual(moved, self.running())
        (_, _, left), _, (_, arrived, _), _ = self.lifetimes()
        self.assertEqual(left, arrived)

    def test_confirmed_resize_on_the_same_host_has_no_gap(self):
        source = base.uuids(self.boot(2))
        moved = self.move(3, host='h1')
        self.confirm(source)
        self.assertEqual(moved, self.running())
        self.assertEqual(
            {row['ended_at'] for row in self.used()} - {None},
            {row['began_at'] for row in self.used(ended_at=None)})

    def test_reverted_migration_is_usage_of_the_source_alone(self):
        self.report_second_host()
        source = base.uuids(self.boot(1))
        before = self.used()
        releases.release(self.db, self.move())
        self.assertEqual(before, self.used())
        releases.release(self.db, source)
        self.assertEqual(1, len(self.used()))

    def test_resize_to_a_flavor_without_gpus_ends_usage(self):
        self.confirm(base.uuids(self.boot(2)))
        self.assertEqual([], self.running())
        self.assertEqual(2, len(self.used()))

    def test_evacuation_ends_usage_of_the_host_that_is_down(self):
        self.report_second_host()
        left = base.uuids(self.boot(2))
        here = base.uuids(self.boot(2, host='h2'))
        self.assertEqual(here, self.running())
        (_, _, ended), _, (_, began, _), _ = before = self.lifetimes()
        self.assertEqual(ended, began)
        # The host is back.
        releases.release(self.db, left)
        self.assertEqual(before, self.lifetimes())

    def origin(self, host='h1', **fields):
        return hosts.origin(host, base.node_uuid(host), **fields)

    def restarted(self, host='h1'):
        """Return the origin of another start of a host, which has reported."""
        hosts.begin(self.db, host, base.node_uuid(host), start_uuid='s2',
                    expected=1)
        origin = self.origin(host, session=2, start_uuid='s2')
        reports.report(self.db, base.scan(
            base.EIGHT, host=host, node_uuid=base.node_uuid(host), number=1),
            origin)
        return origin

    def compare(self, origin, used, number=1):
        releases.compare_allocations(
            self.db, origin.host, {}, used, number, origin, used)

    def test_host_that_another_one_claims_for_keeps_its_usage(self):
        """The other host is hostile: it can claim for any instance."""
        self.report_second_host()
        uuids = base.uuids(self.boot(1))
        theirs = base.uuids(self.boot(1, host='h2'))
        self.assertEqual(theirs, self.running())
        self.compare(self.origin(), uuids)
        self.assertEqual([*uuids, *theirs], self.running())

    def test_release_of_a_host_that_was_never_down_ends_its_usage(self):
        """Also if it has not compared since another host claimed."""
        self.report_second_host()
        origin = self.restarted()
        uuids = base.uuids(self.boot(1))
        self.boot(1, host='h2')
        [(_, _, claimed), _] = self.lifetimes()
        releases.release(self.db, uuids, origin)
        [(_, _, ended), _] = self.lifetimes()
        self.assertGreater(ended, claimed)

    def test_usage_of_a_failed_evacuation_goes_on_at_the_source(self):
        self.report_second_host()
        uuids = base.uuids(self.boot(2))
        before = self.used()
        releases.release(self.db, base.uuids(self.boot(2, host='h2')))
        self.assertEqual([], self.running())
        origin = self.restarted()
        self.compare(origin, uuids)
        self.assertEqual(before, self.used(host='h1'))
        releases.release(self.db, uuids, origin)
        self.assertLess(self.used(host='h2')[0]['ended_at'],
                        self.used(host='h1')[0]['ended_at'])

    def test_evacuated_host_that_is_back_changes_nothing(self):
        self.report_second_host()
        left = base.uuids(self.boot(2))
        self.boot(2, host='h2')
        before = self.used()
        origin = self.restarted()
        # Nova has the instance elsewhere, so it is none of the used ones.
        self.compare(origin, [])
        releases.release(self.db, left, origin)
        self.assertEqual(before, self.used())

    def test_host_cannot_resume_usage_of_another_host(self):
        self.report_second_host()
        left = base.uuids(self.boot(1))
        self.boot(1, host='h2')
        before = self.used()
        self.compare(self.origin('h2'), left)
        self.assertEqual(before, self.used())

    def test_operator_who_ends_an_evacuated_assignment_changes_nothing(self):
        self.report_second_host()
        left = base.uuids(self.boot(1))
        self.boot(1, host='h2')
        before = self.used()
        releases.end(self.db, left, 'the host is gone')
        self.assertEqual(before, self.used())

    def test_confirmation_ends_usage_that_another_host_had_ended(self):
        self.report_second_host()
        origin = self.restarted()
        source = base.uuids(self.boot(1))
        self.boot(1, host='h2')
        granted = base.uuids(self.claim_destination(1, 'm1', host='h1'))
        claims.activate(self.db, granted, origin=origin)
        claims.confirm(self.db, claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=tuple(source)), origin)
        self.assertEqual(
            [self.used(assignment_uuid=granted[0])[0]['began_at']],
            [row['ended_at'] for row in self.used(assignment_uuid=source[0])])

    def test_usage_that_may_be_resumed_is_not_exported(self):
        self.report_second_host()
        left = base.uuids(self.boot(1))
        self.boot(1, host='h2')
        self.assertEqual((), history.unexported(self.db))
        releases.release(self.db, left)
        self.assertEqual(
            left, [row.uuid for row in history.unexported(self.db)])

    def test_usage_of_others_goes_on(self):
        self.report_second_host()
        other = base.uuids(self.boot(2, 'i2'))
        here = base.uuids(self.boot(2, host='h2'))
        self.assertEqual([*other, *here], self.running())

    def test_usage_survives_host_device_and_variant(self):
        releases.release(self.db, base.uuids(self.boot(2)))
        before = self.used()
        variant_admin.delete(self.db, 'H100')
        host_admin.delete(self.db, 'h1', force=True)
        self.assertEqual((), device_admin.list_all(self.db))
        self.assertEqual(before, self.used())
        self.assertEqual([('h1', 'H100')] * 2, [
            (row['host'], row['variant']) for row in before])


class VGPUUsageTest(UsageMixin, vgpu_base.VGPUTestCase):

    functions = (vgpu_base.t4(0, serial='0420'),)

    def test_vgpu_has_address_and_serial_number_of_its_gpu(self):
        self.ask('i1', Q4=2)
        claims.activate(self.db, [
            row.uuid for row in claims.of_instance(self.db, 'i1')])
        rows = self.used()
        self.assertEqual(
            [('0000:00:00.0', '0420', 'T4', 'T4-4Q')] * 2,
            [(row['address'], row['serial'], row['variant'],
              row['vgpu_type']) for row in rows])
        self.assertEqual(2, len({row['device_uuid'] for row in rows}))


class AdoptedUsageTest(UsageMixin, test_adoption.AdoptionMixin,
                       base.ConductorTestCase):

    def test_usage_of_an_adopted_assignment_begins_with_the_adoption(self):
        granted = self.boot(2)
        self.forget(granted)
        self.restored(self.book(granted))
        self.assertEqual(base.uuids(granted), self.running(
            flavor='f1', project_id='p1', variant='H100'))

    def test_adopted_destination_is_usage_after_its_confirmation(self):
        granted = self.claim_destination(1, 'm1', source='h1')
        claims.activate(self.db, base.uuids(granted))
        self.forget(granted)
        origin = self.restored(self.book(granted))
        self.assertEqual([], self.used())
        claims.confirm(self.db, claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1'), origin)
        self.assertEqual(base.uuids(granted), self.running())

    def test_book_that_is_out_of_date_ends_no_usage_elsewhere(self):
        left = self.boot(1)
        self.report_second_host()
        here = self.boot(1, host='h2')
        self.forget(left)
        self.restored(self.book(left))
        self.assertEqual({*base.uuids(left), *base.uuids(here)},
                         set(self.running()))

    def test_assignment_of_a_device_that_the_book_has_twice_was_usage(self):
        # Which of both had the device is not known.
        granted = self.boot(1)
        [first] = granted.assignments
        second = base.dataclasses.replace(
            first, uuid='second', instance_uuid='i2', used_seconds=600)
        self.restored([first, second])
        self.assertEqual([first.uuid], self.running())
        [found] = self.used(assignment_uuid='second')
        self.assertEqual(('i2', 'H100'),
                         (found['instance_uuid'], found['variant']))
        self.assertLessEqual(
            600, (found['ended_at'] - found['began_at']).total_seconds())
        releases.release(self.db, [first.uuid])
        host_admin.delete(self.db, 'h1', force=True)
        self.assertEqual(2, len(self.used()))
