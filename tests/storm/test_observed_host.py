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
import pathlib
import types

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host import base as host_base
from tests.storm import ground_truth
from tests.storm import observed_host

GPU = '/devices/pci0000:00/01.0'


class ObservedHostTest(base.BaseTestCase):

    def test_cleaning_under_guest_fails_and_is_recorded(self):
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        truth = ground_truth.GroundTruth(folder)
        truth.prepare(GPU, 'i1')
        truth.start('i1', [GPU])
        host = observed_host.ObservedHost(
            types.SimpleNamespace(), truth, lambda uuid: 'i1')
        self.assertRaises(
            exception.HostError, host.clean, host_base.HostDevice(
                assignment_uuid='a1', stable_id=GPU, address='0000:01:00.0'))
        self.assertIn('cleaned', (
            folder / ground_truth.DOUBLE_USE_FILE).read_text())
