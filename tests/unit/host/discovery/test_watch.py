# SPDX-License-Identifier: Apache-2.0
"""Tests of the watch, on a fake machine."""

import dataclasses
import os
import pathlib
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import vgpu_driver
from tests.fixtures import locked

MTTY = {'mechanism': 'mdev', 'mix_policy': 'any_mix', 'types': {
    'mtty-1': {'name': 'Single port serial', 'video_ram': 1, 'max': 24}}}


class WatchTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load('intel-flex170-2'), self.root)
        self.kernel = fake_kernel.FakeKernel(self.root)
        self.gpu = next(
            function for function
            in scanner.scan(sysfs.Sysfs(self.root)).functions
            if pci.can_be_gpu(function.class_code)
            and function.sriov_totalvfs)

    def write(self, name, value):
        self.kernel.write(
            f'bus/pci/devices/{self.gpu.address}/{name}', value)

    def watch(self):
        made = watch.Watch(sysfs.Sysfs(self.root), scanner.scan(
            sysfs.Sysfs(self.root)))
        self.addCleanup(made.close)
        return made

    def test_unchanged_host_is_not_changed(self):
        self.assertFalse(self.watch().changed())

    def test_change_of_driver_is_noticed(self):
        address = self.gpu.address
        before = self.watch()
        self.kernel.write('bus/pci/drivers/i915/unbind', address)
        self.assertTrue(before.changed())
        before = self.watch()
        self.write('driver_override', 'vfio-pci')
        self.kernel.write('bus/pci/drivers/vfio-pci/bind', address)
        self.assertTrue(before.changed())

    def test_new_aliases_are_noticed_if_a_vfio_driver_is_missing(self):
        alias = 'vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* x_vfio_pci'
        folder = pathlib.Path(self.root)
        before = self.watch()
        machine.write_aliases([alias], folder)
        self.assertFalse(before.changed())
        (folder / vfio_drivers.ALIASES).unlink()
        path = folder / 'bus/pci/devices' / self.gpu.address
        (path / 'vendor').write_text('0x10de\n')
        (path / 'device').write_text('0x2342\n')
        (path / 'modalias').unlink()
        before = self.watch()
        self.assertFalse(before.changed())
        machine.write_aliases([alias], folder)
        self.assertTrue(before.changed())
        self.assertFalse(self.watch().changed())

    def test_gpu_that_dies_or_comes_back_is_noticed(self):
        config = pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address, 'config')
        alive = config.read_bytes()
        before = self.watch()
        config.write_bytes(b'\xff' * len(alive))
        self.assertTrue(before.changed())
        self.assertFalse(before.changed([self.gpu.id]))
        before = self.watch()
        self.assertFalse(before.changed())
        config.write_bytes(alive)
        self.assertTrue(before.changed())
        self.assertFalse(self.watch().changed())

    def test_gpu_that_dies_between_scan_and_watch_is_noticed(self):
        tree = sysfs.Sysfs(self.root)
        found = scanner.scan(tree)
        pathlib.Path(self.root, 'bus/pci/devices', self.gpu.address,
                     'config').write_bytes(b'\xff' * 64)
        made = watch.Watch(tree, found)
        self.addCleanup(made.close)
        self.assertTrue(made.changed())

    def test_health_of_gpu_in_cleaning_is_not_compared(self):
        tree = sysfs.Sysfs(self.root)
        made = watch.Watch(tree, scanner.scan(tree), {
            self.gpu.id: watch.read_health(tree, self.gpu.address)})
        self.addCleanup(made.close)
        self.assertFalse(made.changed())
        fake_kernel.write_errors(pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address), fatal=1)
        self.assertFalse(made.changed([self.gpu.id]))
        self.assertTrue(made.changed())

    def test_gpu_whose_config_the_scan_cannot_read_is_not_watched(self):
        tree = sysfs.Sysfs(self.root)
        found = scanner.scan(tree)
        pathlib.Path(self.root, 'bus/pci/devices', self.gpu.address,
                     'config').write_bytes(b'\xff' * 64)
        made = watch.Watch(tree, dataclasses.replace(found, functions=tuple(
            dataclasses.replace(function, unreadable=('config',))
            for function in found.functions)))
        self.addCleanup(made.close)
        self.assertFalse(made.changed())

    def test_config_of_vfs_is_not_watched(self):
        self.write('sriov_numvfs', '2')
        before = self.watch()
        for link in pathlib.Path(self.root, 'bus/pci/devices').iterdir():
            if (link / 'physfn').exists():
                (link / 'config').write_bytes(b'\xff' * 64)
        self.assertFalse(before.changed())

    def test_removed_function_is_noticed(self):
        before = self.watch()
        self.write('remove', '1')
        self.assertTrue(before.changed())

    def test_function_that_was_replaced_between_two_checks_is_noticed(self):
        link = pathlib.Path(self.root, 'bus/pci/devices', self.gpu.address)
        before = self.watch()
        target = link.readlink()
        link.unlink()
        # Sysfs does not give the number of a file again at once.
        pathlib.Path(self.root, 'x').symlink_to('x')
        link.symlink_to(target)
        self.assertTrue(before.changed())

    def test_vfs_that_came_or_went_are_noticed(self):
        for count in ('2', '0'):
            before = self.watch()
            self.write('sriov_numvfs', count)
            self.assertTrue(before.changed())

    def test_lock_of_a_device_is_not_waited_for(self):
        self.write('sriov_numvfs', '2')
        self.useFixture(locked.LockedAttributes())
        self.assertFalse(self.watch().changed())

    def test_check_opens_no_files(self):
        made = self.watch()
        calls = []
        for name in ('open', 'readlink', 'read'):
            self.useFixture(fixtures.MonkeyPatch(
                f'os.{name}', lambda *args: calls.append(args)))
        self.assertFalse(made.changed())
        self.assertEqual([], calls)

    def test_new_mdev_parent_is_noticed(self):
        before = self.watch()
        folder = pathlib.Path(self.root, 'devices/virtual/mtty/mtty')
        folder.mkdir(parents=True)
        vgpu_driver.add_types(pathlib.Path(self.root), folder, MTTY)
        self.assertTrue(before.changed())

    def test_first_function_of_a_driver_is_noticed(self):
        pathlib.Path(self.root, 'bus/pci/drivers/nouveau').mkdir()
        before = self.watch()
        pathlib.Path(self.root, 'bus/pci/drivers/nouveau/0000:ff:00.0').touch()
        self.assertTrue(before.changed())

    def test_new_capacity_of_a_driver_is_noticed(self):
        folder = pathlib.Path(self.root, 'devices/virtual/mtty/mtty')
        folder.mkdir(parents=True)
        vgpu_driver.add_types(pathlib.Path(self.root), folder, MTTY)
        path = folder / 'mdev_supported_types/mtty-1/available_instances'
        for available in ('24', '0'):
            path.write_text(f'{available}\n')
            before = self.watch()
            self.assertFalse(before.changed())
            path.write_text('23\n')
            self.assertTrue(before.changed(), available)

    def test_types_that_cannot_be_read_are_no_change_until_they_can(self):
        folder = pathlib.Path(self.root, 'devices/virtual/mtty/mtty')
        folder.mkdir(parents=True)
        vgpu_driver.add_types(pathlib.Path(self.root), folder, MTTY)
        path = folder / 'mdev_supported_types/mtty-1/available_instances'
        path.write_text('many\n')
        before = self.watch()
        self.assertFalse(before.changed())
        path.write_text('24\n')
        self.assertTrue(before.changed())

    def test_closed_watch_has_no_open_files(self):
        before = len(os.listdir('/proc/self/fd'))
        made = self.watch()
        self.assertGreater(len(os.listdir('/proc/self/fd')), before)
        made.close()
        self.assertEqual(before, len(os.listdir('/proc/self/fd')))


class VGPUWatchTest(base.BaseTestCase):
    """Tests of vGPUs that others than the plugin make, by mechanism."""

    def build(self, name):
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load(name), self.root)
        self.kernel = fake_kernel.FakeKernel(self.root)
        self.sysfs = sysfs.Sysfs(self.root)

    def pf(self):
        return next(function for function in scanner.scan(
            self.sysfs).functions if function.sriov_totalvfs)

    def watch(self):
        self.scan = scanner.scan(self.sysfs)
        made = watch.Watch(self.sysfs, self.scan)
        self.addCleanup(made.close)
        self.assertFalse(made.changed())
        return made

    def test_mdev_that_came_or_went_is_noticed(self):
        self.build('nvidia-t4-2')
        mdev = '3f2f1c62-5d0e-4f68-9a7a-0c3a7f6f5b11'
        before = self.watch()
        address = self.scan.functions[-1].address
        self.kernel.write(f'bus/pci/devices/{address}/mdev_supported_types/'
                          f'nvidia-232/create', mdev)
        self.assertTrue(before.changed())
        before = self.watch()
        self.kernel.write(f'bus/mdev/devices/{mdev}/remove', '1')
        self.assertTrue(before.changed())

    def test_type_of_a_vf_that_was_set_or_cleared_is_noticed(self):
        self.build('nvidia-l40s-vgpu-2')
        pf = self.pf()
        self.kernel.set_vfs(pf.address, 4)
        vf = self.sysfs.link(f'{self.sysfs.devices}/{pf.address}/virtfn0')
        for type_id in ('1153', '0'):
            before = self.watch()
            self.kernel.write(
                f'bus/pci/devices/{vf}/nvidia/current_vgpu_type', type_id)
            self.assertTrue(before.changed())
            self.assertFalse(before.changed([f'{pf.id}/vf0']))
            self.assertTrue(before.changed(['other']))

    def test_vfs_are_not_read_until_a_driver_may_report(self):
        self.build('intel-flex170-2')
        pf = self.pf()
        self.kernel.set_vfs(pf.address, 4)
        vf = self.sysfs.link(f'{self.sysfs.devices}/{pf.address}/virtfn0')
        made = self.watch()
        listed = []
        listdir = os.listdir
        with mock.patch('os.listdir', lambda path: (
                listed.append(path), listdir(path))[1]):
            self.assertFalse(made.changed())
        self.assertEqual([], [path for path in listed if 'devices' in path])
        self.kernel.write(f'bus/pci/devices/{vf}/driver_override', 'i915')
        self.kernel.write('bus/pci/drivers/i915/bind', vf)
        self.assertTrue(made.changed())

    def test_driver_of_a_vf_that_begins_to_report_is_noticed(self):
        self.build('nvidia-l40s-vgpu-2')
        pf = self.pf()
        self.kernel.set_vfs(pf.address, 4)
        folder = pathlib.Path(self.sysfs.devices, pf.address)
        for vf in folder.glob('virtfn*'):
            (vf / 'nvidia').rename(vf / 'later')
        before = self.watch()
        (folder / 'virtfn3/later').rename(folder / 'virtfn3/nvidia')
        self.assertTrue(before.changed())
