# SPDX-License-Identifier: Apache-2.0
"""Tests of the allocation engine, also against a brute-force oracle."""

import itertools
import time
import typing

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base as test_base

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import allocate as allocate_mod
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import examples
from tests.unit.domain.allocation import base

_SETTINGS = settings(derandomize=True, deadline=None)
_Unsatisfiable = request_mod.Unsatisfiable
gpu, request, allocate = base.gpu, base.request, base.allocate
TYPE_NAMES = sorted(base.TYPES)


class VGPUPolicyTest(test_base.BaseTestCase):
    """depth_first and breadth_first within a group."""

    def test_depth_first_is_the_default_and_fills_used_gpus(self) -> None:
        self.assertEqual({'V4': ['b', 'b']}, allocate(
            request({'V4': 2}), gpu('a'), gpu('b', '4')))

    def test_breadth_first_takes_the_emptiest_gpu(self) -> None:
        self.assertEqual({'V4': ['a', 'a']}, allocate(
            request({'V4': 2}, allocation_policy=base.BREADTH),
            gpu('a'), gpu('b', '8')))
        self.assertEqual({'V4': ['a', 'b']}, allocate(
            request({'V4': 2}, allocation_policy=base.BREADTH),
            gpu('a', '4'), gpu('b', '4')))

    def test_larger_types_keep_fitting(self) -> None:
        # On a one more 4 costs no 8; on b it does.
        self.assertEqual({'V4': ['a']}, allocate(
            request({'V4': 1}), gpu('a', '4'), gpu('b', '8')))

    def test_groups_own_policy_counts_where_request_names_none(self) -> None:
        selections = allocate_mod.allocate(
            base.offers([gpu('a', '4'), gpu('b')]), request({'V4': 1}),
            {'V4': base.BREADTH})
        self.assertEqual('b', selections['V4'][0].gpu_id)

    def test_placement_id_is_selected_with_the_vgpu(self) -> None:
        mixed_size = vgpu.VGPUMixPolicy.MIXED_SIZE
        selections = allocate_mod.allocate(
            base.offers([gpu('a', mix_policy=mixed_size)]),
            request({'V8': 2}), {})
        self.assertEqual({0, 8}, {
            selection.placement_id for selection in selections['V8']})


class VGPUTopologyTest(test_base.BaseTestCase):
    """Tests of NUMA nodes and switches of vGPUs."""

    GPUS = (gpu('a', '16', numa_node=0, switch='s'),
            gpu('b', '8', numa_node=0, switch='s'),
            gpu('c', '4', '8', numa_node=1, switch='t'),
            gpu('d', '4', '8', numa_node=1, switch='u'))

    def test_one_numa_node_is_taken_where_one_has_enough(self) -> None:
        self.assertEqual({'V4': ['b', 'b']}, allocate(
            request({'V4': 2}), *self.GPUS[1:3]))

    def test_policy_decides_about_the_numa_node(self) -> None:
        gpus = gpu('a', numa_node=0), gpu('b', '4', numa_node=1)
        for policy, expected in ((base.DEPTH, 'b'), (base.BREADTH, 'a')):
            self.assertEqual({'V4': [expected] * 2}, allocate(
                request({'V4': 2}, allocation_policy=policy), *gpus))

    def test_gpu_near_the_guests_memory_is_preferred(self) -> None:
        self.assertEqual({'V4': ['c']}, allocate(
            request({'V4': 1}), *self.GPUS, guest_nodes=frozenset({1})))

    def test_too_few_near_the_guests_memory_are_refused(self) -> None:
        requested = request(
            {'V4': 3}, numa_policy=request_mod.NUMAPolicy.REQUIRED)
        exc = self.assertRaises(
            _Unsatisfiable, allocate, requested, *self.GPUS,
            guest_nodes=frozenset({1}))
        self.assertEqual('numa_policy_required', exc.reason)
        exc = self.assertRaises(
            _Unsatisfiable, allocate, requested, *self.GPUS)
        self.assertEqual('numa_policy_required', exc.reason)

    def test_same_switch(self) -> None:
        topology = request_mod.GPUTopology.SAME_SWITCH
        self.assertEqual({'V4': ['b', 'b']}, allocate(
            request({'V4': 2}, topology=topology), *self.GPUS))
        exc = self.assertRaises(
            _Unsatisfiable, allocate,
            request({'V4': 3}, topology=topology), *self.GPUS)
        self.assertEqual('topology_same_switch', exc.reason)

    def test_one_gpu_is_an_island_of_its_own(self) -> None:
        for topology in (request_mod.GPUTopology.SAME_SWITCH,
                         request_mod.GPUTopology.SAME_NUMA):
            self.assertEqual({'V4': ['b', 'b', 'b']}, allocate(
                request({'V4': 3}, topology=topology),
                gpu('a', '8'), gpu('b')))
            # Two of unknown locality are not in the same place.
            exc = self.assertRaises(
                _Unsatisfiable, allocate,
                request({'V8': 3}, topology=topology), gpu('a'), gpu('b'))
            self.assertEqual(f'topology_{topology}', exc.reason)
            self.assertRaises(
                _Unsatisfiable, allocate,
                request({'V4': 1, 'WHOLE': 1}, topology=topology),
                gpu('a'), gpu('b', passthrough=True))

    def test_lone_gpu_far_from_the_guests_memory_is_refused(self) -> None:
        exc = self.assertRaises(
            _Unsatisfiable, allocate, request(
                {'V4': 2}, topology=request_mod.GPUTopology.SAME_NUMA,
                numa_policy=request_mod.NUMAPolicy.REQUIRED),
            gpu('a'), guest_nodes=frozenset({0}))
        self.assertEqual('numa_policy_required', exc.reason)


class MixedTest(test_base.BaseTestCase):
    """Tests of several types in one request."""

    def whole(self, *gpu_ids: str, **fields: typing.Any,
              ) -> list[vgpu.GPUCapacity]:
        return [gpu(gpu_id, passthrough=True, **fields) for gpu_id in gpu_ids]

    def test_whole_gpu_beside_a_vgpu(self) -> None:
        self.assertEqual({'WHOLE': ['b'], 'V4': ['a']}, allocate(
            request({'WHOLE': 1, 'V4': 1}), *self.whole('a', 'b')))

    def test_breadth_first_vgpu_leaves_the_gpu_for_passthrough(self) -> None:
        self.assertEqual({'WHOLE': ['b'], 'V4': ['a']}, allocate(
            request({'WHOLE': 1, 'V4': 1}, allocation_policy=base.BREADTH),
            gpu('a', '4'), *self.whole('b')))

    def test_only_gpu_that_can_be_whole_is_reserved(self) -> None:
        for only, other in itertools.permutations('ab'):
            for policy in (base.DEPTH, base.BREADTH):
                self.assertEqual({'WHOLE': [only], 'V4': [other]}, allocate(
                    request({'WHOLE': 1, 'V4': 1}, allocation_policy=policy),
                    gpu(other), *self.whole(only)))

    def test_gpu_with_fewest_vgpus_available_is_reserved(self) -> None:
        # Its driver makes less of the largest type than b's.
        small = gpu('a', passthrough=True,
                    driver_available={'4': 4, '8': 1, '16': 0})
        self.assertEqual({'WHOLE': ['a'], 'V16': ['b']}, allocate(
            request({'WHOLE': 1, 'V16': 1}), small, *self.whole('b')))
        self.assertEqual({'WHOLE': ['a'], 'V8': ['b', 'b']}, allocate(
            request({'WHOLE': 1, 'V8': 2}), small, *self.whole('b')))

    def test_types_are_packed_closely_where_spreading_leaves_too_little(
            self) -> None:
        # A 4 on each GPU would leave two places for an 8.
        self.assertEqual(
            {'V4': ['a', 'a'], 'V8': ['a', 'b', 'b']}, allocate(
                request({'V4': 2, 'V8': 3}, allocation_policy=base.BREADTH),
                gpu('a'), gpu('b')))

    def test_vgpus_are_spread_beside_a_reserved_gpu(self) -> None:
        self.assertEqual({'WHOLE': ['a'], 'V4': ['b', 'c']}, allocate(
            request({'WHOLE': 1, 'V4': 2}, allocation_policy=base.BREADTH),
            *self.whole('a'), gpu('b'), gpu('c')))

    def test_many_gpus_to_reserve_are_no_explosion(self) -> None:
        gpus = [
            gpu(f'c{number:02}', passthrough=True,
                driver_available={'4': number % 7, '8': 1})
            for number in range(40)]
        exc = self.assertRaises(
            _Unsatisfiable, allocate, request({'WHOLE': 20, 'V8': 21}), *gpus)
        self.assertEqual('type_conflict', exc.reason)

    def test_types_that_fit_only_alone_are_refused(self) -> None:
        exc = self.assertRaises(
            _Unsatisfiable, allocate, request({'WHOLE': 1, 'V4': 1}),
            *self.whole('a'))
        self.assertEqual('type_conflict', exc.reason)
        self.assertIn('together', exc.detail)

    def test_whole_gpus_below_one_switch_beside_vgpus(self) -> None:
        gpus = [*self.whole('a', numa_node=0, switch='s'),
                *self.whole('b', 'c', numa_node=0, switch='t'),
                gpu('d', numa_node=0, switch='s')]
        self.assertEqual({'WHOLE': ['b', 'c'], 'V16': ['a']}, allocate(
            request({'WHOLE': 2, 'V16': 1}), *gpus))


class ShortageTest(test_base.BaseTestCase):
    """Refusals because the host has too few units."""

    def refused(self, reason: str, detail: str, counts: dict[str, int],
                *gpus: vgpu.GPUCapacity) -> None:
        exc = self.assertRaises(
            _Unsatisfiable, allocate, request(counts), *gpus)
        self.assertEqual((reason, detail), (exc.reason, exc.detail))

    def test_too_few_vgpus(self) -> None:
        self.refused('not_enough_available', '2 of V8 requested, 1 available',
                     {'V8': 2}, gpu('a', '8'))

    def test_class_that_the_host_does_not_offer(self) -> None:
        self.refused('not_enough_available', '1 of VX requested, 0 available',
                     {'VX': 1}, gpu('a'))

    def test_disabled_type(self) -> None:
        for name in (naming.PASSTHROUGH, '4'):
            disabled = offer_mod.TypeOffer(
                vgpu_type=name, gpus=[gpu('a', passthrough=True)],
                enabled=False)
            self.assertRaises(_Unsatisfiable, allocate_mod.allocate,
                              {'V': disabled}, request({'V': 1}), {})

    def test_other_type_in_the_way(self) -> None:
        self.refused(
            'type_conflict',
            '1 of V8 requested, 0 available: the GPUs have vGPUs of type 4, '
            'and their mix policy is same_type', {'V8': 1},
            gpu('a', '4', mix_policy=vgpu.VGPUMixPolicy.SAME_TYPE))

    def test_vgpu_of_unknown_type_in_the_way(self) -> None:
        self.refused(
            'type_conflict',
            '1 of V8 requested, 0 available: the GPUs have vGPUs of type '
            'unknown, and their mix policy is any_mix', {'V8': 1},
            gpu('a', vgpu.UNKNOWN_TYPE))

    def test_driver_alone_in_the_way(self) -> None:
        self.refused(
            'driver_has_no_room',
            '2 of V8 requested, 1 available: 2 would fit by size, but the '
            'drivers of the GPUs report no more free instances', {'V8': 2},
            gpu('a', driver_available={'8': 1}))


class PassthroughTest(test_base.BaseTestCase):
    """Tests of whole GPUs alone."""

    # Node 0: three GPUs below s0 and s1; node 1: four below s2 and s3.
    GPUS = tuple(
        base.whole_gpu(f'c{number}', numa_node=node, switch=switch)
        for number, (node, switch) in enumerate([
            (0, 's0'), (0, 's0'), (0, 's1'),
            (1, 's2'), (1, 's2'), (1, 's3'), (1, 's3')]))

    def choose(self, count: int, **fields: typing.Any) -> set[str]:
        return set(allocate(
            request({'WHOLE': count}, **fields), *self.GPUS)['WHOLE'])

    def test_selection_names_the_type(self) -> None:
        selections = allocate_mod.allocate(
            base.offers(self.GPUS), request({'WHOLE': 1}), {})
        self.assertEqual((offer_mod.Selection(
            gpu_id='c2', vgpu_type='passthrough'),), selections['WHOLE'])

    def test_depth_first_keeps_the_largest_island(self) -> None:
        self.assertEqual({'c2'}, self.choose(1))
        self.assertEqual({'c0', 'c1'}, self.choose(2))

    def test_breadth_first_takes_from_the_largest_island(self) -> None:
        breadth = base.BREADTH
        self.assertEqual({'c3'}, self.choose(1, allocation_policy=breadth))
        self.assertEqual(
            {'c3', 'c4'}, self.choose(2, allocation_policy=breadth))

    def test_groups_own_policy_counts_where_request_names_none(self) -> None:
        selections = allocate_mod.allocate(
            base.offers(self.GPUS), request({'WHOLE': 1}),
            {'WHOLE': base.BREADTH})
        self.assertEqual('c3', selections['WHOLE'][0].gpu_id)

    def test_refusals_have_a_name_and_numbers(self) -> None:
        for count, topology, reason, detail in (
                (8, 'any', 'not_enough_available',
                 '8 of WHOLE requested, 7 available'),
                (5, 'same_numa', 'topology_same_numa',
                 'no NUMA node has 5 of WHOLE'),
                (3, 'same_switch', 'topology_same_switch',
                 'no PCIe switch has 3 of WHOLE')):
            exc = self.assertRaises(
                _Unsatisfiable, self.choose, count,
                topology=request_mod.GPUTopology(topology))
            self.assertEqual(reason, exc.reason)
            self.assertIn(detail, exc.detail)

    def test_refusals_for_the_guests_memory(self) -> None:
        required = request_mod.NUMAPolicy.REQUIRED
        for nodes, words in ((None, 'hw:numa_nodes'),
                             (frozenset({0}), 'no 4 of WHOLE')):
            exc = self.assertRaises(
                _Unsatisfiable, allocate,
                request({'WHOLE': 4}, numa_policy=required), *self.GPUS,
                guest_nodes=nodes)
            self.assertEqual('numa_policy_required', exc.reason)
            self.assertIn(words, exc.detail)
        # That there are too few at all is said first.
        exc = self.assertRaises(
            _Unsatisfiable, allocate,
            request({'WHOLE': 8}, numa_policy=required), *self.GPUS,
            guest_nodes=frozenset({0}))
        self.assertEqual('not_enough_available', exc.reason)

    def test_used_gpu_is_not_whole(self) -> None:
        self.assertEqual({'WHOLE': ['b']}, allocate(
            request({'WHOLE': 1}), gpu('a', '4', passthrough=True),
            gpu('b', passthrough=True)))

    def test_many_gpus_are_no_explosion(self) -> None:
        gpus = [base.whole_gpu(f'c{number:03}', numa_node=number % 4,
                               switch=f's{number % 40}')
                for number in range(264)]
        began = time.process_time()
        got = allocate(request({'WHOLE': 24}), *gpus)
        self.assertEqual(24, len(set(got['WHOLE'])))
        # Trying all sets of switches would take hours.
        self.assertLess(time.process_time() - began, 10)


CLASSES = ('CUSTOM_GPU_A', 'CUSTOM_GPU_B', 'CUSTOM_GPU_C')
LOCALITIES = st.lists(
    st.tuples(st.sampled_from(CLASSES), base.NODES, base.SWITCHES),
    max_size=10)
COUNTS = st.dictionaries(
    st.sampled_from(CLASSES), st.integers(1, 5), min_size=1)


def is_allowed(gpus: typing.Sequence[vgpu.GPUCapacity],
               topology: str) -> bool:
    if topology == 'any' or len(gpus) < 2:
        return True
    if topology == 'linked':
        # No group here has links; test_links has some.
        return False
    values = {gpu.numa_node if topology == 'same_numa' else gpu.switch
              for gpu in gpus}
    return len(values) == 1 and None not in values


def spread(gpus: typing.Iterable[vgpu.GPUCapacity]) -> tuple[int, int]:
    gpus = list(gpus)
    return (len({gpu.numa_node for gpu in gpus}),
            len({gpu.switch or gpu.id for gpu in gpus}))


def oracle(gpus: dict[str, list[vgpu.GPUCapacity]],
           counts: dict[str, int], topology: str) -> tuple[int, int] | None:
    """Return (NUMA nodes, switches) of the best set, or None."""
    ways = [itertools.combinations(gpus[name], count)
            for name, count in counts.items()]
    sets = ([gpu for part in parts for gpu in part]
            for parts in itertools.product(*ways))
    return min((spread(chosen) for chosen in sets
                if is_allowed(chosen, topology)), default=None)


def by_class(localities: typing.Iterable[typing.Any],
             ) -> dict[str, list[vgpu.GPUCapacity]]:
    gpus: dict[str, list[vgpu.GPUCapacity]] = {
        name: [] for name in CLASSES}
    for number, (name, node, switch) in enumerate(localities):
        gpus[name].append(base.whole_gpu(
            f'c{number}', numa_node=node, switch=switch))
    return gpus


def passthrough(gpus: dict[str, list[vgpu.GPUCapacity]],
                ) -> dict[str, offer_mod.TypeOffer]:
    return {name: base.passthrough(pool) for name, pool in gpus.items()}


class PassthroughPropertyTest(test_base.BaseTestCase):
    """Tests of whole GPUs of several classes."""

    @settings(_SETTINGS, max_examples=examples.count(1500))
    @given(LOCALITIES, COUNTS, base.TOPOLOGIES, base.POLICIES)
    def test_against_oracle(self, localities, counts, topology,
                            policy) -> None:
        gpus = by_class(localities)
        expected = oracle(gpus, counts, topology)
        try:
            got = allocate_mod.allocate(passthrough(gpus), request(
                counts, topology=topology, allocation_policy=policy), {})
        except _Unsatisfiable:
            self.assertIsNone(expected)
            return
        by_id = {gpu.id: gpu for name in counts for gpu in gpus[name]}
        ids = [selection.gpu_id for part in got.values()
               for selection in part]
        self.assertEqual(len(ids), len(set(ids)))
        for name, count in counts.items():
            self.assertEqual(count, len(got[name]))
            self.assertLessEqual(
                {selection.gpu_id for selection in got[name]},
                {gpu.id for gpu in gpus[name]})
        chosen = [by_id[gpu_id] for gpu_id in ids]
        self.assertTrue(is_allowed(chosen, topology))
        self.assertEqual(expected, spread(chosen))

    @settings(_SETTINGS, max_examples=examples.count(1000))
    @given(LOCALITIES, COUNTS, base.TOPOLOGIES, st.sets(st.integers(0, 2)))
    def test_numa_policies(self, localities, counts, topology, nodes) -> None:
        gpus = by_class(localities)
        near = {name: [gpu for gpu in pool if gpu.numa_node in nodes]
                for name, pool in gpus.items()}

        def chosen(offered, numa_policy, guest_nodes):
            try:
                return allocate_mod.allocate(
                    passthrough(offered),
                    request(counts, topology=topology,
                            numa_policy=numa_policy), {}, guest_nodes)
            except _Unsatisfiable:
                return None
        policy = request_mod.NUMAPolicy
        anywhere = chosen(gpus, policy.NONE, None)
        best = chosen(near, policy.NONE, None)
        self.assertEqual(anywhere, chosen(gpus, policy.PREFERRED, None))
        self.assertEqual(
            anywhere, chosen(gpus, policy.NONE, frozenset(nodes)))
        self.assertEqual(
            best, chosen(gpus, policy.REQUIRED, frozenset(nodes)))
        self.assertEqual(
            best or anywhere,
            chosen(gpus, policy.PREFERRED, frozenset(nodes)))
        self.assertIsNone(chosen(gpus, policy.REQUIRED, None))


def can_fit(gpus: list[vgpu.GPUCapacity], names: list[str]) -> bool:
    """Return whether units of these types fit in any way at all."""
    if not names:
        return True
    return any(
        can_fit([*gpus[:index], gpu.with_vgpu(names[0]), *gpus[index + 1:]],
                names[1:])
        for index, gpu in enumerate(gpus) if gpu.available(names[0]))


def can_fit_linked(gpus: list[vgpu.GPUCapacity], names: list[str],
                   topology: request_mod.GPUTopology,
                   links: fabric.Links | None) -> bool:
    """Return whether units fit of which whole GPUs may have to be linked."""
    vgpus = [name for name in names if name != naming.PASSTHROUGH]
    whole = len(names) - len(vgpus)
    is_linked = topology == 'linked' and len(names) > 1
    if is_linked and (vgpus or links is None):
        return False
    if not whole or not (is_linked or (links and links.fabric)):
        return can_fit(gpus, names)
    by_id = {gpu.id: gpu for gpu in gpus}
    return any(
        can_fit([gpu.with_vgpu(naming.PASSTHROUGH) if gpu.id in part else gpu
                 for gpu in gpus], vgpus)
        for part in links.partitions
        if len(part) == whole and part <= by_id.keys() and all(
            by_id[gpu_id].available(naming.PASSTHROUGH) for gpu_id in part))


def islands(gpus: list[vgpu.GPUCapacity], topology: request_mod.GPUTopology,
            ) -> list[list[vgpu.GPUCapacity]]:
    """Return the sets of GPUs that satisfy a topology."""
    if topology in (request_mod.GPUTopology.ANY,
                    request_mod.GPUTopology.LINKED):
        return [gpus]
    key = ('switch' if topology is request_mod.GPUTopology.SAME_SWITCH
           else 'numa_node')
    return [*([gpu for gpu in gpus if getattr(gpu, key) == value]
              for value in {getattr(gpu, key) for gpu in gpus} - {None}),
            *([gpu] for gpu in gpus)]


def resource_class(name: str) -> str:
    return 'WHOLE' if name == naming.PASSTHROUGH else f'V{name}'


class MixedPropertyTest(test_base.BaseTestCase):
    """Property tests of any types on any host by any policy."""

    @_SETTINGS
    @given(base.hosts(), st.sampled_from([naming.PASSTHROUGH, *TYPE_NAMES]),
           base.POLICIES)
    def test_what_is_available_can_be_claimed_and_no_more(
            self, gpus, name, policy) -> None:
        requested = resource_class(name)
        available = base.offers(gpus)[requested].available()
        if available:
            found = allocate(request(
                {requested: available}, allocation_policy=policy), *gpus)
            self.assertEqual(available, len(found[requested]))
        self.assertRaises(
            _Unsatisfiable, allocate,
            request({requested: available + 1}, allocation_policy=policy),
            *gpus)

    @settings(_SETTINGS, max_examples=examples.count(400))
    @given(base.hosts(), st.integers(0, 2),
           st.lists(st.sampled_from(TYPE_NAMES), max_size=4),
           base.TOPOLOGIES, base.POLICIES, base.link_groups('abcx'))
    def test_refused_only_if_there_is_no_way(
            self, gpus, whole, names, topology, policy, links) -> None:
        names = [*[naming.PASSTHROUGH] * whole, *names]
        requested = request(
            {resource_class(name): names.count(name) for name in names},
            topology=topology, allocation_policy=policy)
        possible = any(can_fit_linked(island, names, topology, links)
                       for island in islands(gpus, topology)) or (
            len(names) == 1
            and can_fit_linked(gpus, names, request_mod.GPUTopology.ANY,
                               links))
        try:
            found = allocate_mod.allocate(
                base.offers(gpus, links), requested, {})
        except _Unsatisfiable:
            self.assertFalse(possible)
            return
        self.assertTrue(possible)
        state = {gpu.id: gpu for gpu in gpus}
        for selection in itertools.chain.from_iterable(found.values()):
            # It raises if it does not fit.
            state[selection.gpu_id] = state[selection.gpu_id].with_vgpu(
                selection.vgpu_type)
        self.assertEqual(
            {resource_class(name): names.count(name) for name in names},
            {name: len(part) for name, part in found.items()})
        used = {selection.gpu_id for part in found.values()
                for selection in part}
        self.assertTrue(len(names) < 2 or any(
            used <= {gpu.id for gpu in island}
            for island in islands(gpus, topology)))
