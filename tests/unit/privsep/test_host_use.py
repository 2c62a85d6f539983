# SPDX-License-Identifier: Apache-2.0
"""Tests of how the host itself uses a function."""

import errno
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.privsep import guard

ADDRESS = '0000:21:00.0'


class HostUseTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.sys, self.proc = root / 'sys', root / 'proc'
        self.dev = root / 'dev'
        self.dev.mkdir()
        self.device = self.sys / 'devices/pci0000:20' / ADDRESS
        self.device.mkdir(parents=True)
        links = self.sys / 'bus/pci/devices'
        links.mkdir(parents=True)
        (links / ADDRESS).symlink_to(self.device)
        (self.proc / 'self').mkdir(parents=True)
        self.write_mountinfo('')

    def write_mountinfo(self, mountinfo):
        (self.proc / 'self/mountinfo').write_text(mountinfo)

    def add_class_device(self, kind, name, **attributes):
        folder = self.device / kind / name
        folder.mkdir(parents=True)
        for attribute, value in attributes.items():
            (folder / attribute).write_text(f'{value}\n')
        (self.sys / 'class' / kind).mkdir(parents=True, exist_ok=True)
        (self.sys / 'class' / kind / name).symlink_to(
            os.path.relpath(folder, self.sys / 'class' / kind))
        return folder

    def finder(self):
        return guard.HostUse(
            str(self.sys), str(self.proc), str(self.dev))

    def use(self):
        return self.finder().of(ADDRESS)

    def test_unused_function_is_free(self):
        self.assertIsNone(self.use())

    def test_display_that_the_host_booted_with_is_named(self):
        (self.device / 'boot_vga').write_text('0\n')
        self.assertIsNone(self.use())
        (self.device / 'boot_vga').write_text('1\n')
        self.assertIn('booted with', self.use())

    def test_network_interface_that_is_up_is_named(self):
        folder = self.add_class_device('net', 'eth0', flags='0x1003')
        self.assertEqual('its network interface eth0 is up', self.use())
        (folder / 'flags').write_text('0x1002\n')
        self.assertIsNone(self.use())

    def test_mounted_disk_is_named(self):
        self.add_class_device('block', 'nvme0n1p1', dev='259:1')
        (self.dev / 'nvme0n1p1').touch()
        self.assertIsNone(self.use())
        self.write_mountinfo(
            '22 1 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw\n'
        )
        self.assertEqual('its disk nvme0n1p1 is mounted on /data',
                         self.use())
        # btrfs shows a device number of its own.
        self.write_mountinfo(
            '22 1 0:30 / /data rw - btrfs /dev/nvme0n1p1 rw\n'
        )
        self.assertIn('mounted on /data', self.use())

    def test_disk_of_a_volume_is_named(self):
        folder = self.add_class_device('block', 'nvme0n1', dev='259:0')
        (folder / 'holders/dm-0').mkdir(parents=True)
        self.assertIn('is part of dm-0', self.use())

    def test_disk_that_cannot_be_opened_exclusively_is_named(self):
        self.add_class_device('block', 'cciss!c0d0', dev='104:0')
        # A disk that cannot be opened may be in use.
        self.assertIn('cannot be opened', self.use())
        (self.dev / 'cciss').mkdir()
        (self.dev / 'cciss/c0d0').touch()
        self.assertIsNone(self.use())
        for number, words in ((errno.EBUSY, 'is in use'),
                              (errno.EIO, 'cannot be opened'),
                              (errno.ENOMEDIUM, None)):
            with fixtures.MockPatch(
                    'os.open', side_effect=OSError(number, 'x')):
                reason = self.finder()._exclusive_use('c0d0')
            if words is None:
                self.assertIsNone(reason)
            else:
                self.assertIn(words, reason)

    def test_disk_of_another_device_does_not_count(self):
        other = self.sys / 'devices/pci0000:20' / f'{ADDRESS}0/block/sda'
        other.mkdir(parents=True)
        (self.sys / 'class/block').mkdir(parents=True)
        (self.sys / 'class/block/sda').symlink_to(other)
        (other / 'dev').write_text('8:0\n')
        self.write_mountinfo('22 1 8:0 / / rw - ext4 /dev/sda rw\n')
        self.assertIsNone(self.use())

    def open_null(self, pid='812'):
        """Let a process have /dev/null open, whose number is 1:3."""
        folder = self.proc / pid / 'fd'
        folder.mkdir(parents=True)
        (folder / '0').symlink_to(self.dev / 'gone')
        (folder / '5').symlink_to('/dev/null')
        (folder.parent / 'comm').write_text('python3\n')

    def test_process_that_has_a_render_node_open_is_named(self):
        self.add_class_device('drm', 'card0-DP-1', status='connected')
        self.add_class_device('drm', 'renderD128', dev='1:3')
        self.assertIsNone(self.use())
        self.open_null()
        self.assertEqual(
            'process 812 (python3) has /dev/dri/renderD128 open', self.use())

    def test_node_of_another_gpu_does_not_count(self):
        self.add_class_device('drm', 'renderD129', dev='226:129')
        self.open_null()
        self.assertIsNone(self.use())

    def test_process_that_uses_cuda_is_named(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.privsep.guard._NVIDIA_MAJOR', 1))
        folder = self.proc / 'driver/nvidia/gpus' / ADDRESS
        folder.mkdir(parents=True)
        (folder / 'information').write_text(
            'Model: \t\t NVIDIA L4\nDevice Minor: \t 3\n')
        self.open_null()
        self.assertEqual(
            'process 812 (python3) has /dev/nvidia3 open', self.use())
