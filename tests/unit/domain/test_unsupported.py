# SPDX-License-Identifier: Apache-2.0
"""Tests of the reasons why no guest can use a whole function."""

from oslotest import base

from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import pci


def function(vendor, device, **facts):
    return pci.PCIFunction(
        id='/devices/x', address='0000:01:00.0', vendor=vendor,
        device=device, class_code='030200', **facts)


class ReasonTest(base.BaseTestCase):

    def test_gpu_behind_nvswitches_is_unsupported(self):
        self.assertIn('NVSwitches', gpu.unsupported_reason(
            function('10de', '2330', nvswitches=4)))

    def test_gpu_that_any_reset_kills_is_unsupported(self):
        # MI300X, MI308X, MI325X, MI350X, MI355X.
        for device in ('74a1', '74a2', '74a5', '75a0', '75a3'):
            reason = gpu.unsupported_reason(function('1002', device))
            self.assertIn('until its host is booted again', reason)
            self.assertIn('VFs', reason)

    def test_gpu_that_only_a_function_reset_hangs_is_supported(self):
        self.assertIsNone(gpu.unsupported_reason(function('10de', '2b85')))

    def test_vf_is_supported(self):
        for vendor, device in (('1002', '74b5'), ('1002', '75b3'),
                               ('10de', '2330')):
            self.assertIsNone(gpu.unsupported_reason(
                function(vendor, device, pf='/devices/pf')))

    def test_other_hardware_is_supported(self):
        for vendor, device in (('10de', '26b9'), ('1002', '73a1'),
                               ('8086', '56c0'), (None, None)):
            self.assertIsNone(gpu.unsupported_reason(
                function(vendor, device, nvswitches=0)))


class RefusalTest(base.BaseTestCase):

    def test_refusal_says_how_to_offer_the_function_all_the_same(self):
        self.assertIn(
            'gpgpu-manage variant set B200 --unsupported-ok',
            gpu.unsupported_refusal(function('10de', '2901'), 'B200'))

    def test_supported_function_is_not_refused(self):
        self.assertIsNone(
            gpu.unsupported_refusal(function('10de', '26b9'), 'L40S'))
