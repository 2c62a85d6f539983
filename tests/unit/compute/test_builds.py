# SPDX-License-Identifier: Apache-2.0
"""Tests of builds under way, and of those begun during a comparison."""

from oslotest import base

from gpgpu_plugin.compute import host


class BuildsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.left_out = []
        self.builds = host.Builds(self.left_out.append)

    def test_build_is_current_until_it_is_over(self):
        with self.builds.running('i1'):
            self.assertEqual({'i1'}, self.builds.current())
        self.assertEqual(set(), self.builds.current())

    def test_build_that_fails_is_over(self):
        try:
            with self.builds.running('i1'):
                raise RuntimeError('no image')
        except RuntimeError:
            pass
        self.assertEqual(set(), self.builds.current())

    def test_build_that_was_left_out_is_reported_when_it_is_over(self):
        with self.builds.running('i1'):
            self.assertEqual({'i1'}, self.builds.leave_out())
            self.assertEqual([], self.left_out)
        self.assertEqual(['i1'], self.left_out)

    def test_build_without_a_comparison_is_not_reported(self):
        with self.builds.running('i1'):
            self.builds.current()
        self.assertEqual([], self.left_out)

    def test_build_during_a_comparison_counts_after_its_end(self):
        with self.builds.running('i0'):
            pass
        self.builds.begin_comparison()
        with self.builds.running('i1'):
            pass
        with self.builds.running('i2'):
            self.assertEqual({'i1', 'i2'}, self.builds.since_begin())
        self.builds.begin_comparison()
        self.assertEqual(set(), self.builds.since_begin())
