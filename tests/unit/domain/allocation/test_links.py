# SPDX-License-Identifier: Apache-2.0
"""Tests of link partitions, also against a brute-force oracle."""

import itertools
import random
import typing

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base as test_base

from gpgpu_plugin.domain import fabric as fabric_rules
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import examples
from tests.unit.domain.allocation import base
from tests.unit.domain.allocation import test_allocate

EIGHT = 'abcdefgh'
LATTICE = base.lattice(EIGHT)
LINKED = request_mod.GPUTopology.LINKED
CLASSES = ('A', 'B')
GPUS = st.lists(st.tuples(
    st.sampled_from(CLASSES), base.NODES, base.SWITCHES, st.booleans()),
    max_size=8)
COUNTS = st.dictionaries(
    st.sampled_from(CLASSES), st.integers(1, 4), min_size=1)

_Links = fabric_rules.Links
_Offers = dict[str, typing.Any]


def take(requested: int, free: str, *, fabric: bool = True,
         topology: request_mod.GPUTopology = LINKED,
         partitions: typing.Sequence[frozenset[str]] = LATTICE,
         **fields: typing.Any) -> str:
    """Return the ids of the GPUs that are selected of eight.

    :param free: ids of those that are available
    """
    gpus = [base.whole_gpu(gpu_id, offered=gpu_id in free,
                           numa_node=int(gpu_id > 'd'))
            for gpu_id in EIGHT]
    found = allocate.allocate(
        base.offers(gpus, _Links(partitions=tuple(partitions),
                                 fabric=fabric)),
        base.request({'WHOLE': requested}, topology=topology, **fields), {})
    return ''.join(sorted(
        selection.gpu_id for selection in found['WHOLE']))


class PartitionTest(test_base.BaseTestCase):
    """Eight GPUs with partitions of eight, four, two and one."""

    def refusal(self, requested: int, free: str, **fields: typing.Any,
                ) -> request_mod.Unsatisfiable:
        return self.assertRaises(
            request_mod.Unsatisfiable, take, requested, free, **fields)

    def test_claim_takes_one_partition(self) -> None:
        for count, expected in ((1, 'a'), (2, 'ab'), (4, 'abcd'), (8, EIGHT)):
            self.assertEqual(expected, take(count, EIGHT))

    def test_largest_partitions_are_kept_whole(self) -> None:
        for count, free, expected in (
                (1, 'abcdefg', 'g'), (2, 'abcdefg', 'ef'),
                (1, 'abceh', 'c'), (2, 'cdefgh', 'cd'), (1, 'abdh', 'd'),
                (4, 'abcdefgh', 'abcd')):
            self.assertEqual(expected, take(count, free), (count, free))

    def test_gpus_of_different_partitions_are_refused_with_numbers(
            self) -> None:
        exc = self.refusal(2, 'aceg')
        self.assertEqual('topology_linked', exc.reason)
        for words in ('2 of WHOLE', '8 of 1, 4 of 2, 2 of 4, 1 of 8'):
            self.assertIn(words, exc.detail)
        self.assertEqual('topology_linked', self.refusal(3, EIGHT).reason)
        self.assertEqual('topology_linked', self.refusal(4, 'cdef').reason)

    def test_too_few_gpus_are_a_matter_of_capacity(self) -> None:
        self.assertEqual('not_enough_available', self.refusal(4, 'abc').reason)

    def test_board_with_a_fabric_allows_nothing_else(self) -> None:
        for topology in (request_mod.GPUTopology.ANY,
                         request_mod.GPUTopology.SAME_NUMA):
            exc = self.refusal(2, 'bdeg', topology=topology)
            self.assertEqual('link_partition', exc.reason)
            self.assertEqual('ef', take(2, 'bdefg', topology=topology))

    def test_without_a_fabric_gpus_can_be_taken_without_links(self) -> None:
        self.assertEqual('bd', take(
            2, 'bdeg', fabric=False, topology=request_mod.GPUTopology.ANY))
        self.assertEqual('topology_linked', self.refusal(
            2, 'bdeg', fabric=False).reason)

    def test_without_a_fabric_partitions_are_spared_all_the_same(
            self) -> None:
        self.assertEqual('c', take(
            1, 'abc', fabric=False, topology=request_mod.GPUTopology.ANY))

    def test_gpu_without_partition_on_a_fabric_is_never_taken(self) -> None:
        pair = frozenset('ab')
        self.assertEqual('link_partition', self.refusal(
            1, EIGHT, partitions=[pair]).reason)
        self.assertEqual('c', take(
            1, EIGHT[2:], partitions=[pair], fabric=False))

    def test_topology_holds_beside_the_fabric(self) -> None:
        across = [frozenset('ae'), frozenset('gh')]
        self.assertEqual('gh', take(
            2, EIGHT, partitions=across,
            topology=request_mod.GPUTopology.SAME_NUMA))
        self.assertEqual('topology_same_numa', self.refusal(
            2, EIGHT, partitions=across[:1],
            topology=request_mod.GPUTopology.SAME_NUMA).reason)

    def test_guests_memory_holds_beside_the_fabric(self) -> None:
        gpus = [base.whole_gpu(gpu_id, numa_node=int(gpu_id > 'd'))
                for gpu_id in EIGHT]
        offers = base.offers(gpus, _Links(partitions=LATTICE, fabric=True))
        requested = base.request(
            {'WHOLE': 8}, numa_policy=request_mod.NUMAPolicy.REQUIRED)
        exc = self.assertRaises(
            request_mod.Unsatisfiable, allocate.allocate, offers, requested,
            {}, frozenset({1}))
        self.assertEqual('numa_policy_required', exc.reason)
        found = allocate.allocate(
            offers, base.request({'WHOLE': 4}), {}, frozenset({1}))
        self.assertEqual(set('efgh'), {
            selection.gpu_id for selection in found['WHOLE']})

    def test_unknown_links_are_never_linked(self) -> None:
        gpus = [base.whole_gpu('a'), base.whole_gpu('b')]
        requested = base.request({'WHOLE': 2}, topology=LINKED)
        for links, words in (
                (None, 'its links are not known'),
                (_Links(), 'none'),
                (_Links(problem='8 GPUs named, 2 there'),
                 '(8 GPUs named, 2 there)')):
            exc = self.assertRaises(
                request_mod.Unsatisfiable, allocate.allocate,
                base.offers(gpus, links), requested, {})
            self.assertEqual('topology_linked', exc.reason)
            self.assertIn(words, exc.detail)

    def test_one_gpu_has_no_links_to_miss(self) -> None:
        found = allocate.allocate(
            base.offers([base.whole_gpu('a')]),
            base.request({'WHOLE': 1}, topology=LINKED), {})
        self.assertEqual('a', found['WHOLE'][0].gpu_id)

    def test_vgpus_and_several_classes_cannot_be_linked(self) -> None:
        gpus = [base.gpu('a', passthrough=True), base.gpu('b')]
        links = _Links(partitions=(frozenset('ab'),))
        for counts in ({'V4': 2}, {'V4': 1, 'WHOLE': 1}, {'V4': 1, 'V8': 1}):
            exc = self.assertRaises(
                request_mod.Unsatisfiable, allocate.allocate,
                base.offers(gpus, links),
                base.request(counts, topology=LINKED), {})
            self.assertEqual('topology_linked', exc.reason)

    def test_vgpu_leaves_a_partition_whole(self) -> None:
        gpus = [base.gpu(gpu_id, passthrough=True) for gpu_id in 'abcd']
        found = allocate.allocate(
            base.offers(gpus, _Links(
                partitions=base.lattice('abcd'), fabric=True)),
            base.request({'V4': 2, 'WHOLE': 2}), {})
        whole = {selection.gpu_id for selection in found['WHOLE']}
        self.assertIn(whole, (set('ab'), set('cd')))
        self.assertFalse(whole & {
            selection.gpu_id for selection in found['V4']})

    def test_many_gpus_are_no_explosion(self) -> None:
        ids = [f'{number:03}' for number in range(64)]
        links = _Links(partitions=tuple(
            frozenset(ids[start:start + size]) for size in (64, 32, 16, 8, 2)
            for start in range(0, 64, size)))
        gpus = [base.whole_gpu(gpu_id) for gpu_id in ids[1:]]
        found = allocate.allocate(
            base.offers(gpus, links), base.request({'WHOLE': 17}), {})
        # The pair that is broken already, and then whatever.
        self.assertIn('001', [
            selection.gpu_id for selection in found['WHOLE']])


class LifeTest(test_base.BaseTestCase):

    def test_less_is_refused_than_if_any_free_partition_is_taken(
            self) -> None:
        ours = others = 0
        for seed in range(20):
            ours += refused(seed, lambda size, free: take(size, free))
            others += refused(seed, any_free)
        self.assertLess(ours, others)


def any_free(size: int, free: str) -> str:
    """Return some partition of a size that is free."""
    fit = [part for part in LATTICE
           if len(part) == size and part <= set(free)]
    if not fit:
        raise request_mod.Unsatisfiable(request_mod.Refusal(
            reason=request_mod.Reason.TOPOLOGY_LINKED, detail=''))
    return ''.join(random.Random(free).choice(fit))


def refused(seed: int, choose: typing.Callable[[int, str], str]) -> int:
    """Return how many GPUs are refused of guests that come and go."""
    generator = random.Random(seed)
    guests: list[str] = []
    count = 0
    for _ in range(60):
        free = ''.join(sorted(set(EIGHT) - set(''.join(guests))))
        size = generator.choice([1, 1, 2, 4])
        try:
            guests.append(choose(size, free))
        except request_mod.Unsatisfiable:
            count += size
            guests.pop(generator.randrange(len(guests)))
        if len(guests) > 2:
            guests.pop(generator.randrange(len(guests)))
    return count


def offers_of(rows: typing.Iterable[typing.Any],
              data: st.DataObject) -> _Offers:
    """Return offers of two classes of whole GPUs with random links."""
    gpus: dict[str, list[vgpu.GPUCapacity]] = {
        name: [] for name in CLASSES}
    for number, (name, node, switch, offered) in enumerate(rows):
        gpus[name].append(base.whole_gpu(
            f'c{number}', numa_node=node, switch=switch, offered=offered))
    return {name: base.passthrough(
        pool, data.draw(base.link_groups([gpu.id for gpu in pool])))
        for name, pool in gpus.items()}


def cost(offers: _Offers, requested: request_mod.Request,
         chosen: dict[str, list[vgpu.GPUCapacity]],
         ) -> tuple[int, ...] | None:
    """Return the cost of a choice; None: it is not allowed."""
    every = [gpu for part in chosen.values() for gpu in part]
    confined = all_cost = 0
    for name, part in chosen.items():
        links = offers[name].links
        ids = {gpu.id for gpu in part}
        free = {gpu.id for gpu in offers[name].gpus if gpu.offered}
        lost = sum(len(other) for other in (links.partitions if links else ())
                   if other <= free and other & ids)
        all_cost += lost
        if (requested.topology == 'linked' and len(every) > 1) or (
                links and links.fabric):
            if links is None or ids not in links.partitions:
                return None
            confined += lost
    if requested.topology == 'linked':
        if len(every) > 1 and len(chosen) > 1:
            return None
    elif not test_allocate.is_allowed(every, requested.topology):
        return None
    return (confined, *test_allocate.spread(every), all_cost)


class OracleTest(test_base.BaseTestCase):

    @settings(derandomize=True, deadline=None,
              max_examples=examples.count(1500))
    @given(GPUS, COUNTS, base.TOPOLOGIES, base.POLICIES, st.data())
    def test_best_of_all_sets_is_taken(
            self, rows, counts, topology, policy, data) -> None:
        offers = offers_of(rows, data)
        requested = base.request(
            counts, topology=topology, allocation_policy=policy)
        ways = [[(name, list(chosen)) for chosen in itertools.combinations(
            [gpu for gpu in offers[name].gpus if gpu.offered], count)]
            for name, count in counts.items()]
        costs = [found for chosen in itertools.product(*ways)
                 if (found := cost(offers, requested, dict(chosen)))
                 is not None]
        try:
            found = allocate.allocate(offers, requested, {})
        except request_mod.Unsatisfiable:
            self.assertEqual([], costs)
            return
        by_id = {gpu.id: gpu for offer in offers.values()
                 for gpu in offer.gpus}
        chosen = {name: [by_id[selection.gpu_id] for selection in part]
                  for name, part in found.items()}
        self.assertEqual(counts, {
            name: len({gpu.id for gpu in part})
            for name, part in chosen.items()})
        self.assertTrue(all(gpu.offered for part in chosen.values()
                            for gpu in part))
        self.assertEqual(min(costs), cost(offers, requested, chosen))
