# SPDX-License-Identifier: Apache-2.0
"""Tests of designating cards for passthrough."""

import errno
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import designation
from gpgpu_plugin.privsep import guard


def free(_card):
    """Refuse nothing: the card holds no data of a guest."""


class AsRootTest(base.BaseTestCase):

    def test_designator_as_root_writes_without_the_helper(self):
        self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'client_mode', True))
        self.assertIsInstance(
            designation.Designator.as_root(), designation.Designator)
        self.assertIs(False, privsep.sys_admin_pctxt.client_mode)


class DesignationCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.root, self.etc = f'{folder}/sys', pathlib.Path(folder) / 'etc'
        self.build('old-two-card')
        self.useFixture(fixtures.MockPatchObject(
            designation, 'ETC', str(self.etc)))
        # The privileged functions run here, without rights.
        self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'client_mode', False))
        self.unset_override = None
        for function in self.functions().values():
            if function.device == '11fa':
                self.gpu = function
            elif function.device == '0e0b':
                self.audio = function
        self.write(self.gpu, 'boot_vga', '0')

    def build(self, name):
        machine.build(machine.load(name), self.root)
        self.kernel = fake_kernel.FakeKernel(self.root)
        self.sysfs = sysfs.Sysfs(self.root)

    def write(self, function, name, value):
        pathlib.Path(f'{self.root}/bus/pci/devices/{function.address}/'
                     f'{name}').write_text(f'{value}\n')

    def functions(self):
        return {function.address: function
                for function in scanner.scan(self.sysfs).functions}

    def drivers(self):
        found = self.functions()
        return found[self.gpu.address].driver, found[
            self.audio.address].driver

    def store(self):
        return designation.Store(
            str(self.etc), designation.add_rule,
            designation.remove_rule, self.unset_override)

    def designator(self, check=guard.check_closed):
        return designation.Designator(
            self.sysfs, binding.Binder(
                self.sysfs, self.kernel.write, self.kernel.load_vfio,
                lambda path: b'', self.kernel.sriov_manage),
            self.store(), check)

    def listed(self):
        return [(listed.address, listed.kept_by, listed.driver)
                for listed in designation.listing(self.sysfs, self.store())]

    def refused(self, name, *words, **kwargs):
        exc = self.assertRaises(
            exception.HostError, self.designator(**kwargs).designate, name)
        for word in words:
            self.assertIn(word, str(exc))
        self.assertEqual([], self.listed())


class DesignateTest(DesignationCase):

    def setUp(self):
        super().setUp()
        self.both = self.gpu.address, self.audio.address

    def test_designated_card_is_bound_and_undesignated_one_given_back(self):
        before = self.drivers()
        for name in (self.gpu.address, self.audio.id, self.gpu.id):
            for _ in range(2):
                card = self.designator().designate(name)
                self.assertEqual(
                    self.both, tuple(function.address for function in card))
                self.assertEqual(('vfio-pci', 'vfio-pci'), self.drivers())
                self.assertEqual(
                    [(address, 'udev', 'vfio-pci') for address in self.both],
                    self.listed())
            for _ in range(2):
                self.designator().undesignate(name, free)
                self.assertEqual([], self.listed())
                self.assertEqual(before, self.drivers())

    def test_installed_driverctl_stores_no_designation(self):
        # It would store an address, which changes with the bus numbers.
        self.unset_override = self.fail
        self.designator().designate(self.gpu.address)
        self.assertEqual([(address, 'udev', 'vfio-pci')
                          for address in self.both], self.listed())

    def test_udev_rule_matches_path_without_bus_numbers(self):
        self.designator().designate(self.gpu.address)
        rule = self.store().rules()[self.gpu.id]
        hops = self.gpu.id.split('/')[3:]
        path = '/'.join(f'0000:??:{hop}' for hop in hops)
        self.assertIn(f'/{path}"', rule)
        self.assertNotIn(self.gpu.address, rule)
        self.assertIn('ATTR{vendor}=="0x10de", ATTR{device}=="0x11fa"', rule)

    def test_rules_of_other_cards_stay(self):
        k80 = next(function for function in self.functions().values()
                   if function.device == '102d')
        self.designator().designate(k80.address)
        self.designator().designate(self.gpu.address)
        self.designator().undesignate(self.gpu.address, free)
        self.assertEqual([(k80.address, 'udev', 'vfio-pci')], self.listed())

    def test_override_of_driverctl_designates_a_function(self):
        folder = self.etc / 'driverctl.d'
        folder.mkdir(parents=True)
        for address in (*self.both, '0000:ff:00.0'):
            (folder / f'pci-{address}').write_text('vfio-pci\n')
        (folder / 'net-eth0').write_text('x\n')
        self.designator().designate(self.gpu.address)
        self.assertEqual(
            [*((address, 'driverctl', 'vfio-pci') for address in self.both),
             ('0000:ff:00.0', 'driverctl', None)], self.listed())
        self.assertEqual({}, self.store().rules())
        exc = self.assertRaises(
            exception.HostError, self.designator().undesignate,
            self.gpu.address, free)
        self.assertIn('not installed any more', str(exc))
        self.unset_override = (
            lambda address: (folder / f'pci-{address}').unlink())
        self.designator().undesignate(self.gpu.address, free)
        self.assertEqual([('0000:ff:00.0', 'driverctl', None)],
                         self.listed())

    def test_variant_of_the_kernel_is_stored_and_bound(self):
        machine.write_aliases(
            ['vfio_pci:v000010DEd000011FAsv*sd*bc*sc*i* xe_vfio_pci'],
            pathlib.Path(self.root))
        before = self.drivers()
        self.designator().designate(self.gpu.address)
        self.assertEqual(('xe-vfio-pci', 'vfio-pci'), self.drivers())
        rules = self.store().rules()
        self.assertIn('modprobe xe_vfio_pci;', rules[self.gpu.id])
        self.assertIn('driver_override}="xe-vfio-pci"', rules[self.gpu.id])
        self.assertIn('driver_override}="vfio-pci"', rules[self.audio.id])
        self.designator().undesignate(self.gpu.address, free)
        self.assertEqual(before, self.drivers())

    def test_driverctl_keeps_the_variant(self):
        folder = self.etc / 'driverctl.d'
        folder.mkdir(parents=True)
        (folder / f'pci-{self.gpu.address}').write_text('xe-vfio-pci\n')
        (folder / f'pci-{self.audio.address}').write_text('nouveau\n')
        self.assertEqual({self.gpu.address}, self.store().addresses())

    def test_designation_of_missing_card_is_listed(self):
        self.designator().designate(self.gpu.address)
        self.kernel.write(
            f'bus/pci/devices/{self.gpu.address}/remove', '1')
        self.assertEqual(
            [(self.audio.address, 'udev', 'vfio-pci'), (None, 'udev', None)],
            self.listed())


class RefusedTest(DesignationCase):

    def test_unknown_function_is_not_found(self):
        for method, *more in ((self.designator().designate,),
                              (self.designator().undesignate, free)):
            exc = self.assertRaises(
                exception.NotFound, method, '0000:ff:0.0', *more)
            self.assertIn('0000:ff:0.0', str(exc))

    def test_boot_display_is_refused(self):
        self.write(self.gpu, 'boot_vga', '1')
        for name in (self.gpu.address, self.audio.address):
            self.refused(name, 'booted with')
        self.assertEqual(('nouveau', 'snd_hda_intel'), self.drivers())

    def test_bridge_is_refused(self):
        bridge = next(function for function in self.functions().values()
                      if function.class_code.startswith('0604'))
        self.refused(bridge.address, 'it is a bridge')

    def test_nvswitch_is_designated(self):
        self.root += '2'
        self.build('hgx-h100-8')
        nvswitch = next(function for function in self.functions().values()
                        if function.device == '22a3')
        self.designator().designate(nvswitch.address)
        self.assertEqual('vfio-pci', self.functions()[
            nvswitch.address].driver)

    def test_function_with_unreadable_ids_is_refused(self):
        self.write(self.gpu, 'device', 'garbage')
        self.write(self.gpu, 'modalias', 'garbage')
        self.refused(self.gpu.address, 'its ids cannot be read')

    def test_card_whose_companion_the_host_uses_is_refused(self):
        def check(_root, address):
            if address == self.audio.address:
                raise PermissionError(1, 'it plays sound', address)
        self.refused(self.gpu.address, self.audio.address, 'it plays sound',
                     check=check)

    def test_function_that_is_not_on_a_gpu_s_card_is_refused(self):
        self.root += '2'
        self.build('hgx-h100-8')
        nic = next(function for function in self.functions().values()
                   if function.device == '1021')
        self.refused(nic.address, 'neither a GPU nor on the card of one')

    def test_card_without_iommu_group_is_refused(self):
        for function in (self.gpu, self.audio):
            os.unlink(f'{self.root}/bus/pci/devices/{function.address}'
                      '/iommu_group')
        self.refused(self.gpu.address, 'is the IOMMU on')

    def test_gpu_without_its_vfio_driver_is_refused(self):
        self.write(self.gpu, 'device', '0x2342')
        self.write(self.gpu, 'modalias', '')
        self.refused(self.gpu.address, 'nvgrace-gpu-vfio-pci')
        self.assertEqual(('nouveau', 'snd_hda_intel'), self.drivers())

    def test_module_that_cannot_be_loaded_changes_nothing(self):
        machine.write_aliases(
            ['vfio_pci:v000010DEd000011FAsv*sd*bc*sc*i* xe_vfio_pci'],
            pathlib.Path(self.root))

        def fail(module):
            raise OSError(errno.EIO, 'modprobe failed')
        self.kernel.load_vfio = fail
        self.refused(self.gpu.address, 'xe_vfio_pci', 'cannot be loaded')
        self.assertEqual([], self.kernel.written)

    def test_failed_designation_is_undone(self):
        self.before = self.drivers()
        for fault in (f'drivers/{self.audio.driver}/unbind',
                      'drivers/nouveau/unbind', 'drivers/vfio-pci/bind',
                      f'{self.audio.address}/driver_override'):
            self.kernel.faults = {fault: errno.EIO}
            self.refused(self.gpu.address, 'cannot write')
            self.kernel.faults = {}
            self.assertEqual(self.before, self.drivers(), fault)

    def test_card_is_not_bound_if_the_rule_cannot_be_stored(self):
        self.etc.mkdir()
        (self.etc / 'udev').symlink_to('nowhere')
        self.refused(self.gpu.address, 'cannot be stored')
        self.assertEqual(('nouveau', 'snd_hda_intel'), self.drivers())

    def test_undesignate_of_open_card_is_refused(self):
        self.designator().designate(self.gpu.address)
        self.write(self.gpu, 'enable', '1')
        exc = self.assertRaises(
            exception.HostError, self.designator().undesignate,
            self.gpu.address, free)
        self.assertIn('open', str(exc))
        self.assertEqual(2, len(self.listed()))

    def test_undesignate_of_a_card_with_data_changes_nothing(self):
        self.designator().designate(self.gpu.address)
        self.kernel.written.clear()
        exc = self.assertRaises(
            exception.HostError, self.designator().undesignate,
            self.audio.address, lambda card: (card[0].address, 'it is dirty'))
        self.assertIn(f'{self.gpu.address}: it is dirty', str(exc))
        self.assertEqual(2, len(self.listed()))
        self.assertEqual([], self.kernel.written)
        self.assertEqual(('vfio-pci', 'vfio-pci'), self.drivers())
