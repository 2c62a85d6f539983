# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules in doc/source/contributor/database.rst."""

import pathlib
import re

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import migration


def tables():
    return migration.METADATA.tables.values()


def columns():
    return [column for table in tables() for column in table.columns]


def reasons():
    """Return the text below each table, or that of its module."""
    found = {}
    for path in pathlib.Path(migration.__file__).parent.glob('*.py'):
        text = path.read_text()
        for name, below in re.findall(
                r"^\w+ = sa\.Table\(\s*'(\w+)'.*?\)\n(?:\"{3}(.*?)\"{3})?",
                text, re.M | re.S):
            found[name] = below or text.split('"""')[1]
    return found


class SchemaTest(base.BaseTestCase):

    def test_column_says_in_the_database_what_it_means(self):
        for column in columns():
            if column.name != 'id':
                self.assertRegex(
                    column.comment or '', r'^[\w"].*\.$', str(column))

    def test_docstring_has_a_reason_for_each_kind_of_key_and_index(self):
        self.assertEqual(set(migration.METADATA.tables), set(reasons()))
        for name, text in reasons().items():
            table = migration.METADATA.tables[name]
            if table.indexes:
                self.assertRegex(text, r'\bIndex', name)
            if any(isinstance(constraint, sa.UniqueConstraint)
                   for constraint in table.constraints):
                self.assertRegex(text, r'\bUnique key', name)

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
