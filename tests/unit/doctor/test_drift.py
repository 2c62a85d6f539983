# SPDX-License-Identifier: Apache-2.0
"""Tests of the catalogue of drifts, and of which repairs are executed."""

from oslotest import base

from gpgpu_plugin.doctor import drift

_Repair = drift.Repair


class KindsTest(base.BaseTestCase):

    def test_names_are_unique_and_sentences_end(self):
        self.assertEqual(len(drift.KINDS), len(drift.BY_NAME))
        for kind in drift.KINDS:
            with self.subTest(kind=kind.name):
                self.assertRegex(kind.name, r'\A[a-z_]+\Z')
                self.assertTrue(kind.meaning.endswith('.'))
                # A command joins it with others.
                self.assertFalse(kind.advice.endswith('.'))

    def test_what_is_unknown_is_never_repaired(self):
        unknown = [kind for kind in drift.KINDS
                   if kind.severity is drift.DriftSeverity.UNKNOWN]
        self.assertEqual(
            {'host_not_examined', 'host_not_reported',
             'conductor_not_examined', 'placement_not_examined',
             'nova_not_examined'},
            {kind.name for kind in unknown})
        self.assertEqual([], [kind for kind in unknown if kind.repair])

    def test_each_repair_has_one_executor_and_a_drift(self):
        executors = (*drift.OF_HOST, *drift.OF_CONDUCTOR,
                     drift.Repair.PROVIDER)
        self.assertEqual(sorted(drift.Repair), sorted(executors))
        self.assertEqual(set(drift.Repair), {
            kind.repair for kind in drift.KINDS} - {None})


class DriftTest(base.BaseTestCase):

    def test_drift_has_the_repair_of_its_kind(self):
        found = drift.of('instance_deleted', 'h1', 'a1', nova='gone')
        self.assertIs(drift.Repair.COMPARE, found.repair)
        self.assertEqual(drift.BY_NAME['instance_deleted'].advice,
                         found.reason)
        self.assertIs(drift.DriftSeverity.WARNING, found.severity)

    def test_refusal_takes_the_place_of_the_repair(self):
        found = drift.of('instance_deleted', 'h1', 'a1', refused='it runs')
        self.assertEqual((None, 'it runs'), (found.repair, found.reason))

    def test_what_authorities_say_does_not_identify_a_drift(self):
        self.assertEqual(
            drift.of('instance_deleted', 'h1', 'a1', nova='one').key,
            drift.of('instance_deleted', 'h1', 'a1', nova='other').key)


class AllowedTest(base.BaseTestCase):

    def test_host_with_a_device_of_two_runs_no_iteration(self):
        found = drift.allowed([
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
            found = drift.allowed([
                drift.of('usage_without_assignment', 'h1', 'a1'),
                drift.of(name, 'h1', 'x', refused=refused),
                drift.of('usage_without_assignment', 'h2', 'a2')])
            self.assertEqual([None, None, _Repair.USAGE],
                             [one.repair for one in found], name)
            self.assertIn('may run', found[0].reason)

    def test_usage_ends_if_the_book_alone_has_its_assignment(self):
        found = drift.allowed([
            drift.of('usage_without_assignment', 'h1', 'a1'),
            drift.of('book_assignment_ended', 'h1', 'a1')])
        self.assertEqual([_Repair.USAGE, _Repair.COMPARE],
                         [one.repair for one in found])


class HostsToRepairTest(base.BaseTestCase):

    def test_hosts_with_the_same_repairs_are_one_batch(self):
        self.assertEqual({
            (_Repair.COMPARE, _Repair.OFFER): ['h1', 'h2'],
            (_Repair.COMPARE,): ['h3']}, drift.hosts_to_repair([
                drift.of('trait_missing', 'h2', 'p'),
                drift.of('instance_deleted', 'h3', 'a'),
                drift.of('instance_deleted', 'h2', 'a'),
                drift.of('instance_deleted', 'h1', 'a'),
                drift.of('trait_missing', 'h1', 'p')]))

    def test_what_hosts_do_not_repair_is_left_out(self):
        self.assertEqual({}, drift.hosts_to_repair([
            drift.of('capacity_wrong', 'h1', 'T4'),
            drift.of('mdev_unassigned', 'h1', 'm'),
            drift.of('provider_of_unknown_host', None, 'p')]))
