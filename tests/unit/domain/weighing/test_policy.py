# SPDX-License-Identifier: Apache-2.0
"""Tests of what all policies keep to, and of the one that spreads."""

from __future__ import annotations

from oslotest import base

from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host


class SpreadTest(base.BaseTestCase):

    def gain(self, host) -> float:
        [choice] = weighing.Spread().choices(host, test_host.request())
        return choice.gain

    def test_host_with_the_most_free_gpus_is_better(self) -> None:
        one, two = (test_host.host(64, 256, [1000] * free) for free in (1, 2))
        self.assertGreater(self.gain(two), self.gain(one))

    def test_free_vcpus_decide_among_equal_hosts(self) -> None:
        few, many = (test_host.host(vcpus, 256, [1000]) for vcpus in (8, 64))
        self.assertGreater(self.gain(many), self.gain(few))

    def test_request_that_does_not_fit_has_no_choice(self) -> None:
        self.assertEqual([], weighing.Spread().choices(
            test_host.host(64, 256, [1000]), test_host.request(gpus=2)))
