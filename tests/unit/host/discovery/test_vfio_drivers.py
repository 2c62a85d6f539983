# SPDX-License-Identifier: Apache-2.0
"""Tests of finding the VFIO driver of a function."""

import os
import pathlib
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import vfio
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers

CATCH_ALL = 'vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci'
GRACE = 'vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci'
XE = 'vfio_pci:v00008086d0000E211sv*sd*bc*sc*i* xe_vfio_pci'


def function(vendor, device, **facts):
    return pci.PCIFunction(id='/devices/x', address='0000:21:00.0', **{
        'vendor': vendor, 'device': device, 'subsystem_vendor': vendor,
        'subsystem': '16eb', 'class_code': '030200', **facts})


GH200 = function('10de', '2342')
B60 = function('8086', 'e211')


class DriversCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.sysfs = sysfs.Sysfs(str(self.root))
        self.file = self.root / vfio_drivers.ALIASES
        self.file.parent.mkdir(parents=True)

    def aliases(self, *lines):
        # As depmod does: another file takes its place.
        new = self.file.with_suffix('.new')
        new.write_text(''.join(f'alias {line}\n' for line in lines))
        new.replace(self.file)

    def make_unreadable(self):
        self.file.unlink(missing_ok=True)
        self.file.symlink_to(self.file.name)

    def add_driver(self, name, module=None):
        folder = self.root / 'bus/pci/drivers' / name
        folder.mkdir(parents=True)
        (folder / 'bind').touch()
        if module is not None:
            links = self.root / 'module' / module / 'drivers'
            links.mkdir(parents=True)
            (links / f'pci:{name}').symlink_to(folder)

    def module(self, found):
        return vfio_drivers.module_for(self.sysfs, found)


class ModuleTest(DriversCase):

    def test_alias_of_the_device_names_its_module(self):
        self.aliases(GRACE, XE, CATCH_ALL)
        self.assertEqual('nvgrace_gpu_vfio_pci', self.module(GH200))
        self.assertEqual('xe_vfio_pci', self.module(B60))
        self.assertEqual('vfio-pci', self.module(function('10de', '2330')))

    def test_alias_with_the_fewest_wildcards_wins(self):
        wider = 'vfio_pci:v*d*sv*sd*bc03sc*i* wide_vfio_pci'
        for lines in ((CATCH_ALL, wider, XE), (XE, wider, CATCH_ALL),
                      (wider, XE, CATCH_ALL)):
            self.aliases(*lines)
            self.assertEqual('xe_vfio_pci', self.module(B60))
            self.assertEqual(
                'wide_vfio_pci', self.module(function('8086', '56c0')))

    def test_first_of_equal_aliases_wins(self):
        self.aliases(XE, XE.replace('xe_', 'other_'))
        self.assertEqual('xe_vfio_pci', self.module(B60))

    def test_alias_may_depend_on_subsystem_and_class(self):
        self.aliases('vfio_pci:v00008086d0000E211sv00008086sd000016EB'
                     'bc03sc02i00 exact_vfio_pci', CATCH_ALL)
        self.assertEqual('exact_vfio_pci', self.module(B60))
        for facts in ({'subsystem': '16ec'}, {'subsystem': None},
                      {'class_code': '030000'}, {'class_code': None}):
            self.assertEqual(
                'vfio-pci', self.module(function('8086', 'e211', **facts)))

    def test_function_of_unknown_ids_gets_vfio_pci(self):
        self.aliases(GRACE, XE, CATCH_ALL)
        self.assertEqual('vfio-pci', self.module(function(None, None)))

    def test_without_aliases_the_answer_is_vfio_pci(self):
        self.assertEqual('vfio-pci', self.module(B60))
        self.aliases('pci:v00008086d0000E211sv*sd*bc*sc*i* xe')
        self.assertEqual('vfio-pci', self.module(B60))

    def test_device_that_needs_a_module_never_gets_vfio_pci(self):
        for device in ('2342', '2345', '2348', '2941', '31a1', '31c2', '31c3'):
            found = function('10de', device)
            self.assertEqual('nvgrace_gpu_vfio_pci', self.module(found))
            self.aliases(CATCH_ALL)
            self.assertEqual('nvgrace_gpu_vfio_pci', self.module(found))

    def test_file_is_read_again_only_if_it_was_replaced(self):
        self.aliases(XE, CATCH_ALL)
        with mock.patch.object(vfio, 'aliases',
                               wraps=vfio.aliases) as read:
            for _ in range(3):
                self.assertEqual('xe_vfio_pci', self.module(B60))
                self.module(GH200)
            self.assertEqual(1, read.call_count)
            self.aliases(CATCH_ALL)
            self.assertEqual('vfio-pci', self.module(B60))
            self.assertEqual(2, read.call_count)

    def test_lookup_costs_one_stat(self):
        self.aliases(XE, CATCH_ALL)
        self.module(B60)
        calls = []
        original = os.stat

        def counted(path, *args, **kwargs):
            calls.append(path)
            return original(path, *args, **kwargs)
        with mock.patch('os.stat', counted), mock.patch(
                'builtins.open', side_effect=AssertionError):
            self.module(B60)
        self.assertEqual([str(self.file)], calls)

    def test_unreadable_file_is_an_error(self):
        self.make_unreadable()
        self.assertRaises(OSError, self.module, B60)
        self.assertRaises(OSError, self.module, GH200)

    def test_needed_module_is_known_without_aliases(self):
        for found, module in ((GH200, 'nvgrace_gpu_vfio_pci'),
                              (B60, 'vfio-pci')):
            self.assertEqual(module, vfio_drivers.needed_module(found))

    def test_running_kernel_has_its_own_file(self):
        self.aliases(XE)
        with mock.patch.object(
                vfio, 'alias_file', return_value=str(self.file)):
            self.assertEqual('xe_vfio_pci', vfio_drivers.module_for(
                sysfs.Sysfs('/sys/'), B60))


class LoadedTest(DriversCase):

    def test_driver_may_be_called_otherwise_than_its_module(self):
        self.add_driver('xe-vfio-pci', 'xe_vfio_pci')
        self.add_driver('nvgrace_gpu_vfio_pci', 'nvgrace_gpu_vfio_pci')
        self.add_driver('odd-vfio-pci', 'strange_vfio_pci')
        self.add_driver('helper', 'two_drivers')
        for module, name in (
                ('xe_vfio_pci', 'xe-vfio-pci'), ('xe-vfio-pci', 'xe-vfio-pci'),
                ('nvgrace_gpu_vfio_pci', 'nvgrace_gpu_vfio_pci'),
                ('strange_vfio_pci', 'odd-vfio-pci'), ('two_drivers', None)):
            self.assertEqual(
                name, vfio_drivers.loaded(self.sysfs, module), module)

    def test_built_in_driver_has_no_folder_of_its_module(self):
        self.add_driver('vfio-pci')
        self.add_driver('nvgrace_gpu_vfio_pci')
        for module, name in (
                ('vfio-pci', 'vfio-pci'), ('vfio_pci', 'vfio-pci'),
                ('nvgrace_gpu_vfio_pci', 'nvgrace_gpu_vfio_pci')):
            self.assertEqual(name, vfio_drivers.loaded(self.sysfs, module))

    def test_driver_that_is_not_loaded(self):
        self.assertIsNone(vfio_drivers.loaded(self.sysfs, 'xe_vfio_pci'))


class RefusalTest(DriversCase):

    def refusal(self, found=GH200):
        return vfio_drivers.refusal(self.sysfs, found)

    def test_missing_driver_is_named_with_what_to_do(self):
        self.aliases(XE, CATCH_ALL)
        for words in ('10de:2342', 'nvgrace-gpu-vfio-pci', 'its kernel lacks',
                      'no vfio_pci alias', 'run depmod'):
            self.assertIn(words, self.refusal())

    def test_running_kernel_is_named(self):
        with mock.patch.object(vfio, 'alias_file',
                               return_value='/nonexistent/modules.alias'):
            reason = vfio_drivers.refusal(sysfs.Sysfs('/sys'), GH200)
        self.assertIn(f'kernel {os.uname().release} lacks', reason)

    def test_alias_is_enough(self):
        self.aliases(GRACE)
        self.assertIsNone(self.refusal())
        # This kernel's module does not know the later device.
        self.assertIsNotNone(self.refusal(function('10de', '31c2')))

    def test_driver_is_enough(self):
        self.add_driver('nvgrace-gpu-vfio-pci', 'nvgrace_gpu_vfio_pci')
        self.assertIsNone(self.refusal())
        self.make_unreadable()
        self.assertIsNone(self.refusal())

    def test_unreadable_aliases_are_no_reason_to_trust(self):
        self.make_unreadable()
        self.assertIn('modules.alias cannot be read', self.refusal())

    def test_other_devices_need_no_module(self):
        for found in (B60, function('10de', '2330'), function(None, None)):
            self.assertIsNone(self.refusal(found))
