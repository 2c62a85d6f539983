# SPDX-License-Identifier: Apache-2.0
"""Tests of SchedulerHost: one host, as a decision asks it."""

import dataclasses
from unittest import mock

from oslotest import base

from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

OTHER = 'CUSTOM_GPU_B'


def demand(count=1, resource_class=make.RC, **kwargs):
    return request.Request(demands=(request.Demand(
        resource_class=resource_class, count=count),), **kwargs)


def two_groups():
    sent = make.groups('h1')
    [first] = sent.groups
    [offer] = first.types
    second = dataclasses.replace(
        first, provider_uuid='h1-b', types=(dataclasses.replace(
            offer, resource_class=OTHER, free=0b1),))
    return scheduler_view.SchedulerHost(
        dataclasses.replace(sent, groups=(first, second)))


class SchedulerHostTest(base.BaseTestCase):

    def reason(self, host, providers, *args, **kwargs):
        refusal = host.refusal(
            host.own(providers), demand(*args, **kwargs))
        return None if refusal is None else refusal.reason

    def test_host_that_fits_is_not_refused(self):
        self.assertIsNone(self.reason(
            scheduler_view.SchedulerHost(make.groups('h1')), ['h1-rp'], 4))

    def test_host_that_is_too_small_is_refused(self):
        self.assertEqual(
            request.Reason.NOT_ENOUGH_AVAILABLE, self.reason(
                scheduler_view.SchedulerHost(make.groups('h1')), ['h1-rp'], 5))

    def test_providers_of_others_are_ignored(self):
        one_group = scheduler_view.SchedulerHost(make.groups('h1'))
        for host in (one_group, two_groups()):
            self.assertEqual({'h1-rp'}, host.own({'other': 1, 'h1-rp': 2}))
            self.assertEqual(set(), host.own({'other': 1}))

    def test_group_outside_the_candidate_is_refused(self):
        host = two_groups()
        for _ in range(2):  # the second time from what was worked out before
            self.assertIsNone(self.reason(host, ['h1-rp'], 4))
            self.assertIsNone(self.reason(host, ['h1-b'], 1, OTHER))
            self.assertIsNotNone(self.reason(host, ['h1-b'], 1))
            self.assertIsNotNone(self.reason(host, ['h1-rp'], 1, OTHER))
            self.assertIsNone(self.reason(host, ['h1-b', 'h1-rp'], 4))

    def test_known_refusal_is_worked_out_once_for_each_kind(self):
        host = two_groups()
        both = host.own(['h1-rp', 'h1-b'])
        with mock.patch.object(
                scheduler_view.feasibility, 'refusal',
                side_effect=scheduler_view.feasibility.refusal) as worked_out:
            for own, count, kind, expected in (
                    (both, 4, 0, 1), (both, 4, 0, 1), (both, 5, 1, 2),
                    (host.own(['h1-b']), 4, 0, 3), (both, 5, 1, 3),
                    (both, 5, None, 4), (both, 5, None, 5)):
                refusal = host.known_refusal(own, demand(count), None, kind)
                self.assertEqual(
                    host.refusal(own, demand(count)), refusal)
                worked_out.call_count -= 1
                self.assertEqual(expected, worked_out.call_count)

    def test_candidates_of_the_only_group(self):
        host = scheduler_view.SchedulerHost(make.groups('h1'))
        ours, other = ({'allocations': {name: {}, 'x': {}}}
                       for name in ('h1-rp', 'other'))
        self.assertTrue(host.offers_all([ours, ours]))
        self.assertFalse(host.offers_all([ours, other]))
        self.assertFalse(two_groups().offers_all([ours]))

    def test_topology_is_decided(self):
        host = scheduler_view.SchedulerHost(make.groups('h1', free=0b0101))
        for count, expected in (
                (1, None), (2, request.Reason.TOPOLOGY_SAME_NUMA)):
            self.assertEqual(expected, self.reason(
                host, ['h1-rp'], count,
                topology=request.GPUTopology.SAME_NUMA))

    def test_nodes_of_the_guest_are_decided(self):
        host = scheduler_view.SchedulerHost(make.groups('h1', free=0b0011))
        asked = demand(2, numa_policy=request.NUMAPolicy.REQUIRED)
        self.assertIsNone(
            host.refusal_on(host.providers, asked, frozenset({0}), ()))
        self.assertEqual(
            request.Reason.NUMA_POLICY_REQUIRED,
            host.refusal_on(
                host.providers, asked, frozenset({1}), ()).reason)
