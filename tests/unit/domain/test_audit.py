# SPDX-License-Identifier: Apache-2.0
"""Tests of audit periods."""

import datetime

from hypothesis import given
from hypothesis import strategies
from oslotest import base

from gpgpu_plugin.domain import event

AT = datetime.datetime(2026, 12, 31, 23, 59, 59, 5)


class PeriodTest(base.BaseTestCase):

    def test_time_is_in_its_hour_day_and_month(self):
        for period, beginning in (
                ('hour', datetime.datetime(2026, 12, 31, 23)),
                ('day', datetime.datetime(2026, 12, 31)),
                ('month', datetime.datetime(2026, 12, 1))):
            period = event.AuditPeriod(period)
            self.assertEqual(beginning, event.period_beginning(period, AT))
            self.assertEqual(datetime.datetime(2027, 1, 1),
                             event.period_ending(period, AT))

    def test_february_ends_with_it(self):
        self.assertEqual(
            datetime.datetime(2028, 3, 1), event.period_ending(
                event.AuditPeriod.MONTH, datetime.datetime(2028, 2, 1)))

    @given(strategies.sampled_from(event.AuditPeriod),
           strategies.datetimes(datetime.datetime(2000, 1, 1),
                                datetime.datetime(2100, 1, 1)))
    def test_periods_have_neither_gap_nor_overlap(self, period, at):
        beginning = event.period_beginning(period, at)
        ending = event.period_ending(period, at)
        self.assertTrue(beginning <= at < ending)
        self.assertEqual(ending, event.period_beginning(period, ending))
        self.assertEqual(beginning, event.period_beginning(
            period, ending - datetime.timedelta(microseconds=1)))
