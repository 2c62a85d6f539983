# SPDX-License-Identifier: Apache-2.0
"""Tests of the fake kernel beyond the contract (tests/contract)."""

import errno
import os
import pathlib
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from tests.fixtures import reported


class KernelTestCase(base.BaseTestCase):

    machine = 'pcie-l40s-4'

    def setUp(self):
        super().setUp()
        self.root = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'sys')
        self.backend = fake_host.FakeHost.for_machine(self.machine, self.root)
        self.kernel = self.backend.kernel
        self.gpus = [
            function
            for function in self.scan()
            if pci.can_be_gpu(function.class_code)
            and function.vendor != '1a03'
        ]

    def scan(self):
        return scanner.scan(sysfs.Sysfs(self.root)).functions

    def refused(self, number, path, value):
        exc = self.assertRaises(OSError, self.kernel.write, path, value)
        self.assertEqual(errno.errorcode[number],
                         errno.errorcode[exc.errno])

    def write(self, name, value, gpu=0):
        self.kernel.write(
            f'bus/pci/devices/{self.gpus[gpu].address}/{name}', value)


class ResetTest(KernelTestCase):

    def test_reset_without_a_method_is_refused(self):
        path = f'bus/pci/devices/{self.gpus[0].address}'
        with open(f'{self.root}/{path}/reset_method', 'w'):
            pass
        self.refused(errno.ENOTTY, f'{path}/reset', '1')

    def test_fault_is_raised(self):
        self.kernel.faults['reset'] = errno.EIO
        self.refused(errno.EIO, f'bus/pci/devices/{self.gpus[0].address}'
                                '/reset', '1')


class SriovTest(KernelTestCase):

    machine = 'intel-flex170-2'

    def test_numvfs_creates_and_removes_vfs(self):
        path = f'bus/pci/devices/{self.gpus[0].address}/sriov_numvfs'
        self.refused(errno.ERANGE, path, '32')
        self.refused(errno.EINVAL, path, 'x')
        self.kernel.write(path, '31')
        self.refused(errno.EBUSY, path, '4')
        vfs = [
            function
            for function in self.scan()
            if function.pf == self.gpus[0].id
        ]
        self.assertEqual(
            {f'{self.gpus[0].id}/vf{number}' for number in range(31)},
            {function.id for function in vfs})
        # Their configuration space has no ids, which is no fault.
        self.assertEqual({None}, {function.fault for function in vfs})
        self.assertEqual('vf', next(
            function.used_by for function in self.scan()
            if function.id == self.gpus[0].id))
        self.kernel.write(path, '0')
        self.assertFalse([function for function in self.scan() if function.pf])

    def test_nvidias_driver_refuses_numvfs(self):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        host = fake_host.FakeHost.for_machine('nvidia-l40s-vgpu-2', root)
        pf = next(function for function in host.scan().functions
                  if function.sriov_totalvfs)
        self.kernel = host.kernel
        self.refused(errno.ENOENT,
                     f'bus/pci/devices/{pf.address}/sriov_numvfs', '8')
        self.kernel.sriov_manage(pf.address)
        vfs = [
            function
            for function in host.scan().functions
            if function.pf == pf.id
        ]
        self.assertEqual((32, {'nvidia'}), (
            len(vfs), {function.driver for function in vfs}))

    def test_unbound_vf_has_no_vgpus_and_no_types(self):
        for name, file in (
                ('nvidia-l40s-vgpu-2', 'nvidia/current_vgpu_type'),
                ('nvidia-a100-2', 'mdev_supported_types')):
            root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
            host = fake_host.FakeHost.for_machine(name, root)
            pf = next(function for function in host.scan().functions
                      if function.sriov_totalvfs)
            host.kernel.sriov_manage(pf.address)
            vf = next(
                function for function in host.scan().functions if function.pf
            )
            before = host.scan()
            host.prepare(host_base.HostDevice(
                assignment_uuid=str(uuid.uuid4()), stable_id=vf.id,
                address=vf.address, vgpu_type=next(
                    kind.name for function in reported.functions(before)
                    for kind in function.vgpu_types)))
            path = f'{root}/bus/pci/devices/{vf.address}/{file}'
            for end, there in (('unbind', False), ('bind', True)):
                host.kernel.write(
                    f'bus/pci/drivers/nvidia/{end}', vf.address)
                self.assertEqual(there, os.path.exists(path))
            # The vGPU is gone, and the driver can create it again.
            self.assertEqual(before, host.scan())

    def test_module_without_an_alias_is_not_loaded(self):
        exc = self.assertRaises(
            OSError, self.kernel.load_vfio, 'xe_vfio_pci')
        self.assertIn('modprobe xe_vfio_pci failed', str(exc))
        machine.write_aliases(
            ['vfio_pci:v00008086d*sv*sd*bc*sc*i* xe_vfio_pci'],
            pathlib.Path(self.root))
        for _ in range(2):
            self.kernel.load_vfio('xe_vfio_pci')
        self.assertEqual('xe-vfio-pci', vfio_drivers.loaded(
            sysfs.Sysfs(self.root), 'xe_vfio_pci'))

    def test_variant_binds_by_override_only_and_is_not_enabled(self):
        machine.write_aliases(
            ['vfio_pci:v*d*sv*sd*bc*sc*i* xe_vfio_pci'],
            pathlib.Path(self.root))
        self.kernel.load_vfio('xe_vfio_pci')
        address = self.gpus[0].address
        if self.gpus[0].driver:
            self.kernel.write(
                f'bus/pci/drivers/{self.gpus[0].driver}/unbind', address)
        self.refused(errno.ENODEV, 'bus/pci/drivers/xe-vfio-pci/bind', address)
        self.write('driver_override', 'xe-vfio-pci')
        self.kernel.write('bus/pci/drivers/xe-vfio-pci/bind', address)
        self.assertEqual('0\n', pathlib.Path(
            self.root, 'bus/pci/devices', address, 'enable').read_text())

    def test_256_vfs_over_several_buses_have_different_ids(self):
        root = self.useFixture(fixtures.TempDir()).path
        machine.build(machine.synthetic(pfs=1, vfs=256), root)
        kernel = fake_kernel.FakeKernel(root)
        pf = next(
            function
            for function in scanner.scan(sysfs.Sysfs(root)).functions
            if function.sriov_totalvfs
        )
        kernel.write(f'bus/pci/devices/{pf.address}/sriov_numvfs', '256')
        vfs = [
            function
            for function in scanner.scan(sysfs.Sysfs(root)).functions
            if function.pf
        ]
        self.assertEqual(256, len({function.id for function in vfs}))
        self.assertEqual(2, len({function.address[:7] for function in vfs}))
        self.assertEqual({f'{pf.id}/vf{n}' for n in range(256)},
                         {function.id for function in vfs})
