# SPDX-License-Identifier: Apache-2.0
"""Tests of mdevs on GPUs and on VFs, on the fake kernel."""

import errno
import os
import pathlib
import uuid

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base as host_base
from tests.fixtures import cleaned
from tests.unit.host import vgpu_base


class MdevTest(vgpu_base.VGPUCase):

    machine = 'nvidia-t4-2'

    def setUp(self):
        super().setUp()
        self.gpu, self.other = self.functions()
        self.types = (f'class/mdev_bus/{self.gpu.address}'
                      '/mdev_supported_types')

    def device(self, vgpu_type='T4-4Q', gpu=None, **fields):
        gpu = gpu or self.gpu
        return host_base.HostDevice(**{
            'assignment_uuid': str(uuid.uuid4()), 'vgpu_type': vgpu_type,
            'stable_id': f'{gpu.id}/mdev0', 'address': gpu.address,
            **fields})

    def whole_gpu(self):
        return self.device(naming.PASSTHROUGH, stable_id=self.gpu.id)

    def available(self):
        return int(self.read(f'{self.types}/nvidia-232/available_instances'))

    def mdevs(self):
        path = f'{self.root}/bus/mdev/devices'
        return os.listdir(path) if os.path.isdir(path) else []

    def test_mdev_has_uuid_of_assignment(self):
        device = self.device()
        self.twice(self.host.prepare, device)
        self.assertEqual([device.assignment_uuid], self.mdevs())
        self.assertEqual(3, self.available())
        self.assertEqual({self.gpu.id: vgpu.DriverCapacity(
            existing=(device.assignment_uuid,), available={
                'T4-4Q': 3, 'T4-1Q': 0, 'T4-2Q': 0, 'T4-8Q': 0,
                'T4-16Q': 0})}, self.capacities(device))
        self.assertEqual(
            host_base.Attachment(mdev=device.assignment_uuid),
            self.host.attachment(device))

    def test_failed_driver_is_scanned_again(self):
        self.check_recovery(self.device())

    def test_driver_reports_are_numbered_in_order(self):
        device = self.device()
        numbers = []
        for _ in range(2):
            [function, _] = self.functions()
            [capacity] = self.host.driver_capacity([device]).values()
            numbers += [
                function.driver_capacity.sampled_at, capacity.sampled_at]
        self.assertEqual(1, len({start for start, _ in numbers}))
        self.assertEqual(sorted(numbers), numbers)
        self.assertEqual(4, len(set(numbers)))

    def test_mdev_takes_one_write_to_create_and_one_to_remove(self):
        device = self.device()
        self.host.kernel.written.clear()
        self.host.prepare(device)
        self.assertEqual([f'{self.types}/nvidia-232/create'],
                         self.host.kernel.written)
        self.host.release(device)
        self.assertEqual(2, len(self.host.kernel.written))

    def test_released_mdev_is_gone(self):
        device = self.device()
        self.host.prepare(device)
        self.twice(self.host.release, device)
        self.assertEqual([], self.mdevs())
        self.assertEqual(4, self.available())
        self.refused(self.host.attachment, device, 'is not there')
        verdict = self.twice(self.host.clean, device)
        self.twice(self.host.give_back, device)
        self.assertTrue(verdict.passed)
        self.assertIn(device.assignment_uuid, cleaned.reasons(verdict))

    def test_clean_removes_mdev_left_by_crash(self):
        device = self.device()
        self.host.prepare(device)
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual([], self.mdevs())

    def test_late_release_keeps_mdev_of_next_assignment(self):
        late = self.device()
        self.host.prepare(late)
        self.host.release(late)
        now = self.device()
        self.host.prepare(now)
        self.host.release(late)
        self.assertTrue(self.host.clean(late).passed)
        self.assertEqual([now.assignment_uuid], self.mdevs())

    def test_prepare_after_reboot_creates_mdev_again(self):
        device = self.device()
        self.host.prepare(device)
        # A reboot removes mdevs.
        self.host.kernel.write(
            f'bus/mdev/devices/{device.assignment_uuid}/remove', '1')
        self.host.prepare(device)
        self.assertEqual([device.assignment_uuid], self.mdevs())

    def test_driver_capacity_names_every_gpu_once(self):
        devices = [self.device(), self.device(), self.device(
            gpu=self.other), self.whole_gpu()]
        capacities = self.capacities(*devices)
        self.assertEqual({self.gpu.id, self.other.id}, capacities.keys())
        self.assertEqual({'T4-4Q': 4, 'T4-1Q': 16, 'T4-2Q': 8, 'T4-8Q': 2,
                          'T4-16Q': 1}, capacities[self.other.id].available)
        self.host.prepare(devices[0])
        self.host.release(devices[0])
        self.assertEqual(capacities, self.capacities(*devices))
        self.assertEqual({}, self.capacities(devices[3]))

    def test_driver_capacity_that_cannot_be_read_is_left_out(self):
        path = f'{self.root}/{self.types}/nvidia-232/available_instances'
        for text in ('many', None):
            os.unlink(path)
            if text:
                with open(path, 'w') as file:
                    file.write(text)
            else:
                os.symlink('available_instances', path)
            log = self.useFixture(fixtures.FakeLogger())
            self.assertEqual({}, self.host.driver_capacity([self.device()]))
            self.assertIn('cannot be read', log.output)

    def test_full_gpu_raises_no_driver_capacity(self):
        self.host.prepare(self.device('T4-1Q'))
        self.host.kernel.written.clear()
        exc = self.assertRaises(
            exception.NoDriverCapacity, self.host.prepare, self.device())
        self.assertIn('no more vGPUs of type T4-4Q', str(exc))
        self.assertEqual([], self.host.kernel.written)

    def test_refused_write_is_an_error(self):
        self.host.kernel.faults['create'] = errno.EIO
        self.refused(self.host.prepare, self.device('T4-1Q'), 'create')

    def test_write_without_effect_is_an_error(self):
        self.host.kernel.ignored.add('create')
        self.refused(self.host.prepare, self.device(),
                     'after it was created')
        self.host.kernel.ignored.clear()
        device = self.device()
        self.host.prepare(device)
        self.host.kernel.ignored.add('remove')
        self.refused(self.host.release, device, 'still there')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('still there', verdict.failure)

    def test_mdev_that_a_process_has_open_is_still_removed_later(self):
        device = self.device()
        self.host.prepare(device)
        # The kernel does no more until the guest has closed it.
        os.unlink(f'{self.root}/bus/mdev/devices/{device.assignment_uuid}')
        for method in (self.host.prepare, self.host.release,
                       self.host.attachment):
            self.refused(method, device, 'still has it open')
        self.assertFalse(self.host.clean(device).passed)
        self.assertEqual((device.assignment_uuid,),
                         self.functions()[0].existing_vgpus)

    def test_late_write_is_an_error_until_cleaned(self):
        self.host.kernel.late.add('create')
        device = self.device()
        self.refused(self.host.prepare, device, 'after it was created')
        self.host.kernel.catch_up()
        # Nobody is assigned an mdev that appeared meanwhile.
        self.assertEqual([device.assignment_uuid], self.mdevs())
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual([], self.mdevs())
        self.host.prepare(device)
        self.host.kernel.late.add('remove')
        self.assertFalse(self.host.clean(device).passed)
        self.host.kernel.catch_up()
        self.assertTrue(self.host.clean(device).passed)

    def test_types_of_other_buses_are_not_vgpu_types(self):
        with open(f'{self.root}/{self.types}/nvidia-232/device_api',
                  'w') as file:
            file.write('vfio-ccw\n')
        self.assertNotIn('T4-4Q', [
            listed.name for listed in self.functions()[0].vgpu_types])

    def test_wrong_gpu_type_or_parent_is_refused(self):
        self.refused(self.host.prepare, self.device(
            stable_id=f'{self.other.id}/mdev0'), 'is not there')
        self.refused(self.host.prepare, self.device('T4-3Q'),
                     'no vGPU type T4-3Q', 'T4-16Q')
        device = self.device()
        self.host.prepare(device)
        elsewhere = self.device(
            gpu=self.other, assignment_uuid=device.assignment_uuid)
        for method in (self.host.prepare, self.host.release):
            self.refused(method, elsewhere, f'is on {self.gpu.address}')
        self.assertFalse(self.host.clean(elsewhere).passed)

    def test_missing_driver_is_named(self):
        os.unlink(f'{self.root}/class/mdev_bus/{self.gpu.address}')
        self.refused(self.host.prepare, self.device(), 'driver')

    def test_gpu_with_vgpus_is_not_passed_through(self):
        self.host.prepare(self.device())
        self.refused(self.host.prepare, self.whole_gpu(),
                     'vGPUs exist on it')

    def test_cleaned_gpu_is_bound_to_its_driver_again(self):
        device = self.whole_gpu()
        self.host.prepare(device)
        self.assertEqual('vfio-pci', self.functions()[0].driver)
        self.host.release(device)
        self.assertTrue(self.host.clean(device).passed)
        self.host.give_back(device)
        self.assertEqual('nvidia', self.functions()[0].driver)


class MdevOnVFTest(vgpu_base.VFCase):

    machine = 'nvidia-a100-2'
    numvfs = {'10de:20b5': 5}.items()
    made = 20
    vgpu_type = 'A100D-20C'

    def test_pf_has_the_types_of_its_vfs(self):
        pf = next(gpu for gpu in self.functions()
                  if gpu.id == self.vfs[0].pf)
        self.assertEqual(
            (vgpu.VGPUMechanism.VF, 20, 4, 1),
            (
                pf.vgpu_mechanism,
                *(
                    next(
                        listed.max_instances
                        for listed in pf.vgpu_types
                        if listed.name == name
                    )
                    for name in ('A100D-4C', 'A100D-20C', 'A100D-80C')
                ),
            ),
        )
        self.assertEqual({()}, {vf.vgpu_types for vf in self.vfs})
        # The driver lists them at all times.
        self.host.prepare(self.device(0))
        self.assertEqual(pf.vgpu_types, next(
            gpu.vgpu_types for gpu in self.functions()
            if gpu.id == self.vfs[0].pf))

    def test_max_instances_is_unknown_while_mdevs_exist(self):
        for path in pathlib.Path(self.root).glob(
                'bus/pci/devices/*/mdev_supported_types/*/description'):
            path.unlink()
        self.host.prepare(self.device(0))
        pf = next(gpu for gpu in self.functions()
                  if gpu.id == self.vfs[0].pf)
        self.assertEqual({None}, {listed.max_instances
                                  for listed in pf.vgpu_types})

    def test_failed_driver_is_scanned_again(self):
        self.check_recovery(self.device(0))

    def test_vf_of_which_no_type_is_known_keeps_its_driver(self):
        """It is cleaned after a restore of the database."""
        self.host.kernel.written.clear()
        verdict = self.host.clean(self.device(
            0, vgpu_type='passthrough', cleaning='c1'))
        self.assertEqual(['host-driver'], [
            result.step for result in verdict.results])
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual([], self.host.kernel.written)

    def test_vf_takes_one_mdev(self):
        devices = [self.device(number) for number in range(4)]
        for device in devices:
            self.twice(self.host.prepare, device)
            self.assertEqual(device.assignment_uuid,
                             self.host.attachment(device).mdev)
        self.refused(self.host.prepare, self.device(0), 'no more')
        self.refused(self.host.prepare, self.device(4), 'no more')
        self.assertEqual({self.vfs[0].pf: vgpu.DriverCapacity(
            existing=tuple(device.stable_id for device in devices))},
            self.capacities(*devices))
        # The other GPU is free.
        self.host.prepare(self.device(self.made))
        self.assertEqual(
            {
                self.vfs[self.made].pf: vgpu.DriverCapacity(
                    existing=(self.vfs[self.made].id,),
                    available={'A100D-20C': None},
                )
            },
            self.capacities(self.device(self.made)),
        )
        for device in devices:
            self.assertTrue(self.host.clean(device).passed)
        self.host.prepare(self.device(4, vgpu_type='A100D-80C'))

    def test_prepare_after_reboot_needs_vfs(self):
        device = self.device(0)
        self.host.prepare(device)
        for pf in {vf.pf for vf in self.vfs}:
            address = next(gpu.address for gpu in self.functions()
                           if gpu.id == pf)
            self.host.kernel.set_vfs(address, 0)
        self.refused(self.host.prepare, device, 'is not there')
        self.host.make_vfs(())
        self.host.prepare(device)
        self.assertEqual(device.assignment_uuid,
                         self.host.attachment(device).mdev)
