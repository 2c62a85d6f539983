# SPDX-License-Identifier: Apache-2.0
"""Tests of the catalogue of drifts."""

from oslotest import base

from gpgpu_plugin.doctor import drift


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
                   if kind.severity is drift.Severity.UNKNOWN]
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
        self.assertIs(drift.Severity.WARNING, found.severity)

    def test_refusal_takes_the_place_of_the_repair(self):
        found = drift.of('instance_deleted', 'h1', 'a1', refused='it runs')
        self.assertEqual((None, 'it runs'), (found.repair, found.reason))

    def test_what_authorities_say_does_not_identify_a_drift(self):
        self.assertEqual(
            drift.of('instance_deleted', 'h1', 'a1', nova='one').key,
            drift.of('instance_deleted', 'h1', 'a1', nova='other').key)
