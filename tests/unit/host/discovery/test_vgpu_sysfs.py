# SPDX-License-Identifier: Apache-2.0
"""Tests of vGPUs in sysfs, as the fake driver changes them."""

import errno
import os
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import host as fake_host
from tests.fixtures import reported


class VGPUTestCase(base.BaseTestCase):

    machine: str

    def setUp(self):
        super().setUp()
        self.root = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'sys')
        self.kernel = fake_host.FakeHost.for_machine(
            self.machine, self.root).kernel

    def scan(self):
        scan = scanner.scan(sysfs.Sysfs(self.root))
        self.assertEqual((), scan.problems)
        return [function for function in reported.functions(scan)
                if pci.can_be_gpu(function.class_code)]

    def read(self, path):
        with open(f'{self.root}/{path}') as file:
            return file.read().strip()

    def refused(self, number, path, value):
        exc = self.assertRaises(OSError, self.kernel.write, path, value)
        self.assertEqual(errno.errorcode[number],
                         errno.errorcode[exc.errno])


class MdevTest(VGPUTestCase):

    machine = 'nvidia-t4-2'

    def setUp(self):
        super().setUp()
        self.gpu = self.scan()[0]
        self.path = f'bus/pci/devices/{self.gpu.address}'
        self.types = f'{self.path}/mdev_supported_types'

    def available(self):
        return [int(self.read(f'{self.types}/nvidia-{number}'
                              '/available_instances'))
                for number in (230, 231, 232, 233, 234)]

    def create(self, number):
        name = str(uuid.uuid4())
        self.kernel.write(f'{self.types}/nvidia-{number}/create', name)
        return name

    def test_types_are_read_with_size_and_maximum(self):
        self.assertEqual(
            vgpu.VGPUMechanism.MDEV, self.gpu.vgpu_mechanism
        )
        self.assertEqual(
            {'T4-1Q': ('nvidia-230', 1024, 16),
             'T4-16Q': ('nvidia-234', 16384, 1)},
            {listed.name: (listed.type_id, listed.video_ram,
                           listed.max_instances)
             for listed in self.gpu.vgpu_types
             if listed.name in ('T4-1Q', 'T4-16Q')})

    def test_available_instances_shrink_and_grow(self):
        self.assertEqual([16, 8, 4, 2, 1], self.available())
        name = self.create(231)
        self.assertEqual([0, 7, 0, 0, 0], self.available())
        self.assertEqual((name,), self.scan()[0].existing_vgpus)
        self.assertEqual('mdev', self.scan()[0].used_by)
        self.refused(errno.ENOSPC, f'{self.types}/nvidia-230/create',
                     str(uuid.uuid4()))
        self.refused(errno.EEXIST, f'{self.types}/nvidia-231/create', name)
        self.refused(errno.EINVAL, f'{self.types}/nvidia-231/create', 'x')
        self.kernel.write(f'bus/mdev/devices/{name}/remove', '1')
        self.assertEqual([16, 8, 4, 2, 1], self.available())
        self.assertEqual((), self.scan()[0].existing_vgpus)
        self.refused(errno.ENOENT, f'bus/mdev/devices/{name}/remove', '1')

    def test_max_instances_is_known_while_mdevs_exist(self):
        self.create(231)
        self.assertEqual(self.gpu.vgpu_types, self.scan()[0].vgpu_types)


class SameTypeTest(VGPUTestCase):

    machine = 'nvidia-m10-1'

    def test_first_vgpu_decides_the_type(self):
        types = (f'bus/pci/devices/{self.scan()[0].address}'
                 '/mdev_supported_types')
        self.kernel.write(f'{types}/nvidia-41/create', str(uuid.uuid4()))
        self.assertEqual(
            {'35': 0, '36': 0, '39': 0, '41': 3, '43': 0, '45': 0, '155': 0},
            {number: int(self.read(
                f'{types}/nvidia-{number}/available_instances'))
             for number in ('35', '36', '39', '41', '43', '45', '155')})


class VFTest(VGPUTestCase):

    machine = 'nvidia-l40s-vgpu-2'

    def setUp(self):
        super().setUp()
        pf = self.scan()[0]
        self.kernel.set_vfs(pf.address, 8)
        self.pf, *self.vfs = [
            function
            for function in self.scan()
            if pf.id in (function.id, function.pf)
        ]

    def write(self, number, value):
        self.kernel.write(
            f'bus/pci/devices/{self.vfs[number].address}/nvidia'
            '/current_vgpu_type', value)

    def creatable_vgpu_types(self, number):
        text = self.read(f'bus/pci/devices/{self.vfs[number].address}/nvidia'
                         '/creatable_vgpu_types')
        return [line.split()[0] for line in text.splitlines()[1:]]

    def test_pf_has_the_types_of_its_vfs(self):
        self.assertEqual((vgpu.VGPUMechanism.VF, 8, 23), (
            self.pf.vgpu_mechanism, len(self.vfs), len(self.pf.vgpu_types)))
        self.assertEqual({'L40S-2Q': 8, 'L40S-12Q': 4, 'L40S-48Q': 1}, {
            listed.name: listed.max_instances for listed in self.pf.vgpu_types
            if listed.name in ('L40S-2Q', 'L40S-12Q', 'L40S-48Q')})
        self.assertEqual({()}, {vf.vgpu_types for vf in self.vfs})

    def test_creatable_vgpu_types_shrink_and_grow(self):
        self.assertEqual(23, len(self.creatable_vgpu_types(1)))
        self.write(0, '1153')
        # Types of the same size: 12Q and 12A.
        self.assertEqual(['1153', '1163'], self.creatable_vgpu_types(1))
        found = {function.id: function for function in self.scan()}
        self.assertEqual(('1153',), found[self.vfs[0].id].existing_vgpus)
        # The types of an empty GPU are unknown now.
        self.assertIsNone(found[self.pf.id].vgpu_types)
        for number in (1, 2, 3):
            self.write(number, '1153')
        self.assertEqual([], self.creatable_vgpu_types(4))
        self.assertRaises(OSError, self.write, 4, '1153')
        self.assertRaises(OSError, self.write, 0, '1148')
        for number in range(4):
            self.write(number, '0')
        self.assertEqual(23, len(self.creatable_vgpu_types(1)))
