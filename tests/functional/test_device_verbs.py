# SPDX-License-Identifier: Apache-2.0
"""Devices that an operator withdraws, retires and replaces, by Nova's API."""

from __future__ import annotations

import typing

from tests.fixtures import cloud
from tests.fixtures import cloud_views
from tests.fixtures import unprivileged

NEW_DSN = '11-22-33-44-55-66-77-88'


class DeviceVerbsTest(cloud.GpuCloud):
    """One server with eight GPUs."""

    def used_by(self, server: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the only GPU of a server, as it is listed."""
        [device] = self.devices('--instance', server['id'])
        return device

    def kinds(self, device: str) -> list[str]:
        """Return what happened to a device, oldest first."""
        return [event['kind'] for event in reversed(self.listing(
            'event', 'list', '--device', device))]

    def exchange(self, address: str) -> None:
        """Put another card of the same model into a slot, and boot."""
        unprivileged.show(
            (self.sysfs('gpu1') / 'bus/pci/devices' / address).resolve(),
            dsn=NEW_DSN)
        self.restart_compute()

    def test_gpu_is_quarantined_when_its_server_is_deleted(self) -> None:
        server = self.boot(self.flavor(H100=1))
        device = self.used_by(server)
        self.manage('hold', 'add', 'gpu1', device['address'], '--kind',
                    'quarantined', '--reason', 'fan fails')
        self.assertEqual('assigned', self.used_by(server)['shown_state'])
        self.delete(server)
        self.wait_states(available=7, quarantined=1)
        self.wait_inventory(8, 1)
        [quarantined] = self.devices('--state', 'quarantined')
        self.assertEqual(device['uuid'], quarantined['uuid'])
        self.assertIn('fan fails', quarantined['reason'])
        self.boot(self.flavor(H100=8), 'ERROR')

        self.manage('device', 'release', 'gpu1', device['address'])
        self.wait_states(available=8)
        self.assertEqual(
            ['quarantine', 'release', 'operator_release', 'clean_started',
             'clean_passed'], self.kinds(device['uuid'])[-5:])
        self.wait_inventory(8, 0)
        self.boot(self.flavor(H100=8))

    def test_held_gpu_is_kept_by_its_server_and_got_by_no_other(self) -> None:
        server = self.boot(self.flavor(H100=1))
        device = self.used_by(server)
        for kind in ('disabled', 'quarantined'):
            self.manage('hold', 'add', device['uuid'], '--kind', kind,
                        '--reason', 'audit')
        self.assertIn('devices held as quarantined', self.manage('status'))
        self.assertEqual(
            [(device['uuid'], 'disabled'), (device['uuid'], 'quarantined')],
            [(row['device'], row['kind'])
             for row in self.listing('hold', 'list', '--host', 'gpu1')])
        self.delete(server)
        self.wait_states(available=7, quarantined=1)
        self.boot(self.flavor(H100=8), 'ERROR')
        self.manage('hold', 'remove', device['uuid'], '--kind',
                    'quarantined')
        self.wait_states(available=7, disabled=1)
        self.assertEqual('clean_passed', self.kinds(device['uuid'])[-1])
        self.boot(self.flavor(H100=8), 'ERROR')
        self.manage('hold', 'remove', device['uuid'], '--kind', 'disabled')
        self.wait_inventory(8, 0)
        self.boot(self.flavor(H100=8))

    def test_retired_gpu_is_not_offered_after_a_restart(self) -> None:
        server = self.boot(self.flavor(H100=1))
        device = self.used_by(server)
        refused = self.assertRaises(
            cloud_views.CommandFailed, self.manage, 'hold', 'add',
            device['uuid'], '--kind', 'retired')
        self.assertIn(server['id'], str(refused))
        self.delete(server)
        self.wait_states(available=8)
        self.manage('hold', 'add', device['uuid'], '--kind', 'retired')
        self.wait_inventory(7, 0)
        self.restart_compute()
        self.wait_states(available=7)
        self.wait_offered()
        self.boot(self.flavor(H100=8), 'ERROR')
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(f'gpu1 {device["address"]}',
                         self.devices_of(server))
        # Who used it is known all the same.
        self.assertIn('retire', self.kinds(device['uuid']))
        self.assertEqual(1, len(self.listing(
            'device', 'cleanings', device['uuid'])))

    def test_card_that_was_exchanged_waits_for_the_operator(self) -> None:
        # The host keeps what its guest may have changed.
        server = self.boot(self.flavor(H100=1))
        old = self.used_by(server)
        self.delete(server)
        self.wait_states(available=8)
        # The machine is another one by its GPUs, until somebody vouches.
        self.manage('host', 'takeover', 'gpu1')
        self.exchange(old['address'])
        self.wait_states(available=7, missing=1, quarantined=1)
        new = self.listing('device', 'replace', 'gpu1', old['address'])
        self.assertNotEqual(old['uuid'], new['uuid'])
        self.wait_states(available=8)
        self.assertEqual('retired', self.listing(
            'device', 'show', old['uuid'])['shown_state'])
        self.assertEqual(['clean_started', 'clean_passed'],
                         self.kinds(new['uuid'])[-2:])
