# SPDX-License-Identifier: Apache-2.0
"""Tests of configuration space and VPD, valid and damaged."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.fake import machine

NODE = {'vendor': '10de', 'device': '2330', 'class': '030200'}


class ConfigSpaceTest(base.BaseTestCase):

    def test_port_types(self):
        for kind, number in (('endpoint', 0), ('root_port', 4),
                             ('upstream', 5), ('downstream', 6)):
            self.assertEqual(number, config_space.port_type(
                machine.config({**NODE, 'kind': kind})))

    def test_serial_number(self):
        serial = '48-b0-2d-00-00-00-00-01'
        self.assertEqual(serial, config_space.serial_number(
            machine.config({**NODE, 'dsn': serial})))
        self.assertIsNone(
            config_space.serial_number(machine.config(NODE)))

    def test_dead(self):
        self.assertTrue(config_space.is_dead(b'\xff' * 64))
        self.assertFalse(config_space.is_dead(machine.config(NODE)))
        self.assertFalse(config_space.is_dead(b''))
        virtual = b'\xff' * 4 + machine.config(NODE)[4:]
        self.assertFalse(config_space.is_dead(virtual))

    def test_shape(self):
        self.assertEqual(
            {'vendor': '10de', 'device': '2330', 'revision': '00',
             'class': '030200', 'header type': '00',
             'subsystem vendor': '0000', 'subsystem': '0000',
             'interrupt pin': '00', 'kinds of BARs': '0 0 0 0 0 0',
             'capabilities': '10@40', 'extended capabilities': '0003@100',
             'serial number': '48-b0-2d-00-00-00-00-01'},
            config_space.shape(machine.config(
                {**NODE, 'dsn': '48-b0-2d-00-00-00-00-01'})))
        self.assertEqual({}, config_space.shape(b''))

    def test_upper_half_of_a_bar_is_an_address(self):
        config = bytearray(machine.config(NODE))
        config[0x10:0x20] = bytes.fromhex(
            '0c000000 7f020000 00000000 04000000')
        self.assertEqual(
            'c 0 4 0',
            config_space.shape(bytes(config))['kinds of BARs'])

    def test_vpd(self):
        fields = b'PN\x05900-2' + b'SN\x041234'
        vpd = (b'\x82\x03\x00GPU' + b'\x90'
               + len(fields).to_bytes(2, 'little') + fields + b'\x78')
        self.assertEqual('1234', config_space.vpd_serial(vpd))
        # A part of a number is another number.
        for length in range(len(vpd) - 1):
            self.assertIsNone(config_space.vpd_serial(vpd[:length]))

    @settings(max_examples=500, derandomize=True, deadline=None)
    @given(st.binary(max_size=600))
    def test_garbage_ends_and_raises_nothing(self, data):
        config_space.port_type(data)
        config_space.serial_number(data)
        config_space.vpd_serial(data)
        config_space.is_dead(data)
        config_space.shape(data)
