# SPDX-License-Identifier: Apache-2.0
import dataclasses
import re

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import refusals
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.domain.allocation import request
from tests.fixtures import hosts
from tests.unit.conductor import base


class RefusalsTest(base.ConductorTestCase):
    """A host of which all eight GPUs are assigned."""

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.refusals = refusals.Refusals(lambda: self.now)
        self.full = self.boot(8, 'owner')
        self.denied(1, 'i1')

    def ask(self, count, instance, **fields):
        return claims.claim(
            self.db, dataclasses.replace(
                self.request(count, instance), **fields),
            lease=60, refusals=self.refusals)

    def denied(self, count, instance, **fields):
        with self.statements() as statements:
            exc = self.assertRaises(
                exception.ClaimDenied, self.ask, count, instance, **fields)
        self.assertEqual(request.Reason.NOT_ENOUGH_AVAILABLE, exc.reason)
        self.assertIn(f'Claim of {instance} on h1', str(exc))
        return [statement.split()[0] + (
            ' devices' if 'FROM devices' in statement else '')
            for statement in statements]

    def test_refusal_is_repeated_without_lock_and_devices(self):
        with self.statements() as statements:
            self.assertRaises(
                exception.ClaimDenied, self.ask, 1, 'i2')
        self.assertEqual(['hosts', 'assignments'], [
            re.search(r'FROM (\w+)', statement)[1]
            for statement in statements if statement.startswith('SELECT')])
        self.assertNotIn('BEGIN IMMEDIATE', statements)

    def test_other_request_is_judged_by_itself(self):
        self.assertIn('SELECT devices', self.denied(2, 'i2'))
        self.assertIn('SELECT devices', self.denied(
            1, 'i2', numa_nodes=(0,)))

    def test_refusal_ends_when_the_host_changes(self):
        releases.release(self.db, base.uuids(self.full)[:1])
        self.clean_all()
        self.assertEqual(1, len(self.ask(1, 'i2').assignments))

    def test_refusal_ends_when_a_device_is_enabled(self):
        releases.release(self.db, base.uuids(self.full)[:1])
        self.clean_all()
        [free] = [device.uuid for device in device_admin.list_all(self.db)
                  if device.state == 'available']
        device_admin.set_(self.db, free, 'op', enabled=False)
        self.denied(1, 'i2')
        device_admin.set_(self.db, free, 'op', enabled=True)
        self.assertEqual(1, len(self.ask(1, 'i2').assignments))

    def test_instance_that_has_them_gets_its_devices(self):
        self.denied(8, 'i2')
        self.assertEqual(
            base.uuids(self.full), base.uuids(self.ask(8, 'owner')))

    def test_refusal_is_found_out_anew_after_half_a_minute(self):
        self.now = refusals.LIFETIME
        self.assertNotIn('SELECT devices', self.denied(1, 'i2'))
        self.now += 0.1
        self.assertIn('SELECT devices', self.denied(1, 'i2'))
        self.assertNotIn('SELECT devices', self.denied(1, 'i2'))

    def test_session_that_was_replaced_is_refused_as_such(self):
        replaced = hosts.origin(
            'h1', base.NODE, start_uuid=hosts.start_uuid('other'))
        self.assertRaises(
            exception.Fenced, claims.claim, self.db, self.request(1, 'i2'),
            lease=60, origin=replaced, refusals=self.refusals)
