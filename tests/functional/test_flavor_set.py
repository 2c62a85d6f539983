# SPDX-License-Identifier: Apache-2.0
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
