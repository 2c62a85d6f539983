#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""vGPUs that are mdevs, of cards and of VFs, on the fake kernel."""

import errno
import os
import pathlib
import uuid

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.host import base as host_base
from tests.unit.host import vgpu_base


class MdevTest(vgpu_base.VGPUCase):

    machine = 'nvidia-t4-2'

    def setUp(self):
        super().setUp()
        self.card, self.other = self.functions()
        self.types = (f'class/mdev_bus/{self.card.address}'
                      '/mdev_supported_types')

    def device(self, vgpu_type='T4-4Q', card=None, **fields):
        card = card or self.card
        return host_base.HostDevice(**{
            'assignment_uuid': str(uuid.uuid4()), 'vgpu_type': vgpu_type,
            'stable_id': f'{card.id}/mdev0', 'address': card.address,
            **fields})

    def available(self):
        return int(self.read(f'{self.types}/nvidia-232/available_instances'))

    def mdevs(self):
        path = f'{self.root}/bus/mdev/devices'
        return os.listdir(path) if os.path.isdir(path) else []

    def test_made_with_the_uuid_of_its_holding(self):
        device = self.device()
        self.twice(self.host.prepare, device)
        self.assertEqual([device.assignment_uuid], self.mdevs())
        self.assertEqual(3, self.available())
        self.assertEqual({self.card.id: vgpu_type.DriverCapacity(
            existing=(device.assignment_uuid,), available={
                'T4-4Q': 3, 'T4-1Q': 0, 'T4-2Q': 0, 'T4-8Q': 0,
                'T4-16Q': 0})}, self.told(device))
        self.assertEqual(
            host_base.Attachment(mdev=device.assignment_uuid),
            self.host.attachment(device))

    def test_a_driver_that_fails_for_a_while(self):
        self.looks_until_it_is_well(self.device())

    def test_which_answer_is_the_newer_one(self):
        device = self.device()
        numbers = []
        for _ in range(2):
            [function, _] = self.functions()
            [told] = self.host.driver_capacity([device]).values()
            numbers += [function.driver_capacity.sampled_at, told.sampled_at]
        self.assertEqual(1, len({start for start, _ in numbers}))
        self.assertEqual(sorted(numbers), numbers)
        self.assertEqual(4, len(set(numbers)))

    def test_one_write_to_make_and_one_to_remove(self):
        device = self.device()
        self.host.kernel.written.clear()
        self.host.prepare(device)
        self.assertEqual([f'{self.types}/nvidia-232/create'],
                         self.host.kernel.written)
        self.host.release(device)
        self.assertEqual(2, len(self.host.kernel.written))

    def test_removed_between_two_holdings(self):
        device = self.device()
        self.host.prepare(device)
        self.twice(self.host.release, device)
        self.assertEqual([], self.mdevs())
        self.assertEqual(4, self.available())
        self.refused(self.host.attachment, device, 'is not there')
        verdict = self.twice(self.host.clean, device)
        self.assertTrue(verdict.passed)
        self.assertIn(device.assignment_uuid, verdict.evidence)

    def test_a_cleaning_removes_what_a_crash_left(self):
        device = self.device()
        self.host.prepare(device)
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual([], self.mdevs())

    def test_a_late_release_leaves_the_next_one_alone(self):
        late = self.device()
        self.host.prepare(late)
        self.host.release(late)
        now = self.device()
        self.host.prepare(now)
        self.host.release(late)
        self.assertTrue(self.host.clean(late).passed)
        self.assertEqual([now.assignment_uuid], self.mdevs())

    def test_made_anew_after_a_reboot(self):
        device = self.device()
        self.host.prepare(device)
        # A reboot forgets mdevs.
        self.host.kernel.write(
            f'bus/mdev/devices/{device.assignment_uuid}/remove', '1')
        self.host.prepare(device)
        self.assertEqual([device.assignment_uuid], self.mdevs())

    def test_told_of_each_card_once(self):
        devices = [self.device(), self.device(), self.device(
            card=self.other), self.device(None, stable_id=self.card.id)]
        told = self.told(*devices)
        self.assertEqual({self.card.id, self.other.id}, told.keys())
        self.assertEqual({'T4-4Q': 4, 'T4-1Q': 16, 'T4-2Q': 8, 'T4-8Q': 2,
                          'T4-16Q': 1}, told[self.other.id].available)
        self.host.prepare(devices[0])
        self.host.release(devices[0])
        self.assertEqual(told, self.told(*devices))
        self.assertEqual({}, self.told(devices[3]))

    def test_what_cannot_be_told(self):
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

    def test_no_room_is_nobodys_fault(self):
        self.host.prepare(self.device('T4-1Q'))
        self.host.kernel.written.clear()
        exc = self.assertRaises(
            exception.NoDriverCapacity, self.host.prepare, self.device())
        self.assertIn('no room for another T4-4Q', str(exc))
        self.assertEqual([], self.host.kernel.written)

    def test_the_hardware_refuses(self):
        self.host.kernel.faults['create'] = errno.EIO
        self.refused(self.host.prepare, self.device('T4-1Q'), 'create')

    def test_the_hardware_says_yes_and_does_nothing(self):
        self.host.kernel.ignored.add('create')
        self.refused(self.host.prepare, self.device(),
                     'after it was made')
        self.host.kernel.ignored.clear()
        device = self.device()
        self.host.prepare(device)
        self.host.kernel.ignored.add('remove')
        self.refused(self.host.release, device, 'still there')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('still there', verdict.evidence)

    def test_removal_that_waits_for_a_guest(self):
        device = self.device()
        self.host.prepare(device)
        # All that the kernel does until the guest has closed it.
        os.unlink(f'{self.root}/bus/mdev/devices/{device.assignment_uuid}')
        for method in (self.host.prepare, self.host.release,
                       self.host.attachment):
            self.refused(method, device, 'still has it open')
        self.assertFalse(self.host.clean(device).passed)
        self.assertEqual((device.assignment_uuid,),
                         self.functions()[0].existing_vgpus)

    def test_the_hardware_is_late(self):
        self.host.kernel.late.add('create')
        device = self.device()
        self.refused(self.host.prepare, device, 'after it was made')
        self.host.kernel.catch_up()
        # What appeared meanwhile goes to nobody.
        self.assertEqual([device.assignment_uuid], self.mdevs())
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual([], self.mdevs())
        self.host.prepare(device)
        self.host.kernel.late.add('remove')
        self.assertFalse(self.host.clean(device).passed)
        self.host.kernel.catch_up()
        self.assertTrue(self.host.clean(device).passed)

    def test_types_that_are_no_pci_devices(self):
        with open(f'{self.root}/{self.types}/nvidia-232/device_api',
                  'w') as file:
            file.write('vfio-ccw\n')
        self.assertNotIn('T4-4Q', [
            each.name for each in self.functions()[0].vgpu_types])

    def test_wrong_card_type_or_mdev(self):
        self.refused(self.host.prepare, self.device(
            stable_id=f'{self.other.id}/mdev0'), 'is not there')
        self.refused(self.host.prepare, self.device('T4-3Q'),
                     'no type T4-3Q', 'T4-16Q')
        device = self.device()
        self.host.prepare(device)
        elsewhere = self.device(
            card=self.other, assignment_uuid=device.assignment_uuid)
        for method in (self.host.prepare, self.host.release):
            self.refused(method, elsewhere, f'is on {self.card.address}')
        self.assertFalse(self.host.clean(elsewhere).passed)

    def test_the_driver_is_not_loaded(self):
        os.unlink(f'{self.root}/class/mdev_bus/{self.card.address}')
        self.refused(self.host.prepare, self.device(), 'driver')

    def test_a_card_that_is_carved_is_not_given_whole(self):
        self.host.prepare(self.device())
        self.refused(self.host.prepare, self.device(
            None, stable_id=self.card.id), 'vGPUs are carved out of it')

    def test_a_whole_card_is_its_drivers_again_once_clean(self):
        device = self.device(None, stable_id=self.card.id)
        self.host.prepare(device)
        self.assertEqual('vfio-pci', self.functions()[0].driver)
        self.host.release(device)
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual('nvidia', self.functions()[0].driver)


class MdevOnVFTest(vgpu_base.VFCase):

    machine = 'nvidia-a100-2'
    numvfs = {'10de:20b5': 5}.items()
    made = 20
    vgpu_type = 'A100D-20C'

    def test_types_are_told_of_the_pf(self):
        pf = next(each for each in self.functions()
                  if each.id == self.vfs[0].pf)
        self.assertEqual(
            (pci.VGPUMechanism.VF, 20, 4, 1),
            (
                pf.vgpu_mechanism,
                *(
                    next(
                        each.max_instances
                        for each in pf.vgpu_types
                        if each.name == name
                    )
                    for name in ('A100D-4C', 'A100D-20C', 'A100D-80C')
                ),
            ),
        )
        self.assertEqual({()}, {each.vgpu_types for each in self.vfs})
        # The driver lists them at all times.
        self.host.prepare(self.device(0))
        self.assertEqual(pf.vgpu_types, next(
            each.vgpu_types for each in self.functions()
            if each.id == self.vfs[0].pf))

    def test_how_many_fit_is_not_told_beside_an_mdev(self):
        for path in pathlib.Path(self.root).glob(
                'bus/pci/devices/*/mdev_supported_types/*/description'):
            path.unlink()
        self.host.prepare(self.device(0))
        pf = next(each for each in self.functions()
                  if each.id == self.vfs[0].pf)
        self.assertEqual({None}, {each.max_instances
                                  for each in pf.vgpu_types})

    def test_a_driver_that_fails_for_a_while(self):
        self.looks_until_it_is_well(self.device(0))

    def test_one_mdev_on_each_vf(self):
        devices = [self.device(number) for number in range(4)]
        for device in devices:
            self.twice(self.host.prepare, device)
            self.assertEqual(device.assignment_uuid,
                             self.host.attachment(device).mdev)
        self.refused(self.host.prepare, self.device(0), 'no room')
        self.refused(self.host.prepare, self.device(4), 'no room')
        self.assertEqual({self.vfs[0].pf: vgpu_type.DriverCapacity(
            existing=tuple(each.stable_id for each in devices))},
            self.told(*devices))
        # The other card has room.
        self.host.prepare(self.device(self.made))
        self.assertEqual(
            {
                self.vfs[self.made].pf: vgpu_type.DriverCapacity(
                    existing=(self.vfs[self.made].id,),
                    available={'A100D-20C': None},
                )
            },
            self.told(self.device(self.made)),
        )
        for device in devices:
            self.assertTrue(self.host.clean(device).passed)
        self.host.prepare(self.device(4, vgpu_type='A100D-80C'))

    def test_after_a_reboot(self):
        device = self.device(0)
        self.host.prepare(device)
        for pf in {each.pf for each in self.vfs}:
            address = next(each.address for each in self.functions()
                           if each.id == pf)
            self.host.kernel.set_vfs(address, 0)
        self.refused(self.host.prepare, device, 'is not there')
        self.host.make_vfs(())
        self.host.prepare(device)
        self.assertEqual(device.assignment_uuid,
                         self.host.attachment(device).mdev)
