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
"""VFs that NVIDIA's driver gives a type, on the fake kernel."""

import errno
import os
import pathlib

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.domain.vgpu import vgpu_type
from tests.unit.host import vgpu_base


class NvidiaVFTest(vgpu_base.VFCase):

    machine = 'nvidia-l40s-vgpu-2'
    numvfs = {'10de:26b9': 8}.items()
    # What sriov-manage makes of it.
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
        self.assertEqual(
            {
                self.vfs[0].pf: vgpu_type.DriverCapacity(
                    existing=(device.stable_id,),
                    available={'L40S-12A': None, 'L40S-12Q': None},
                )
            },
            self.told(device),
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
        # As NVIDIA's driver of VFIO shows a VF that QEMU has open.
        (folder / 'vfio-dev').mkdir(exist_ok=True)
        (folder / 'enable').write_text('1\n')
        self.host.kernel.written.clear()
        self.refused(self.host.release, device, device.address,
                     'a process still has it open')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('a process still has it open', verdict.evidence)
        self.assertEqual(([], '1153'), (
            self.host.kernel.written, self.current()))
        (folder / 'enable').write_text('0\n')
        verdict = self.host.clean(device)
        self.assertTrue(verdict.passed, verdict.evidence)
        self.assertEqual('0', self.current())

    def test_reset_and_compared_between_two_holdings(self):
        device = self.device(cleaning='c1')
        self.host.prepare(device)
        self.host.kernel.written.clear()
        verdict = self.host.clean(device)
        self.assertTrue(verdict.passed, verdict.evidence)
        folder = f'bus/pci/devices/{device.address}'
        # In the end its driver begins with it anew.
        self.assertEqual(
            [f'{folder}/nvidia/current_vgpu_type', f'{folder}/reset',
             'bus/pci/drivers/nvidia/unbind', 'bus/pci/drivers/nvidia/bind'],
            self.host.kernel.written)
        self.assertEqual('nvidia', self.driver())
        self.host.kernel.faults['reset'] = errno.ENOTTY
        self.assertFalse(self.host.clean(device).passed)

    def test_a_driver_that_does_not_take_it_again(self):
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
            # Without its driver it is nothing that could be clean.
            self.assertIn('It has no driver',
                          self.host.clean(device).evidence)
            self.host.kernel.write(
                'bus/pci/drivers/nvidia/bind', device.address)
            self.assertTrue(self.host.clean(device).passed)

    def test_what_the_driver_shows_after_it_began_anew(self):
        device = self.device()
        self.host.prepare(device)
        write = self.host.kernel.write

        def keeps(name, value):
            write(name, value)
            if name.endswith('nvidia/bind'):
                write(f'bus/pci/devices/{value}/nvidia/current_vgpu_type',
                      '1153')
        self.host.binder._write_attribute = keeps
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('type is 1153', verdict.evidence)

    def test_nothing_is_given_raw_while_the_driver_is_missing(self):
        device = self.device()
        self.host.prepare(device)
        # As after a reboot, where vfio-pci was quicker.
        self.host.binder.bind(self.vfs[0])
        self.host.kernel.written.clear()
        for method in (self.host.prepare, self.host.attachment,
                       self.host.release):
            self.refused(
                method, device, "a L40S-12Q of it: is its vendor's driver "
                'loaded and bound to it? It has the driver vfio-pci')
        verdict = self.host.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('vfio-pci', verdict.evidence)
        self.assertEqual([], self.host.kernel.written)

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
        self.assertEqual({self.vfs[0].pf: vgpu_type.DriverCapacity(
            existing=tuple(each.stable_id for each in devices))},
            self.told(*devices))
        self.assertTrue(self.host.clean(devices[0]).passed)
        [told] = self.told(*devices).values()
        self.assertEqual({'L40S-12A': None, 'L40S-12Q': None}, told.available)
        self.assertEqual(3, len(told.existing))

    def test_told_while_all_vfs_have_a_type(self):
        for number in range(self.made):
            device = self.device(number, vgpu_type='L40S-1Q')
            self.host.prepare(device)
        # None is left that could be asked.
        self.assertEqual({}, self.told(self.device(0)))
        self.host.clean(device)
        [told] = self.told(device).values()
        self.assertEqual(self.made - 1, len(told.existing))
        self.assertIn('L40S-1A', told.available)

    def test_no_room_is_nobodys_fault(self):
        self.host.prepare(self.device(1, vgpu_type='L40S-48Q'))
        self.host.kernel.written.clear()
        exc = self.assertRaises(
            exception.NoDriverCapacity, self.host.prepare, self.device())
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
        well = self.stop_drivers()
        pf = self.functions()[0]
        self.assertEqual(((), vgpu_type.DriverCapacity()),
                         (pf.vgpu_types, pf.driver_capacity))
        self.assertFalse(self.host.changed())
        well()
        self.assertTrue(self.host.changed())
        self.assertEqual(23, len(self.functions()[0].vgpu_types))
        self.assertFalse(self.host.changed())
        # What it is given is no change that must be looked at.
        self.host.prepare(self.device())
        self.assertFalse(self.host.changed())

    def test_a_service_that_fails_for_a_while(self):
        self.looks_until_it_is_well(self.device())

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
