# SPDX-License-Identifier: Apache-2.0
"""Tests of anonymized serial numbers, equal where they were equal."""

from oslotest import base

from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import recording


def vpd(serial, *fields):
    fields = b''.join(
        key + bytes([len(value)]) + value for key, value in (
            (b'PN', b'900-2G193'), (b'SN', serial), *fields))
    return (b'\x82\x04\x00L40S' + b'\x90' + len(fields).to_bytes(2, 'little')
            + fields + b'\x78')


def config(dsn='00-11-22-33-44-55-66-77'):
    return machine.config({
        'vendor': '10de', 'device': '26b9', 'class': '030200', 'dsn': dsn})


class ConfigTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.numbers = recording.AnonymousSerialNumbers()

    def serial(self, *args):
        return config_space.serial_number(self.numbers.config(config(*args)))

    def test_serial_number_is_replaced_by_a_count(self):
        other = '00-11-22-33-44-55-66-78'
        self.assertEqual('00-00-00-00-00-00-00-01', self.serial())
        self.assertEqual('00-00-00-00-00-00-00-02', self.serial(other))
        self.assertEqual('00-00-00-00-00-00-00-01', self.serial())

    def test_rest_of_the_space_stays(self):
        before = config()
        after = self.numbers.config(before)
        at = config_space.serial_number_at(before)
        self.assertEqual((before[:at], before[at + 8:]),
                         (after[:at], after[at + 8:]))
        self.assertEqual(len(before), len(after))

    def test_number_that_identifies_nothing_stays(self):
        for dsn in ('-'.join(['00'] * 8), '-'.join(['ff'] * 8)):
            self.assertEqual(dsn, self.serial(dsn))

    def test_space_without_a_serial_number_stays(self):
        for space in (config()[:256], config()[:64], b''):
            self.assertEqual(space, self.numbers.config(space))


class VPDTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.numbers = recording.AnonymousSerialNumbers()

    def serial(self, serial):
        return config_space.vpd_serial(self.numbers.vpd(vpd(serial)))

    def test_serial_number_is_replaced_by_a_count_of_the_same_length(self):
        self.assertEqual('00000001', self.serial(b'13202210'))
        self.assertEqual('0002', self.serial(b'1320'))
        self.assertEqual('00000001', self.serial(b'13202210'))

    def test_count_that_is_longer_than_the_number_keeps_its_last_digits(self):
        for number in range(9):
            self.serial(b'%08d' % number)
        self.assertEqual('0', self.serial(b'x'))

    def test_blank_serial_number_stays(self):
        self.assertIsNone(self.serial(b'   '))
        self.assertIsNone(self.serial(b''))

    def test_field_that_may_name_the_owner_is_removed(self):
        data = self.numbers.vpd(vpd(
            b'1320', (b'V0', b'owner'), (b'RV', b'\x01'), (b'EC', b'A1'),
            (b'MN', b'maker')))
        resources = dict(config_space.vpd_resources(data))
        self.assertEqual(
            [b'PN', b'SN', b'EC', b'MN'],
            list(dict(config_space.vpd_fields(
                resources[config_space.VPD_R]))))
        self.assertNotIn(b'owner', data)

    def test_resource_that_others_write_is_removed(self):
        data = self.numbers.vpd(
            b'\x82\x01\x00X' + b'\x91\x09\x00YA\x06asset7' + b'\x78')
        self.assertEqual(b'\x82\x01\x00X\x78', data)

    def test_data_without_resources_is_empty(self):
        for data in (b'', b'\xff' * 8, b'\x78'):
            self.assertEqual(b'', self.numbers.vpd(data), data)

    def test_numbers_of_both_kinds_are_counted_together(self):
        self.numbers.config(config())
        self.assertEqual('0002', self.serial(b'1320'))
