# SPDX-License-Identifier: Apache-2.0
"""Tests of a host's regions in order of preference."""

from oslotest import base as test_base

from gpgpu_plugin.domain.allocation import offer
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.unit.domain.allocation import base

_GPUS = [base.gpu('a', numa_node=0, switch='s'),
         base.gpu('b', numa_node=1, switch='t'), base.gpu('c')]
_NUMAPolicy = request_mod.NUMAPolicy
_Topology = request_mod.GPUTopology


def _region(*nodes: int | None, **fields: str) -> offer.HostRegion:
    return offer.HostRegion(
        numa_nodes=frozenset(nodes) if nodes else None, **fields)


def _tiers(numa_policy: request_mod.NUMAPolicy = _NUMAPolicy.PREFERRED,
           guest_nodes: frozenset[int] | None = None, count: int = 2,
           topology: request_mod.GPUTopology = _Topology.ANY,
           one_node_first: bool = False) -> list[list[offer.HostRegion]]:
    return list(offer.preference_tiers(
        _GPUS, base.request({'V4': count}, topology=topology,
                            numa_policy=numa_policy),
        guest_nodes, one_node_first=one_node_first))


class PreferenceTiersTest(test_base.BaseTestCase):

    def test_without_any_wish_the_whole_host_is_the_only_region(self) -> None:
        self.assertEqual([[_region()]], _tiers())

    def test_numa_policy_decides_about_the_guests_nodes(self) -> None:
        for numa_policy, expected in (
                (_NUMAPolicy.NONE, [[_region()]]),
                (_NUMAPolicy.PREFERRED, [[_region(1)], [_region()]]),
                (_NUMAPolicy.REQUIRED, [[_region(1)]])):
            self.assertEqual(
                expected, _tiers(numa_policy, guest_nodes=frozenset({1})))

    def test_policy_of_nova_decides_about_the_guests_nodes(self) -> None:
        for policy, expected in (
                ('required', [[_region(1)]]),
                ('legacy', [[_region(1)], [_region(1, None)]]),
                ('socket', [[_region(1)], [_region(1, 2)]]),
                ('preferred', [[_region(1)], [_region()]])):
            self.assertEqual(expected, list(offer.preference_tiers(
                _GPUS, base.request(
                    {'V4': 1},
                    pci_numa_policy=request_mod.PCINUMAPolicy(policy)),
                frozenset({1}), [frozenset({0}), frozenset({1, 2})],
                one_node_first=False)))

    def test_unknown_sockets_have_no_other_nodes(self) -> None:
        self.assertEqual(_region(1), offer.base_region(
            base.request({'V4': 1},
                         pci_numa_policy=request_mod.PCINUMAPolicy.SOCKET),
            frozenset({1})))

    def test_one_node_comes_before_the_whole_host(self) -> None:
        self.assertEqual([[_region(0), _region(1)], [_region()]],
                         _tiers(one_node_first=True))
        self.assertEqual([[_region()]], _tiers(one_node_first=True, count=1))

    def test_topology_allows_nodes_and_gpus_of_unknown_node(self) -> None:
        self.assertEqual(
            [[_region(0), _region(1), _region(gpu_id='c')]],
            _tiers(topology=_Topology.SAME_NUMA))
        self.assertEqual(
            [[_region()]], _tiers(topology=_Topology.SAME_NUMA, count=1))

    def test_topology_allows_switches_near_the_guests_memory(self) -> None:
        self.assertEqual(
            [[_region(1, switch='s'), _region(1, switch='t'),
              _region(1, gpu_id='c')]],
            _tiers(_NUMAPolicy.REQUIRED, guest_nodes=frozenset({1}),
                   topology=_Topology.SAME_SWITCH))


class RegionTest(test_base.BaseTestCase):

    def test_gpu_is_in_a_region_if_it_meets_all_conditions(self) -> None:
        for conditions, expected in (
                (_region(), 'abc'), (_region(0), 'a'), (_region(0, 1), 'ab'),
                (_region(switch='t'), 'b'), (_region(0, switch='t'), ''),
                (_region(gpu_id='c'), 'c')):
            self.assertEqual(expected, ''.join(
                gpu.id for gpu in _GPUS if gpu in conditions))

    def test_base_region_is_the_largest_that_is_allowed(self) -> None:
        for numa_policy, expected in (
                (_NUMAPolicy.NONE, _region()),
                (_NUMAPolicy.PREFERRED, _region()),
                (_NUMAPolicy.REQUIRED, _region(1))):
            self.assertEqual(expected, offer.base_region(
                base.request({'V4': 1}, numa_policy=numa_policy),
                frozenset({1})))
