# SPDX-License-Identifier: Apache-2.0
"""Tests of policies by name, and of what all of them keep to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies
from oslotest import base

from bench.simulation import cloud as cloud_mod
from bench.simulation import policies
from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host

REQUESTS = strategies.one_of(
    strategies.builds(test_host.request, strategies.integers(0, 6),
                      strategies.just(4), strategies.integers(1, 3)),
    strategies.builds(test_host.request, strategies.integers(0, 6),
                      units=strategies.sampled_from([200, 500, 700])),
    strategies.builds(test_host.request, gpus=strategies.just(0),
                      units=strategies.just(0)),
    strategies.builds(test_host.request,
                      variants=strategies.just(frozenset({'H100'}))))


class PoliciesTest(base.BaseTestCase):

    def test_name_in_any_case(self) -> None:
        self.assertIsInstance(policies.make('Ours'), weighing.Foresight)
        self.assertEqual([], [name for name in policies.NAMES
                              if policies.make(name.upper()) is None])
        self.assertIsNone(policies.make('first-fit'))

    @settings(max_examples=40, deadline=None)
    @given(strategies.lists(REQUESTS, min_size=1, max_size=12))
    def test_what_fits_is_placed_and_nothing_is_taken_twice(
            self, requests) -> None:
        hosts = [test_host.host(), test_host.host(8, 32, [1000] * 4),
                 test_host.host(variant='H100')]
        mix = weighing.Mix.count(dict.fromkeys(requests, 1))
        for name in policies.NAMES:
            policy = policies.make(name)
            assert policy is not None
            cloud = cloud_mod.Cloud(hosts, policy, mix)
            for request in requests:
                before = list(cloud.hosts)
                fits = any(weighing.capacity_after(host, request)
                           for host in before)
                index = cloud.place(request)
                self.assertEqual(fits, index is not None, name)
                if index is not None:
                    self.assertIn(cloud.hosts[index],
                                  weighing.capacity_after(before[index],
                                                          request))
                    before[index] = cloud.hosts[index]
                self.assertEqual(before, cloud.hosts)
