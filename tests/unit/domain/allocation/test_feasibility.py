# SPDX-License-Identifier: Apache-2.0
"""Tests that masks decide as the allocation engine does."""

import itertools
import typing

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base as test_base

from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import examples
from tests.unit.domain.allocation import base

CLASSES = ('CUSTOM_GPU_A', 'CUSTOM_GPU_B', 'CUSTOM_GPU_C')
LOCALITIES = st.lists(st.tuples(
    st.sampled_from(CLASSES), base.NODES, base.SWITCHES, st.booleans()),
    max_size=10)
COUNTS = st.dictionaries(
    st.sampled_from(CLASSES), st.integers(1, 5), min_size=1)
LINKS = base.link_groups('abcdex')
VGPU_CLASSES = ('WHOLE', *(f'V{name}' for name in sorted(base.TYPES)))

_SETTINGS = settings(derandomize=True, deadline=None,
                     max_examples=examples.count(500))
_NUMAPolicy = request_mod.NUMAPolicy
_Policy = request_mod.PCINUMAPolicy
_Offers = dict[str, offer_mod.TypeOffer]


def by_class(localities: typing.Iterable[typing.Any],
             data: st.DataObject | None = None) -> _Offers:
    """Return offers of whole GPUs, of which some are not offered.

    :param data: draws links of some of them
    """
    gpus: dict[str, list[typing.Any]] = {name: [] for name in CLASSES}
    for number, (name, node, switch, offered) in enumerate(localities):
        gpus[name].append(base.whole_gpu(
            f'c{number}', numa_node=node, switch=switch, offered=offered))
    return {name: base.passthrough(
        pool, data and data.draw(base.link_groups([gpu.id for gpu in pool])))
        for name, pool in gpus.items()}


def masks(offers: _Offers) -> dict[str, feasibility.Masks]:
    return dict(zip(offers, feasibility.masks(list(offers.values())),
                    strict=True))


def refusal(offers: _Offers, requested: request_mod.Request,
            guest_nodes: frozenset[int] | None = None,
            ) -> tuple[str, str] | None:
    """Return the reason and detail for which the engine refuses."""
    try:
        allocate.allocate(offers, requested, {}, guest_nodes)
    except request_mod.Unsatisfiable as exc:
        return exc.reason, exc.detail
    return None


def mask_refusal(offers: _Offers, requested: request_mod.Request,
                 guest_nodes: int | None = None) -> tuple[str, str] | None:
    """Return the reason and detail for which masks refuse."""
    found = feasibility.refusal(masks(offers), requested, guest_nodes)
    return None if found is None else (found.reason, found.detail)


def is_possible_for_some_nodes(offers: _Offers,
                               requested: request_mod.Request,
                               count: int) -> bool:
    """Return whether the engine grants it for some choice of nodes."""
    nodes = sorted({gpu.numa_node for offer in offers.values()
                    for gpu in offer.gpus if gpu.numa_node is not None})
    return any(
        refusal(offers, requested, frozenset(chosen)) is None
        for chosen in itertools.combinations(nodes, min(count, len(nodes))))


class PropertyTest(test_base.BaseTestCase):

    @_SETTINGS
    @given(LOCALITIES, COUNTS, base.TOPOLOGIES, st.data())
    def test_whole_gpus_of_several_classes_are_decided_exactly(
            self, localities, counts, topology, data) -> None:
        offers = by_class(localities, data)
        requested = base.request(counts, topology=topology)
        self.assertEqual(
            refusal(offers, requested), mask_refusal(offers, requested))

    @_SETTINGS
    @given(LOCALITIES, COUNTS, base.TOPOLOGIES, st.integers(1, 3), st.data())
    def test_whole_gpus_for_some_guest_nodes_are_decided_exactly(
            self, localities, counts, topology, nodes, data) -> None:
        offers = by_class(localities, data)
        requested = base.request(counts, topology=topology,
                                 numa_policy=_NUMAPolicy.REQUIRED)
        self.assertEqual(
            is_possible_for_some_nodes(offers, requested, nodes),
            mask_refusal(offers, requested, nodes) is None)

    @settings(_SETTINGS, max_examples=examples.count(300))
    @given(base.hosts(max_gpus=5), st.sampled_from(VGPU_CLASSES),
           st.integers(1, 9), base.TOPOLOGIES,
           st.sampled_from([_NUMAPolicy.NONE, _NUMAPolicy.PREFERRED]), LINKS)
    def test_single_type_is_decided_exactly(
            self, gpus, name, count, topology, numa_policy, links) -> None:
        offers = base.offers(gpus, links)
        requested = base.request(
            {name: count}, topology=topology, numa_policy=numa_policy)
        expected, found = (
            refusal(offers, requested), mask_refusal(offers, requested))
        if found is not None and found[0] == 'not_enough_available':
            # The engine knows why, too.
            self.assertTrue(expected[1].startswith(found[1]), expected)
        else:
            self.assertEqual(expected, found)

    @settings(_SETTINGS, max_examples=examples.count(300))
    @given(base.hosts(max_gpus=5), st.sampled_from(VGPU_CLASSES),
           st.integers(1, 9), base.TOPOLOGIES, st.integers(1, 3),
           st.sampled_from([_Policy.REQUIRED, _Policy.LEGACY]), LINKS)
    def test_single_type_for_some_guest_nodes_is_decided_exactly(
            self, gpus, name, count, topology, nodes, policy, links) -> None:
        offers = base.offers(gpus, links)
        requested = base.request({name: count}, topology=topology,
                                 pci_numa_policy=policy)
        self.assertEqual(
            is_possible_for_some_nodes(offers, requested, nodes),
            mask_refusal(offers, requested, nodes) is None)

    @settings(_SETTINGS, max_examples=examples.count(500))
    @given(base.hosts(max_gpus=5), st.sampled_from(VGPU_CLASSES),
           st.integers(1, 9), base.TOPOLOGIES, st.sampled_from(_Policy),
           st.frozensets(st.integers(0, 2), min_size=1),
           st.sampled_from([(), ({0, 1}, {2}), ({0}, {1, 2})]), LINKS)
    def test_single_type_on_chosen_nodes_is_decided_exactly(
            self, gpus, name, count, topology, policy, nodes,
            sockets, links) -> None:
        offers = base.offers(gpus, links)
        requested = base.request({name: count}, topology=topology,
                                 pci_numa_policy=policy)
        sockets = [frozenset(socket) for socket in sockets]
        try:
            allocate.allocate(offers, requested, {}, nodes, sockets)
        except request_mod.Unsatisfiable:
            possible = False
        else:
            possible = True
        self.assertEqual(possible, feasibility.refusal_on(
            masks(offers), requested, nodes, sockets) is None)

    @settings(_SETTINGS, max_examples=examples.count(300))
    @given(base.hosts(max_gpus=4),
           st.dictionaries(st.sampled_from(VGPU_CLASSES), st.integers(1, 4),
                           min_size=2, max_size=3), base.TOPOLOGIES, LINKS)
    def test_mixed_types_are_passed_wrongly_only_for_a_type_conflict(
            self, gpus, counts, topology, links) -> None:
        offers = base.offers(gpus, links)
        requested = base.request(counts, topology=topology)
        expected, found = (
            refusal(offers, requested), mask_refusal(offers, requested))
        if found is None:
            self.assertIn(expected, (None, ('type_conflict', (
                'each type fits alone, but not all of them together: '
                + request_mod.describe(requested)))))
        else:
            self.assertIsNotNone(expected)

    @settings(_SETTINGS, max_examples=examples.count(300))
    @given(base.hosts(max_gpus=4),
           st.dictionaries(st.sampled_from(VGPU_CLASSES), st.integers(1, 4),
                           min_size=2, max_size=3), base.TOPOLOGIES,
           st.integers(1, 3), LINKS)
    def test_mixed_types_are_refused_only_if_all_guest_nodes_are(
            self, gpus, counts, topology, nodes, links) -> None:
        offers = base.offers(gpus, links)
        requested = base.request(counts, topology=topology,
                                 numa_policy=_NUMAPolicy.REQUIRED)
        if mask_refusal(offers, requested, nodes) is not None:
            self.assertFalse(
                is_possible_for_some_nodes(offers, requested, nodes))


class MasksTest(test_base.BaseTestCase):

    def test_gpus_of_unknown_locality_are_places_of_their_own(self) -> None:
        nowhere = [base.gpu('a'), base.gpu('b')]
        known = base.gpu('c', numa_node=0, switch='s')
        offers = {
            'X': offer_mod.TypeOffer(vgpu_type='4', gpus=nowhere),
            'Y': offer_mod.TypeOffer(vgpu_type='4', gpus=[*nowhere, known])}
        found = masks(offers)
        self.assertEqual(
            ((1, 2), (1, 2)), (found['X'].alone, found['Y'].alone))
        for topology in (request_mod.GPUTopology.SAME_SWITCH,
                         request_mod.GPUTopology.SAME_NUMA):
            self.assertIsNone(feasibility.refusal(
                found, base.request({'X': 4, 'Y': 4}, topology=topology)))
            self.assertIsNotNone(feasibility.refusal(
                found, base.request({'X': 5}, topology=topology)))

    def test_gpu_with_one_unit_needs_no_place_of_its_own(self) -> None:
        [found] = feasibility.masks([base.passthrough([base.whole_gpu('a')])])
        self.assertEqual((), found.alone)

    def test_disabled_type_keeps_the_gpus_but_has_none_free(self) -> None:
        gpus = [base.gpu('a', numa_node=0), base.gpu('b', numa_node=1)]
        [found] = feasibility.masks([offer_mod.TypeOffer(
            vgpu_type='4', gpus=gpus, enabled=False)])
        self.assertEqual(feasibility.Masks(
            free=0, numa=(1, 2), numa_nodes=(0, 1)), found)


class GuestNodesTest(test_base.BaseTestCase):
    """Node 0 has three whole GPUs, node 1 four."""

    GROUPS: typing.ClassVar = masks({'WHOLE': base.passthrough([
        base.whole_gpu(f'c{number}', numa_node=int(number > 2))
        for number in range(7)])})

    def refusal(self, count: int, nodes: int | None,
                ) -> request_mod.Refusal | None:
        return feasibility.refusal(self.GROUPS, base.request(
            {'WHOLE': count}, numa_policy=_NUMAPolicy.REQUIRED), nodes)

    def test_enough_on_as_many_nodes_as_the_guest_has(self) -> None:
        self.assertIsNone(self.refusal(4, 1))
        self.assertIsNone(self.refusal(7, 2))

    def test_too_few_on_any_one_node(self) -> None:
        self.assertEqual(
            'numa_policy_required', self.refusal(5, 1).reason)

    def test_host_with_too_many_choices_is_passed_if_gpus_suffice(
            self) -> None:
        groups = masks({'WHOLE': base.passthrough([
            base.whole_gpu(f'c{number}', numa_node=number)
            for number in range(60)])})

        def reason(count: int, nodes: int) -> str | None:
            refused = feasibility.refusal(groups, base.request(
                {'WHOLE': count}, numa_policy=_NUMAPolicy.REQUIRED), nodes)
            return refused and refused.reason
        self.assertEqual('numa_policy_required', reason(3, 2))
        self.assertIsNone(reason(3, 32))
        self.assertIsNone(reason(60, 32))
        self.assertEqual('not_enough_available', reason(61, 32))

    def test_guest_without_nodes(self) -> None:
        self.assertEqual(request_mod.NO_GUEST_NODES, self.refusal(4, None))
