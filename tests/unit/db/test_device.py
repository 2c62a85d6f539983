# SPDX-License-Identifier: Apache-2.0
"""Tests of device rows: JSON columns, compare-and-swap."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import vgpu
from tests.unit.conductor import base


class DeviceCase(base.ConductorTestCase):

    def rows(self):
        with self.db.reader() as session:
            return host_rows.load_one(session, host_db.get(
                session, 'h1')).devices


class DeviceRowTest(DeviceCase):

    def first(self, session):
        return session.execute(sa.select(tables.DEVICES).order_by(
            tables.DEVICES.c.stable_id)).first()

    def test_observed_values_come_back(self):
        vgpus = vgpu.VGPUCapability(
            mechanism=vgpu.VGPUMechanism.MDEV,
            existing_vgpus=('other',))
        driver = vgpu.DriverCapacity(
            existing=('other',), available={'A': None, 'B': 2},
            sampled_at=('start', 3))
        [row, *_] = self.rows()
        function = device_db.pci_function(row)
        now = device_db.observed(row, function, vgpus, driver)
        self.assertEqual(vgpus, device_db.vgpu_capability(now))
        found = device_db.driver_capacity(now)
        self.assertEqual((driver, driver.sampled_at),
                         (found, found.sampled_at))
        self.assertEqual(now, device_db.observed(
            now, function, vgpus, driver))
        gone = device_db.observed(now, function, None, None)
        self.assertIsNone(device_db.vgpu_capability(gone))
        self.assertIsNone(device_db.driver_capacity(gone))

    def test_ids_that_variants_match_are_those_of_the_last_scan(self):
        [row, *_] = self.rows()
        self.assertEqual(('10de', '2330'), (row.vendor_id, row.product_id))
        for vendor, device, expected in (
                ('1002', '74a0', ('1002', '74a0')), (None, None, ('', '')),
                ('10dexx', '2330', ('10de', '2330'))):
            now = device_db.observed(row, dataclasses.replace(
                device_db.pci_function(row), vendor=vendor,
                device=device), None, None)
            self.assertEqual(expected, (now.vendor_id, now.product_id))

    def test_available_device_has_no_vgpu(self):
        [row, *_] = self.rows()
        claimed = dataclasses.replace(
            device_db.after(row, device_rules.DeviceEvent.CLAIM),
            vgpu_type='A', placement_id=3)
        now = device_db.after(
            claimed, device_rules.DeviceEvent.ABORT_UNTOUCHED)
        self.assertEqual(('available', None, None), (
            now.state, now.vgpu_type, now.placement_id))

    def test_event_that_the_state_does_not_have_is_refused(self):
        self.assertRaises(
            exception.InvalidTransition, device_db.after, self.rows()[0],
            device_rules.DeviceEvent.RELEASE)


class SwapTest(DeviceCase):

    def test_each_device_gets_its_own_values_in_one_statement(self):
        before = self.rows()
        changes = [
            (row, dataclasses.replace(
                device_db.after(row, device_rules.DeviceEvent.CLAIM),
                clean_token=token, vgpu_type='A', placement_id=number))
            for row, token, number in zip(
                before, ('x', 'y', None), (1, None, 0), strict=False)]
        with self.db.writer() as session, self.statements() as found:
            device_db.swap(session, changes)
        self.assertEqual(['BEGIN', 'UPDATE'], [
            statement.split()[0] for statement in found])
        self.assertEqual(
            (*(now for _, now in changes), *before[3:]), self.rows())

    def test_single_device_is_changed_alone_unless_it_was_meanwhile(self):
        first, *others = self.rows()
        claimed = dataclasses.replace(
            device_db.after(first, device_rules.DeviceEvent.CLAIM),
            vgpu_type='A', clean_token='x')
        for _ in range(2):
            with self.db.writer() as session, self.statements() as found:
                device_db.swap(session, [(first, claimed)])
            self.assertEqual(2, len(found))
            self.assertEqual((claimed, *others), self.rows())
            # The second time by the statement that was kept.
            first, claimed = claimed, dataclasses.replace(
                claimed, generation=claimed.generation + 1, state='assigned',
                vgpu_type='B', clean_token='y')
        with self.assertRaisesRegex(exception.Conflict, first.uuid):
            with self.db.writer() as session:
                device_db.swap(session, [(
                    dataclasses.replace(first, generation=99), claimed)])
        self.assertEqual((first, *others), self.rows())

    def test_nothing_changes_if_one_device_was_changed_meanwhile(self):
        first, second, *_ = before = self.rows()
        stale = dataclasses.replace(second, generation=7)
        with self.assertRaisesRegex(exception.Conflict, second.uuid):
            with self.db.writer() as session:
                device_db.swap(session, [
                    (row, device_db.after(
                        row, device_rules.DeviceEvent.CLAIM))
                    for row in (first, stale)])
        self.assertEqual(before, self.rows())

    def test_no_change_is_no_statement(self):
        with self.db.writer() as session, self.statements() as found:
            device_db.swap(session, [])
        self.assertEqual([], found)

    def test_text_is_parsed_once(self):
        first, second = self.rows()[0], self.rows()[0]
        self.assertIs(device_db.pci_function(first),
                      device_db.pci_function(second))
