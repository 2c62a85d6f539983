# SPDX-License-Identifier: Apache-2.0
"""Tests of variant rows: round trip, and search by name."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import variant as rules
from tests.unit.db import base


class RowTest(base.DatabaseTestCase):

    VALUE = rules.Variant(
        name='H100 80', vendor='10de', device='2330',
        subsystem_vendor='10de', subsystem='16c1', revision='a1',
        type='gpu', resource_class='CUSTOM_GPU_H100', mix_policy='any_mix',
        traits=('CUSTOM_B', 'CUSTOM_A'), unsupported_ok=True)

    def read(self, name):
        with self.db.reader() as session:
            return variant_db.get(session, name)

    def test_value_of_a_row_is_the_one_that_was_written(self):
        with self.db.writer() as session:
            variant_db.insert(session, self.VALUE, 3)
        row = self.read('H100 80')
        self.assertEqual((self.VALUE, 3, False),
                         (row.value, row.version, row.deleting))
        with self.db.reader() as session:
            self.assertEqual('H100_80', session.scalar(
                sa.select(tables.VARIANTS.c.normalized_name)))

    def test_every_field_is_replaced(self):
        with self.db.writer() as session:
            variant_db.insert(session, self.VALUE, 3)
        row = variant_db.VariantRow(
            id=self.read('H100 80').id, version=4, deleting=True,
            enabled_types=frozenset({'A', 'B'}), value=rules.check(
                rules.Variant(name='A', vendor='1002', device='740f')))
        with self.db.writer() as session:
            variant_db.store(session, row)
        self.assertEqual(row, self.read('A'))

    def test_new_variant_enables_whole_gpus_alone(self):
        self.add(base.variant('A'))
        self.assertEqual({'passthrough'}, self.read('A').enabled_types)


class FindTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.add(base.variant('B'), base.variant('A'))

    def test_variants_are_listed_by_name(self):
        with self.db.reader() as session:
            self.assertEqual(['A', 'B'], [
                row.value.name for row in variant_db.all(session)])

    def test_unknown_name_is_not_found(self):
        with self.db.reader() as session:
            exc = self.assertRaises(
                exception.NotFound, variant_db.get, session, 'C')
        self.assertEqual({'kind': 'variant', 'name': 'C'}, exc.kwargs)

    def test_resource_classes_are_listed_by_the_names_of_variants(self):
        with self.db.reader() as session:
            self.assertEqual(['CUSTOM_GPU_A', 'CUSTOM_GPU_B'],
                             variant_db.classes(session))
