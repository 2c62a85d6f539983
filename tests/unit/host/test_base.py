# SPDX-License-Identifier: Apache-2.0
"""Tests of the host layer's devices, made from assignments."""

from oslotest import base

from gpgpu_plugin.domain import naming
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import tenant


def assignment(**kwargs):
    return claim_obj.Assignment(**{
        **tenant.TENANT, 'host_generation': 1,
        'uuid': 'a1', 'instance_uuid': 'i1', 'host': 'h1',
        'role': claim_obj.ClaimRole.INSTANCE, 'device_uuid': 'd1',
        'stable_id': '/devices/x', 'address': '0000:3b:00.0',
        'variant': 'T4', 'resource_class': 'CUSTOM_GPU_T4',
        'state': 'assigned', **kwargs})


def task(**kwargs):
    return claim_obj.CleanTask(**{
        'had_guest': True,
        'device_uuid': 'd1', 'stable_id': '/devices/x',
        'address': '0000:3b:00.0', 'variant': 'T4', 'token': 't1',
        'request': 'r1', 'steps': ('reset',), **kwargs})


class HostDeviceTest(base.BaseTestCase):

    def test_device_of_an_assignment_is_not_being_cleaned(self):
        # One that is active had it before, so that its guest may have, too.
        for state, restored in (('provisioning', False), ('assigned', True)):
            self.assertEqual(
                host_base.HostDevice(
                    assignment_uuid='a1', stable_id='/devices/x',
                    address='0000:3b:00.0', vgpu_type='T4-4Q',
                    placement_id=0, restored=restored),
                host_base.HostDevice.of(assignment(
                    vgpu_type='T4-4Q', placement_id=0, state=state)))

    def test_assignment_without_a_type_is_passthrough(self):
        self.assertTrue(host_base.HostDevice.of(assignment()).is_passthrough)
        self.assertFalse(host_base.HostDevice.of(
            assignment(vgpu_type='T4-4Q')).is_passthrough)

    def test_cleaning_has_its_token_and_the_last_assignment(self):
        device = host_base.HostDevice.to_clean(
            task(assignment_uuid='a1', vgpu_type='T4-4Q'))
        self.assertEqual(('a1', 'r1', 'T4-4Q'), (
            device.assignment_uuid, device.cleaning, device.vgpu_type))

    def test_device_that_was_never_assigned_is_cleaned_as_passthrough(self):
        device = host_base.HostDevice.to_clean(task())
        self.assertEqual(('', naming.PASSTHROUGH), (
            device.assignment_uuid, device.vgpu_type))


class ContractTest(base.BaseTestCase):

    def test_host_that_lacks_a_method_cannot_be_made(self):
        for contract in (host_base.ComputeHost, host_base.Backend):
            for missing in contract.__abstractmethods__:
                methods = dict.fromkeys(
                    contract.__abstractmethods__ - {missing},
                    lambda *args: None)
                kind = type('Partial', (contract,), methods)
                exc = self.assertRaises(TypeError, kind)
                self.assertIn(missing, str(exc))
