# SPDX-License-Identifier: Apache-2.0
"""Usage of a server that is resized and deleted, and of deleted hosts."""

from __future__ import annotations

import csv
import datetime
import io
import typing

from tests.functional import test_moves


class UsageTest(test_moves.MovesCase):
    """A server with two L40S that gets four on another host."""

    def used(self, *filters: str) -> list[dict[str, typing.Any]]:
        return list(self.listing(
            'usage', 'list', '--instance', self.server['id'], *filters))

    def running(self) -> list[str]:
        return [row['host'] for row in self.used()
                if row['ended_at'] is None]

    def seconds(self, *period: str) -> int:
        """Return the sum for the server's project in a period."""
        rows = self.listing('usage', 'summary', '--by', 'project',
                            '--project', self.api.project_id, *period)
        return sum(row['seconds'] for row in rows)

    def test_usage_outlives_server_and_hosts(self) -> None:
        self.assertEqual(['gpu1'] * 2, self.running())
        first = self.used('--long')[0]
        self.assertEqual(
            (self.api.project_id, self.server['flavor']['original_name'],
             'L40S', 'passthrough'),
            (first['project_id'], first['flavor'], first['variant'],
             first['vgpu_type']))
        self.resize(self.flavor(L40S=4))
        self.both(4)
        self.assertEqual(['gpu1'] * 2, self.running())
        self.decide('confirmResize')
        self.wait_for(lambda: self.running() == ['gpu2'] * 4, 'usage moved')
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)
        rows = self.used('--long')
        self.assertEqual(['gpu1'] * 2 + ['gpu2'] * 4,
                         [row['host'] for row in rows])
        [left] = {row['ended_at'] for row in rows[:2]}
        self.assertEqual({left}, {row['began_at'] for row in rows[2:]})
        total = self.check_sums(rows, left)
        for host in ('gpu1', 'gpu2'):
            self.manage('host', 'delete', host, '--force')
        self.assertEqual(rows, self.used('--long'))
        self.assertEqual(total, self.seconds())
        exported = csv.DictReader(io.StringIO(self.manage('usage', 'export')))
        self.assertEqual({row['uuid'] for row in rows},
                         {row['uuid'] for row in exported})

    def check_sums(self, rows: list[dict[str, typing.Any]],
                   border: str) -> int:
        """Check sums in SQL against the rows; return that of all time."""
        expected = sum(
            (_time(row['ended_at']) - _time(row['began_at'])).seconds
            for row in rows)
        total = self.seconds()
        self.assertEqual(expected, total)
        self.assertEqual(expected, sum(row['seconds'] for row in rows))
        self.assertEqual(total, self.seconds('--to', border)
                         + self.seconds('--from', border))
        return total


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
