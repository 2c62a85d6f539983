# SPDX-License-Identifier: Apache-2.0
"""Tests of the condition by which a page begins after a row."""

import itertools

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import tables

TABLE = sa.Table('places', sa.MetaData(), *(
    sa.Column(name, sa.Integer) for name in 'abc'))
ROWS = sorted(itertools.product(range(3), repeat=3))


class AfterTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        engine = sa.create_engine('sqlite://')
        self.addCleanup(engine.dispose)
        self.connection = engine.connect()
        self.addCleanup(self.connection.close)
        TABLE.create(self.connection)
        self.connection.execute(TABLE.insert(), [
            dict(zip('abc', row, strict=True)) for row in reversed(ROWS)])

    def after(self, row, columns):
        return [tuple(found) for found in self.connection.execute(
            sa.select(*columns).distinct().order_by(*columns)
            .where(tables.page_after(columns, row)))]

    def test_rows_after_a_row_are_all_greater_ones(self):
        for number in (1, 2, 3):
            columns = list(TABLE.c)[:number]
            rows = sorted({row[:number] for row in ROWS})
            for place, row in enumerate(rows):
                self.assertEqual(
                    rows[place + 1:], self.after(row, columns), row)
