# SPDX-License-Identifier: Apache-2.0
"""Tests that Placement offers exactly what can be claimed."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain import naming


class DesiredTest(base.BaseTestCase):

    @settings(max_examples=500, derandomize=True, deadline=None)
    @given(st.integers(0, 16), st.integers(0, 16), st.integers(0, 16),
           st.integers(0, 16))
    def test_placement_offers_exactly_what_is_available(
            self, available, allocated, unallocated, out_of_use):
        total = available + allocated + unallocated + out_of_use
        got = naming.desired_inventory(
            max_instances=total, available=available, allocated=allocated)
        if total == 0:
            self.assertIsNone(got)
            return
        self.assertEqual(available, got.total - got.reserved - allocated)
        self.assertEqual(total, got.total)
        self.assertTrue(0 <= got.reserved <= got.total)
        self.assertEqual(got.total, got.max_unit)

    def test_total_is_never_below_a_live_allocation(self):
        got = naming.desired_inventory(
            max_instances=0, available=0, allocated=3, largest_allocation=4)
        self.assertEqual((4, 4), (got.total, got.max_unit))
