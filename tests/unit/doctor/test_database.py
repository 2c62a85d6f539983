# SPDX-License-Identifier: Apache-2.0
"""Tests of drifts in the rows of the database."""

import dataclasses

from oslotest import base

from gpgpu_plugin.doctor import database
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view

ASSIGNED = view.AssignedRow(
    uuid='a1', instance_uuid='i1', device_uuid='d1', address='0000:01:00.0',
    device_state='assigned', provider_uuid='p1',
    resource_class='CUSTOM_GPU_T4', allocated=True)
BUSY = view.DeviceRow(uuid='d1', address='0000:01:00.0', state='assigned')
CAPACITY = view.CapacityRow(
    variant='T4', vgpu_type='T4-4Q', stored=(4, 8, 7), computed=(4, 8, 7))
ROWS = view.HostRows(
    host='h1', assignments=(ASSIGNED,), busy_devices=(BUSY,),
    capacities=(CAPACITY,), usages=('a1',))


class CompareTest(base.BaseTestCase):

    def found(self, **changes):
        return [(one.name, one.subject, one.repair)
                for one in database.compare(
                    dataclasses.replace(ROWS, **changes))]

    def test_rows_that_agree_have_no_drift(self):
        self.assertEqual([], self.found())

    def test_host_that_must_report_after_a_restore_is_not_compared(self):
        self.assertEqual([('host_not_reported', 'h1', None)], self.found(
            assignments=(), restored_since='2026-01-01T00:00:00Z'))

    def test_device_of_two_assignments_is_left(self):
        second = dataclasses.replace(ASSIGNED, uuid='a2', instance_uuid='i2')
        self.assertEqual([('device_assigned_twice', 'd1', None)], self.found(
            assignments=(ASSIGNED, second)))

    def test_assigned_device_in_each_other_state_is_adopted(self):
        for state in ('available', 'dirty', 'cleaning', 'quarantined'):
            self.assertEqual(
                [('assignment_without_state', 'd1', drift.Repair.ADOPT)],
                self.found(assignments=(dataclasses.replace(
                    ASSIGNED, device_state=state),), busy_devices=()))

    def test_claim_that_waits_for_its_guest_is_no_drift(self):
        self.assertEqual([], self.found(
            assignments=(dataclasses.replace(
                ASSIGNED, device_state='provisioning'),),
            busy_devices=(dataclasses.replace(
                BUSY, state='provisioning'),)))

    def test_busy_device_of_nobody_is_quarantined(self):
        self.assertEqual(
            [('state_without_assignment', 'd1', drift.Repair.QUARANTINE)],
            self.found(assignments=(), usages=()))

    def test_stored_capacity_that_differs_is_computed(self):
        self.assertEqual(
            [('capacity_wrong', 'T4:T4-4Q', drift.Repair.CAPACITY)],
            self.found(capacities=(dataclasses.replace(
                CAPACITY, stored=(4, 8, 8)),)))

    def test_usage_of_an_ended_assignment_is_ended(self):
        self.assertEqual(
            [('usage_without_assignment', 'a0', drift.Repair.USAGE)],
            self.found(usages=('a1', 'a0')))
