# SPDX-License-Identifier: Apache-2.0
"""Tests of --limit and --marker."""

import argparse
import contextlib
import io

from oslotest import base

from gpgpu_plugin.cmd import listing


class PagingTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.parser = argparse.ArgumentParser()
        listing.add_page_arguments(self.parser, 'its UUID')

    def test_default_is_everything(self):
        parsed = self.parser.parse_args([])
        self.assertEqual((None, None), (parsed.limit, parsed.marker))

    def test_limit_and_marker(self):
        parsed = self.parser.parse_args(['--limit', '20', '--marker', 'a'])
        self.assertEqual((20, 'a'), (parsed.limit, parsed.marker))

    def test_limit_that_is_no_number_above_0_is_refused(self):
        for text in ('0', '-1', 'many', ''):
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertRaises(SystemExit, self.parser.parse_args,
                                  [f'--limit={text}'])
            self.assertIn(f'{text!r} is not a number above 0',
                          errors.getvalue())

    def test_help_names_what_the_marker_is(self):
        self.assertIn('named by its UUID', self.parser.format_help())
