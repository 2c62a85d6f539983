# SPDX-License-Identifier: Apache-2.0
"""Tests of the mix of requests of a cloud that has just started."""

import fixtures
from nova import objects
from oslotest import base

from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_weights import catalogue
from gpgpu_plugin.scheduler_weights import flavors


def flavor(number, vcpus=8, disabled=False, **extra_specs):
    return objects.Flavor(
        flavorid=f'f{number:04d}', name=f'flavor{number}', vcpus=vcpus,
        memory_mb=1024, disabled=disabled, extra_specs={
            f'resources:{name}': value
            for name, value in extra_specs.items()})


class FlavorsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        objects.register_all()
        self.pages = []

    def cloud(self, *known):
        """Have Nova know some flavors."""
        def get_all(_cls, _context, filters, limit, marker):
            self.pages.append(marker)
            found = [one for one in known
                     if marker is None or one.flavorid > marker]
            return [one for one in found
                    if one.disabled == filters['disabled']][:limit]
        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.FlavorList.get_all', get_all))

    def test_flavors_that_ask_for_the_same_count_once(self):
        self.cloud(flavor(1, PGPU='2'), flavor(2, PGPU='2'), flavor(3),
                   flavor(4, PGPU='8', disabled=True))
        self.assertEqual(
            {scheduling.RequestKind(8, 1024, 'PGPU', 2): 1.0,
             scheduling.RequestKind(8, 1024): 1.0},
             dict(flavors.read()))

    def test_malformed_flavor_is_left_out(self):
        self.cloud(flavor(1, PGPU='many'), flavor(2, PGPU='1'))
        self.assertEqual([1], [
            counted.kind.units for counted in flavors.read()])

    def test_flavors_are_read_in_pages_up_to_a_limit(self):
        self.cloud(*[flavor(number, vcpus=number, PGPU='1')
                     for number in range(1, catalogue.MAX_FLAVORS + 2)])
        self.assertEqual(catalogue.MAX_FLAVORS, len(flavors.read()))
        self.assertEqual(
            catalogue.MAX_FLAVORS // flavors.PAGE, len(self.pages))

    def test_scheduler_starts_without_the_database(self):
        def get_all(*_args, **_kwargs):
            raise RuntimeError('no database')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.FlavorList.get_all', get_all))
        self.assertEqual((), flavors.read())
