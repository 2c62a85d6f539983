# SPDX-License-Identifier: Apache-2.0
"""Tests of which repairs are executed."""

from oslotest import base

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import repairs

_Repair = drift.Repair


class AllowedTest(base.BaseTestCase):

    def test_host_with_a_device_of_two_runs_no_iteration(self):
        found = repairs.allowed([
            drift.of('device_assigned_twice', 'h1', 'd1'),
            drift.of('instance_deleted', 'h1', 'a1'),
            drift.of('inventory_larger', 'h1', 'p1'),
            drift.of('instance_deleted', 'h2', 'a2')])
        self.assertEqual([None, None, None, _Repair.COMPARE],
                         [one.repair for one in found])
        self.assertIn('assigned twice', found[1].reason)


    def test_usage_of_a_guest_that_may_run_does_not_end(self):
        for name, refused in (
                ('book_assignment_ended', 'The guest may run'),
                ('guest_device_unassigned', None),
                ('host_not_examined', None)):
            found = repairs.allowed([
                drift.of('usage_without_assignment', 'h1', 'a1'),
                drift.of(name, 'h1', 'x', refused=refused),
                drift.of('usage_without_assignment', 'h2', 'a2')])
            self.assertEqual([None, None, _Repair.USAGE],
                             [one.repair for one in found], name)
            self.assertIn('may run', found[0].reason)

    def test_usage_ends_if_the_book_alone_has_its_assignment(self):
        found = repairs.allowed([
            drift.of('usage_without_assignment', 'h1', 'a1'),
            drift.of('book_assignment_ended', 'h1', 'a1')])
        self.assertEqual([_Repair.USAGE, _Repair.COMPARE],
                         [one.repair for one in found])


class ByHostsTest(base.BaseTestCase):

    def test_hosts_with_the_same_repairs_are_one_batch(self):
        self.assertEqual({
            (_Repair.COMPARE, _Repair.OFFER): ['h1', 'h2'],
            (_Repair.COMPARE,): ['h3']}, repairs.by_hosts([
                drift.of('trait_missing', 'h2', 'p'),
                drift.of('instance_deleted', 'h3', 'a'),
                drift.of('instance_deleted', 'h2', 'a'),
                drift.of('instance_deleted', 'h1', 'a'),
                drift.of('trait_missing', 'h1', 'p')]))

    def test_what_hosts_do_not_repair_is_left_out(self):
        self.assertEqual({}, repairs.by_hosts([
            drift.of('capacity_wrong', 'h1', 'T4'),
            drift.of('mdev_unassigned', 'h1', 'm'),
            drift.of('provider_of_unknown_host', None, 'p')]))
