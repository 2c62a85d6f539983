# SPDX-License-Identifier: Apache-2.0
"""Tests of the health of devices: stored, shown, and what it changes."""

import sqlalchemy as sa

from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import health
from tests.fixtures import hosts
from tests.unit.conductor import base

FAULT = 'it does not answer'
NARROW = 'the PCIe link has width x8'


class DeviceHealthTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.report(health.Health.OK)

    def report(self, found, reason=None, functions=None, **errors):
        """Report the health of the first GPU."""
        fault = reason if found is health.Health.FAILED else None
        return hosts.store(self.db, base.scan(
            functions or (base.replace(0, fault=fault), *base.EIGHT[1:]),
            health={base.EIGHT[0].id: health.Condition(
                health=found, reason=reason, errors=errors)}))

    def first(self):
        return next(device for device in device_admin.list_all(self.db)
                    if device.stable_id == base.EIGHT[0].id)

    def events(self, kind='health'):
        with self.db.reader() as session:
            return list(session.scalars(
                sa.select(event_db.TABLE.c.detail).where(
                    event_db.TABLE.c.kind == kind)
                .order_by(event_db.TABLE.c.id)))

    def test_first_health_that_is_ok_is_no_event(self):
        self.assertEqual('ok', self.first().health)
        self.assertIsNone(self.first().health_reason)
        self.assertEqual([], self.events())
        others = [device.health for device in device_admin.list_all(self.db)
                  if device.uuid != self.first().uuid]
        self.assertEqual([None] * 7, others)

    def test_degraded_gpu_is_shown_with_an_event_and_still_offered(self):
        inventory = self.report(
            health.Health.DEGRADED, NARROW, **{'AER nonfatal': 2})
        device = self.first()
        self.assertEqual(('degraded', NARROW, {'AER nonfatal': 2}), (
            device.health, device.health_reason, device.errors))
        self.assertEqual([f'ok -> degraded: {NARROW}'], self.events())
        self.assertEqual((8, 0), self.offered(inventory))
        self.report(health.Health.OK)
        self.assertEqual('degraded -> ok', self.events()[-1])
        self.assertEqual('available', self.first().state)

    def test_other_numbers_are_stored_without_an_event(self):
        self.report(health.Health.DEGRADED, '1 error')
        before = host_admin.show(self.db, 'h1').generation
        self.report(health.Health.DEGRADED, '2 errors')
        self.assertEqual('2 errors', self.first().health_reason)
        self.assertEqual(1, len(self.events()))
        self.assertEqual(before, host_admin.show(self.db, 'h1').generation)

    def test_failed_gpu_leaves_the_offer_and_is_cleaned_when_it_returns(self):
        inventory = self.report(health.Health.FAILED, FAULT)
        self.assertEqual(7, self.offered(inventory)[0])
        self.assertEqual(('failed', 'unmanaged'), (
            self.first().health, self.first().shown_state))
        inventory = self.report(health.Health.OK)
        self.assertEqual('dirty', self.first().state)
        self.assertEqual(['it answers again'], self.events('distrust'))
        with self.db.reader() as session:
            self.assertIsNotNone(session.scalar(
                sa.select(tables.DEVICES.c.clean_token).where(
                    tables.DEVICES.c.uuid == self.first().uuid)))
        self.assertEqual((8, 1), self.offered(inventory))

    def test_failed_gpu_that_is_assigned_stays_so(self):
        [assigned] = [
            assignment for assignment in self.boot(8).assignments
            if assignment.stable_id == base.EIGHT[0].id]
        self.report(health.Health.FAILED, FAULT)
        device = self.first()
        self.assertEqual(
            ('assigned', 'failed', assigned.instance_uuid),
            (device.shown_state, device.health, device.used_by))
        self.report(health.Health.OK)
        self.assertEqual('assigned', self.first().state)
        self.assertEqual(['it answers again'], self.events('distrust'))

    def test_device_that_is_missing_has_no_health(self):
        self.report(health.Health.DEGRADED, NARROW)
        hosts.store(self.db, base.scan(base.EIGHT[1:]))
        self.assertEqual((False, None, None), (
            self.first().present, self.first().health,
            self.first().health_reason))
        self.report(health.Health.OK)
        self.assertEqual(('ok', 'dirty'),
                         (self.first().health, self.first().state))

    def test_device_that_failed_and_was_missing_is_cleaned(self):
        self.report(health.Health.FAILED, FAULT)
        hosts.store(self.db, base.scan(base.EIGHT[1:]))
        self.assertEqual('failed', self.first().health)
        self.report(health.Health.OK)
        self.assertEqual('dirty', self.first().state)

    def test_health_that_was_not_judged_does_not_change(self):
        self.report(health.Health.DEGRADED, NARROW)
        hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual('degraded', self.first().health)
