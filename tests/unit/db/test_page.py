#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of the condition by which a page begins after a row."""

import itertools

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import page

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
            .where(page.after(columns, row)))]

    def test_rows_after_a_row_are_all_greater_ones(self):
        for number in (1, 2, 3):
            columns = list(TABLE.c)[:number]
            rows = sorted({row[:number] for row in ROWS})
            for place, row in enumerate(rows):
                self.assertEqual(
                    rows[place + 1:], self.after(row, columns), row)
