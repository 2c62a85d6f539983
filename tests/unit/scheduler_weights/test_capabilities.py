# SPDX-License-Identifier: Apache-2.0
"""Tests of tags of hosts, and of the ranks by their number."""

import types

from nova import objects
from oslotest import base

from gpgpu_plugin.scheduler_weights import ranking
from tests.unit.scheduler_filters import make

objects.register_all()

GPU_HOSTS = {'gpu': types.SimpleNamespace(providers={'p1'}),
             # It has reported, and no variant matches its devices.
             'plain': types.SimpleNamespace(providers=frozenset())}


class RanksTest(base.BaseTestCase):

    def tags(self, name, *aggregates):
        """Return the number of tags of a host in aggregates."""
        host = make.host(name)
        host.aggregates = [objects.Aggregate(metadata=metadata)
                           for metadata in aggregates]
        [rank] = ranking.capability_ranks([host], GPU_HOSTS)
        return 15.0 - rank

    def test_host_with_groups_has_the_tag_gpu(self):
        self.assertEqual((1, 0, 0), tuple(map(
            self.tags, ('gpu', 'plain', 'unknown'))))

    def test_aggregates_add_tags_of_their_own(self):
        self.assertEqual(2, self.tags(
            'gpu', {'gpgpu:tags': 'fast-network'}, {'rack': 'r1'}))
        self.assertEqual(3, self.tags(
            'unknown', {'gpgpu:tags': 'fast-network, nvme,,big-memory'}))

    def test_tag_counts_once_wherever_it_is_named(self):
        self.assertEqual(2, self.tags(
            'gpu', {'gpgpu:tags': 'fast-network,GPU'},
            {'gpgpu:tags': ' fast-network '}))

    def test_more_tags_than_ranks_are_the_last_rank(self):
        self.assertEqual(15, self.tags(
            'gpu', {'gpgpu:tags': ','.join(map(str, range(20)))}))
