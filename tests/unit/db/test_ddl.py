# SPDX-License-Identifier: Apache-2.0
"""Tests of the steps of migrations: done, already done, refused."""

import sqlalchemy as sa
from alembic import migration as alembic_migration
from alembic.operations import base as operations

from gpgpu_plugin import exception
from gpgpu_plugin.db import migration
from tests.unit.db import base


class StepsTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.run_step(migration.create_table, 'things', *self.columns())

    def columns(self, name='size', **values):
        return (sa.Column('id', sa.Integer(), nullable=False),
                sa.Column(name, sa.Integer(), **{'nullable': False, **values}),
                sa.PrimaryKeyConstraint('id', name='pk_things'))

    def run_step(self, step, *args, **kwargs):
        with self.db.engine.begin() as connection:
            context = alembic_migration.MigrationContext.configure(connection)
            with operations.Operations.context(context):
                step(*args, **kwargs)

    def refused(self, step, *args, **kwargs):
        exc = self.assertRaises(
            exception.Conflict, self.run_step, step, *args, **kwargs)
        self.assertIn('[database] connection', str(exc))
        return str(exc)

    def rows(self):
        with self.db.engine.connect() as connection:
            return connection.execute(
                sa.text('SELECT size FROM things')).scalars().all()

    def indexes(self):
        return {index['name']: index['column_names'] for index in sa.inspect(
            self.db.engine).get_indexes('things')}

    def test_table_made_again_keeps_its_rows(self):
        self.run_step(migration.insert_row, 'things', size=3)
        self.run_step(migration.create_table, 'things', *self.columns())
        self.assertEqual([3], self.rows())

    def test_table_of_another_shape_is_refused(self):
        for name, columns in (
                ('weight', self.columns('weight')),
                ('size', self.columns(nullable=True))):
            with self.subTest(columns=columns):
                self.assertRegex(
                    self.refused(migration.create_table, 'things', *columns),
                    f'table things: .*{name}')

    def test_table_with_a_later_index_is_the_same(self):
        self.run_step(migration.create_index, 'ix_size', 'things', ['size'])
        self.run_step(migration.create_table, 'things', *self.columns())

    def test_other_tables_do_not_matter(self):
        # The database has all tables of the newest schema.
        self.run_step(migration.create_table, 'others',
                      sa.Column('id', sa.Integer(), nullable=False))
        self.assertTrue(sa.inspect(self.db.engine).has_table('others'))

    def test_index_made_again_stays(self):
        for _ in range(2):
            self.run_step(migration.create_index, 'ix_size', 'things',
                          ['size'])
        self.assertEqual({'ix_size': ['size']}, self.indexes())

    def test_row_inserted_again_is_there_once(self):
        for size in (3, 3, 4):
            self.run_step(migration.insert_row, 'things', size=size)
        self.assertEqual([3, 4], self.rows())
