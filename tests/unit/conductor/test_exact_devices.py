# SPDX-License-Identifier: Apache-2.0

import dataclasses

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import selection
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from tests.unit.conductor import base


class ExactCase(base.ConductorTestCase):
    """Base class of tests of a host whose devices are named."""

    def named(self, *numbers):
        return tuple(f'h1 0000:{number:02x}:00.0' for number in numbers)

    def exact_request(self, devices, project='p1', **kwargs):
        return dataclasses.replace(
            self.request(), exact_devices=devices, project_id=project,
            **{'allocated': {}, 'request': request.Request(), **kwargs})

    def claim_exact(self, *numbers, projects=('p1',), devices=None, **kwargs):
        return claims.claim(self.db, self.exact_request(
            devices or self.named(*numbers), **kwargs), lease=60,
            exact_projects=projects)

    def find(self, *numbers, projects=('p1',), devices=None, classes=(),
             instance='i1', project='p1', topology=request.GPUTopology.ANY):
        return selection.find_exact(self.db, scheduling.ExactRequest(
            instance_uuid=instance, project_id=project,
            devices=devices or self.named(*numbers), request=request.Request(
                topology=topology, demands=tuple(
                    request.Demand(resource_class=name, count=1)
                    for name in classes))), projects)

    def uuid(self, number):
        [found] = [device.uuid for device in device_admin.list_all(
            self.db, host='h1') if device.address == (
                f'0000:{number:02x}:00.0')]
        return found


class ClaimTest(ExactCase):

    def test_named_devices_are_assigned(self):
        granted = self.claim_exact(5, 2)
        self.assertEqual(
            {('0000:02:00.0', True), ('0000:05:00.0', True)},
            {(assignment.address, assignment.exact)
             for assignment in granted.assignments})
        # The host adds them to the allocation: nothing is reserved for them.
        self.assertEqual((8, 0), self.offered(granted.inventory))

    def test_other_claims_are_not_exact(self):
        self.assertEqual({False}, {
            assignment.exact for assignment in self.claim(2).assignments})

    def test_same_claim_again_gets_the_same_devices(self):
        first = self.claim_exact(5, 2)
        self.assertEqual(first, self.claim_exact(5, 2))
        exc = self.assertRaises(exception.ClaimDenied, self.claim_exact, 5)
        self.assertEqual('request_changed', exc.reason)

    def denied(self, reason, *numbers, **kwargs):
        exc = self.assertRaises(
            exception.ClaimDenied, self.claim_exact, *numbers,
            **{'instance_uuid': 'i2', **kwargs})
        self.assertEqual(reason, exc.reason)
        return str(exc)

    def test_refusals(self):
        self.claim_exact(5)
        self.assertIn('provisioning',
                      self.denied('exact_device_unavailable', 5))
        self.assertIn('exact_device_projects', self.denied(
            'exact_devices_not_allowed', 0, projects=('p2',)))
        self.denied('exact_devices_not_allowed', 0, project=None)
        self.denied('exact_devices_invalid', devices=('x',))
        self.denied('exact_devices_invalid', devices=(
            *self.named(0), self.uuid(0)))
        self.denied('exact_device_unknown', 9)
        self.denied('exact_devices_and_flavor', 0,
                    request=self.request().request)
        # What is no class of the plugin does not matter.
        self.claim_exact(0, instance_uuid='i2', request=request.Request(
            demands=(request.Demand(resource_class='CUSTOM_FPGA', count=1),)))

    def test_device_of_another_host_is_denied(self):
        self.report_second_host()
        self.assertIn('on h2', self.denied(
            'exact_device_elsewhere', devices=('h2 0000:00:00.0',)))

    def test_allocation_beyond_the_devices_is_denied(self):
        allocated = self.request(2).allocated
        self.denied('allocation_not_requested', 0, allocated=allocated)
        self.claim_exact(0, 1, instance_uuid='i2', allocated=allocated)

    def test_denial_is_not_remembered_for_another_project(self):
        for projects in (('p1',), (), ('p1',)):
            if projects:
                self.claim_exact(0, projects=projects)
            else:
                self.denied('exact_devices_not_allowed', 0,
                            projects=projects)

    def test_topology_of_the_flavor_counts(self):
        self.denied('topology_same_numa', 0, 7, request=request.Request(
            topology=request.GPUTopology.SAME_NUMA))


class FindTest(ExactCase):

    def test_host_of_devices_by_both_names(self):
        for devices in (self.named(0), (self.uuid(0),)):
            self.assertEqual(
                scheduling.ExactHost(host='h1', node_uuid=base.NODE),
                self.find(devices=devices))

    def refused(self, reason, *numbers, **kwargs):
        found = self.find(*numbers, **kwargs)
        self.assertEqual(('', reason), (found.host, found.refusal.reason))
        return found.refusal.detail

    def test_topology_of_the_flavor_counts(self):
        same_numa = request.GPUTopology.SAME_NUMA
        self.refused('topology_same_numa', 0, 7, topology=same_numa)
        self.assertEqual('h1', self.find(0, 1, topology=same_numa).host)
        self.assertEqual('h1', self.find(0, 7).host)
        # What it has it may keep, as the claim decides.
        self.boot(8)
        self.assertEqual('h1', self.find(0, 7, topology=same_numa).host)

    def test_refusals(self):
        self.report_second_host()
        self.boot(8)
        self.assertIn('assigned', self.refused(
            'exact_device_unavailable', 0, instance='i2'))
        # The instance may stay where it has them.
        self.assertEqual('h1', self.find(0).host)
        self.refused('exact_devices_not_allowed', 0, projects=())
        self.refused('exact_devices_invalid', devices=('x',))
        self.refused('exact_devices_and_flavor', 0,
                     classes=('CUSTOM_FPGA', 'CUSTOM_GPU_H100'))
        self.assertIn('h1 and h2', self.refused(
            'exact_device_elsewhere',
            devices=(*self.named(0), 'h2 0000:00:00.0')))
        self.refused('exact_device_unknown', devices=('h9 0000:00:00.0',))

    def test_disabled_device_and_drained_host_are_refused(self):
        device_admin.set_(self.db, self.uuid(0), 'op', enabled=False)
        self.assertIn('disabled', self.refused('exact_device_unavailable', 0))
        host_admin.drain(self.db, 'h1', 'op', draining=True)
        self.refused('host_draining', 1)


class NoVariantTest(ExactCase):

    variant = False

    def test_device_without_a_variant_is_refused(self):
        found = self.find(0)
        self.assertEqual('exact_device_unavailable', found.refusal.reason)
        self.assertIn('variant', found.refusal.detail)
