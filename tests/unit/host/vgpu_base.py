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
"""What tests of the backends of vGPUs share."""

import itertools
import pathlib
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host


class VGPUCase(base.BaseTestCase):

    machine: str
    numvfs = ()

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake_host.FakeHost.for_machine(
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
        told = self.host.driver_capacity(devices)
        self.assertEqual(told, {
            each.id: each.driver_capacity for each in self.functions()
            if each.id in told})
        return told

    def stop_drivers(self):
        """Let the drivers make nothing, as without their service.

        :returns: lets them be well again
        """
        before = {path: path.read_text() for path in itertools.chain(*(
            pathlib.Path(self.root, 'devices').rglob(name) for name in (
                'creatable_vgpu_types', 'available_instances')))}
        for path in before:
            path.write_text('0\n' if path.name == 'available_instances'
                            else 'ID    : vGPU Name\n')

        def well():
            for path, text in before.items():
                path.write_text(text)
        return well

    def looks_until_it_is_well(self, device):
        """A driver that fails for a while is looked at again.

        :param device: that is made in between
        """
        self.host.scan()
        well = self.stop_drivers()
        self.assertFalse(self.host.changed())
        # A build finds it out.
        self.assertRaises(
            exception.NoDriverCapacity, self.host.prepare, device
        )
        [told] = self.host.driver_capacity([device]).values()
        self.assertEqual(((), set()), (
            told.existing, set(told.available.values()) - {0}))
        self.assertTrue(self.host.changed())
        self.host.scan()
        self.assertFalse(self.host.changed())
        well()
        self.assertTrue(self.host.changed())
        self.host.scan()
        # What is made is no change that must be looked at.
        self.host.prepare(device)
        self.host.driver_capacity([device])
        self.assertFalse(self.host.changed())
        self.host.release(device)
        self.host.driver_capacity([device])
        self.assertFalse(self.host.changed())

    def twice(self, method, device):
        return [method(device) for _ in range(2)][1]


class VFCase(VGPUCase):
    """A machine whose vGPUs are on VFs.

    :cvar vgpu_type: what they are unless it is said
    """

    vgpu_type: str | None = None

    def setUp(self):
        super().setUp()
        self.vfs = [each for each in self.functions() if each.pf]

    def device(self, number=0, **fields):
        """A vGPU on one of the VFs."""
        vf = self.vfs[number]
        return host_base.HostDevice(**{
            'assignment_uuid': str(uuid.uuid4()), 'stable_id': vf.id,
            'vgpu_type': self.vgpu_type, 'address': vf.address, **fields})
