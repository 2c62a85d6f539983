# SPDX-License-Identifier: Apache-2.0
"""Tests of variant rows: round trip, and search by name."""

from gpgpu_plugin import exception
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import variant as rules
from tests.unit.db import base


class RowTest(base.DatabaseTestCase):

    VALUE = rules.Variant(
        name='H100 80', vendor='10de', device='2330',
        subsystem_vendor='10de', subsystem='16c1', revision='a1',
        type='gpu', resource_class='CUSTOM_GPU_H100', mix_policy='any_mix',
        traits=('CUSTOM_B', 'CUSTOM_A'), unsupported_ok=True)

    def test_value_of_a_row_is_the_one_that_was_written(self):
        self.add(variant_db.fill(models.Variant(), self.VALUE))
        with self.db.reader() as session:
            row = variant_db.get(session, 'H100 80')
            self.assertEqual(self.VALUE, variant_db.to_domain(row))
            self.assertEqual('H100_80', row.normalized_name)

    def test_fill_replaces_every_field(self):
        row = variant_db.fill(models.Variant(), self.VALUE)
        other = rules.check(rules.Variant(
            name='A', vendor='1002', device='740f'))
        self.assertEqual(other, variant_db.to_domain(
            variant_db.fill(row, other)))

    def test_new_variant_enables_whole_gpus_alone(self):
        self.add(base.variant('A'))
        with self.db.reader() as session:
            self.assertEqual({'passthrough'}, variant_db.enabled_types(
                variant_db.get(session, 'A')))


class FindTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.add(base.variant('B'), base.variant('A'))

    def test_variants_are_listed_by_name(self):
        with self.db.reader() as session:
            self.assertEqual(['A', 'B'], [
                row.name for row in variant_db.all(session)])

    def test_unknown_name_is_not_found(self):
        with self.db.reader() as session:
            exc = self.assertRaises(
                exception.NotFound, variant_db.get, session, 'C')
        self.assertEqual({'kind': 'variant', 'name': 'C'}, exc.kwargs)

    def test_resource_class_is_found_wherever_it_is_used(self):
        with self.db.reader() as session:
            self.assertTrue(variant_db.has_class(session, 'CUSTOM_GPU_B'))
            self.assertFalse(variant_db.has_class(session, 'CUSTOM_GPU_C'))
