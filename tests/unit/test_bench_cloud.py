# SPDX-License-Identifier: Apache-2.0
"""Tests of hosts of a simulated cloud."""

from __future__ import annotations

import random

from oslotest import base

from bench.simulation import cloud as cloud_mod
from bench.simulation import policies
from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host

WHOLE = test_host.request(2, 4)
SHARE = test_host.request(1, 2, units=400)
PAIR = test_host.request(4, 8, gpus=2)
NOTHING = test_host.request(2, 4, gpus=0, units=0)
MIX = weighing.Mix.count({WHOLE: 3, SHARE: 3, PAIR: 1, NOTHING: 1})


def cloud(policy, hosts, mix=MIX):
    return cloud_mod.Cloud(hosts, policies.make(policy), mix)


class CloudTest(base.BaseTestCase):

    def test_first_host_of_equal_ones_is_taken(self) -> None:
        made = cloud('best-fit', [test_host.host()] * 3)
        self.assertEqual([0, 0, 1], [made.place(WHOLE) for _ in range(3)])

    def test_request_that_fits_nowhere_changes_nothing(self) -> None:
        made = cloud('pack', [test_host.host()])
        self.assertIsNone(made.place(test_host.request(gpus=3)))
        self.assertEqual([test_host.host()], made.hosts)

    def test_cloud_without_hosts_refuses(self) -> None:
        self.assertIsNone(cloud('pack', []).place(WHOLE))

    def test_freed_host_is_seen(self) -> None:
        made = cloud('fgd', [test_host.host(free=[1000])])
        self.assertEqual([0, None], [made.place(WHOLE), made.place(WHOLE)])
        made.replace(0, test_host.host(free=[1000]))
        self.assertEqual(0, made.place(WHOLE))

    def test_remembered_choices_decide_like_fresh_ones(self) -> None:
        generator = random.Random(3)
        for name in ('fgd', 'pack', 'packing'):
            made = cloud(name, [test_host.host(32, 128, [1000] * 4)] * 6)
            for _ in range(40):
                request = generator.choice((WHOLE, SHARE, PAIR, NOTHING))
                fresh = cloud(name, made.hosts)
                self.assertEqual(fresh.place(request), made.place(request))
                self.assertEqual(fresh.hosts, made.hosts)
