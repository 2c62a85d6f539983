# SPDX-License-Identifier: Apache-2.0
"""Tests of a host after a claim; conductor/test_what_if.py compares claims."""

from oslotest import base as oslotest_base

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.what_if import claim
from tests.fixtures import group as make
from tests.unit.domain.why_not import base

NUMA, PCI_NUMA = request_mod.NUMAPolicy, request_mod.PCINUMAPolicy
FREE, USED = base.State.AVAILABLE, base.State.ASSIGNED
Q4 = naming.resource_class('T4', 'T4-4Q')


class AfterTest(oslotest_base.BaseTestCase):

    def states(self, host):
        return [device.state for device in host.groups[0].devices]

    def test_whole_gpus_are_assigned(self):
        host = claim.after(base.t4s(FREE, USED, FREE), base.request(2))
        self.assertEqual([USED] * 3, self.states(host))

    def test_guest_with_a_numa_topology_gets_gpus_of_its_nodes(self):
        # Only the dearest link partition is on one NUMA node.
        before = base.t4s(FREE, FREE, FREE, FREE, own_links=(
            '{"named_by": "order", "partitions": [[0, 2], [2, 3], [1, 3]]}'))
        near, any_gpus = [FREE, FREE, USED, USED], [USED, FREE, USED, FREE]
        for request, nodes, expected in (
                (base.request(2), 1, near), (base.request(2), None, any_gpus),
                (base.request(2), 2, any_gpus),
                (base.request(2, numa_policy=NUMA.REQUIRED), 1, near),
                (base.request(2, numa_policy=NUMA.NONE), 1, any_gpus)):
            self.assertEqual(expected, self.states(
                claim.after(before, request, nodes)), (request, nodes))

    def test_guest_near_gpus_of_an_unknown_socket_gets_any(self):
        socket = base.request(2, pci_numa_policy=PCI_NUMA.SOCKET)
        self.assertEqual([USED] * 4, self.states(
            claim.after(base.t4s(FREE, USED, FREE, USED), socket, 1)))

    def test_gpus_of_unknown_nodes(self):
        unknown = {'function': {'numa_node': None}}
        before = base.host_mod.Host(name='h1', groups=(make.t4s(
            make.gpu(0, **unknown), make.gpu(1, **unknown)),))
        self.assertEqual([USED, FREE], self.states(
            claim.after(before, base.request(1), 1)))

    def test_guest_on_half_of_many_nodes(self):
        before = base.host_mod.Host(name='h1', groups=(make.t4s(*(
            make.gpu(number, function={'numa_node': number})
            for number in range(64))),))
        self.assertEqual([USED] + [FREE] * 63, self.states(
            claim.after(before, base.request(1), 32)))

    def test_refused_claim_has_no_host(self):
        self.assertIsNone(claim.after(base.t4s(USED), base.request(1)))
        self.assertIsNone(claim.after(
            base.t4s(FREE, draining=True), base.request(1)))

    def test_vgpus_get_mdev_rows_that_exist_before_new_ones(self):
        gpu = make.gpu(0, mechanism='mdev')
        host = base.host_mod.Host(name='h1', groups=(
            make.t4s(gpu, make.mdev_row(gpu, 0)),))
        before = claim.available(host, base.request(1, Q4))
        after = claim.after(host, base.request(2, Q4))
        self.assertEqual(
            [('T4-4Q', USED)] * 2, [(device.vgpu_type, device.state)
                                    for device in after.groups[0].devices[1:]])
        self.assertEqual(before - 2, claim.available(
            after, base.request(1, Q4)))

    def test_vgpus_get_free_vfs(self):
        gpu = make.gpu(0, mechanism='vf')
        host = base.host_mod.Host(name='h1', groups=(make.t4s(
            gpu, make.vf(gpu, 0, state=USED, vgpu_type='T4-4Q'),
            make.vf(gpu, 1), make.vf(gpu, 2)),))
        after = claim.after(host, base.request(1, Q4))
        self.assertEqual(
            [None, 'T4-4Q', 'T4-4Q', None],
            [device.vgpu_type for device in after.groups[0].devices])
        self.assertIsNone(claim.after(host, base.request(3, Q4)))
