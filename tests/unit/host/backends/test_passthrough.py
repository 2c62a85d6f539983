# SPDX-License-Identifier: Apache-2.0
"""Tests of which devices the passthrough backend handles."""

from oslotest import base

from gpgpu_plugin.domain import naming
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.backends import whole_function


class PassthroughBackendTest(base.BaseTestCase):

    def handles(self, **fields):
        # The hardware is not asked.
        return whole_function.PassthroughBackend(None).handles(
            host_base.HostDevice(
                assignment_uuid='a', stable_id='/devices/x',
                address='0000:3b:00.0', **fields))

    def test_whole_gpu_is_handled(self):
        self.assertTrue(self.handles())
        self.assertTrue(self.handles(vgpu_type=naming.PASSTHROUGH))

    def test_vgpu_is_not_handled(self):
        for vgpu_type in ('L40S-12Q', 'vf4'):
            self.assertFalse(self.handles(vgpu_type=vgpu_type))
