# SPDX-License-Identifier: Apache-2.0
"""Tests of the calls of VFIO, on a fake of the kernel's files."""

import errno
import os
import struct

import fixtures
from oslotest import base

from gpgpu_plugin.privsep import vfio_device
from tests.fixtures import vfio_kernel

ADDRESS = '10000:e1:00.0'


class DeviceCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.kernel = self.useFixture(vfio_kernel.VFIOKernel())
        self.root = self.useFixture(fixtures.TempDir()).path
        device = f'{self.root}/bus/pci/devices/{ADDRESS}'
        os.makedirs(device)
        os.symlink('../../../kernel/iommu_groups/7', f'{device}/iommu_group')

    def opened(self):
        return vfio_device.opened(self.root, ADDRESS)

    def requests(self, request):
        return [argument for number, argument in self.kernel.calls
                if number == request]


class OpenedTest(DeviceCase):

    def test_files_are_open_in_the_block_only(self):
        with self.opened():
            self.assertEqual(
                ['/dev/vfio/vfio', '/dev/vfio/7', f'{ADDRESS}\0'],
                list(self.kernel.files.values()))
        self.assertEqual({}, self.kernel.files)
        self.assertEqual([vfio_device.VFIO_TYPE1v2_IOMMU],
                         self.requests(vfio_device.VFIO_SET_IOMMU))

    def test_files_are_closed_after_an_error_of_any_call(self):
        for request in (vfio_device.VFIO_GROUP_SET_CONTAINER,
                        vfio_device.VFIO_SET_IOMMU,
                        vfio_device.VFIO_GROUP_GET_DEVICE_FD,
                        vfio_device.VFIO_DEVICE_GET_REGION_INFO):
            self.kernel.errors = {request: errno.EBUSY}

            def read():
                with self.opened() as device:
                    device.memory()
            exc = self.assertRaises(OSError, read)
            self.assertEqual(errno.EBUSY, exc.errno)
            self.assertEqual({}, self.kernel.files)


class HotResetTest(DeviceCase):

    def test_scope_has_all_functions_with_their_groups(self):
        # The domain of VMD is 0x10000, of which a segment has 16 bits.
        self.kernel.scope = [(7, 0, 0xe1, 0), (9, 0, 0xe1, 0x1b)]
        with self.opened() as device:
            self.assertEqual([(ADDRESS, 7), ('10000:e1:03.3', 9)],
                             device.hot_reset_scope())

    def test_reset_has_a_file_of_each_group_once(self):
        with self.opened() as device:
            device.hot_reset([9, 7, 9])
            names = [self.kernel.files[fd] for fd in struct.unpack(
                '=IIIii', self.requests(
                    vfio_device.VFIO_DEVICE_PCI_HOT_RESET)[0])[3:]]
        self.assertEqual(['/dev/vfio/7', '/dev/vfio/9'], names)
        self.assertEqual({}, self.kernel.files)


class MemoryTest(DeviceCase):

    def test_largest_memory_is_read_and_written(self):
        with self.opened() as device:
            region = device.memory()
            self.assertEqual(len(self.kernel.bar), region.size)
            region.write(5, b'abc')
            self.assertEqual(b'\0abc', region.read(4, 4))
            # Beyond the end.
            self.assertRaises(OSError, region.read, region.size - 1, 2)

    def test_device_without_memory_has_none(self):
        self.kernel.bar = bytearray()
        with self.opened() as device:
            self.assertIsNone(device.memory())
