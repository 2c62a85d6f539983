# SPDX-License-Identifier: Apache-2.0
"""Tests of serial numbers, on fake machines read with and without rights."""

import errno
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import privsep
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import serial_numbers
from tests.fixtures import unprivileged

DSN = '00-1b-21-ff-ff-a1-b2-c3'
OTHER = '00-1b-21-ff-ff-a1-b2-c4'


class SerialNumbersCase(base.BaseTestCase):

    machine = 'pcie-l40s-4'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load(self.machine), self.root)
        self.sysfs = sysfs_mod.Sysfs(self.root)
        self.kernel = fake_kernel.FakeKernel(self.root)
        # Paths that were read through the helper.
        self.read, self.errors = [], {}
        self.numbers = self.fresh()
        self.gpu = self.gpus()[0]
        unprivileged.show(self.folder(self.gpu), dsn=DSN, serial=b'1320')

    def fresh(self):
        """Return what a start of nova-compute knows."""
        return serial_numbers.SerialNumbers(self.sysfs, binding.Binder(
            self.sysfs, self.kernel.write, self.kernel.load_vfio,
            self.helper, self.kernel.sriov_manage))

    def helper(self, path):
        """Read a file with root's rights."""
        self.read.append(path.rpartition('/')[2])
        for end, error in self.errors.items():
            if path.endswith(end):
                raise error
        return pathlib.Path(self.root, path).read_bytes()

    def be_nova(self):
        self.useFixture(unprivileged.Unprivileged())

    def folder(self, function):
        return pathlib.Path(
            self.root, 'bus/pci/devices', function.address).resolve()

    def write(self, name, value):
        (self.folder(self.gpu) / name).write_text(f'{value}\n')

    def gpus(self):
        return [function for function in scanner.scan(
            self.sysfs).functions
            if pci.can_be_gpu(function.class_code)
            and function.vendor == '10de']

    def scan(self, in_cleaning=()):
        self.read.clear()
        return self.numbers.added(
            scanner.scan(self.sysfs), in_cleaning)

    def shown(self, **kwargs):
        """Return the DSN and the serial number of the first GPU."""
        gpu = next(function for function in self.scan(**kwargs).functions
                   if function.id == self.gpu.id)
        return gpu.dsn, gpu.serial

    def bind(self):
        folder = f'bus/pci/devices/{self.gpu.address}'
        self.kernel.write(f'{folder}/driver_override', 'vfio-pci')
        if self.gpu.driver:
            self.kernel.write(f'bus/pci/drivers/{self.gpu.driver}/unbind',
                              self.gpu.address)
        self.kernel.write('bus/pci/drivers/vfio-pci/bind', self.gpu.address)

    def replace_card(self, **numbers):
        """Unplug the card, and plug in another one of the same model."""
        link = pathlib.Path(self.root, 'bus/pci/devices', self.gpu.address)
        target = os.readlink(link)
        # A file system may give a number again at once, sysfs does not.
        link.unlink()
        for number in range(100):
            pathlib.Path(self.root, f'x{number}').symlink_to('x')
        link.symlink_to(target)
        unprivileged.show(self.folder(self.gpu), **numbers)


class RightsTest(SerialNumbersCase):

    def test_root_and_nova_find_the_same(self):
        as_root = self.scan()
        self.assertEqual([], self.read)
        self.numbers = self.fresh()
        self.be_nova()
        self.assertEqual(as_root, self.scan())
        self.assertEqual((DSN, '1320'), self.shown())

    def test_scan_of_nova_alone_knows_neither(self):
        self.be_nova()
        scan = scanner.scan(self.sysfs)
        self.assertEqual({(None, None)}, {
            (function.dsn, function.serial) for function in scan.functions})
        self.assertEqual((), scan.problems)

    def test_each_gpu_is_read_once(self):
        self.be_nova()
        # The BMC's display, too.
        gpus = [function for function in self.scan().functions
                if pci.can_be_gpu(function.class_code)]
        self.assertEqual(len(gpus), self.read.count('config'))
        self.assertEqual(1, self.read.count('vpd'))
        self.scan()
        self.assertEqual([], self.read)

    def test_text_of_a_device_is_escaped(self):
        unprivileged.show(self.folder(self.gpu), serial=b'\x1b[2J')
        self.assertEqual(r'\x1b[2J', self.shown()[1])


class ExchangeTest(SerialNumbersCase):

    def setUp(self):
        super().setUp()
        self.be_nova()
        self.shown()

    def test_exchanged_card_is_read(self):
        self.replace_card(dsn=OTHER, serial=b'1321')
        self.assertEqual((OTHER, '1321'), self.shown())

    def test_exchanged_card_has_nothing_of_the_one_before(self):
        self.replace_card(dsn=OTHER, serial=None)
        self.assertEqual((OTHER, None), self.shown())

    def test_card_whose_exchange_the_kernel_missed_is_read_when_bound(self):
        # The same file of sysfs, but another number at its next read.
        unprivileged.show(self.folder(self.gpu), dsn=OTHER, serial=None)
        self.assertEqual((DSN, '1320'), self.shown())
        self.bind()
        self.assertEqual((OTHER, None), self.shown())

    def test_absent_card_is_forgotten(self):
        link = pathlib.Path(self.root, 'bus/pci/devices', self.gpu.address)
        target = os.readlink(link)
        link.unlink()
        self.scan()
        link.symlink_to(target)
        self.errors['config'] = OSError(errno.EIO, 'Input/output error')
        self.assertEqual((None, None), self.shown())


class GuestTest(SerialNumbersCase):

    def setUp(self):
        super().setUp()
        self.be_nova()
        self.bind()

    def test_only_config_is_read_while_a_guest_has_the_gpu(self):
        self.write('enable', '1')
        self.assertEqual((DSN, None), self.shown())
        self.assertNotIn('vpd', self.read)
        self.write('enable', '0')
        self.assertEqual((DSN, '1320'), self.shown())

    def test_serial_stays_known_while_a_guest_has_the_gpu(self):
        self.shown()
        self.write('enable', '1')
        self.assertEqual((DSN, '1320'), self.shown())
        self.assertEqual(['config'], self.read)
        self.shown()
        self.assertEqual([], self.read)

    def test_gpu_in_cleaning_is_not_read(self):
        self.assertEqual((None, None), self.shown(
            in_cleaning={self.gpu.id}))
        self.assertEqual((DSN, '1320'), self.shown())
        self.write('enable', '1')
        self.assertEqual((DSN, '1320'), self.shown(
            in_cleaning={self.gpu.id}))
        self.assertEqual([], self.read)


class VFTest(SerialNumbersCase):

    machine = 'intel-flex170-2'

    def gpus(self):
        return [function for function in scanner.scan(
            self.sysfs).functions
            if function.sriov_totalvfs
            and pci.can_be_gpu(function.class_code)]

    def test_pf_of_a_vf_that_a_guest_has_is_left_alone(self):
        self.be_nova()
        self.write('sriov_numvfs', '0')
        self.kernel.write(
            f'bus/pci/devices/{self.gpu.address}/sriov_numvfs', '2')
        vf = next(function for function in scanner.scan(
            self.sysfs).functions if function.pf == self.gpu.id)
        folder = self.folder(vf)
        (folder / 'driver').symlink_to(
            pathlib.Path(self.root, 'bus/pci/drivers/vfio-pci'))
        (folder / 'enable').write_text('1\n')
        self.assertEqual((DSN, None), self.shown())
        (folder / 'enable').write_text('0\n')
        self.assertEqual((DSN, '1320'), self.shown())
        self.assertEqual(2, len(self.read))


class ErrorsTest(SerialNumbersCase):

    def setUp(self):
        super().setUp()
        self.be_nova()

    def test_helper_that_does_not_start_is_asked_once_a_scan(self):
        self.errors[''] = privsep.HelperUnavailable(
            errno.EPERM, 'the privileged helper does not start')
        for _ in range(2):
            scan = self.scan()
            self.assertEqual(1, len(self.read))
            [problem] = scan.problems
            self.assertIn('helper does not start', problem)
        self.errors.clear()
        self.assertEqual((DSN, '1320'), self.shown())

    def test_vpd_that_cannot_be_read_is_a_problem_of_each_scan(self):
        self.errors['vpd'] = OSError(errno.ETIMEDOUT, 'Connection timed out')
        for count in (1, 0):
            scan = self.scan()
            self.assertEqual(count, self.read.count('vpd'))
            [problem] = scan.problems
            self.assertIn(self.gpu.address, problem)
            self.assertIn('may not be noticed', problem)
            gpu = next(function for function in scan.functions
                       if function.id == self.gpu.id)
            self.assertEqual((DSN, None, ('vpd',)),
                             (gpu.dsn, gpu.serial, gpu.unreadable))
        self.errors.clear()
        self.bind()
        self.assertEqual((DSN, '1320'), self.shown())

    def test_device_that_does_not_answer_is_left_alone(self):
        (self.folder(self.gpu) / 'config').write_bytes(b'\xff' * 4096)
        self.scan()
        self.assertEqual(0, self.read.count('vpd'))
        self.assertEqual(4, self.read.count('config'))
        self.assertEqual((None, None), self.shown())
