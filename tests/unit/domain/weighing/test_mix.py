# SPDX-License-Identifier: Apache-2.0
"""Tests of mixes of requests."""

from __future__ import annotations

from oslotest import base

from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host

SMALL = test_host.request()
LARGE = test_host.request(gpus=8)
NONE = test_host.request(gpus=0, units=0)
OTHER = NONE._replace(milli_vcpus=1)


class MixTest(base.BaseTestCase):

    def test_shares_are_of_one_the_commonest_first(self) -> None:
        mix = weighing.Mix.count({LARGE: 1, SMALL: 3})
        self.assertEqual([(SMALL, .75), (LARGE, .25)],
                         list(mix.shares.items()))
        self.assertEqual(.75 * 1000 + .25 * 8000, mix.mean_units)

    def test_order_does_not_depend_on_the_order_of_counting(self) -> None:
        self.assertEqual(
            list(weighing.Mix.count({LARGE: 1, SMALL: 1}).shares),
            list(weighing.Mix.count({SMALL: 1, LARGE: 1}).shares))

    def test_request_for_linked_gpus_counts_like_any_other(self) -> None:
        linked = LARGE._replace(is_linked=True)
        self.assertEqual({SMALL: .5, LARGE: .5}, weighing.Mix.count(
            {SMALL: 2, LARGE: 1, linked: 1}).shares)
        self.assertEqual({LARGE: 1.0}, weighing.Mix.learnt(
            {LARGE: 1}, {linked}).shares)

    def test_learnt_mix_has_flavors_that_did_not_arrive_yet(self) -> None:
        few = weighing.Mix.learnt({SMALL: 50}, {SMALL, LARGE})
        self.assertEqual({SMALL: 2 / 3, LARGE: 1 / 3}, few.shares)
        many = weighing.Mix.learnt({SMALL: 4900.0}, {SMALL, LARGE})
        self.assertEqual({SMALL: .99, LARGE: .01}, many.shares)

    def test_learnt_mix_of_nothing_has_equal_shares_of_flavors(self) -> None:
        self.assertEqual({SMALL: .5, LARGE: .5}, weighing.Mix.learnt(
            {}, {SMALL, LARGE}).shares)
        self.assertEqual({}, weighing.Mix.learnt({}, ()).shares)

    def test_requests_without_gpus_are_at_most_half_of_a_learnt_mix(
            self) -> None:
        for number, share in ((25, .2), (100, .5), (1e6, .5)):
            mix = weighing.Mix.learnt({
                SMALL: 60, LARGE: 40, NONE: number * .75,
                OTHER: number * .25}, ())
            self.assertAlmostEqual(share, mix.shares[NONE] + mix.shares[OTHER])
            self.assertAlmostEqual(3, mix.shares[NONE] / mix.shares[OTHER])
            self.assertAlmostEqual(1.5, mix.shares[SMALL] / mix.shares[LARGE])
        # Flavors, too, and nothing else if nothing has GPUs.
        self.assertAlmostEqual(.5, weighing.Mix.learnt(
            {}, {SMALL, NONE, OTHER}).shares[SMALL])
        self.assertEqual({NONE: 1.0}, weighing.Mix.learnt(
            {NONE: 9}, ()).shares)

    def test_learnt_mix_has_what_is_no_flavor(self) -> None:
        self.assertEqual({SMALL: .5, LARGE: .5}, weighing.Mix.learnt(
            {SMALL: 100}, {LARGE}).shares)

    def test_sequences_are_the_same_each_time(self) -> None:
        mix = weighing.Mix.count({LARGE: 1, SMALL: 3})
        drawn = mix.draw(sequences=2, length=50)
        self.assertEqual(drawn, mix.draw(sequences=2, length=50))
        self.assertEqual([50, 50], list(map(len, drawn)))
        self.assertEqual({SMALL, LARGE}, set(drawn[0]))

    def test_sequences_have_each_request_as_often_as_the_mix(self) -> None:
        rare = test_host.request(gpus=4)
        mix = weighing.Mix.count({LARGE: 20, SMALL: 75, rare: 5})
        drawn = mix.draw(sequences=16, length=80)
        for sequence in drawn:
            self.assertEqual([16, 60, 4], [
                sequence.count(request) for request in (LARGE, SMALL, rare)])
        self.assertEqual(16, len(set(map(tuple, drawn))))

    def test_request_that_no_sequence_must_have_is_in_some(self) -> None:
        drawn = weighing.Mix.count({LARGE: 1, SMALL: 399}).draw(
            sequences=16, length=80)
        self.assertEqual(3, sum(map(tuple, drawn), ()).count(LARGE))

    def test_empty_mix_has_no_sequences(self) -> None:
        self.assertEqual([], weighing.Mix.count({}).draw(
            sequences=2, length=5))


class VersionTest(base.BaseTestCase):

    def test_few_requests_have_no_version(self) -> None:
        self.assertEqual([0, 0, 1],
                         list(map(weighing.mix_version, (0, 49, 50))))

    def test_version_never_falls_and_rises_by_steps(self) -> None:
        versions = [weighing.mix_version(number)
                    for number in range(50, 15_000)]
        self.assertEqual(sorted(versions), versions)
        self.assertEqual(
            set(range(1, versions[-1] + 1)), set(versions))

    def test_twice_as_many_requests_are_a_version(self) -> None:
        self.assertEqual([1, 2, 2, 3, 8], list(map(
            weighing.mix_version, (99, 100, 199, 200, 6400))))

    def test_each_thousand_of_many_requests_is_a_version(self) -> None:
        first = weighing.mix_version(10_000)
        self.assertEqual([first, first + 1, first + 9], [
            weighing.mix_version(number)
            for number in (10_999, 11_000, 19_000)])
