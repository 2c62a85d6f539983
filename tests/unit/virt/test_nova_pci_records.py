# SPDX-License-Identifier: Apache-2.0
"""Tests of GPUs that Nova's PCI tracker has in use."""

import types

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.virt import nova_devices
from tests.fixtures import reported

ADDRESS = '0000:21:00.0'
ASSIGNED = 'Nova ([pci] device_spec, assigned to instance i1)'


def function(address=ADDRESS, **facts):
    return pci.PCIFunction(id=address, address=address, **facts)


class NovaPCIRecordsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.devices = []
        self.node = self.useFixture(fixtures.MockPatchObject(
            objects.ComputeNode, 'get_by_uuid',
            return_value=types.SimpleNamespace(id=7))).mock
        self.list = self.useFixture(fixtures.MockPatchObject(
            objects.PciDeviceList, 'get_by_compute_node',
            side_effect=lambda context, node_id: list(self.devices))).mock
        self.records = nova_devices.NovaPCIRecords('node-uuid')

    def add(self, address=ADDRESS, status='allocated', instance='i1'):
        self.devices.append(types.SimpleNamespace(
            address=address, status=status, instance_uuid=instance))

    def owners(self, *functions):
        return self.records.owners(reported.scan(functions))

    def test_device_of_a_guest_is_named_with_its_instance(self):
        self.add()
        self.assertEqual(
            {ADDRESS: ASSIGNED},
            self.owners(function(), function('0000:22:00.0')))
        self.assertEqual('node-uuid', self.node.call_args.args[1])
        self.assertEqual(7, self.list.call_args.args[1])

    def test_only_devices_in_use_are_found(self):
        for status, found in (
                ('claimed', True), ('allocated', True), ('available', False),
                ('removed', False), ('deleted', False)):
            self.devices.clear()
            self.add(status=status)
            self.assertEqual(found, bool(self.owners(function())), status)

    def test_relative_of_a_device_in_use_is_in_use(self):
        self.add(status='unavailable', instance=None)
        self.assertEqual({ADDRESS: 'Nova ([pci] device_spec, in use)'},
                         self.owners(function()))

    def test_gpu_with_an_assigned_vf_or_companion_is_in_use(self):
        other = '0000:21:00.4'
        self.add(other)
        self.assertEqual(
            dict.fromkeys((ADDRESS, other), ASSIGNED),
            self.owners(function(), function(other, pf=ADDRESS)))
        self.assertEqual(
            dict.fromkeys((ADDRESS, other), ASSIGNED),
            self.owners(function(companions=(other,)),
                         function(other, part_of=ADDRESS)))

    def test_node_that_never_ran_has_no_devices(self):
        self.node.side_effect = nova_exception.ComputeHostNotFound(host='h')
        self.assertEqual({}, self.owners(function()))

    def test_nothing_is_asked_while_nothing_is_in_use(self):
        self.owners(function())
        self.node.reset_mock()
        self.assertFalse(self.records.changed())
        self.assertFalse(self.node.called)

    def test_change_is_noticed_when_the_guest_is_gone(self):
        self.add()
        self.owners(function())
        self.assertFalse(self.records.changed())
        self.devices.clear()
        self.assertTrue(self.records.changed())
        self.owners(function())
        self.assertFalse(self.records.changed())
