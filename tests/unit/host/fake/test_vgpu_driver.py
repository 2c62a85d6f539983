# SPDX-License-Identifier: Apache-2.0
"""Tests of the fake vGPU driver, in a folder that stands for a GPU."""

import errno
import os
import pathlib
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.fake import vgpu_driver

TYPES = {
    '1': {'name': 'X-4Q', 'video_ram': 4096, 'max': 4},
    '2': {'name': 'X-8Q', 'video_ram': 8192, 'max': 2},
    '3': {'name': 'X-4C', 'video_ram': 4096, 'max': 4}}
PLACEMENTS = {'4': [0, 4, 8, 12], '8': [0, 8]}


class DriverTestCase(base.BaseTestCase):

    mechanism = 'mdev'

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.gpu = self.root / 'devices/gpu'
        self.gpu.mkdir(parents=True)
        self.bus = self.root / 'bus/mdev/devices'

    def add(self, mix_policy, **kwargs):
        vgpu_driver.add_types(self.root, self.gpu, {
            'mechanism': self.mechanism, 'mix_policy': mix_policy,
            'types': TYPES, **kwargs})

    def refused(self, number, method, *args):
        exc = self.assertRaises(OSError, method, *args)
        self.assertEqual(errno.errorcode[number], errno.errorcode[exc.errno])


class MdevTestCase(DriverTestCase):

    def driver(self):
        # A write of the fake kernel makes a new one.
        return vgpu_driver.VGPUDriver(self.gpu)

    def create(self, type_id):
        name = str(uuid.uuid4())
        self.driver().create_mdev(type_id, name, self.bus)
        return name

    def available(self):
        return [int((self.gpu / f'mdev_supported_types/{type_id}'
                     '/available_instances').read_text())
                for type_id in TYPES]


class MdevTest(MdevTestCase):

    def test_gpu_is_a_parent_of_mdevs_with_all_types(self):
        self.add('same_type')
        self.assertEqual(['gpu'], os.listdir(self.root / 'class/mdev_bus'))
        self.assertEqual('X-8Q\n', (
            self.gpu / 'mdev_supported_types/2/name').read_text())
        self.assertEqual([4, 2, 4], self.available())

    def test_first_vgpu_decides_the_type(self):
        self.add('same_type')
        self.create('1')
        self.assertEqual([3, 0, 0], self.available())

    def test_first_vgpu_decides_the_size(self):
        self.add('equal_size')
        self.create('1')
        self.assertEqual([3, 0, 3], self.available())

    def test_any_mix_fits_into_the_remaining_framebuffer(self):
        self.add('any_mix')
        self.create('1')
        self.assertEqual([3, 1, 3], self.available())

    def test_removed_mdev_is_available_again(self):
        self.add('any_mix')
        name = self.create('2')
        self.assertEqual([2, 1, 2], self.available())
        self.driver().remove_mdev(name, self.bus)
        self.assertEqual([4, 2, 4], self.available())
        self.assertEqual([], os.listdir(self.bus))
        self.assertFalse((self.gpu / name).exists())

    def test_name_of_an_mdev_is_lower_case(self):
        self.add('any_mix')
        name = str(uuid.UUID(int=0xabcdef))
        self.driver().create_mdev('1', name.upper(), self.bus)
        self.assertEqual([name], os.listdir(self.bus))

    def test_mdev_that_cannot_be_created_changes_nothing(self):
        self.add('same_type')
        name = self.create('2')
        create = self.driver().create_mdev
        self.refused(errno.EINVAL, create, '2', 'no-uuid', self.bus)
        self.refused(errno.EEXIST, create, '2', name, self.bus)
        for type_id in ('1', 'unknown'):
            self.refused(errno.ENOSPC, create, type_id,
                         str(uuid.uuid4()), self.bus)
        self.assertEqual([0, 1, 0], self.available())
        self.assertEqual([name], os.listdir(self.bus))

    def test_rule_that_lacks_a_type_is_refused(self):
        self.add('any_mix')
        exc = self.assertRaises(
            exception.Invalid, vgpu_driver.set_rule, self.gpu,
            {'mechanism': 'mdev', 'types': {'1': TYPES['1']}})
        self.assertIn('also 2, 3, which it has', str(exc))

    def test_mixed_size_with_vgpus_of_unknown_placement_is_refused(self):
        self.add('any_mix', placements=PLACEMENTS)
        self.create('1')
        exc = self.assertRaises(
            exception.Invalid, vgpu_driver.set_rule, self.gpu,
            {'mechanism': 'mdev', 'mix_policy': 'mixed_size',
             'types': TYPES, 'placements': PLACEMENTS})
        self.assertIn('placements', str(exc))


class PlacementTest(MdevTestCase):

    def setUp(self):
        super().setUp()
        self.add('mixed_size', placements=PLACEMENTS)

    def shown(self, name):
        return (self.gpu / name / 'nvidia/placement_id').read_text().strip()

    def set(self, name, text):
        self.driver().set_placement(self.gpu / name, text)

    def test_driver_takes_the_last_free_placement(self):
        name = self.create('1')
        self.assertEqual([3, 1, 3], self.available())
        self.assertEqual('Not Applicable', self.shown(name))
        # The vGPU is at 12, so 0 is the last one for a larger one.
        self.create('2')
        self.assertEqual([1, 0, 1], self.available())

    def test_placement_that_is_free_is_set_and_shown(self):
        name = self.create('1')
        self.set(name, '4')
        self.assertEqual('4', self.shown(name))
        self.assertEqual([3, 1, 3], self.available())
        self.set(name, '12')
        self.assertEqual('12', self.shown(name))

    def test_placement_that_is_taken_or_unknown_is_refused(self):
        first, second = self.create('2'), self.create('1')
        self.set(first, '8')
        for text in ('8', '12', '2', '16', 'x', ''):
            self.refused(errno.EINVAL, self.set, second, text)
        self.assertEqual('Not Applicable', self.shown(second))

    def test_placement_of_a_missing_vgpu_is_refused(self):
        self.refused(errno.EINVAL, self.set, str(uuid.uuid4()), '0')

    def test_mixed_size_is_enabled_only_without_vgpus(self):
        name = self.create('1')
        self.refused(errno.EBUSY, self.driver().enable_mixed_size)
        self.driver().remove_mdev(name, self.bus)
        self.driver().enable_mixed_size()
        self.assertEqual([4, 2, 4], self.available())


class VFTest(DriverTestCase):

    mechanism = 'vf'

    def setUp(self):
        super().setUp()
        self.add('equal_size')
        self.vfs = [self.root / f'devices/vf{number}' for number in (0, 1)]
        for number, vf in enumerate(self.vfs):
            vf.mkdir()
            (vf / 'physfn').symlink_to('../gpu')
            (self.gpu / f'virtfn{number}').symlink_to(f'../vf{number}')
        vgpu_driver.add_vfs(self.root, self.gpu, self.vfs)

    def set(self, number, type_id):
        vf = self.vfs[number]
        vgpu_driver.VGPUDriver(vf).set_type(vf, type_id)

    def read(self, number, name):
        return (self.vfs[number] / f'nvidia/{name}').read_text()

    def creatable_vgpu_types(self):
        return [line.partition(':')[2].strip() for line in self.read(
            1, 'creatable_vgpu_types').splitlines()[1:]]

    def test_new_vf_has_no_type_and_may_have_any(self):
        self.assertEqual('0\n', self.read(0, 'current_vgpu_type'))
        self.assertEqual(['X-4Q', 'X-8Q', 'X-4C'], self.creatable_vgpu_types())

    def test_type_of_one_vf_limits_the_others(self):
        self.set(0, '1')
        self.assertEqual('1\n', self.read(0, 'current_vgpu_type'))
        self.assertEqual(['X-4Q', 'X-4C'], self.creatable_vgpu_types())
        self.set(0, '0')
        self.assertEqual(['X-4Q', 'X-8Q', 'X-4C'], self.creatable_vgpu_types())

    def test_vf_that_has_a_type_gets_no_other(self):
        self.set(0, '1')
        self.refused(errno.EBUSY, self.set, 0, '3')

    def test_type_that_does_not_fit_is_refused(self):
        self.set(0, '1')
        for type_id in ('2', 'unknown'):
            self.refused(errno.EINVAL, self.set, 1, type_id)
        self.assertEqual('0\n', self.read(1, 'current_vgpu_type'))

    def test_vfs_of_a_gpu_without_a_rule_have_no_types(self):
        other, vf = self.root / 'devices/other', self.root / 'devices/vf9'
        for folder in (other, vf):
            folder.mkdir()
        vgpu_driver.add_vfs(self.root, other, [vf])
        self.assertEqual([], os.listdir(vf))
