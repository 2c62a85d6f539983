# SPDX-License-Identifier: Apache-2.0
"""Tests of rows of active and ended assignments."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import tables
from tests.fixtures import clocks
from tests.fixtures import tenant
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class AssignmentRowTest(vgpu_base.VGPUTestCase):

    def test_only_active_ones_of_hosts_and_instances_are_found(self):
        ended = base.uuids(self.ask('i1', Q4=1))
        releases.release(self.db, ended)
        active = base.uuids(self.ask('i2', Q4=2))
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            self.assertEqual(active, [
                row.uuid for row, *_ in assignment_db.of_hosts(
                    session, [host.id])])
            self.assertEqual([], assignment_db.of_instance(session, 'i1'))
            self.assertEqual(active, [
                row.uuid for row, *_ in assignment_db.of_instance(
                    session, 'i2')])

    def test_stable_ids_are_known_of_ended_ones_too(self):
        ended = self.ask('i1', Q4=1)
        releases.release(self.db, base.uuids(ended))
        [assignment] = ended.assignments
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            self.assertEqual(
                {assignment.uuid: assignment.stable_id},
                assignment_db.places(
                    session, host.id, [assignment.uuid, 'other']))
            self.assertEqual({}, assignment_db.places(session, host.id, []))

    def test_active_ones_are_counted_by_group_and_type(self):
        self.ask('i1', Q4=2)
        releases.release(self.db, base.uuids(self.ask('i2', Q4=1)))
        with self.db.reader() as session:
            counts = assignment_db.counts_by_type(
                session, [group.id for group in host_rows.load_one(
                    session, host_db.get(session, 'h1')).groups])
            self.assertEqual(
                {}, assignment_db.counts_by_type(session, [99]))
        self.assertEqual([('T4-4Q', 2)], [
            (vgpu_type, count) for (_, vgpu_type), count in counts.items()])


class ValueTest(base.ConductorTestCase):
    """Tests of rows that are read and written as values."""

    def active(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            rows = host_rows.load_one(session, host)
            return rows.devices, rows.assignments

    def test_active_ones_come_with_the_devices_of_the_host(self):
        self.boot(2, 'i1')
        self.boot(1, 'i0')
        devices, assignments = self.active()
        self.assertEqual(sorted(row.stable_id for row in devices),
                         [row.stable_id for row in devices])
        self.assertEqual(8, len(devices))
        self.assertEqual([('i1', 0), ('i1', 1), ('i0', 0)], [
            (row.instance_uuid, row.ordinal) for row in assignments])
        for row in assignments:
            self.assertIn(row.device, devices)

    def test_assigned_device_that_left_its_group_is_found(self):
        [assignment] = self.boot(1).assignments
        with self.db.writer() as session:
            session.execute(sa.update(tables.DEVICES).values(group_id=None))
        _, [found] = self.active()
        self.assertEqual((assignment.uuid, assignment.device_uuid),
                         (found.uuid, found.device.uuid))

    def test_ended_one_is_not_active(self):
        self.boot(1)
        _, rows = self.active()
        with self.db.writer() as session:
            assignment_db.end(session, rows, clocks.now())
        self.assertEqual([], self.active()[1])

    def test_lease_and_allocation_are_stored(self):
        self.claim(1)
        _, [row] = self.active()
        self.assertIsNotNone(row.lease_expires_at)
        self.assertTrue(row.allocated)
        with self.db.writer() as session:
            assignment_db.update(session, [(row, dataclasses.replace(
                row, lease_expires_at=None, allocated=False))])
        _, [row] = self.active()
        self.assertEqual((None, False),
                         (row.lease_expires_at, row.allocated))


class UniqueKeyTest(base.ConductorTestCase):
    """Tests of rows that the database itself refuses."""

    def test_second_active_assignment_of_a_device_is_refused(self):
        [first] = self.boot(1).assignments

        def second(session):
            device = session.execute(sa.select(tables.DEVICES).where(
                tables.DEVICES.c.uuid == first.device_uuid)).one()
            session.execute(sa.insert(tables.ASSIGNMENTS).values(
                **tenant.TENANT, uuid='second', device_id=device.id,
                host_id=device.host_id, host_generation=1,
                instance_uuid='i2', role='instance', migration_uuid='',
                ordinal=0, active=1,
                vgpu_type='passthrough', resource_class='X', request='{}',
                claimed_at=clocks.now()))
        with self.assertRaisesRegex(Exception, 'UNIQUE|uplicate'):
            with self.db.writer() as session:
                second(session)

    def test_second_set_of_devices_in_a_role_is_refused(self):
        self.boot(1)
        self.claim_destination(1, 'migration-1')
        free = next(device.uuid for device in device_admin.list_all(self.db)
                    if device.shown_state == 'available')

        def second(role, migration_uuid):
            with self.db.writer() as session:
                device = session.execute(sa.select(tables.DEVICES).where(
                    tables.DEVICES.c.uuid == free)).one()
                session.execute(sa.insert(tables.ASSIGNMENTS).values(
                    **tenant.TENANT, uuid=role, device_id=device.id,
                    host_id=device.host_id, host_generation=1,
                    instance_uuid='i1', role=role,
                    migration_uuid=migration_uuid, ordinal=0, active=1,
                    vgpu_type='passthrough', resource_class='X',
                    request='{}', claimed_at=clocks.now()))
        for key in (('instance', ''), ('destination', 'migration-1')):
            with self.assertRaisesRegex(Exception, 'UNIQUE|uplicate'):
                second(*key)
        second('destination', 'migration-2')
