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


import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
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
