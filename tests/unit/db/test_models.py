# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules in doc/source/contributor/database.rst."""

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import models


def mappers():
    return models.Base.registry.mappers


def tables():
    return models.Base.metadata.tables.values()


def columns():
    return [column for table in tables() for column in table.columns]


class ModelsTest(base.BaseTestCase):

    def test_column_says_in_the_database_what_it_means(self):
        for column in columns():
            if column.name != 'id':
                self.assertRegex(
                    column.comment or '', r'^[\w"].*\.$', str(column))

    def test_docstring_has_a_reason_for_each_kind_of_key_and_index(self):
        for mapper in mappers():
            text = mapper.class_.__doc__
            if mapper.local_table.indexes:
                self.assertRegex(text, r'\bIndex', mapper)
            if any(isinstance(constraint, sa.UniqueConstraint)
                   for constraint in mapper.local_table.constraints):
                self.assertRegex(text, r'\bUnique key', mapper)

    def test_foreign_key_begins_an_index(self):
        for table in tables():
            first = {next(iter(indexed.columns)) for indexed in (
                table.primary_key, *table.indexes, *(
                    constraint for constraint in table.constraints
                    if isinstance(constraint, sa.UniqueConstraint)))}
            for key in table.foreign_keys:
                self.assertIn(key.parent, first)

    def test_constraints_are_named(self):
        for table in tables():
            for constraint in table.constraints:
                self.assertTrue(constraint.name, constraint)
