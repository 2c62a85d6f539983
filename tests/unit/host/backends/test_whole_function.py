# SPDX-License-Identifier: Apache-2.0
"""Tests of functions that a guest gets whole, on fake machines.

The fake kernel has tests of its own.
"""

import dataclasses
import errno
import os
import pathlib
import shutil
import uuid
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from tests.fixtures import cleaned


class PassthroughCase(base.BaseTestCase):

    machine = 'old-two-card'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.backend = fake_host.FakeHost.for_machine(self.machine, self.root)

    def functions(self):
        return {function.address: function
                for function in self.backend.scan().functions}

    def the(self, **facts):
        [found] = [
            function for function in self.functions().values() if all(
                getattr(function, name) == value
                for name, value in facts.items())]
        return found

    def join_group(self, function, gpu):
        device = os.path.realpath(
            f'{self.root}/bus/pci/devices/{function.address}')
        os.unlink(f'{device}/iommu_group/devices/{function.address}')
        os.unlink(f'{device}/iommu_group')
        group = f'{self.root}/kernel/iommu_groups/{gpu.iommu_group}'
        os.symlink(group, f'{device}/iommu_group')
        os.symlink(device, f'{group}/devices/{function.address}')

    def clean_and_give_back(self, device):
        """Clean a device that passes, as after the conductor's verdict."""
        verdict = self.backend.clean(device)
        self.assertTrue(verdict.passed, verdict.failure)
        self.backend.give_back(device)

    @staticmethod
    def device(function, *, had_guest=True):
        return host_base.HostDevice(
            assignment_uuid='a', stable_id=function.id,
            address=function.address, had_guest=had_guest)

    def refused(self, method, function, *words):
        exc = self.assertRaises(
            exception.HostError, method, self.device(function))
        for word in words:
            self.assertIn(word, str(exc))

    def write(self, function, name, text):
        with open(f'{self.root}/bus/pci/devices/{function.address}/{name}',
                  'w', encoding='utf-8') as file:
            file.write(text)


class FunctionsTest(PassthroughCase):

    def setUp(self):
        super().setUp()
        self.write(self.the(device='11fa'), 'boot_vga', '0\n')
        self.gpu = self.the(device='11fa')
        [self.audio] = self.gpu.companions

    def drivers(self):
        """Return the drivers of the GPU and its audio function."""
        found = self.functions()
        return [found[address].driver
                for address in (self.gpu.address, self.audio)]

    def test_attachment_has_all_functions_of_the_gpu(self):
        self.assertEqual(
            (self.gpu.address, self.audio),
            self.backend.attachment(self.device(self.gpu)).functions)

    def test_designated_gpu_stays_bound(self):
        etc = f'{self.root}/etc/driverctl.d'
        os.makedirs(etc)
        both = self.gpu.address, self.audio
        for address in both:
            with open(f'{etc}/pci-{address}', 'w', encoding='utf-8') as file:
                file.write('vfio-pci\n')
        for _ in range(2):
            self.backend.prepare(self.device(self.gpu))
            self.clean_and_give_back(self.device(self.gpu))
            found = self.functions()
            self.assertEqual({'vfio-pci'},
                             {found[address].driver for address in both})

    def test_gpu_that_is_designated_meanwhile_stays_bound(self):
        self.assertIsNotNone(self.gpu.driver)
        self.backend.prepare(self.device(self.gpu))
        etc = f'{self.root}/etc/driverctl.d'
        os.makedirs(etc)
        for address in (self.gpu.address, self.audio):
            with open(f'{etc}/pci-{address}', 'w', encoding='utf-8') as file:
                file.write('vfio-pci\n')
        self.clean_and_give_back(self.device(self.gpu))
        found = self.functions()
        self.assertEqual({'vfio-pci'}, {
            found[address].driver for address in (
                self.gpu.address, self.audio)})

    def test_prepare_without_iommu_group_is_refused(self):
        for address in (self.gpu.address, self.audio):
            os.unlink(f'{self.root}/bus/pci/devices/{address}/iommu_group')
        self.refused(self.backend.prepare, self.gpu, 'is the IOMMU on')
        self.backend.release(self.device(self.gpu))

    def test_prepare_without_vfio_pci_is_refused(self):
        shutil.rmtree(f'{self.root}/bus/pci/drivers/vfio-pci')

        def fails(_module):
            raise OSError(5, 'modprobe vfio-pci failed: not found')
        self.backend.binder._load_vfio = fails
        self.refused(self.backend.prepare, self.gpu, 'vfio-pci',
                     'cannot be loaded', 'not found')

    def test_release_of_open_device_is_refused(self):
        self.backend.prepare(self.device(self.gpu))
        self.write(self.gpu, 'enable', '1\n')
        self.refused(self.backend.release, self.gpu, 'still has it open')

    def test_all_functions_of_the_gpu_are_bound_until_they_are_clean(self):
        both = self.gpu.address, self.audio
        self.backend.prepare(self.device(self.gpu))
        found = self.functions()
        self.assertEqual({'vfio-pci'},
                         {found[address].driver for address in both})
        self.assertEqual(2, sum(
            function.driver == 'vfio-pci' for function in found.values()))
        written = self.backend.kernel.written
        del written[:]
        self.backend.release(self.device(self.gpu))
        self.assertEqual([], written)
        self.assertTrue(self.backend.clean(self.device(self.gpu)).passed)
        self.assertEqual(['vfio-pci', 'vfio-pci'], self.drivers())
        for _ in range(2):
            self.backend.give_back(self.device(self.gpu))
        # Nothing lets another driver bind before the card is reset.
        self.assertEqual([
            *(f'bus/pci/devices/{address}/driver_override'
              for address in (self.gpu.address, self.audio)),
            f'bus/pci/devices/{self.gpu.address}/reset'], written[:3])
        self.assertEqual(['nouveau', 'snd_hda_intel'], self.drivers())

    def test_firmware_of_a_gpu_in_a_guest_is_not_read(self):
        """nova-compute is restarted after an upgrade."""
        read = mock.Mock(return_value={'option ROM': 'a'})
        self.backend.kernel.vfio.firmware = read
        self.backend.prepare(self.device(self.gpu))
        read.assert_called_once_with(self.gpu.address)
        for path in pathlib.Path(self.root, 'etc/cards').iterdir():
            path.unlink()
        self.write(self.gpu, 'enable', '1\n')
        self.backend.prepare(self.device(self.gpu))
        read.assert_called_once_with(self.gpu.address)

    def test_gpu_that_no_guest_had_keeps_its_driver(self):
        """It is cleaned after a restore of the database, for example."""
        self.clean_and_give_back(self.device(self.gpu, had_guest=False))
        self.assertEqual(['nouveau', 'snd_hda_intel'], self.drivers())

    def test_gpu_that_no_guest_had_keeps_its_driver_after_a_failure(self):
        faults = self.backend.kernel.faults
        faults['/reset'] = errno.EIO
        self.assertFalse(self.backend.clean(
            self.device(self.gpu, had_guest=False)).passed)
        faults.clear()
        self.assertEqual('vfio-pci', self.the(id=self.gpu.id).driver)
        self.clean_and_give_back(self.device(self.gpu, had_guest=False))
        self.assertEqual(['nouveau', 'snd_hda_intel'], self.drivers())

    def test_gpu_is_given_back_whichever_assignment_a_cleaning_names(self):
        """A restored database does not know the assignment that ended."""
        self.backend.prepare(self.device(self.gpu))
        for assignment in ('', 'older'):
            self.clean_and_give_back(dataclasses.replace(
                self.device(self.gpu), assignment_uuid=assignment))
            self.assertEqual(['nouveau', 'snd_hda_intel'], self.drivers())

    def test_gpu_that_was_given_back_is_cleaned_again(self):
        """nova-compute was killed before the conductor heard of it."""
        self.backend.prepare(self.device(self.gpu))
        for _ in range(2):
            self.clean_and_give_back(self.device(self.gpu))
            self.assertEqual(['nouveau', 'snd_hda_intel'], self.drivers())

    def test_open_gpu_is_not_given_back(self):
        self.backend.prepare(self.device(self.gpu))
        self.assertTrue(self.backend.clean(self.device(self.gpu)).passed)
        self.write(self.gpu, 'enable', '1\n')
        self.refused(self.backend.give_back, self.gpu, 'still has it open')
        self.assertEqual(['vfio-pci', 'vfio-pci'], self.drivers())

    def test_dirty_gpu_that_a_driver_of_the_host_has_is_bound_first(self):
        self.backend.prepare(self.device(self.gpu))
        # As after a reboot of the host.
        for address in (self.gpu.address, self.audio):
            self.backend.binder.give_back(self.the(address=address))
        written = self.backend.kernel.written
        del written[:]
        self.assertTrue(self.backend.clean(self.device(self.gpu)).passed)
        reset = written.index(f'bus/pci/devices/{self.gpu.address}/reset')
        self.assertEqual(
            2, written[:reset].count('bus/pci/drivers/vfio-pci/bind'))

    def change_config(self, address):
        path = f'{self.root}/bus/pci/devices/{address}/config'
        with open(path, 'r+b') as file:
            file.seek(2)
            file.write(b'\x39\x23')

    def test_changed_companion_is_not_clean_and_stays_bound_to_vfio_pci(self):
        before = self.functions()
        self.backend.prepare(self.device(self.gpu))
        self.change_config(self.audio)
        verdict = self.backend.clean(self.device(self.gpu))
        self.assertFalse(verdict.passed)
        self.assertIn(f'{self.audio} differs from its baseline: device was',
                      verdict.failure)
        found = self.functions()
        for address in (self.gpu.address, self.audio):
            self.assertNotEqual('vfio-pci', before[address].driver)
            self.assertEqual('vfio-pci', found[address].driver)

    def test_no_function_is_bound_if_one_cannot_be_read(self):
        read = self.backend.binder._read_file

        def fail(path):
            if self.audio in path:
                raise OSError(5, 'Input/output error')
            return read(path)
        self.backend.binder._read_file = fail
        self.refused(self.backend.prepare, self.gpu, 'Input/output error')
        self.assertEqual([], self.backend.kernel.written)

    def test_no_function_is_bound_before_its_baseline_is_stored(self):
        self.useFixture(fixtures.MockPatch(
            'os.replace', side_effect=OSError(28, 'No space left on device')))
        self.assertRaises(exception.HostNotReady, self.backend.prepare,
                          self.device(self.gpu))
        self.assertEqual([], self.backend.kernel.written)

    def test_no_function_is_bound_before_all_modules_are_loaded(self):
        load = self.useFixture(fixtures.MockPatchObject(
            self.backend.binder, 'load_driver', side_effect=[
                self.backend.binder.load_driver(self.gpu),
                exception.HostNotReady(path='x', reason='not found')])).mock
        exc = self.assertRaises(exception.HostNotReady, self.backend.prepare,
                                self.device(self.gpu))
        self.assertIs(exception.HostNotReady, type(exc))
        self.assertEqual(2, load.call_count)
        self.assertEqual([], self.backend.kernel.written)

    def test_helper_that_dies_after_a_bind_leaves_a_half_prepared_gpu(self):
        write = self.backend.binder._write_attribute

        def die(path, value):
            if self.audio in (value, path.split('/')[-2]):
                raise privsep.HelperUnavailable(5, 'no helper')
            write(path, value)
        with fixtures.MockPatchObject(
                self.backend.binder, '_write_attribute', die):
            exc = self.assertRaises(
                exception.HalfPrepared, self.backend.prepare,
                self.device(self.gpu))
        self.assertIn('no helper', str(exc))
        self.assertEqual(['vfio-pci', 'snd_hda_intel'], self.drivers())
        self.clean_and_give_back(self.device(self.gpu))
        self.assertEqual(['nouveau', 'snd_hda_intel'], self.drivers())

    def test_firmware_that_cannot_be_recorded_leaves_a_half_prepared_gpu(self):
        with fixtures.MockPatchObject(
                self.backend.access.baselines, 'record_firmware',
                side_effect=exception.HostNotReady(
                    path='x', reason='No space left on device')):
            self.assertRaises(exception.HalfPrepared, self.backend.prepare,
                              self.device(self.gpu))
        self.assertEqual(['vfio-pci', 'vfio-pci'], self.drivers())

    def test_clean_without_helper_gives_no_verdict(self):
        self.backend.prepare(self.device(self.gpu))

        def fail(path):
            raise privsep.HelperUnavailable(5, 'no helper')
        self.backend.binder._read_file = fail
        self.assertRaises(exception.HostNotReady, self.backend.clean,
                          self.device(self.gpu))

    def test_foreign_device_in_iommu_group_is_refused(self):
        foreign = next(
            function for function in self.functions().values()
            if function.address not in (self.gpu.address, self.audio)
            and not function.class_code.startswith('06'))
        self.join_group(foreign, self.gpu)
        for method in (self.backend.prepare, self.backend.release):
            self.refused(method, self.gpu, foreign.address,
                         'not on its card')
        verdict = self.backend.clean(self.device(self.gpu))
        self.assertFalse(verdict.passed)

    def test_bridge_in_iommu_group_is_no_hindrance(self):
        bridge = next(function for function in self.functions().values()
                      if function.class_code.startswith('0604'))
        self.join_group(bridge, self.gpu)
        self.backend.prepare(self.device(self.gpu))
        self.assertEqual('pcieport', self.the(id=bridge.id).driver)


class OtherGPUTest(PassthroughCase):

    machine = 'hgx-h100-8'

    def test_other_gpu_at_the_address_is_not_touched(self):
        first, second = [
            function for function in self.functions().values()
            if function.device == '2330'][:2]
        moved = dataclasses.replace(first, id=second.id)
        for method in (self.backend.prepare, self.backend.release,
                       self.backend.attachment):
            self.refused(method, moved, f'{second.id} is not there')
        self.assertFalse(self.backend.clean(self.device(moved)).passed)
        self.assertEqual([], self.backend.kernel.written)


class PartitionedTest(PassthroughCase):

    machine = 'nvidia-t4-2'

    def test_gpu_with_vgpus_is_not_passed_through(self):
        gpu = next(function for function in self.functions().values()
                   if function.device == '1eb8')
        self.backend.prepare(host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=f'{gpu.id}/mdev0',
            address=gpu.address, vgpu_type='T4-4Q'))
        self.backend.kernel.written.clear()
        self.refused(self.backend.prepare, gpu, 'vGPUs exist on it')
        self.assertEqual([], self.backend.kernel.written)


class DisplayTest(PassthroughCase):

    def test_boot_display_is_refused(self):
        gpu = self.the(device='11fa')
        self.refused(self.backend.prepare, gpu, 'booted with')


class CleanTest(PassthroughCase):

    machine = 'hgx-h100-8'

    def setUp(self):
        super().setUp()
        self.gpu = next(
            function for function in self.functions().values()
            if function.device == '2330')
        self.backend.prepare(self.device(self.gpu))

    def verdict(self, passed, *words):
        verdict = self.backend.clean(self.device(self.gpu))
        self.assertEqual(passed, verdict.passed, verdict.failure)
        for word in words:
            self.assertIn(
                word, verdict.failure or cleaned.reasons(verdict))

    def test_unchanged_gpu_is_clean(self):
        self.verdict(True, 'was reset')

    def test_gpu_that_is_open_after_the_start_is_cleaned_later(self):
        """The helper of a nova-compute that was stopped scrubs it."""
        self.write(self.gpu, 'enable', '1\n')
        exc = self.assertRaises(exception.HostNotReady, self.backend.clean,
                                self.device(self.gpu))
        self.assertIn('still has it open', str(exc))
        self.write(self.gpu, 'enable', '0\n')
        self.assertTrue(self.backend.clean(self.device(self.gpu)).passed)

    def test_open_gpu_is_not_clean(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.host.backends.whole_function._HELPER_SECONDS', -1))
        self.write(self.gpu, 'enable', '1\n')
        self.verdict(False, 'still has it open')
        self.assertEqual('vfio-pci', self.the(id=self.gpu.id).driver)

    def test_gpu_without_reset_is_not_clean(self):
        self.backend.kernel.faults['/reset'] = errno.ENODEV
        self.verdict(False, 'reset', 'No such device')

    def change_config(self, offset, value):
        path = f'{self.root}/bus/pci/devices/{self.gpu.address}/config'
        with open(path, 'r+b') as file:
            file.seek(offset)
            file.write(value)

    def test_gpu_with_other_ids_than_before_the_guest_is_not_clean(self):
        # As after other firmware: sysfs still shows the old ids.
        self.change_config(2, b'\x39\x23')
        for _ in range(2):
            # Again, as when nova-compute died before it could report.
            self.verdict(False, 'differs from its baseline',
                         'device was 2330, is 2339')
        # An operator released it, so it is cleaned under another token.
        self.assertTrue(self.backend.clean(host_base.HostDevice(
            assignment_uuid='b', stable_id=self.gpu.id,
            address=self.gpu.address)).passed)

    def test_change_is_shown_to_one_cleaning_however_often_it_begins(self):
        self.change_config(2, b'\x39\x23')
        for token, passed in (('c1', False), ('c1', False), ('c2', True)):
            self.assertIs(passed, self.backend.clean(dataclasses.replace(
                self.device(self.gpu), cleaning=token)).passed)

    def test_gpu_without_former_capability_is_not_clean(self):
        self.change_config(0x34, b'\0')
        self.verdict(False, 'capabilities was 10@40, is')

    def test_registers_that_guests_write_are_not_compared(self):
        # Command, status, cache line, addresses in BARs, interrupt line.
        for offset, value in ((4, b'\x06\x04\x10\x20'), (12, b'\x10\x40'),
                              (0x13, b'\xe0'), (60, b'\x0b')):
            self.change_config(offset, value)
        self.verdict(True, 'was reset')

    def test_repeated_prepare_keeps_first_baseline(self):
        self.change_config(2, b'\x39\x23')
        # As when nova-compute starts while the guest runs.
        self.backend.prepare(self.device(self.gpu))
        self.verdict(False, 'device was 2330, is 2339')

    def test_gpu_with_unreadable_baseline_is_not_clean(self):
        [path] = pathlib.Path(f'{self.root}/etc/cards').iterdir()
        path.write_text('{')
        self.verdict(False, 'the baseline of')

    def test_prepare_without_baseline_is_refused(self):
        shutil.rmtree(f'{self.root}/etc/cards')
        self.useFixture(fixtures.MockPatch(
            'os.replace', side_effect=OSError(28, 'No space left on device')))
        exc = self.assertRaises(
            exception.HostNotReady, self.backend.prepare,
            self.device(self.the(id=self.gpu.id)))
        self.assertIn('No space left', str(exc))

    def after_reset(self, act):
        vfio = self.backend.kernel.vfio
        reset = vfio.hot_reset

        def reset_and_act(*args):
            reset(*args)
            act()
        self.useFixture(fixtures.MockPatchObject(
            vfio, 'hot_reset', reset_and_act))

    def test_gpu_with_other_id_after_reset_is_not_clean(self):
        def swap():
            self.write(self.gpu, 'device', '0x2331\n')
            self.write(self.gpu, 'modalias', '')
        self.after_reset(swap)
        self.verdict(False, 'device was 2330, is 2331')

    def test_gpu_that_is_dead_after_reset_is_not_clean(self):
        def die():
            path = f'{self.root}/bus/pci/devices/{self.gpu.address}'
            with open(f'{path}/config', 'wb') as file:
                file.write(b'\xff' * 256)
        self.after_reset(die)
        self.verdict(False, 'does not answer')

    def test_removed_gpu_is_not_clean(self):
        shutil.rmtree(os.path.realpath(
            f'{self.root}/bus/pci/devices/{self.gpu.address}'))
        os.unlink(f'{self.root}/bus/pci/devices/{self.gpu.address}')
        self.refused(self.backend.release, self.gpu, 'is not there')
        self.verdict(False, 'is not there')

    def test_nvswitch_in_iommu_group_is_foreign(self):
        gpu, nvswitch = (
            next(function for function in self.functions().values()
                 if function.device == device) for device in ('2330', '22a3'))
        self.join_group(nvswitch, gpu)
        self.refused(self.backend.prepare, gpu, nvswitch.address,
                     'not on its card')


class VGPUTest(PassthroughCase):

    machine = 'nvidia-l40s-vgpu-2'

    def test_gpu_with_vgpus_keeps_the_driver_that_made_them(self):
        gpu = next(function for function in self.functions().values()
                   if function.sriov_totalvfs)
        self.backend.kernel.set_vfs(gpu.address, 2)
        self.assertEqual('vf', self.the(id=gpu.id).used_by)
        self.backend.kernel.written.clear()
        verdict = self.backend.clean(self.device(gpu))
        # They may be in guests, so nothing is reset.
        self.assertEqual([], self.backend.kernel.written)
        self.assertFalse(verdict.passed)
        self.assertIn('vGPUs or VFs', verdict.failure)
