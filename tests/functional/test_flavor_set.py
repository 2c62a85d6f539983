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
"""gpgpu-manage flavor set, openstacksdk and Nova's REST API."""

import contextlib
import io

from gpgpu_plugin.cmd import manage
from tests.fixtures import cloud


class FlavorSetTest(cloud.GpuCloud):

    def setUp(self):
        super().setUp()
        self.flavor_id = self.flavor_of({
            'resources:CUSTOM_GPU_GONE': '1', 'hw:numa_nodes': '1'})

    def set(self, *arguments):
        err = io.StringIO()
        with (contextlib.redirect_stderr(err),
              contextlib.redirect_stdout(io.StringIO())):
            code = manage.run(
                ['flavor', 'set', self.flavor_id, *arguments], cloud.CONF,
                connect=self.connect)
        return code, err.getvalue()

    def specs(self):
        return self.api.get_extra_specs(self.flavor_id)

    def test_server_boots_with_gpus_that_flavor_set_requests(self):
        self.assertEqual((0, ''), self.set(
            '--gpu', 'H100=2', '--topology', 'same_numa'))
        self.assertEqual({
            'resources:CUSTOM_GPU_H100': '2', 'gpgpu:topology': 'same_numa',
            'hw:numa_nodes': '1'}, self.specs())
        self.assertEqual((0, ''), self.set('--gpu', 'H100=1'))
        self.assertEqual({
            'resources:CUSTOM_GPU_H100': '1', 'gpgpu:topology': 'same_numa',
            'hw:numa_nodes': '1'}, self.specs())
        self.connect().compute.delete_flavor_extra_specs_property(
            self.flavor_id, 'hw:numa_nodes')
        self.assertEqual(1, len(self.devices_of(self.boot(self.flavor_id))))

    def test_unknown_flavor_is_refused(self):
        self.flavor_id = 'nonsense'
        code, err = self.set('--gpu', 'H100=1')
        self.assertEqual(1, code)
        self.assertIn('nonsense', err)
        self.assertNotIn('Traceback', err)
