# SPDX-License-Identifier: Apache-2.0
"""Tests of PCI addresses and ids."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci


class AddressTest(base.BaseTestCase):

    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(st.integers(0, 2**40), st.integers(0, 255), st.integers(0, 31),
           st.integers(0, 7))
    def test_round_trip(self, domain, bus, device, function):
        address = pci.PCIAddress(domain, bus, device, function)
        self.assertEqual(address, pci.PCIAddress.parse(str(address)))

    def test_wide_domain(self):
        self.assertEqual(
            0x10000, pci.PCIAddress.parse('10000:e1:00.0').domain)

    def test_malformed(self):
        for text in ('', '3b:00.0', '0000:3b:00', '0000:3b:20.0',
                     '0000:3b:00.8', '0000:3b:00.0 ', 'gggg:00:00.0'):
            exc = self.assertRaises(
                exception.Invalid, pci.PCIAddress.parse, text)
            self.assertIn(repr(text), str(exc))
            self.assertIn('0000:3b:00.0', str(exc))


class NormalizeTest(base.BaseTestCase):

    def test_one_form(self):
        for text in ('10DE', '0x10de', '10de'):
            self.assertEqual('10de', pci.normalize_id('vendor', text))
        self.assertEqual('030200', pci.normalize_id('class', '0x030200', 6))

    def test_refused(self):
        for text, digits in (('10d', 4), ('10deg', 4), ('', 4), ('ffff', 4),
                             ('0000', 4), ('a', 2), ('0302', 6)):
            exc = self.assertRaises(
                exception.Invalid, pci.normalize_id, 'vendor', text, digits)
            self.assertEqual('vendor', exc.kwargs['field'])


class FunctionTest(base.BaseTestCase):

    def test_mdevs_and_vfs_are_vgpus(self):
        User = device_rules.DeviceUser
        for used_by, expected in (
                (User.MDEV, True), (User.VF, True), (User.VFIO, False),
                (User.BOOT_VGA, False), (None, False)):
            self.assertIs(expected, pci.PCIFunction(
                id='/devices/x', address='0000:01:00.0',
                used_by=used_by).has_vgpus)


class BridgeTest(base.BaseTestCase):

    def test_bridge_is_the_innermost_switch_or_the_root_port(self):
        for path, bridge in (
                ('pci0000:15/01.0/00.0', 'root port 0000:15:01.0'),
                ('pci0000:15/01.0/00.0/00.0/00.0',
                 'switch 0000:15:01.0/00.0'),
                ('pci0000:15/01.0/00.0/04.0/00.0/08.0/00.0',
                 'switch 0000:15:01.0/00.0/04.0/00.0'),
                ('pci0000:00/0e.0/pci10000:e0/02.0/00.0',
                 'root port 10000:e0:02.0'),
                ('pci0000:15/02.0', 'root bus 0000:15')):
            self.assertEqual(bridge, pci.bridge_of(f'/devices/{path}'), path)

    def test_vgpus_are_below_the_bridge_of_their_gpu(self):
        gpu = '/devices/pci0000:15/01.0/00.0'
        for stable_id in (f'{gpu}/vf0', f'{gpu}/mdev3', f'{gpu}/vf0/mdev3'):
            self.assertEqual('root port 0000:15:01.0',
                             pci.bridge_of(stable_id), stable_id)

    def test_device_that_is_not_on_a_pci_bus_has_no_bridge(self):
        self.assertIsNone(pci.bridge_of('/devices/virtual/mtty/mtty'))
