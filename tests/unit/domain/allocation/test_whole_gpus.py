# SPDX-License-Identifier: Apache-2.0
"""Tests of choosing whole GPUs."""

from oslotest import base as test_base

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.unit.domain.allocation import base


class ChooseTest(test_base.BaseTestCase):
    """Tests beyond the brute-force oracle of test_allocate."""

    def choose(self, localities: dict[str, tuple[int | None, str | None]],
               count: int, policy: request_mod.AllocationPolicy = base.DEPTH,
               ) -> str | None:
        choice = allocate.choose_whole_gpus({'WHOLE': [
            base.whole_gpu(gpu_id, numa_node=node, switch=switch)
            for gpu_id, (node, switch) in localities.items()]},
            {'WHOLE': count}, policy)
        return None if choice is None else ''.join(
            gpu.id for gpu in choice.gpus['WHOLE'])

    def test_too_few(self) -> None:
        self.assertIsNone(self.choose({'a': (0, 's')}, 2))

    def test_fewest_numa_nodes_come_before_fewest_switches(self) -> None:
        self.assertEqual('bc', self.choose(
            {'a': (0, 's'), 'b': (1, 't'), 'c': (1, 'u')}, 2))

    def test_fewest_switches_come_before_the_policy(self) -> None:
        for policy in (base.DEPTH, base.BREADTH):
            self.assertEqual('cd', self.choose(
                {'a': (0, 's'), 'b': (0, 't'), 'c': (0, 'u'),
                 'd': (0, 'u')}, 2, policy))

    def test_policy_decides_about_the_island(self) -> None:
        localities = {'a': (0, 's'), 'b': (0, 't'), 'c': (1, 'u')}
        self.assertEqual('c', self.choose(localities, 1, base.DEPTH))
        self.assertEqual('a', self.choose(localities, 1, base.BREADTH))

    def test_unknown_nodes_count_as_one_and_unknown_switches_as_many(
            self) -> None:
        self.assertEqual('cd', self.choose(
            {'a': (None, None), 'b': (None, None), 'c': (0, 's'),
             'd': (0, 's')}, 2))

    def test_lowest_ids_are_taken_of_what_is_equal(self) -> None:
        self.assertEqual('ab', self.choose(
            {'c': (0, 's'), 'b': (0, 's'), 'a': (0, 's')}, 2))

    def test_largest_islands_are_taken_beyond_the_limit(self) -> None:
        # 25 switches: 300 pairs are tried, 2,300 triples are not.
        localities = {f'{number:02}': (0, f's{number}')
                      for number in range(24)}
        localities |= {f'x{number}': (0, 'big') for number in range(3)}
        found = self.choose(localities, 5)
        self.assertEqual('x0x1x2', found[-6:])

    def test_some_combinations_of_many_link_partitions_are_tried(self) -> None:
        pools = {name: [base.whole_gpu(f'{name}{number:02}')
                        for number in range(32)] for name in 'ABCDEF'}
        partitions = {name: fabric.FreePartitions(
            partitions=tuple(frozenset({one.id, other.id}) for one, other
                             in zip(pool[::2], pool[1::2], strict=True)),
            gpus=tuple(gpu.id for gpu in pool))
            for name, pool in pools.items()}
        # There are 16 million.
        choice = allocate.choose_whole_gpus(
            pools, dict.fromkeys(pools, 2), base.DEPTH, partitions,
            confined=tuple(pools))
        assert choice is not None
        self.assertEqual(
            {name: {f'{name}00', f'{name}01'} for name in pools},
            {name: {gpu.id for gpu in gpus}
             for name, gpus in choice.gpus.items()})

    def test_beyond_the_limit_the_choice_may_use_more_switches(self) -> None:
        # s0, s1 and s2 would do; sets of three of 27 are too many to try.
        pools = {'A': [*(base.whole_gpu(f'a{number}', numa_node=0,
                                        switch=f'big{number % 2}')
                         for number in range(6)),
                       base.whole_gpu('a6', numa_node=0, switch='s0')],
                 'B': [base.whole_gpu(f'b{number:02}', numa_node=0,
                                      switch=f's{number}')
                       for number in range(25)]}
        choice = allocate.choose_whole_gpus(pools, {'A': 1, 'B': 3},
                                            base.DEPTH)
        self.assertEqual((1, 5), choice.cost[1:3])
