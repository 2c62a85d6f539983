# SPDX-License-Identifier: Apache-2.0
"""Tests of the end of a transaction."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import history as history_obj
from tests.unit.conductor import base

_E = device_rules.DeviceEvent


class SettleTest(base.ConductorTestCase):

    def rows(self):
        with self.db.reader() as session:
            return host_rows.load_one(session, host_db.get(session, 'h1'))

    def generation(self):
        with self.db.reader() as session:
            return host_db.get(session, 'h1').generation

    def settle(self, rule):
        """Apply a rule; return the inventory and the grown generation."""
        before = self.generation()
        inventory = self.db.write(lambda session: settle.change(
            session, host_db.lock(session, 'h1'), rule))
        self.assertEqual(self.generation(), inventory.generation)
        return inventory, self.generation() - before

    def test_no_change_stores_nothing(self):
        before = self.rows()
        inventory, grown = self.settle(lambda rows: rows)
        self.assertEqual(((8, 0), 0), (self.offered(inventory), grown))
        self.assertEqual(before, self.rows())

    def test_capacities_follow_from_devices(self):
        inventory, grown = self.settle(lambda rows: rows.hold(
            rows.devices[0], device_rules.HoldKind.DISABLED, 'why', 'op'))
        self.assertEqual(((8, 1), 1), (self.offered(inventory), grown))
        [group] = self.rows().groups
        self.assertEqual([(8, 7)], [
            (row.max_capacity, row.remaining_capacity)
            for row in group.types])

    def test_several_changes_are_one_generation(self):
        def rule(rows):
            for device in rows.devices:
                rows = rows.apply(device, _E.DISTRUST, clean_token='t')
            return rows.note('distrust', rows.devices[:2], 'why')
        _, grown = self.settle(rule)
        self.assertEqual(1, grown)
        found = history.list_events(
            self.db, history_obj.EventFilter(kind='distrust'))
        self.assertEqual(2, len(found))
        self.assertEqual({'why'}, {event.detail for event in found})

    def test_numbers_behind_the_health_are_no_news(self):
        _, grown = self.settle(lambda rows: rows.change(
            rows.devices[0], errors='{"aer": 1}', health_reason='1 error'))
        self.assertEqual(0, grown)
        self.assertEqual('{"aer": 1}', self.rows().devices[0].errors)
        _, grown = self.settle(lambda rows: rows.change(
            rows.devices[0], health='degraded'))
        self.assertEqual(1, grown)

    def test_later_sample_of_the_same_driver_is_no_news(self):
        def report(sample, available):
            return self.settle(lambda rows: rows.change(
                rows.devices[0], driver_capacity=device_db.dump(
                    vgpu.DriverCapacity(
                        available={'A': available},
                        sampled_at=('start', sample)))))[1]
        self.assertEqual([1, 0, 1], [
            report(1, 2), report(2, 2), report(3, 1)])

    def test_whose_policy_a_group_has_is_no_news(self):
        def own(rows, **values):
            return rows.put_groups([
                dataclasses.replace(group, **values)
                for group in rows.bare_groups])
        _, grown = self.settle(lambda rows: own(rows, own_policy=True))
        self.assertEqual(0, grown)
        self.assertTrue(self.rows().groups[0].own_policy)
        _, grown = self.settle(
            lambda rows: own(rows, allocation_policy='breadth_first'))
        self.assertEqual(1, grown)

    def test_usage_begins_and_ends_with_the_assignment(self):
        self.claim(1)

        def activate(rows):
            [row] = rows.assignments
            return rows.apply(row.device, _E.ACTIVATE).put_assignments(
                dataclasses.replace(row, lease_expires_at=None))
        usages = []
        for rule in (activate, lambda rows: rows.apply(
                rows.assignments[0].device, _E.RELEASE,
                clean_token='t').end([rows.assignments[0].uuid])):
            self.settle(rule)
            with self.db.reader() as session:
                usages.append([
                    ended is None for (ended,) in session.execute(
                        sa.text('SELECT ended_at FROM usages'))])
        self.assertEqual([[True], [False]], usages)

    def test_health_of_an_assigned_gpu_is_no_news_either(self):
        self.claim(8)
        _, grown = self.settle(lambda rows: rows.change(
            rows.devices[0], errors='{"aer": 1}'))
        self.assertEqual(0, grown)

    def test_lost_allocation_of_an_assignment_is_news(self):
        self.claim(1)
        inventory, grown = self.settle(lambda rows: rows.put_assignments(*(
            dataclasses.replace(row, allocated=False)
            for row in rows.assignments)))
        self.assertEqual(((8, 1), 1), (self.offered(inventory), grown))

    def test_events_of_all_devices_are_one_statement(self):
        def rule(rows):
            for device in rows.devices:
                rows = rows.note('distrust', [device], device.address)
            return rows
        with self.statements() as found:
            self.settle(rule)
        self.assertEqual(1, len([
            text for text in found if text.startswith('INSERT')]))
