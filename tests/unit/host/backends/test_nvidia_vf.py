# SPDX-License-Identifier: Apache-2.0
"""Tests of VFs that NVIDIA's driver gives a type, on the fake kernel."""

import dataclasses
import errno
import os
import pathlib

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.domain import vgpu
from tests.unit.host import vgpu_base


class NvidiaVFTest(vgpu_base.VFCase):

    machine = 'nvidia-l40s-vgpu-2'
    numvfs = {'10de:26b9': 8}.items()
    # sriov-manage creates all VFs of a GPU, not the number asked for.
    made = 32
    vgpu_type = 'L40S-12Q'

    def current(self, number=0):
        return self.read(f'bus/pci/devices/{self.vfs[number].address}/nvidia'
                         '/current_vgpu_type')

    def driver(self, number=0):
        link = (f'{self.root}/bus/pci/devices/{self.vfs[number].address}'
                '/driver')
        return os.path.basename(os.readlink(link)) if os.path.islink(
            link) else None

    def test_vfs_are_created_once(self):
        self.assertEqual(2 * self.made, len(self.vfs))
        self.host.make_vfs(())
        self.assertEqual(2 * self.made, sum(
            vf.pf is not None for vf in self.functions()))
        self.assertEqual(
            2, self.host.kernel.written.count('sriov-manage'))

    def test_type_is_set_and_cleared(self):
        device = self.device()
        self.twice(self.host.prepare, device)
        self.assertEqual('1153', self.current())
        self.assertEqual(
            {
                self.vfs[0].pf: vgpu.DriverCapacity(
                    existing=(device.stable_id,),
                    available={'L40S-12A': None, 'L40S-12Q': None},
                )
            },
            self.capacities(device),
        )
        self.assertEqual((device.address,),
                         self.host.attachment(device).functions)
        self.twice(self.host.release, device)
        self.assertEqual('0', self.current())
        self.refused(self.host.attachment, device, 'no vGPU type')

    def test_vf_that_a_process_has_open_is_not_touched(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        folder = pathlib.Path(
            self.root, 'bus/pci/devices', device.address)
        # NVIDIA's VFIO driver shows this of a VF that QEMU has open.
        (folder / 'vfio-dev').mkdir(exist_ok=True)
        (folder / 'enable').write_text('1\n')
        self.host.kernel.written.clear()
        self.refused(self.host.release, device, device.address,
                     'a process still has it open')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('a process still has it open', verdict.failure)
        self.assertEqual(([], '1153'), (
            self.host.kernel.written, self.current()))
        (folder / 'enable').write_text('0\n')
        verdict = self.host.clean(device)
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual('0', self.current())

    def test_vf_of_which_no_type_is_known_keeps_its_driver(self):
        """It is cleaned after a restore of the database."""
        self.host.kernel.written.clear()
        verdict = self.host.clean(self.device(
            had_guest=False, cleaning='c1', vgpu_type='passthrough'))
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertNotIn(
            f'bus/pci/devices/{self.vfs[0].address}/driver_override',
            self.host.kernel.written)
        self.assertEqual('nvidia', self.driver())

    def test_own_type_is_cleared_whichever_assignment_a_cleaning_names(self):
        """A restored database does not know the assignment that ended."""
        for assignment in ('', 'older'):
            self.host.prepare(self.device())
            verdict = self.host.clean(self.device(
                assignment_uuid=assignment, cleaning='c1',
                vgpu_type='passthrough'))
            self.assertTrue(verdict.passed, verdict.failure)
            self.assertEqual('0', self.current())

    def test_type_set_by_hand_after_the_own_was_cleared_is_kept(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        self.assertTrue(self.host.clean(device).passed)
        self.host.kernel.write(
            f'bus/pci/devices/{self.vfs[0].address}/nvidia'
            '/current_vgpu_type', '1153')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('not set for', verdict.failure)
        self.assertEqual('1153', self.current())

    def test_clean_resets_and_binds_again(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        self.host.kernel.written.clear()
        verdict = self.host.clean(device)
        self.assertTrue(verdict.passed, verdict.failure)
        folder = f'bus/pci/devices/{device.address}'
        # The last step binds its driver again.
        self.assertEqual(
            [f'{folder}/nvidia/current_vgpu_type', f'{folder}/reset',
             'bus/pci/drivers/nvidia/unbind', 'bus/pci/drivers/nvidia/bind'],
            self.host.kernel.written)
        self.assertEqual('nvidia', self.driver())
        self.host.kernel.faults['reset'] = errno.ENOTTY
        self.assertFalse(self.host.clean(device).passed)

    def test_vf_with_other_ids_than_before_the_guest_is_not_clean(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        path = f'{self.root}/bus/pci/devices/{device.address}/config'
        with open(path, 'r+b') as file:
            file.seek(8)
            file.write(b'\xa2')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('differs from its baseline: revision was',
                      verdict.failure)

    def test_change_is_shown_to_one_cleaning_however_often_it_begins(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        path = f'{self.root}/bus/pci/devices/{device.address}/config'
        with open(path, 'r+b') as file:
            file.seek(8)
            file.write(b'\xa2')
        for token, passed in (('c1', False), ('c1', False), ('c2', True)):
            self.assertIs(passed, self.host.clean(
                dataclasses.replace(device, cleaning=token)).passed)

    def test_other_vf_at_the_address_is_not_touched(self):
        device = self.device()
        self.host.prepare(device)
        self.host.kernel.written.clear()
        other = self.device(stable_id=self.vfs[1].id,
                            assignment_uuid=device.assignment_uuid)
        for method in (self.host.prepare, self.host.release,
                       self.host.attachment):
            self.refused(method, other, f'{self.vfs[1].id} is not there')
        self.assertFalse(self.host.clean(other).passed)
        self.assertEqual([], self.host.kernel.written)

    def test_dead_vf_is_not_touched(self):
        device = self.device()
        self.host.prepare(device)
        self.host.kernel.written.clear()
        pathlib.Path(self.root, 'bus/pci/devices', device.address,
                     'config').write_bytes(b'\xff' * 256)
        for method in (self.host.release, self.host.attachment):
            self.refused(method, device, device.address, 'does not answer')
        self.assertFalse(self.host.clean(device).passed)
        self.assertEqual([], self.host.kernel.written)

    def test_clean_fails_if_the_driver_is_not_bound_again(self):
        device = self.device()
        for fail in (lambda: self.host.kernel.faults.update(
                         {'nvidia/bind': errno.EIO}),
                     lambda: self.host.kernel.ignored.add('nvidia/bind')):
            self.host.prepare(device)
            fail()
            verdict = self.host.clean(device)
            self.assertFalse(verdict.passed)
            self.assertIsNone(self.driver())
            self.host.kernel.faults.clear()
            self.host.kernel.ignored.clear()
            # Without its driver no backend can tell whether it is clean.
            self.assertIn('it is bound to no driver',
                          self.host.clean(device).failure)
            self.host.kernel.write(
                'bus/pci/drivers/nvidia/bind', device.address)
            self.assertTrue(self.host.clean(device).passed)

    def test_clean_fails_if_the_type_is_back_after_the_bind(self):
        device = self.device()
        self.host.prepare(device)
        write = self.host.kernel.write

        def restore_type(name, value):
            write(name, value)
            if name.endswith('nvidia/bind'):
                write(f'bus/pci/devices/{value}/nvidia/current_vgpu_type',
                      '1153')
        self.host.binder._write_attribute = restore_type
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('vGPU type is 1153', verdict.failure)

    def test_vf_without_its_driver_is_refused(self):
        device = self.device()
        self.host.prepare(device)
        # As after a reboot, when vfio-pci was bound first.
        self.host.binder.bind(self.vfs[0])
        self.host.kernel.written.clear()
        for method in (self.host.prepare, self.host.attachment,
                       self.host.release):
            self.refused(
                method, device, device.address,
                'no backend supports vGPU type L40S-12Q',
                'bound to driver vfio-pci')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('vfio-pci', verdict.failure)
        self.assertEqual([], self.host.kernel.written)

    def test_type_of_another_assignment_is_kept(self):
        late, now = self.device(), self.device()
        self.host.prepare(late)
        self.host.release(late)
        self.host.prepare(now)
        for method in (self.host.prepare, self.host.release):
            self.refused(method, late, 'not set for assignment',
                         late.assignment_uuid)
        self.assertFalse(self.host.clean(late).passed)
        self.assertEqual('1153', self.current())

    def test_attachment_for_another_assignment_is_refused(self):
        late, now = self.device(), self.device()
        self.host.prepare(late)
        self.host.release(late)
        self.host.prepare(now)
        self.refused(self.host.attachment, late, 'not set for assignment',
                         late.assignment_uuid)

    def test_prepare_after_driver_upgrade_uses_new_type_id(self):
        device = self.device()
        self.host.prepare(device)
        # A reboot clears the type; the driver was upgraded.
        path = f'bus/pci/devices/{self.vfs[0].address}/nvidia'
        self.host.kernel.write(f'{path}/current_vgpu_type', '0')
        pf = os.path.realpath(
            f'{self.root}/bus/pci/devices/{self.vfs[0].address}/physfn')
        with open(f'{pf}/.vgpu.json') as file:
            rule = file.read().replace('"1153"', '"2153"')
        with open(f'{pf}/.vgpu.json', 'w') as file:
            file.write(rule)
        with open(f'{self.root}/{path}/creatable_vgpu_types', 'w') as file:
            file.write('2153 : NVIDIA L40S-12Q\n')
        self.twice(self.host.prepare, device)
        self.assertEqual('2153', self.current())
        self.twice(self.host.release, device)
        self.assertEqual('0', self.current())

    def test_type_unreadable_after_it_was_set_is_an_error(self):
        device = self.device()
        path = (f'{self.root}/bus/pci/devices/{self.vfs[0].address}/nvidia'
                '/current_vgpu_type')
        write = self.host.kernel.write

        def make_unreadable(name, value):
            write(name, value)
            os.unlink(path)
            os.symlink('current_vgpu_type', path)
        self.host.binder._write_attribute = make_unreadable
        self.refused(self.host.prepare, device, 'cannot be read')
        self.assertFalse(self.host.clean(device).passed)

    def test_type_set_by_hand_is_refused(self):
        self.host.kernel.write(
            f'bus/pci/devices/{self.vfs[0].address}/nvidia'
            '/current_vgpu_type', '1153')
        self.refused(self.host.prepare, self.device(), 'not set for')
        self.assertEqual('1153', self.current())

    def test_driver_capacity_until_the_gpu_is_full(self):
        devices = [self.device(number) for number in range(4)]
        for device in devices:
            self.host.prepare(device)
        self.assertEqual({self.vfs[0].pf: vgpu.DriverCapacity(
            existing=tuple(device.stable_id for device in devices))},
            self.capacities(*devices))
        self.assertTrue(self.host.clean(devices[0]).passed)
        [capacity] = self.capacities(*devices).values()
        self.assertEqual({'L40S-12A': None, 'L40S-12Q': None},
                         capacity.available)
        self.assertEqual(3, len(capacity.existing))

    def test_driver_capacity_while_all_vfs_have_a_type_is_unknown(self):
        for number in range(self.made):
            device = self.device(number, vgpu_type='L40S-1Q')
            self.host.prepare(device)
        # No VF is left that could be asked.
        self.assertEqual({}, self.capacities(self.device(0)))
        self.host.clean(device)
        [capacity] = self.capacities(device).values()
        self.assertEqual(self.made - 1, len(capacity.existing))
        self.assertIn('L40S-1A', capacity.available)

    def test_full_gpu_raises_no_driver_capacity(self):
        self.host.prepare(self.device(1, vgpu_type='L40S-48Q'))
        self.host.kernel.written.clear()
        exc = self.assertRaises(
            exception.NoDriverCapacity, self.host.prepare, self.device())
        self.assertIn('L40S-12Q now, only none', str(exc))
        self.assertEqual([], self.host.kernel.written)

    def test_type_without_effect_is_an_error(self):
        self.host.kernel.ignored.add('current_vgpu_type')
        self.refused(
            self.host.prepare, self.device(self.made), 'its vGPU type is 0')

    def test_late_type_is_an_error_until_cleaned(self):
        self.host.kernel.late.add('current_vgpu_type')
        device = self.device()
        self.refused(self.host.prepare, device, 'its vGPU type is 0')
        self.host.kernel.catch_up()
        self.assertEqual('1153', self.current())
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual('0', self.current())

    def test_type_that_cannot_be_cleared_is_an_error(self):
        device = self.device()
        self.host.prepare(device)
        self.host.kernel.ignored.add('current_vgpu_type')
        self.refused(self.host.release, device, 'its vGPU type is 1153')
        self.assertFalse(self.host.clean(device).passed)

    def test_prepare_after_reboot_needs_vfs(self):
        device = self.device()
        self.host.prepare(device)
        # A reboot removes VFs and their types.
        for number in (0, self.made):
            pf = next(gpu.address for gpu in self.functions()
                      if gpu.id == self.vfs[number].pf)
            self.host.kernel.set_vfs(pf, 0)
        self.refused(self.host.prepare, device, 'is not there')
        self.host.make_vfs(())
        self.host.prepare(device)
        self.assertEqual('1153', self.current())

    def test_make_vfs_skips_busy_gpus(self):
        pf = next(gpu for gpu in self.functions()
                  if gpu.id == self.vfs[0].pf)
        self.host.kernel.set_vfs(pf.address, 0)
        self.host.make_vfs({pf.id})
        self.assertEqual(self.made, sum(vf.pf is not None
                                        for vf in self.functions()))

    def test_driver_service_that_starts_late_is_noticed(self):
        self.host.scan()
        self.assertFalse(self.host.changed())
        start = self.stop_drivers()
        pf = self.functions()[0]
        self.assertEqual(((), vgpu.DriverCapacity()),
                         (pf.vgpu_types, pf.driver_capacity))
        self.assertFalse(self.host.changed())
        start()
        self.assertTrue(self.host.changed())
        self.assertEqual(23, len(self.functions()[0].vgpu_types))
        self.assertFalse(self.host.changed())

    def test_failed_driver_is_scanned_again(self):
        self.check_recovery(self.device())

    def test_missing_sriov_manage_is_logged(self):
        def missing(address):
            raise FileNotFoundError(
                errno.ENOENT, 'No such file or directory', 'sriov-manage')
        pf = next(gpu for gpu in self.functions()
                  if gpu.id == self.vfs[0].pf)
        self.host.kernel.set_vfs(pf.address, 0)
        self.host.binder._make_nvidia_vfs = missing
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn('VFs cannot be created: No such file or directory '
                      '(sriov-manage)', log.output)

    def test_sriov_manage_without_effect_is_logged(self):
        pf = next(gpu for gpu in self.functions()
                  if gpu.id == self.vfs[0].pf)
        self.host.kernel.set_vfs(pf.address, 0)
        self.host.binder._make_nvidia_vfs = lambda address: None
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn('has none of its 8 VFs', log.output)
