# SPDX-License-Identifier: Apache-2.0
"""Tests of dates in options."""

import argparse
import datetime

from oslotest import base

from gpgpu_plugin.cmd import listing


class DateTest(base.BaseTestCase):

    def test_date_is_in_utc_and_whole_seconds(self):
        for text, expected in (
                ('2026-10-31', (2026, 10, 31)),
                ('2026-10-31T12:00', (2026, 10, 31, 12)),
                ('2026-10-31T12:00:05.7', (2026, 10, 31, 12, 0, 5)),
                ('2026-10-31T12:00:00Z', (2026, 10, 31, 12)),
                ('2026-10-31T01:00+02:00', (2026, 10, 30, 23))):
            self.assertEqual(datetime.datetime(*expected), listing.date(text))

    def test_other_text_is_refused_with_an_example(self):
        for text in ('tomorrow', '31.10.2026', '1h', 'h ago', '1y ago',
                     '9' * 30 + 'd ago', '', '2026-02-30',
                     # In UTC they are in no year that a date can have.
                     '0001-01-01T00:00+14:00', '9999-12-31T23:59-01:00'):
            exc = self.assertRaises(
                argparse.ArgumentTypeError, listing.date, text)
            self.assertIn('such as 2026-10-31 or', str(exc))
            self.assertIn('6h ago', str(exc))

    def test_days_of_now_have_a_name(self):
        before = datetime.datetime.now(datetime.UTC).date()
        today, yesterday = listing.date('today'), listing.date('yesterday')
        after = datetime.datetime.now(datetime.UTC).date()
        self.assertIn(today.date(), (before, after))
        self.assertEqual(datetime.time(), today.time())
        # The clock may have passed midnight between the two calls.
        self.assertIn(today - yesterday, (
            datetime.timedelta(days=1), datetime.timedelta(0)))

    def test_time_before_now_is_counted_back(self):
        for text, kwargs in (('90m ago', {'minutes': 90}),
                             ('6h ago', {'hours': 6}),
                             ('30d ago', {'days': 30})):
            now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
            passed = listing.past_moment(
                text) + datetime.timedelta(**kwargs) - now
            self.assertLess(abs(passed), datetime.timedelta(minutes=1))

    def test_date_to_come_is_not_past(self):
        now = datetime.datetime.now(datetime.UTC)
        before = now - datetime.timedelta(minutes=1)
        self.assertEqual(before.replace(microsecond=0, tzinfo=None),
                         listing.past_moment(before.isoformat()))
        exc = self.assertRaises(
            argparse.ArgumentTypeError, listing.past_moment,
            (now + datetime.timedelta(hours=1)).isoformat())
        self.assertIn('is in the future', str(exc))
