# SPDX-License-Identifier: Apache-2.0
"""Tests of the resets of fake machines."""

import errno
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel


class MachineCase(base.BaseTestCase):

    def open(self, machine):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake_host.FakeHost.for_machine(machine, root)
        self.devices = pathlib.Path(root, 'bus/pci/devices')
        return self.gpu()

    def gpu(self):
        return next(
            function for function in self.host.scan().functions
            if pci.can_be_gpu(function.class_code)
            and function.vendor != '1a03')

    def folder(self, gpu):
        return (self.devices / gpu.address).resolve()

    def write(self, gpu):
        self.host.kernel.write(f'bus/pci/devices/{gpu.address}/reset', '1')


class WorksTest(MachineCase):

    def works(self, gpu, methods):
        (self.folder(gpu) / 'reset_method').write_text(f'{methods}\n')
        return kernel.reset_works(self.folder(gpu))

    def test_first_method_that_works_counts(self):
        gpu = self.open('pcie-l40s-4')
        for methods, works in (('flr bus', True), ('bus', True), ('', False)):
            self.assertEqual(works, self.works(gpu, methods), methods)

    def test_bus_with_another_function_is_not_reset(self):
        gpu = self.open('nvidia-rtx5090-2')
        for methods, works in (('bus', False), ('flr bus', True),
                               ('bus flr', True)):
            self.assertEqual(works, self.works(gpu, methods), methods)

    def test_function_without_the_attribute_has_no_reset(self):
        gpu = self.open('pcie-l40s-4')
        (self.folder(gpu) / 'reset_method').unlink()
        self.assertFalse(kernel.reset_works(self.folder(gpu)))


class RTX5090Test(MachineCase):

    def test_stale_method_is_listed_and_refused(self):
        gpu = self.open('nvidia-rtx5090-2')
        self.assertEqual('bus\n', (
            self.folder(gpu) / 'reset_method').read_text())
        exc = self.assertRaises(OSError, self.write, gpu)
        self.assertEqual(errno.ENOTTY, exc.errno)

    def test_whole_card_is_reset(self):
        gpu = self.open('nvidia-rtx5090-2')
        self.host.kernel.vfio.content(gpu.address)[0] = 1
        self.host.kernel.vfio.hot_reset(
            gpu.address, [gpu.address, *gpu.companions])
        self.assertEqual(0, self.host.kernel.vfio.content(gpu.address)[0])
        self.assertIsNone(self.gpu().fault)


class MI355XTest(MachineCase):

    def test_any_reset_kills_the_gpu(self):
        for reset in (self.write, lambda gpu: self.host.kernel.vfio.hot_reset(
                gpu.address, [gpu.address])):
            gpu = self.open('amd-mi355x-8')
            self.assertIsNone(gpu.fault)
            reset(gpu)
            self.assertIn('does not answer', self.gpu().fault)

    def test_reset_of_its_vf_kills_nothing(self):
        pf = self.open('amd-mi355x-8')
        self.host.kernel.set_vfs(pf.address, 1)
        [vf] = [function for function in self.host.scan().functions
                if function.pf]
        self.assertEqual('75b3', vf.device)
        self.write(vf)
        self.assertEqual([None, None], [
            function.fault for function in self.host.scan().functions
            if pf.id in (function.id, function.pf)])
