# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules in doc/source/contributor/database.rst."""

import sqlalchemy as sa
from oslotest import base
from sqlalchemy.dialects import mysql

from gpgpu_plugin.db import models

# Columns that say what the row is about: no default could be true.
IDENTITY = {
    'hosts.node', 'hosts.session_began_at', 'hosts.plugin_version',
    'hosts.heard_at', 'variants.vendor', 'variants.device',
    'variants.resource_class', 'host_gpu_groups.provider_uuid',
    'devices.address', 'devices.vendor_id', 'devices.product_id',
    'assignments.vgpu_type', 'assignments.resource_class',
    'assignments.project_id', 'assignments.user_id', 'assignments.flavor',
    'usages.instance_uuid', 'usages.role', 'usages.host', 'usages.vgpu_type',
    'usages.resource_class', 'usages.project_id', 'usages.user_id',
    'usages.flavor', 'usages.device_uuid', 'usages.address', 'events.kind',
    'events.actor', 'cleanings.content',
    'cleanings.hash', 'host_answers.host', 'clouds.uuid'}


def mappers():
    return models.Base.registry.mappers


def tables():
    return models.Base.metadata.tables.values()


def columns():
    return [column for table in tables() for column in table.columns]


def is_key(column):
    """Return whether a column is part of a key."""
    return any(
        column in constraint.columns.values()
        for constraint in column.table.constraints
        if isinstance(constraint, sa.PrimaryKeyConstraint
                      | sa.UniqueConstraint | sa.ForeignKeyConstraint))


def plain(default):
    """Return a default's value, as all databases understand it."""
    value = default.arg
    if isinstance(value, sa.TextClause):
        return value.text.removeprefix("('").removesuffix("')")
    return str(int(value) if isinstance(value, bool) else value)


class ModelsTest(base.BaseTestCase):

    def test_columns_that_may_be_left_out_have_a_server_default(self):
        self.assertEqual(IDENTITY, {
            str(column) for column in columns()
            if not column.nullable and not is_key(column)
            and column.server_default is None})

    def test_server_default_is_the_default_of_the_model(self):
        both = [column for column in columns() if column.default]
        self.assertTrue(both)
        for column in both:
            self.assertEqual(plain(column.default),
                             plain(column.server_default), str(column))

    def test_default_of_text_is_an_expression_for_mysql(self):
        texts = [column for column in columns()
                 if isinstance(column.type, sa.Text)
                 and column.server_default]
        self.assertTrue(texts)
        for column in texts:
            self.assertRegex(
                str(sa.schema.CreateColumn(column).compile(
                    dialect=mysql.dialect())), r"TEXT .*DEFAULT \('.+'\)")

    def test_docstring_has_a_reason_for_each_column_and_index(self):
        for mapper in mappers():
            text = mapper.class_.__doc__
            for column in mapper.local_table.columns:
                if column.name != 'id':
                    self.assertIn(f'``{column.name}``', text, mapper)
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
