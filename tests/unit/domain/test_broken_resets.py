# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import pci


def function(vendor, device, pf=None):
    return pci.PCIFunction(
        id='/devices/x', address='0000:01:00.0', vendor=vendor,
        device=device, pf=pf)


class ReasonTest(base.BaseTestCase):

    def test_function_reset_of_hopper_keeps_state_but_not_that_of_its_card(
            self):
        for device in ('2330', '2901', '3182'):
            gpu = function('10de', device)
            self.assertIn('state', health.broken_reset_reason(gpu, alone=True))
            self.assertIsNone(health.broken_reset_reason(gpu, alone=False))

    def test_function_reset_hangs_desktop_blackwell(self):
        for device in ('2b85', '2bb5'):
            self.assertIn('hang', health.broken_reset_reason(
                function('10de', device), alone=True))

    def test_any_reset_kills_mi300x_but_not_its_vfs(self):
        for alone in (True, False):
            self.assertIn('not answer after a reset',
                          health.broken_reset_reason(
                function('1002', '74a1'), alone=alone))
            self.assertIsNone(health.broken_reset_reason(
                function('1002', '74b5', pf='/devices/pf'), alone=alone))

    def test_other_hardware_is_not_named(self):
        for vendor, device in (('10de', '20b5'), ('10de', '1eb8'),
                               ('8086', '56c0'), (None, None)):
            self.assertIsNone(health.broken_reset_reason(
                function(vendor, device), alone=True))
