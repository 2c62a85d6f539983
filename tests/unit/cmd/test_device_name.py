# SPDX-License-Identifier: Apache-2.0
"""Tests of cmd.names."""

import dataclasses

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import names
from tests.unit.cmd import base


class DeviceNameTest(base.CommandTestCase):

    def device(self, address):
        [found] = [device for device in self.api.device_list(self.context)
                   if device.address == address]
        return found

    def test_uuid_is_left_to_the_conductor(self):
        self.assertEqual('any', names.device_uuid_of(None, ['any']))

    def test_host_and_address_name_a_device(self):
        wanted = self.device('0000:03:00.0').uuid
        for address in ('0000:03:00.0', '03:00.0'):
            self.assertEqual(
                wanted, names.device_uuid_of(self.api, ['h1', address]))
            self.assertEqual(wanted, self.json(
                'device', 'show', 'h1', address)['UUID'])
        self.done('hold', 'add', 'h1', '03:00.0', '--kind', 'disabled')
        self.assertFalse(self.device('0000:03:00.0').enabled)
        self.done('device', 'release', 'h1', '03:00.0')
        self.assertFalse(self.device('0000:03:00.0').enabled)
        self.done('device', 'cleanings', 'h1', '03:00.0')

    def test_name_that_is_none_is_refused(self):
        for words, expected in (
                (('h9', '03:00.0'), 'host h9 does not exist'),
                (('h1', '99:00.0'),
                 'device 0000:99:00.0 on host h1 does not exist'),
                (('h1', '3'), 'DOMAIN:BUS:DEVICE.FUNCTION'),
                (('h1', '03:00.0', 'x'), 'a UUID, or a host and a PCI')):
            self.assertIn(expected, self.refused('device', 'show', *words))

    def test_device_that_is_there_comes_before_one_that_was(self):
        there = self.device('0000:03:00.0')
        old = dataclasses.replace(there, uuid='old', present=False)
        older = dataclasses.replace(old, uuid='older')
        row = dataclasses.replace(there, uuid='row', kind='mdev')
        for devices, expected in (
                ((old, there, row), there.uuid), ((old, row), 'old')):
            self.listed(devices)
            self.assertEqual(expected, names.device_uuid_of(
                self.api, ['h1', there.address]))
        self.listed((old, older))
        error = self.assertRaises(
            exception.Conflict, names.device_uuid_of, self.api,
            ['h1', there.address])
        self.assertIn('old, older', str(error))

    def listed(self, devices):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.conductor_client.ConductorAPI.device_list',
            lambda *args, **kwargs: devices))
