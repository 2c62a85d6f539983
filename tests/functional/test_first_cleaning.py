# SPDX-License-Identifier: Apache-2.0
"""New GPUs, which their host cleans before anybody gets one."""

from __future__ import annotations

import threading
import typing

import fixtures

from gpgpu_plugin.host import base
from tests.fixtures import cloud
from tests.fixtures import patience


class FirstCleaningTest(cloud.GpuCloud):
    """A new HGX server, whose cleanings wait for the test."""

    variants = ()
    cleaned_before = False

    def setUp(self) -> None:
        super().setUp()
        self.may_clean = threading.Event()
        # Before the workers of the host are ended.
        self.addCleanup(self.may_clean.set)
        backend = self.driver().gpu_tracker.backend
        self.vfio = backend.kernel.vfio
        clean = backend.clean

        def clean_later(device: base.HostDevice) -> base.CleanVerdict:
            self.may_clean.wait(patience.LONG)
            return typing.cast('base.CleanVerdict', clean(device))
        self.useFixture(fixtures.MockPatchObject(
            backend, 'clean', clean_later))

    def create_variant(self) -> list[dict[str, typing.Any]]:
        """Create the variant; return its GPUs, none of which is clean yet."""
        self.manage('variant', 'create', 'H100', *cloud.HGX_H100)
        self.wait_for(lambda: self.states().get('cleaning'),
                      'the first cleanings')
        gpus = self.devices('--variant', 'H100')
        self.assertEqual(8, len(gpus))
        self.assertLessEqual({gpu['shown_state'] for gpu in gpus},
                             {'dirty', 'cleaning'})
        return gpus

    def offered(self) -> int:
        """Return how many GPUs Placement offers."""
        total, reserved = self.inventory()
        return total - reserved

    def verdicts(self, device: dict[str, typing.Any]) -> list[str]:
        """Return the verdicts on a device, oldest first."""
        return [record['verdict'] for record in reversed(self.listing(
            'device', 'cleanings', device['uuid']))]

    def test_server_boots_after_the_first_cleaning_and_not_before(
            self) -> None:
        gpus = self.create_variant()
        waiting = [gpu for gpu in gpus if gpu['shown_state'] == 'dirty']
        # Several are cleaned at once, but not all.
        self.assertNotEqual([], waiting)
        self.assertEqual({'this host has not cleaned it yet'},
                         {gpu['reason'] for gpu in waiting})
        self.assertEqual(0, self.offered())
        flavor = self.flavor(H100=1)
        self.delete(self.boot(flavor, 'ERROR'))
        [group] = self.listing('group', 'list')
        self.assertEqual((8, 0), (group['total'], group['remaining']))

        self.may_clean.set()
        # No operator has a part in this.
        self.wait_states(available=8)
        self.wait_inventory(8, 0)
        self.assertEqual([['passed']] * 8, [
            self.verdicts(gpu) for gpu in gpus])
        server = self.boot(flavor)
        self.assertEqual(1, len(self.devices_of(server)))
        # Only its GPU had a tenant, and is cleaned once more.
        [device] = self.devices('--used-by', server['id'])
        self.delete(server)
        self.wait_states(available=8)
        self.assertEqual([1] * 7 + [2], sorted(
            len(self.verdicts(gpu)) for gpu in gpus))
        self.assertEqual(['passed', 'passed'], self.verdicts(device))

    def test_new_gpus_that_cannot_pass_their_policy_wait_for_another(
            self) -> None:
        # They show no memory without their driver.
        self.vfio.stuck.update(
            device['address'] for device in self.devices())
        self.may_clean.set()
        self.manage('variant', 'create', 'H100', *cloud.HGX_H100)
        self.assertIn(
            'another policy: reset+memory-clear+settings passes',
            self.listing('variant', 'show', 'H100')['reason'])
        self.wait_for(lambda: all(
            'waits: cleaning policy: canary inapplicable' in (
                gpu['reason'] or '')
            for gpu in self.devices('--variant', 'H100')),
            'the GPUs to wait for a policy')
        self.assertEqual({'dirty': 8}, self.states())
        self.assertEqual(0, self.offered())
        self.boot(self.flavor(H100=1), 'ERROR')

        self.manage('variant', 'set', 'H100', '--cleaning-policy',
                    'reset+memory-clear+settings')
        self.wait_states(available=8)
        self.wait_inventory(8, 0)
        self.boot(self.flavor(H100=8))
