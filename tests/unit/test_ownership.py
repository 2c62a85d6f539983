# SPDX-License-Identifier: Apache-2.0
"""Tests of the invariants of ownership."""

from __future__ import annotations

import dataclasses

from oslotest import base

from gpgpu_plugin.domain import naming
from gpgpu_plugin.objects import claim
from tests.fixtures import cloud_views
from tests.fixtures import ownership
from tests.fixtures import tenant

GPU = '0000:18:00.0'
OTHER = '0000:19:00.0'
ASSIGNMENT = claim.Assignment(
    **tenant.TENANT, host_generation=1,
    uuid='a1', instance_uuid='i1', host='gpu1', role=claim.ClaimRole.INSTANCE,
    device_uuid='d1', stable_id='s1', address=GPU, variant='H100',
    resource_class='CUSTOM_GPU_H100', state='assigned')


def units(host: str) -> ownership.Amounts:
    """Return the allocation of one GPU on a host."""
    return {(naming.provider_uuid(cloud_views.node_uuid(host), 'H100'),
             'CUSTOM_GPU_H100'): 1}


SERVER = ownership.Server(
    uuid='i1', host='gpu1', vm_state='active', task=None,
    allocated=units('gpu1'), hostdevs=frozenset({GPU}))


class ContradictionsTest(base.BaseTestCase):

    def found(self, server: ownership.Server,
              *assigned: claim.Assignment) -> str:
        return '\n'.join(ownership.contradictions(
            server, assigned, {'gpu1': {GPU, OTHER}, 'gpu2': {GPU}}))

    def test_guest_with_its_devices_violates_nothing(self) -> None:
        self.assertEqual('', self.found(SERVER, ASSIGNMENT))

    def test_device_of_another_owner_violates_nothing(self) -> None:
        self.assertEqual('', self.found(dataclasses.replace(
            SERVER, hostdevs=frozenset({GPU, '0000:99:00.0'})), ASSIGNMENT))

    def test_guest_with_one_device_too_many_is_reported(self) -> None:
        self.assertIn('its guest', self.found(dataclasses.replace(
            SERVER, hostdevs=frozenset({GPU, OTHER})), ASSIGNMENT))

    def test_guest_without_its_mdev_is_reported(self) -> None:
        self.assertIn('its guest', self.found(dataclasses.replace(
            SERVER, hostdevs=frozenset({'a2'})), ASSIGNMENT))

    def test_allocation_on_another_host_is_reported(self) -> None:
        self.assertIn('its allocation', self.found(dataclasses.replace(
            SERVER, allocated=units('gpu2')), ASSIGNMENT))

    def test_device_on_another_host_is_reported(self) -> None:
        source = dataclasses.replace(ASSIGNMENT, uuid='a2', host='gpu2')
        self.assertIn('does not move', self.found(SERVER, ASSIGNMENT, source))

    def test_two_sets_on_one_host_are_reported(self) -> None:
        left = dataclasses.replace(
            ASSIGNMENT, uuid='a2', role=claim.ClaimRole.DESTINATION,
            migration_uuid='m1')
        self.assertIn('more than one claim',
                      self.found(SERVER, ASSIGNMENT, left))

    def test_two_sets_of_a_resized_server_violate_nothing(self) -> None:
        new = dataclasses.replace(
            ASSIGNMENT, uuid='a2', role=claim.ClaimRole.DESTINATION,
            migration_uuid='m1')
        for host in ('gpu1', 'gpu2'):
            self.assertEqual('', self.found(
                dataclasses.replace(SERVER, vm_state='resized'),
                dataclasses.replace(ASSIGNMENT, host=host), new))
