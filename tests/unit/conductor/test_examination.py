# SPDX-License-Identifier: Apache-2.0
"""Tests of drifts in the database, and of their repairs."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import drift
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.doctor import drift as drift_mod
from tests.fixtures import clocks
from tests.fixtures import tenant
from tests.unit.conductor import base


class ExaminationCase(base.ConductorTestCase):

    def sql(self, statement):
        with self.db.engine.begin() as connection:
            return connection.execute(statement)

    def drifts(self):
        return [one for record in drift.page(self.db, None, 100, None)
                for one in record.drifts]

    def repair(self, found):
        return drift.repair(self.db, found, 'root@control')

    def events(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(event_db.TABLE.c.detail).where(
                event_db.TABLE.c.kind == 'repair')).all()

    def check_repaired(self, name):
        """Repair the only drift; repairing it twice does nothing more."""
        [found] = self.drifts()
        self.assertEqual(name, found.name)
        self.assertTrue(self.repair(found))
        self.assertEqual([], self.drifts())
        self.assertFalse(self.repair(found))
        [event] = self.events()
        self.assertIn(f'{name} of {found.subject} by root@control', event)


class RepairTest(ExaminationCase):

    def setUp(self):
        super().setUp()
        [self.assignment] = self.boot(1).assignments

    def set_state(self, device_uuid, state):
        self.sql(sa.update(tables.DEVICES).where(
            tables.DEVICES.c.uuid == device_uuid).values(state=state))

    def state(self, device_uuid):
        return device_admin.show(self.db, device_uuid).state

    def free(self):
        return self.sql(sa.select(tables.DEVICES.c.uuid).where(
            tables.DEVICES.c.state == 'available')).scalars().first()

    def test_database_of_a_running_cloud_has_no_drift(self):
        self.assertEqual([], self.drifts())

    def test_value_that_cannot_be_read_is_a_drift_of_its_host(self):
        self.sql(sa.update(tables.GROUPS).values(allocation_policy='bad'))
        [found] = self.drifts()
        self.assertEqual(('rows_unreadable', 'h1', None),
                         (found.name, found.subject, found.repair))
        self.assertIn("'bad' is not a valid", found.says['database'])

    def test_value_of_a_variant_that_cannot_be_read_is_a_drift(self):
        self.assertEqual((), drift.cloud_records(self.db).drifts)
        for column in ('mix_policy', 'cleaning_policy', 'allocation_policy'):
            self.sql(sa.update(tables.VARIANTS).values({column: 'bad'}))
            found = drift.cloud_records(self.db).drifts
            self.assertEqual({('rows_unreadable', None)},
                             {(one.name, one.host) for one in found})
            self.assertIn("'bad'", found[0].says['database'])

    def test_host_that_must_report_after_a_restore_is_not_compared(self):
        self.sql(sa.update(tables.TYPES).values(remaining_capacity=99))
        sessions.mark_restored(self.db)
        [found] = self.drifts()
        self.assertEqual(('host_not_reported', 'h1', None),
                         (found.name, found.subject, found.repair))

    def test_claim_that_waits_for_its_guest_is_no_drift(self):
        self.claim(1, 'i2')
        self.assertEqual([], self.drifts())

    def test_wrong_capacity_is_computed(self):
        self.sql(sa.update(tables.TYPES).values(remaining_capacity=99))
        self.check_repaired('capacity_wrong')

    def test_assigned_device_in_another_state_is_assigned_again(self):
        for state in ('available', 'dirty', 'cleaning'):
            self.set_state(self.assignment.device_uuid, state)
            found = {one.name: one for one in self.drifts()}[
                'assignment_without_state']
            self.assertTrue(self.repair(found))
            self.assertEqual(
                'assigned', self.state(self.assignment.device_uuid))
        with self.db.reader() as session:
            self.assertEqual(
                [self.assignment.device_uuid] * 3,
                session.scalars(sa.select(event_db.TABLE.c.device_uuid).where(
                    event_db.TABLE.c.kind == 'repair')).all())

    def test_busy_device_of_nobody_is_quarantined(self):
        device = self.free()
        self.set_state(device, 'assigned')
        found = {one.name: one for one in self.drifts()}
        self.assertTrue(self.repair(found['state_without_assignment']))
        self.assertEqual('quarantined', self.state(device))
        self.assertEqual([], self.drifts())

    def test_usage_of_an_ended_assignment_ends_with_it(self):
        ended = clocks.now()
        self.sql(sa.update(tables.ASSIGNMENTS).values(
            active=None, ended_at=ended))
        self.set_state(self.assignment.device_uuid, 'dirty')
        self.check_repaired('usage_without_assignment')
        self.assertEqual(
            ended.replace(microsecond=0),
            self.sql(sa.select(usage_db.TABLE.c.ended_at)).scalar())

    def test_drift_that_ended_meanwhile_is_not_repaired(self):
        self.set_state(self.assignment.device_uuid, 'dirty')
        [found] = self.drifts()
        # Another claim, or the host itself, was faster.
        self.set_state(self.assignment.device_uuid, 'assigned')
        self.assertFalse(self.repair(found))
        self.assertEqual([], self.events())

    def test_device_that_was_claimed_meanwhile_is_not_quarantined(self):
        device = self.free()
        self.set_state(device, 'provisioning')
        [found] = [one for one in self.drifts()
                   if one.name == 'state_without_assignment']
        self.set_state(device, 'available')
        self.boot(7, 'i2')
        self.assertFalse(self.repair(found))
        self.assertEqual('assigned', self.state(device))

    def test_repair_that_the_caller_made_up_is_not_executed(self):
        found = drift_mod.Drift(
            name='state_without_assignment', host='h1',
            subject=self.assignment.device_uuid, says={},
            repair=drift_mod.Repair.QUARANTINE, reason='')
        self.assertFalse(self.repair(found))
        self.assertEqual(
            'assigned', self.state(self.assignment.device_uuid))

    def test_repair_of_a_host_is_refused(self):
        self.assertRaises(
            exception.Invalid, self.repair,
            drift_mod.of('instance_deleted', 'h1', 'a1'))

    def test_device_of_two_assignments_is_left(self):
        table = tables.ASSIGNMENTS
        # A database that lost its unique keys.
        for text in ('CREATE TABLE copy AS SELECT * FROM assignments',
                     'DROP TABLE assignments',
                     'ALTER TABLE copy RENAME TO assignments'):
            self.sql(sa.text(text))
        row = dict(self.sql(sa.select(table)).mappings().one())
        self.sql(sa.insert(table).values(
            {**row, 'id': 99, 'uuid': 'a2', 'instance_uuid': 'i2'}))
        found = {one.name: one for one in self.drifts()}
        twice = found['device_assigned_twice']
        self.assertIsNone(twice.repair)
        self.assertIn('i1, i2', twice.says['database'])


class CloudTest(ExaminationCase):

    def drifts(self):
        return list(drift.cloud_records(self.db).drifts)

    def test_key_of_a_host_that_was_deleted_is_left(self):
        self.sql(sa.insert(caller_key_db.TABLE).values(
            kind='host', name='h1', number=1, master_id='m1',
            created_at=clocks.now()))
        self.assertEqual([], self.drifts())
        host_admin.delete(self.db, 'h1')
        [found] = self.drifts()
        self.assertEqual(('key_of_unknown_host', 'h1', None),
                         (found.name, found.host, found.repair))

    def test_usage_on_a_host_that_was_deleted_is_ended(self):
        self.sql(sa.insert(usage_db.TABLE).values(
            **tenant.TENANT, assignment_uuid='a1', instance_uuid='i1',
            host='gone', device_uuid='d1',
            address='0000:18:00.0', began_at=clocks.now(),
            vgpu_type='passthrough', resource_class='CUSTOM_GPU_H100'))
        self.check_repaired('usage_without_assignment')

    def test_classes_are_those_of_all_types(self):
        self.assertEqual(('CUSTOM_GPU_H100',), drift.cloud_records(
            self.db).resource_classes)
        self.sql(sa.update(tables.VARIANTS).values(
            resource_class='CUSTOM_OWN'))
        self.sql(sa.update(tables.TYPES).values(vgpu_type='H100-4C'))
        self.assertEqual(
            ('CUSTOM_OWN', 'CUSTOM_VGPU_H100_H100_4C'),
            drift.cloud_records(self.db).resource_classes)


class PageTest(ExaminationCase):

    def setUp(self):
        super().setUp()
        self.report_second_host()

    def test_pages_have_all_hosts_once(self):
        [first] = drift.page(self.db, None, 1, None)
        [second] = drift.page(self.db, None, 1, first.marker)
        self.assertEqual(('h1', 'h2'), (first.host, second.host))
        self.assertEqual((), drift.page(self.db, None, 1, 'h2'))

    def test_page_of_one_host_has_it_alone(self):
        [record] = drift.page(self.db, 'h2', 100, None)
        self.assertEqual(('h2', 'H100'),
                         (record.host, record.groups[0].variant))
        self.assertRaises(exception.NotFound, drift.page, self.db,
                          'h9', 100, None)

    def test_page_takes_the_same_statements_for_any_number_of_hosts(self):
        counts = []
        for limit in (1, 2):
            with self.statements() as found:
                drift.page(self.db, None, limit, None)
            counts.append(len(found))
        self.assertEqual(counts[0], counts[1])
