# SPDX-License-Identifier: Apache-2.0
"""Tests of the rule by which hosts with GPUs are isolated."""

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain import isolation


def isolated(free_vcpus, free_gpus, before=False, threshold=16.0):
    return isolation.FreeResources(
        free_gpus=free_gpus, free_vcpus=free_vcpus).is_isolated(
            threshold, before=before)


class IsIsolatedTest(base.BaseTestCase):

    def test_without_a_threshold_every_host_is_isolated(self):
        for free in ((128, 1), (128, 0), (None, None)):
            self.assertTrue(isolated(*free, threshold=None))

    def test_host_with_too_few_vcpus_for_its_free_gpus_is_isolated(self):
        self.assertEqual(
            [True, False], [isolated(vcpus, 4) for vcpus in (63, 64)])

    def test_isolated_host_needs_enough_for_one_gpu_more(self):
        self.assertEqual([True, True, False], [
            isolated(vcpus, 4, before=True) for vcpus in (64, 79, 80)])

    def test_host_without_a_free_gpu_has_nothing_to_keep(self):
        for before in (False, True):
            self.assertFalse(isolated(0, 0, before))
            # Then nobody asked Placement.
            self.assertFalse(isolated(None, 0, before))

    def test_what_is_unknown_is_not_free(self):
        for free in ((None, 4), (128, None), (None, None)):
            self.assertTrue(isolated(*free))

    @given(st.integers(0, 400), st.integers(1, 8), st.integers(0, 15),
           st.booleans())
    def test_instance_smaller_than_a_share_moves_a_host_once_at_most(
            self, vcpus, gpus, instance, before):
        first = isolated(vcpus, gpus, before)
        changes = 0
        # It comes and goes again and again.
        for taken in (instance, 0) * 3:
            then = isolated(vcpus - taken, gpus, first)
            changes += then is not first
            first = then
        self.assertLessEqual(changes, 1)


class MovesTest(base.BaseTestCase):

    def test_difference_is_moved_in_the_order_of_names(self):
        self.assertEqual(
            isolation.Moves(enter=('h1', 'h4'), leave=('h3', 'h5')),
            isolation.moves(['h5', 'h2', 'h3'], ['h4', 'h2', 'h1']))

    def test_members_that_are_right_stay(self):
        self.assertEqual(isolation.Moves(enter=(), leave=()),
                         isolation.moves(['h1'], iter(['h1'])))
