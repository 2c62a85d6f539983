# SPDX-License-Identifier: Apache-2.0
"""Tests of fragmentation gradient descent."""

from __future__ import annotations

from oslotest import base

from bench.simulation import fragmentation
from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host


def policy(counts):
    made = fragmentation.FragmentationGradientDescent()
    made.start(weighing.Mix.count(counts), ())
    return made


class FragmentsTest(base.BaseTestCase):

    def test_part_that_a_request_cannot_use_is_a_fragment(self) -> None:
        made = policy({test_host.request(): 1})
        self.assertEqual(300, made.fragments(
            test_host.host(free=[300, 1000])))

    def test_all_is_a_fragment_without_vcpus_or_for_another_variant(
            self) -> None:
        self.assertEqual(2000, policy({test_host.request(): 1}).fragments(
            test_host.host(vcpus=3)))
        self.assertEqual(2000, policy(
            {test_host.request(variants={'H100'}): 1}).fragments(
                test_host.host()))

    def test_requests_are_weighed_by_their_shares(self) -> None:
        made = policy({test_host.request(): 3, test_host.request(
            gpus=2): 1})
        self.assertAlmostEqual(250, made.fragments(
            test_host.host(free=[0, 1000])))

    def test_rare_requests_are_ignored(self) -> None:
        made = policy({test_host.request(): 96, test_host.request(
            gpus=8): 4})
        self.assertEqual(0, made.fragments(test_host.host()))

    def test_gain_is_a_whole_number_and_fifty_without_change(self) -> None:
        made = policy({test_host.request(): 1})
        self.assertEqual([50], [choice.gain for choice in made.choices(
            test_host.host(), test_host.request())])
        # 600 more are a fragment: 100 / (1 + e^0.6) = 35.4.
        self.assertEqual([35], [choice.gain for choice in made.choices(
            test_host.host(), test_host.request(units=400))])
