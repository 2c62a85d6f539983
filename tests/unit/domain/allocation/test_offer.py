# SPDX-License-Identifier: Apache-2.0
"""Tests of offers of a resource class."""

from oslotest import base as test_base

from gpgpu_plugin.domain.allocation import offer as offer_mod
from tests.unit.domain.allocation import base

_GPUS = [base.gpu('a', '8', numa_node=0, passthrough=True),
         base.gpu('b', numa_node=1, passthrough=True)]


class TypeOfferTest(test_base.BaseTestCase):

    def test_units_of_all_gpus_are_available(self) -> None:
        offers = base.offers(_GPUS)
        self.assertEqual({'a': 2, 'b': 4}, offers['V4'].available_by_gpu)
        self.assertEqual(6, offers['V4'].available())
        self.assertEqual({'a': 0, 'b': 1}, offers['WHOLE'].available_by_gpu)

    def test_disabled_type_has_none_available(self) -> None:
        offer = offer_mod.TypeOffer(
            vgpu_type='4', gpus=_GPUS, enabled=False)
        self.assertEqual({'a': 0, 'b': 0}, offer.available_by_gpu)

    def test_offer_within_a_region_has_its_gpus_alone(self) -> None:
        offer = base.offers(_GPUS)['V4']
        part = offer.within(offer_mod.HostRegion(numa_nodes=frozenset({1})))
        self.assertEqual({'b': 4}, part.available_by_gpu)
        self.assertIs(offer, offer.within(offer_mod.HostRegion()))
