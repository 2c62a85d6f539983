# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of conductors."""

from gpgpu_plugin import version
from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.rpc import ping
from tests.unit.cmd.upgrade import base


def answer(host, found=version.VERSION):
    return ping.PingAnswer(
        host=host, pid=7, version=found, rpc_version='1.0', started_at=0)


class AliveTest(base.ResultTestCase):

    def test_conductors_of_this_version_pass(self):
        self.assertIn('2 answered', self.success(upgrade.conductors_alive(
            [answer('c1'), answer('c2')])))

    def test_no_conductor_is_a_warning(self):
        self.assertIn('no gpgpu-conductor answered',
                      self.warning(upgrade.conductors_alive([])))

    def test_conductor_of_another_version_is_named(self):
        text = self.warning(upgrade.conductors_alive(
            [answer('c1'), answer('c2', '0.0.9')]))
        self.assertIn('c2 (PID 7) has 0.0.9: restart', text)
        self.assertNotIn('c1', text)
