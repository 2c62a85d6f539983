# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from nova import exception as nova_exception
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import placement
from tests.unit.compute import make

NAME = 'CUSTOM_GPU_H100'
EXACT = make.assignment(exact=True)


class AddTest(base.BaseTestCase):

    def test_refusal_of_placement_denies_the_claim(self):
        client = mock.Mock()
        client.add_resources_to_instance_allocation.side_effect = (
            nova_exception.AllocationUpdateFailed(
                consumer_uuid='i1', error='no capacity'))
        exc = self.assertRaises(
            exception.ClaimDenied, placement.add_exact, client, 'i1', 'h1',
            {make.GROUP: {'resources': {NAME: 1}}})
        self.assertEqual('exact_device_unavailable', exc.reason)
        self.assertIn('no capacity', str(exc))


class MissingTest(base.BaseTestCase):

    def test_only_what_is_not_allocated(self):
        two = [EXACT, make.assignment(uuid='a2', exact=True)]
        for allocated, expected in (
                ({}, 2), ({'other': {NAME: 2}}, 2),
                ({make.GROUP: {NAME: 1}}, 1), ({make.GROUP: {NAME: 2}}, 0)):
            found = placement.missing_exact([make.group()], two, allocated)
            self.assertEqual(
                {make.GROUP: {'resources': {NAME: expected}}}
                if expected else {}, found)


class CoverTest(base.BaseTestCase):

    def cover(self, allocated, assignment=EXACT, used=('a1',), error=None):
        client = mock.Mock()
        client.add_resources_to_instance_allocation.side_effect = error
        found = {make.GROUP: allocated}
        placement.cover_exact(
            client, 'h1', [make.group(), make.group('L40S')], [assignment],
            used, found)
        return (client.add_resources_to_instance_allocation.call_count,
                found[make.GROUP])

    def test_device_without_an_allocation_gets_one(self):
        self.assertEqual((1, {'i1': {NAME: 1}}), self.cover({}))

    def test_covered_device_stays_as_it_is(self):
        # A migration has it until Nova confirms or reverts.
        for consumer in ('i1', 'm1'):
            allocated = {consumer: {NAME: 1}}
            self.assertEqual((0, allocated), self.cover(allocated))

    def test_devices_of_a_flavor_and_unused_ones_get_none(self):
        self.assertEqual((0, {}), self.cover({}, make.assignment()))
        self.assertEqual((0, {}), self.cover({}, used=()))

    def test_failure_leaves_the_device_without(self):
        self.assertEqual((1, {}), self.cover({}, error=OSError('away')))
