# SPDX-License-Identifier: Apache-2.0
"""Tests of NVSwitches, and of the GPUs that they connect."""

from oslotest import base

from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import pci


def function(address, vendor='10de', device='2330', class_code='030200',
             **facts):
    return pci.PCIFunction(
        id=f'/devices/{address}', address=address, vendor=vendor,
        device=device, class_code=class_code, **facts)


GPU = function('0000:01:00.0')
SWITCH = function('0000:02:00.0', device='22a3', class_code='068000')
BRIDGE = function('0000:00:01.0', '8086', '352a', '060400')


class ObservedTest(base.BaseTestCase):

    def number(self, *functions):
        [gpu, *_] = gpu_rules.observed_nvswitches([GPU, *functions])
        return gpu.nvswitches

    def test_switches_of_the_host_are_counted(self):
        self.assertEqual(0, self.number(BRIDGE))
        self.assertEqual(2, self.number(BRIDGE, SWITCH, SWITCH))

    def test_bridge_of_another_vendor_is_no_nvswitch(self):
        self.assertEqual(0, self.number(
            function('0000:02:00.0', '15b3', '22a3', '068000')))

    def test_function_that_may_be_a_switch_makes_the_number_unknown(self):
        for unknown in (function('0000:02:00.0', None, None, None),
                        function('0000:02:00.0', class_code=None),
                        function('0000:02:00.0', None, None, '068000')):
            self.assertIsNone(self.number(unknown))
            self.assertEqual(1, self.number(unknown, SWITCH))

    def test_function_that_is_no_switch_whatever_its_ids_are_is_ignored(self):
        for other in (function('mbochs', None, None, None),
                      function('0000:02:00.0', '8086', None, None),
                      function('0000:02:00.0', None, None, '030200'),
                      function('0000:02:00.0', None, None, None, pf='/x')):
            self.assertEqual(0, self.number(other))

    def test_only_whole_gpus_of_nvidia_get_the_number(self):
        others = [SWITCH, BRIDGE, function('0000:03:00.0', '1002', '74a1'),
                  function('0000:01:00.4', pf=GPU.id)]
        self.assertEqual(others,
                         gpu_rules.observed_nvswitches([GPU, *others])[1:])

    def test_functions_that_have_the_number_get_it_again(self):
        for functions in ([GPU, SWITCH], [GPU]):
            once = gpu_rules.observed_nvswitches(functions)
            self.assertEqual(once, gpu_rules.observed_nvswitches(once))


class RefusalTest(base.BaseTestCase):

    def refusal(self, device, nvswitches=None, vendor='10de'):
        return gpu_rules.nvswitch_refusal(function(
            '0000:01:00.0', vendor, device, nvswitches=nvswitches))

    def test_gpu_behind_nvswitches_is_refused(self):
        # A100, H100, H200, H20, V100 SXM3.
        for device in ('20b2', '2330', '2335', '2329', '1db8'):
            reason = self.refusal(device, 4)
            self.assertIn('its host has 4 NVSwitches', reason)
            self.assertIn('fabric manager', reason)

    def test_gpu_of_a_board_without_nvswitches_is_not_refused(self):
        for device in ('20b2', '20b3', '2330', '2335', '2339'):
            self.assertIsNone(self.refusal(device, 0))

    def test_gpu_of_a_host_with_unknown_nvswitches_is_refused(self):
        self.assertIn('unknown whether its host has NVSwitches',
                      self.refusal('2330'))

    def test_gpu_whose_nvswitches_no_scan_sees_is_refused(self):
        # B200, B300.
        for device in ('2901', '3182'):
            for nvswitches in (None, 0):
                self.assertIn('on a board with NVSwitches',
                              self.refusal(device, nvswitches))

    def test_pcie_card_in_a_host_with_nvswitches_is_not_refused(self):
        # H100 PCIe, H100 NVL, H200 NVL, A100 PCIe, L40S, GH200.
        for device in ('2331', '2321', '233b', '20b5', '26b9', '2342'):
            self.assertIsNone(self.refusal(device, 4))

    def test_id_of_another_vendor_is_not_refused(self):
        self.assertIsNone(self.refusal('2330', 4, vendor='8086'))
