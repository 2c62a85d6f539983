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
"""Tests of which devices the passthrough backend handles."""

from oslotest import base

from gpgpu_plugin.domain import naming
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.backends import passthrough


class PassthroughBackendTest(base.BaseTestCase):

    def handles(self, **fields):
        # The hardware is not asked.
        return passthrough.PassthroughBackend(None).handles(
            host_base.HostDevice(
                assignment_uuid='a', stable_id='/devices/x',
                address='0000:3b:00.0', **fields))

    def test_whole_gpu_is_handled(self):
        self.assertTrue(self.handles())
        self.assertTrue(self.handles(vgpu_type=naming.PASSTHROUGH))

    def test_vgpu_is_not_handled(self):
        for vgpu_type in ('L40S-12Q', 'vf4'):
            self.assertFalse(self.handles(vgpu_type=vgpu_type))
