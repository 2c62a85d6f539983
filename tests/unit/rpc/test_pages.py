# SPDX-License-Identifier: Apache-2.0
"""Tests of lists that are fetched in pages."""

import dataclasses

from oslotest import base

from gpgpu_plugin.rpc import pages


@dataclasses.dataclass(frozen=True)
class Row:
    marker: str


ROWS = tuple(Row(f'{number:04}') for number in range(2500))


class CollectTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.calls = []

    def fetch(self, limit, marker):
        self.calls.append((limit, marker))
        return tuple(row for row in ROWS
                     if marker is None or row.marker > marker)[:limit]

    def test_all_pages_are_fetched(self):
        self.assertEqual(ROWS, pages.collect(self.fetch, pages.ALL, None))
        self.assertEqual(
            [(1000, None), (1000, '0999'), (1000, '1999')], self.calls)

    def test_list_that_fills_its_last_page_ends_with_an_empty_one(self):
        self.assertEqual(
            ROWS[500:], pages.collect(self.fetch, pages.ALL, '0499'))
        self.assertEqual((1000, '2499'), self.calls[-1])

    def test_no_more_than_the_limit_is_fetched(self):
        for limit, calls in ((5, [(5, None)]),
                             (1200, [(1000, None), (200, '0999')])):
            self.calls.clear()
            self.assertEqual(
                ROWS[:limit], pages.collect(self.fetch, limit, None))
            self.assertEqual(calls, self.calls)

    def test_rows_after_the_marker(self):
        self.assertEqual(ROWS[11:13], pages.collect(self.fetch, 2, '0010'))

    def test_page_may_be_smaller(self):
        self.assertEqual(ROWS[:250], pages.collect(
            self.fetch, 250, None, 100))
        self.assertEqual([(100, None), (100, '0099'), (50, '0199')],
                         self.calls)
