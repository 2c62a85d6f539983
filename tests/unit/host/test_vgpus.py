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
"""The backends of vGPUs on fake machines: made, taken back, not handed on."""

import errno
import os
import pathlib
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu_type
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host import fake


class VGPUCase(base.BaseTestCase):

    machine: str
    numvfs = ()

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake.FakeHost.for_machine(
            self.machine, self.root, dict(self.numvfs))
        self.host.make_vfs(())

    def functions(self):
        return [each for each in self.host.scan().functions
                if pci.can_be_gpu(each.class_code)]

    def read(self, path):
        with open(f'{self.root}/{path}') as file:
            return file.read().strip()

    def refused(self, method, device, *words):
        exc = self.assertRaises(exception.HostError, method, device)
        for word in words:
            self.assertIn(word, str(exc))

    def told(self, *devices):
        """What can be made, told of some devices and by a scan alike."""
        told = self.host.creatable(devices)
        self.assertEqual(told, {
            each.id: each.creatable for each in self.functions()
            if each.id in told})
        return told

    def twice(self, method, device):
        return [method(device) for _ in range(2)][1]


class MdevTest(VGPUCase):

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
        self.assertEqual({self.card.id: vgpu_type.Creatable(
            beside=(device.assignment_uuid,), room={
                'T4-4Q': 3, 'T4-1Q': 0, 'T4-2Q': 0, 'T4-8Q': 0,
                'T4-16Q': 0})}, self.told(device))
        self.assertEqual(
            host_base.Attachment(mdev=device.assignment_uuid),
            self.host.attachment(device))

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
                          'T4-16Q': 1}, told[self.other.id].room)
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
            self.assertEqual({}, self.host.creatable([self.device()]))
            self.assertIn('cannot be read', log.output)

    def test_no_room_is_nobodys_fault(self):
        self.host.prepare(self.device('T4-1Q'))
        self.host.kernel.written.clear()
        exc = self.assertRaises(
            exception.NoRoom, self.host.prepare, self.device())
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
                         self.functions()[0].carved)

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


class NvidiaVFTest(VGPUCase):

    machine = 'nvidia-l40s-vgpu-2'
    numvfs = {'10de:26b9': 8}.items()
    # What sriov-manage makes of it.
    made = 32

    def setUp(self):
        super().setUp()
        self.vfs = [each for each in self.functions() if each.pf]

    def device(self, number=0, **fields):
        vf = self.vfs[number]
        return host_base.HostDevice(**{
            'assignment_uuid': str(uuid.uuid4()), 'stable_id': vf.id,
            'vgpu_type': 'L40S-12Q', 'address': vf.address, **fields})

    def current(self, number=0):
        return self.read(f'bus/pci/devices/{self.vfs[number].address}/nvidia'
                         '/current_vgpu_type')

    def test_vfs_are_made_and_only_once(self):
        self.assertEqual(2 * self.made, len(self.vfs))
        self.host.make_vfs(())
        self.assertEqual(2 * self.made, sum(
            each.pf is not None for each in self.functions()))
        self.assertEqual(
            2, self.host.kernel.written.count('sriov-manage'))

    def test_type_is_set_and_taken_back(self):
        device = self.device()
        self.twice(self.host.prepare, device)
        self.assertEqual('1153', self.current())
        self.assertEqual({self.vfs[0].pf: vgpu_type.Creatable(
            beside=(device.stable_id,),
            room={'L40S-12A': None, 'L40S-12Q': None})}, self.told(device))
        self.assertEqual((device.address,),
                         self.host.attachment(device).functions)
        self.twice(self.host.release, device)
        self.assertEqual('0', self.current())
        self.refused(self.host.attachment, device, 'no vGPU type')

    def test_reset_and_compared_between_two_holdings(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        self.host.kernel.written.clear()
        verdict = self.host.clean(device)
        self.assertTrue(verdict.passed, verdict.evidence)
        self.assertEqual(
            ['current_vgpu_type', 'reset'],
            [os.path.basename(each) for each in self.host.kernel.written])
        self.host.kernel.faults['reset'] = errno.ENOTTY
        self.assertFalse(self.host.clean(device).passed)

    def test_another_holdings_type_is_left_alone(self):
        late, now = self.device(), self.device()
        self.host.prepare(late)
        self.host.release(late)
        self.host.prepare(now)
        for method in (self.host.prepare, self.host.release):
            self.refused(method, late, 'this holding did not set')
        self.assertFalse(self.host.clean(late).passed)
        self.assertEqual('1153', self.current())

    def test_attached_by_the_holding_that_set_it_alone(self):
        late, now = self.device(), self.device()
        self.host.prepare(late)
        self.host.release(late)
        self.host.prepare(now)
        self.refused(self.host.attachment, late, 'this holding did not set')

    def test_the_driver_has_another_number_for_the_type(self):
        device = self.device()
        self.host.prepare(device)
        # A reboot forgets the type; the driver was upgraded.
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

    def test_what_cannot_be_read_after_it_was_set(self):
        device = self.device()
        path = (f'{self.root}/bus/pci/devices/{self.vfs[0].address}/nvidia'
                '/current_vgpu_type')
        write = self.host.kernel.write

        def breaks(name, value):
            write(name, value)
            os.unlink(path)
            os.symlink('current_vgpu_type', path)
        self.host.binder._write_attribute = breaks
        self.refused(self.host.prepare, device, 'cannot be read')
        self.assertFalse(self.host.clean(device).passed)

    def test_somebody_set_it_by_hand(self):
        self.host.kernel.write(
            f'bus/pci/devices/{self.vfs[0].address}/nvidia'
            '/current_vgpu_type', '1153')
        self.refused(self.host.prepare, self.device(), 'did not set')
        self.assertEqual('1153', self.current())

    def test_told_until_the_card_is_full(self):
        devices = [self.device(number) for number in range(4)]
        for device in devices:
            self.host.prepare(device)
        self.assertEqual({self.vfs[0].pf: vgpu_type.Creatable(
            beside=tuple(each.stable_id for each in devices))},
            self.told(*devices))
        self.assertTrue(self.host.clean(devices[0]).passed)
        [told] = self.told(*devices).values()
        self.assertEqual({'L40S-12A': None, 'L40S-12Q': None}, told.room)
        self.assertEqual(3, len(told.beside))

    def test_told_while_all_vfs_have_a_type(self):
        for number in range(self.made):
            device = self.device(number, vgpu_type='L40S-1Q')
            self.host.prepare(device)
        # None is left that could be asked.
        self.assertEqual({}, self.told(self.device(0)))
        self.host.clean(device)
        [told] = self.told(device).values()
        self.assertEqual(self.made - 1, len(told.beside))
        self.assertIn('L40S-1A', told.room)

    def test_no_room_is_nobodys_fault(self):
        self.host.prepare(self.device(1, vgpu_type='L40S-48Q'))
        self.host.kernel.written.clear()
        exc = self.assertRaises(
            exception.NoRoom, self.host.prepare, self.device())
        self.assertIn('L40S-12Q now, but none', str(exc))
        self.assertEqual([], self.host.kernel.written)

    def test_the_hardware_refuses(self):
        self.host.kernel.ignored.add('current_vgpu_type')
        self.refused(
            self.host.prepare, self.device(self.made), 'its type is 0')

    def test_the_hardware_is_late(self):
        self.host.kernel.late.add('current_vgpu_type')
        device = self.device()
        self.refused(self.host.prepare, device, 'its type is 0')
        self.host.kernel.catch_up()
        self.assertEqual('1153', self.current())
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual('0', self.current())

    def test_taking_it_back_has_no_effect(self):
        device = self.device()
        self.host.prepare(device)
        self.host.kernel.ignored.add('current_vgpu_type')
        self.refused(self.host.release, device, 'its type is 1153')
        self.assertFalse(self.host.clean(device).passed)

    def test_after_a_reboot(self):
        device = self.device()
        self.host.prepare(device)
        # A reboot forgets VFs and their types.
        for number in (0, self.made):
            pf = next(each.address for each in self.functions()
                      if each.id == self.vfs[number].pf)
            self.host.kernel.set_vfs(pf, 0)
        self.refused(self.host.prepare, device, 'is not there')
        self.host.make_vfs(())
        self.host.prepare(device)
        self.assertEqual('1153', self.current())

    def test_a_card_that_is_busy_gets_no_vfs(self):
        pf = next(each for each in self.functions()
                  if each.id == self.vfs[0].pf)
        self.host.kernel.set_vfs(pf.address, 0)
        self.host.make_vfs({pf.id})
        self.assertEqual(self.made, sum(each.pf is not None
                                        for each in self.functions()))

    def test_a_service_that_begins_late(self):
        self.host.scan()
        self.assertFalse(self.host.changed())
        lists = pathlib.Path(self.root).glob(
            'bus/pci/devices/*/nvidia/creatable_vgpu_types')
        before = {path: path.read_text() for path in lists}
        for path in before:
            path.write_text('ID    : vGPU Name\n')
        pf = self.functions()[0]
        self.assertEqual(((), vgpu_type.Creatable()),
                         (pf.vgpu_types, pf.creatable))
        self.assertFalse(self.host.changed())
        for path, text in before.items():
            path.write_text(text)
        self.assertTrue(self.host.changed())
        self.assertEqual(23, len(self.functions()[0].vgpu_types))
        self.assertFalse(self.host.changed())
        # What it is given is no change that must be looked at.
        self.host.prepare(self.device())
        self.assertFalse(self.host.changed())

    def test_without_sriov_manage(self):
        def missing(address):
            raise FileNotFoundError(
                errno.ENOENT, 'No such file or directory', 'sriov-manage')
        pf = next(each for each in self.functions()
                  if each.id == self.vfs[0].pf)
        self.host.kernel.set_vfs(pf.address, 0)
        self.host.binder._make_nvidia_vfs = missing
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn('VFs cannot be made: No such file or directory '
                      '(sriov-manage)', log.output)

    def test_sriov_manage_that_makes_none(self):
        pf = next(each for each in self.functions()
                  if each.id == self.vfs[0].pf)
        self.host.kernel.set_vfs(pf.address, 0)
        self.host.binder._make_nvidia_vfs = lambda address: None
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn('has none of its 8 VFs', log.output)


class PlainVFTest(VGPUCase):

    machine = 'intel-flex170-2'
    numvfs = {'8086:56c0': 4}.items()

    def test_one_of_so_many(self):
        [pf, *_] = self.functions()
        self.assertEqual(('vf', [('vf4', 4)]), (pf.vgpu_seats, [
            (each.name, each.max_instances) for each in pf.vgpu_types]))
        vf = next(each for each in self.functions() if each.pf == pf.id)
        device = host_base.HostDevice(
            assignment_uuid='a', stable_id=vf.id, address=vf.address,
            vgpu_type='vf4')
        self.twice(self.host.prepare, device)
        self.assertEqual((vf.address,),
                         self.host.attachment(device).functions)
        # Nobody tells but how many VFs there are.
        self.assertEqual({}, self.told(device))
        self.assertIsNone(pf.creatable)
        self.twice(self.host.release, device)
        self.host.kernel.written.clear()
        self.assertTrue(self.host.clean(device).passed)
        self.assertIn(f'bus/pci/devices/{vf.address}/reset',
                      self.host.kernel.written)


    def test_more_vfs_than_a_card_can_have(self):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        host = fake.FakeHost.for_machine(
            self.machine, root, {'8086:56c0': 32})
        log = self.useFixture(fixtures.FakeLogger())
        host.make_vfs(())
        self.assertIn('has none of its 32 VFs', log.output)


class NoGPUTest(VGPUCase):
    """VFs of what is no GPU, so that a scan does not say how many it has."""

    machine = 'intel-flex170-2'

    def setUp(self):
        super().setUp()
        self.pfs = self.functions()
        for each in self.pfs:
            with open(f'{self.root}/{self.path(each)}/class', 'w') as file:
                file.write('0x010802\n')
        self.host = fake.FakeHost(self.root, {'8086:56c0': 4})

    @staticmethod
    def path(function):
        return f'bus/pci/devices/{function.address}'

    def vfs(self):
        return [each for each in self.host.scan().functions if each.pf]

    def test_vfs_are_made_and_only_once(self):
        self.assertIsNone(self.host.scan().functions[-1].sriov_numvfs)
        for _ in range(2):
            self.host.make_vfs(())
            self.assertEqual(4 * len(self.pfs), len(self.vfs()))
        self.assertEqual([f'{self.path(each)}/sriov_numvfs'
                          for each in self.pfs], self.host.kernel.written)

    def test_busy_or_not_asked_for(self):
        self.host.make_vfs([each.id for each in self.pfs[1:]])
        self.assertEqual({self.pfs[0].id}, {each.pf for each in self.vfs()})

    def test_number_that_cannot_be_read(self):
        path = f'{self.root}/{self.path(self.pfs[0])}/sriov_numvfs'
        os.unlink(path)
        os.symlink('sriov_numvfs', path)
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn(f'{self.pfs[0].address} has none', log.output)
        self.assertEqual({each.id for each in self.pfs[1:]},
                         {each.pf for each in self.vfs()})


class MxGPUTest(VGPUCase):

    machine = 'amd-v620-2'
    numvfs = {'1002:73a1': 6}.items()

    def test_vfs_have_their_own_ids(self):
        [pf, *_] = [each for each in self.functions() if each.pf is None]
        vfs = [each for each in self.functions() if each.pf == pf.id]
        self.assertEqual(({'73ae'}, 6), (
            {each.device for each in vfs}, len(vfs)))
        self.assertEqual(['vf6'], [each.name for each in pf.vgpu_types])


class MdevOnVFTest(VGPUCase):

    machine = 'nvidia-a100-2'
    numvfs = {'10de:20b5': 5}.items()
    made = 20

    def setUp(self):
        super().setUp()
        self.vfs = [each for each in self.functions() if each.pf]

    def device(self, number, vgpu_type='A100D-20C'):
        vf = self.vfs[number]
        return host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=vf.id,
            address=vf.address, vgpu_type=vgpu_type)

    def test_types_are_told_of_the_pf(self):
        pf = next(each for each in self.functions()
                  if each.id == self.vfs[0].pf)
        self.assertEqual((pci.SEAT_VF, 20, 4, 1), (pf.vgpu_seats, *(
            next(each.max_instances for each in pf.vgpu_types
                 if each.name == name)
            for name in ('A100D-4C', 'A100D-20C', 'A100D-80C'))))
        self.assertEqual({()}, {each.vgpu_types for each in self.vfs})

    def test_one_mdev_on_each_vf(self):
        devices = [self.device(number) for number in range(4)]
        for device in devices:
            self.twice(self.host.prepare, device)
            self.assertEqual(device.assignment_uuid,
                             self.host.attachment(device).mdev)
        self.refused(self.host.prepare, self.device(0), 'no room')
        self.refused(self.host.prepare, self.device(4), 'no room')
        self.assertEqual({self.vfs[0].pf: vgpu_type.Creatable(
            beside=tuple(each.stable_id for each in devices))},
            self.told(*devices))
        # The other card has room.
        self.host.prepare(self.device(self.made))
        self.assertEqual({self.vfs[self.made].pf: vgpu_type.Creatable(
            beside=(self.vfs[self.made].id,), room={'A100D-20C': None})},
            self.told(self.device(self.made)))
        for device in devices:
            self.assertTrue(self.host.clean(device).passed)
        self.host.prepare(self.device(4, 'A100D-80C'))

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
