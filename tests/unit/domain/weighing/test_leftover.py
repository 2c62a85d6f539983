# SPDX-License-Identifier: Apache-2.0
"""Tests of what random requests leave over."""

from __future__ import annotations

from oslotest import base

from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host


def of(host, *requests):
    return weighing.Leftover(weighing.Mix.count(
        dict.fromkeys(requests, 1))).of(host)


class LeftoverTest(base.BaseTestCase):

    def test_requests_that_fit_leave_nothing(self) -> None:
        self.assertEqual(0, of(test_host.host(), test_host.request()))

    def test_gpus_without_vcpus_are_left(self) -> None:
        self.assertEqual(1, of(test_host.host(vcpus=4), test_host.request()))

    def test_part_of_a_gpu_that_no_request_can_use_is_left(self) -> None:
        self.assertEqual(.3, of(test_host.host(free=(300, 1000)),
                                test_host.request()))

    def test_share_takes_the_fullest_gpu(self) -> None:
        # 400 of 500 leaves 100; two of 1000 leave 200.
        self.assertAlmostEqual(.3, of(
            test_host.host(free=(500, 1000)), test_host.request(units=400)))

    def test_other_variant_is_left(self) -> None:
        self.assertEqual(2, of(test_host.host(), test_host.request(
            variants={'H100'})))

    def test_vcpus_that_go_to_requests_without_gpu_leave_gpus(self) -> None:
        self.assertLess(0, of(test_host.host(vcpus=8), test_host.request(),
                              test_host.request(gpus=0, units=0)))

    def test_without_a_mix_everything_is_left(self) -> None:
        self.assertEqual(2, of(test_host.host()))
