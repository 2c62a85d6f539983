# SPDX-License-Identifier: Apache-2.0
"""Tests of requests as the policy sees them."""

from oslotest import base

from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import catalogue


def offer(name, variant='A', most=1):
    return scheduler_view.Offer(
        resource_class=name, variant=variant, most=most)


def demand(name, count=1):
    return request.Demand(resource_class=name, count=count)


class CatalogueTest(base.BaseTestCase):

    def test_class_that_all_variants_offer_binds_to_none(self):
        found = catalogue.Catalogue([
            offer('PGPU', 'A'), offer('PGPU', 'B'), offer('CUSTOM_B', 'B')])
        self.assertEqual(frozenset(), found.variants('PGPU'))
        self.assertEqual(frozenset('B'), found.variants('CUSTOM_B'))

    def test_whole_gpus(self):
        found = catalogue.Catalogue([offer('A'), offer('B', 'B')])
        self.assertEqual(
            weighing.WeighedRequest(2000, 512, 4, weighing.WHOLE,
                                    frozenset('A')),
            found.request(2, 512, demand('A', 4)))

    def test_vgpus_are_one_share_of_a_gpu(self):
        found = catalogue.Catalogue([offer('Q', most=4)])
        for count, units in ((1, 250), (3, 750), (9, 1000)):
            self.assertEqual(
                weighing.WeighedRequest(1000, 1, 1, units, frozenset()),
                found.request(1, 1, demand('Q', count)))

    def test_request_without_gpus(self):
        self.assertEqual(
            weighing.WeighedRequest(1000, 2, 0, 0, frozenset()),
            catalogue.Catalogue([]).request(1, 2, None))

    def test_most_units_of_all_hosts_count(self):
        found = catalogue.Catalogue([
            offer('Q', most=4), offer('Q', 'B', most=8)])
        self.assertEqual(8, found.most('Q'))

    def test_mix_of_counted_requests(self):
        found = catalogue.Catalogue([offer('A'), offer('B', 'B')])
        shares = found.mix([
            scheduling.CountedRequests(scheduling.RequestKind(*kind), number)
            for number, kind in (
                (600, (8, 1, 'A', 2)), (200, (1, 1)),
                (100, (1, 1, 'FPGA', 1)))
        ]).shares
        # As if each kind had come 50 times more.
        self.assertEqual({
            weighing.WeighedRequest(8000, 1, 2, weighing.WHOLE,
                                    frozenset('A')): 0.65,
            weighing.WeighedRequest(1000, 1, 0, 0, frozenset()): 0.35}, shares)

    def test_mix_without_gpus_is_unknown(self):
        found = catalogue.Catalogue([offer('A')])
        plain = scheduling.CountedRequests(scheduling.RequestKind(1, 1), 9.0)
        for counted in ((), (plain,)):
            self.assertEqual(found.unknown_mix(), found.mix(counted))

    def test_flavors_are_the_mix_until_requests_with_gpus_are_known(self):
        found = catalogue.Catalogue([offer('A')])
        flavors = [scheduling.CountedRequests(
            scheduling.RequestKind(*kind), 1.0)
            for kind in ((8, 1, 'A', 2), (2, 1, 'A', 1), (1, 1))]
        plain = scheduling.CountedRequests(scheduling.RequestKind(1, 1), 9.0)
        for counted in ((), (plain,)):
            third = round(1 / 3, 9)
            self.assertEqual({(8000, 2): third, (2000, 1): third,
                              (1000, 0): third}, {
                (asked.milli_vcpus, asked.gpus): round(share, 9)
                for asked, share
                in found.mix(counted, flavors).shares.items()})
        arrived = scheduling.CountedRequests(
            scheduling.RequestKind(4, 1, 'A', 1), 100.0)
        # As if a hundred others had come before, of each flavor alike.
        sixth = round(1 / 6, 9)
        self.assertEqual({(8000, 2): sixth, (2000, 1): sixth, (1000, 0): sixth,
                          (4000, 1): 0.5}, {
            (asked.milli_vcpus, asked.gpus): round(share, 9)
            for asked, share in found.mix([arrived], flavors).shares.items()})

    def test_unknown_mix_has_equal_shares_of_whole_gpus(self):
        shares = catalogue.Catalogue([
            offer('A'), offer('Q', most=4)]).unknown_mix().shares
        self.assertEqual({1: 0.25, 2: 0.25, 4: 0.25, 8: 0.25}, {
            asked.gpus: share for asked, share in shares.items()})
