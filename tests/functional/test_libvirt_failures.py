# SPDX-License-Identifier: Apache-2.0
"""Guests whose devices cannot be known or attached at first."""

from __future__ import annotations

import os
import pathlib
import typing

import fixtures

from gpgpu_plugin.host.fake import machine
from tests.fixtures import cloud
from tests.functional import test_libvirt


class LibvirtTest(test_libvirt.LibvirtCase):
    """The conductor, the book or a GPU is missing."""

    def test_hard_reboot_without_conductor_keeps_hostdevs(self) -> None:
        self.conductor.stop()
        self.restart_compute()
        self.api.post_server_action(self.server['id'], {
            'reboot': {'type': 'HARD'}})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.assertEqual(self.before, self.hostdevs(self.server))
        self.conductor.start()
        self.run_once('gpu1')
        self.same()

    def test_guest_whose_devices_are_not_known_is_not_started(self) -> None:
        self.conductor.stop()
        pathlib.Path(self.state_path, 'gpu1.json').write_text('damaged')
        self.restart_compute()
        self.api.post_server_action(self.server['id'], {
            'reboot': {'type': 'HARD'}})
        self.wait_for(lambda: 'Reboot failed but instance is running'
                      in self.stdlog.logger.output, 'the refusal')
        self.wait_status(self.server['id'], 'ACTIVE')
        # Nova has not touched the guest.
        self.assertEqual(self.before, self.hostdevs(self.server))
        self.conductor.start()
        self.run_once('gpu1')
        self.api.post_server_action(self.server['id'], {
            'reboot': {'type': 'HARD'}})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.same()

    def test_unrescue_after_reboot_with_new_bus_numbers_is_refused(
            self) -> None:
        os.makedirs(os.path.join(cloud.CONF.instances_path, self.server['id']))
        self.api.post_server_action(self.server['id'], {'rescue': None})
        self.wait_status(self.server['id'], 'RESCUE')
        self.reboot_host(bus_step=2)
        self.api.post_server_action(self.server['id'], {'unrescue': None})
        server = self.wait_status(self.server['id'], 'ERROR')
        self.assertIn('hard reboot the instance', server['fault']['message'])
        self.assertNotIn(self.before[0], server['fault']['message'])
        self.assertIn(f'PCI devices {self.before[0]}',
                      self.stdlog.logger.output)
        self.api.post_server_action(self.server['id'], {
            'reboot': {'type': 'HARD'}})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.before = self.devices_on(self.server)
        self.same()

    def test_gpu_missing_after_reboot_fails_its_server_only(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        other = self.boot(self.flavor(H100=1))
        build = machine.build

        def without(*args: typing.Any) -> None:
            build(*args)
            self.unplug('gpu1', self.before[0])
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.host.fake.machine.build', without):
            self.reboot_host()
        self.wait_for(lambda: self.api.get_server(
            self.server['id'])['status'] == 'ERROR', 'ERROR')
        # It stays the server's; nobody else is touched.
        self.wait_states(assigned=3, available=5)
        self.assertEqual(self.before, self.devices_on(self.server))
        self.assertEqual(1, len(self.hostdevs(other)))
