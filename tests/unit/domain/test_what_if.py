# SPDX-License-Identifier: Apache-2.0
"""Tests of the plan by which instances leave hosts.

conductor/test_what_if.py compares it with claims.
"""

import hypothesis
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import what_if
from gpgpu_plugin.domain import why_not
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import group as make
from tests.fixtures import host_values as base

NUMA, PCI_NUMA = request_mod.NUMAPolicy, request_mod.PCINUMAPolicy
FREE, USED = base.State.AVAILABLE, base.State.ASSIGNED
SAME_NUMA = request_mod.GPUTopology.SAME_NUMA
Q4, Q16 = (naming.resource_class('T4', f'T4-{size}Q') for size in (4, 16))


def world(*hosts, vcpus=100):
    """Return hosts h0, h1 ... with T4s in some states, and free vCPUs."""
    return ({f'h{number}': base.t4s(*states, name=f'h{number}')
             for number, states in enumerate(hosts)},
            {f'root{number}': {'VCPU': vcpus}
             for number in range(len(hosts))})


def kind(count, hosts, vcpus=1, **fields):
    """Return a kind that Placement offers all hosts."""
    return what_if.InstanceKind(
        request=base.request(count, **fields), options={
            name: ({f'root{name[1:]}': {'VCPU': vcpus}},) for name in hosts})


def targets(hosts, free, kinds, leaving):
    """Return the targets in the order of the plan."""
    return list(what_if.plan(hosts, free, kinds, leaving).targets.items())


class PlanTest(oslotest_base.BaseTestCase):

    def test_two_instances_do_not_get_the_same_gpu(self):
        hosts, free = world([FREE, USED], [FREE])
        self.assertEqual(
            [(0, 'h0'), (1, 'h1'), (2, None)],
            targets(hosts, free, [kind(1, hosts)], [0, 0, 0]))

    def test_two_instances_do_not_get_the_same_vcpus(self):
        hosts, free = world([FREE, FREE], vcpus=3)
        self.assertEqual([(0, 'h0'), (1, None)], targets(
            hosts, free, [kind(1, hosts, vcpus=2)], [0, 0]))
        self.assertEqual([(0, 'h0'), (1, 'h0')], targets(
            hosts, free, [kind(1, hosts, vcpus=1)], [0, 0]))

    def test_second_candidate_of_a_host_counts_if_the_first_is_taken(self):
        hosts, free = world([FREE, FREE], vcpus=1)
        free['other'] = {'VCPU': 1}
        both = what_if.InstanceKind(request=base.request(1), options={'h0': (
            {'root0': {'VCPU': 1}}, {'other': {'VCPU': 1}})})
        self.assertEqual([(0, 'h0'), (1, 'h0')], targets(
            hosts, free, [both], [0, 0]))

    def test_host_without_a_candidate_in_placement_takes_nothing(self):
        hosts, free = world([FREE], [FREE])
        self.assertEqual([(0, 'h1')], targets(
            hosts, free, [kind(1, ['h1'])], [0]))

    def test_fullest_host_is_filled_first(self):
        hosts, free = world([FREE, FREE, FREE], [FREE, USED, USED])
        self.assertEqual([(0, 'h1'), (1, 'h0')], targets(
            hosts, free, [kind(1, hosts)], [0, 0]))

    def test_largest_instance_comes_first(self):
        hosts, free = world([FREE, FREE])
        self.assertEqual([(1, 'h0'), (0, None)], targets(
            hosts, free, [kind(1, hosts), kind(2, hosts)], [0, 1]))

    def test_vgpus_count_as_the_part_of_a_gpu_that_they_take(self):
        gpu = make.gpu(0, mechanism='mdev')
        hosts = {'h0': why_not.ExaminedHost(name='h0',
                                            groups=(make.t4s(gpu),))}
        kinds = [kind(3, hosts, resource_class=Q4),
                 kind(1, hosts, resource_class=Q16)]
        self.assertEqual([(1, 'h0'), (0, None)], targets(
            hosts, {'root0': {'VCPU': 9}}, kinds, [0, 1]))

    def test_instances_of_one_size_keep_their_order(self):
        hosts, free = world([FREE])
        kinds = [kind(1, hosts), kind(1, hosts, topology=SAME_NUMA)]
        for leaving in ([0, 1], [1, 0]):
            self.assertEqual([(0, 'h0'), (1, None)],
                             targets(hosts, free, kinds, leaving))

    def test_instances_that_fit_nowhere_come_last(self):
        hosts, free = world([FREE, FREE])
        kinds = [kind(3, hosts), kind(1, hosts, vcpus=101), kind(1, hosts),
                 kind(1, [])]
        self.assertEqual([(2, 'h0'), (0, None), (1, None), (3, None)],
                         targets(hosts, free, kinds, [0, 1, 2, 3]))

    def test_nobody_leaves(self):
        hosts, free = world([FREE])
        self.assertEqual([], targets(hosts, free, [], []))


STATES = st.lists(st.sampled_from([FREE, FREE, USED]), min_size=1, max_size=4)


class OneAfterTheOtherTest(oslotest_base.BaseTestCase):

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(
        states=st.lists(STATES, min_size=1, max_size=3),
        wanted=st.lists(st.tuples(
            st.integers(1, 3),
            st.sampled_from([request_mod.GPUTopology.ANY, SAME_NUMA]),
            st.integers(1, 3)), min_size=1, max_size=5))
    def test_plan_is_possible_and_nobody_is_left_over_who_fits_after_it(
            self, states, wanted):
        hosts, free = world(*states, vcpus=4)
        kinds = [kind(count, hosts, vcpus=vcpus, topology=topology)
                 for count, topology, vcpus in wanted]
        found = what_if.plan(hosts, free, kinds, range(len(kinds)))
        self.assertEqual(set(range(len(kinds))), set(found.targets))
        now, left = dict(hosts), dict.fromkeys(hosts, 4)
        for one, target in found.targets.items():
            for name in [target] if target else hosts:
                after = what_if.after_claim(now[name], kinds[one].request)
                fits = after is not None and left[name] >= wanted[one][2]
                self.assertEqual(target is not None, fits, (one, name))
            if target:
                now[target] = what_if.after_claim(
                    now[target], kinds[one].request)
                left[target] -= wanted[one][2]
        self.assertEqual(now, found.hosts)


class AfterClaimTest(oslotest_base.BaseTestCase):

    def states(self, host):
        return [device.state for device in host.groups[0].devices]

    def test_whole_gpus_are_assigned(self):
        host = what_if.after_claim(base.t4s(FREE, USED, FREE), base.request(2))
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
                what_if.after_claim(before, request, nodes)), (request, nodes))

    def test_guest_near_gpus_of_an_unknown_socket_gets_any(self):
        socket = base.request(2, pci_numa_policy=PCI_NUMA.SOCKET)
        self.assertEqual([USED] * 4, self.states(
            what_if.after_claim(base.t4s(FREE, USED, FREE, USED), socket, 1)))

    def test_gpus_of_unknown_nodes(self):
        unknown = {'function': {'numa_node': None}}
        before = why_not.ExaminedHost(name='h1', groups=(make.t4s(
            make.gpu(0, **unknown), make.gpu(1, **unknown)),))
        self.assertEqual([USED, FREE], self.states(
            what_if.after_claim(before, base.request(1), 1)))

    def test_guest_on_half_of_many_nodes(self):
        before = why_not.ExaminedHost(name='h1', groups=(make.t4s(*(
            make.gpu(number, function={'numa_node': number})
            for number in range(64))),))
        self.assertEqual([USED] + [FREE] * 63, self.states(
            what_if.after_claim(before, base.request(1), 32)))

    def test_refused_claim_has_no_host(self):
        self.assertIsNone(what_if.after_claim(base.t4s(USED), base.request(1)))
        self.assertIsNone(what_if.after_claim(
            base.t4s(FREE, draining=True), base.request(1)))

    def test_vgpus_get_mdev_rows_that_exist_before_new_ones(self):
        gpu = make.gpu(0, mechanism='mdev')
        host = why_not.ExaminedHost(name='h1', groups=(
            make.t4s(gpu, make.mdev_row(gpu, 0)),))
        before = what_if._available(host, base.request(1, Q4))
        after = what_if.after_claim(host, base.request(2, Q4))
        self.assertEqual(
            [('T4-4Q', USED)] * 2, [(device.vgpu_type, device.state)
                                    for device in after.groups[0].devices[1:]])
        self.assertEqual(before - 2, what_if._available(
            after, base.request(1, Q4)))

    def test_vgpus_get_free_vfs(self):
        gpu = make.gpu(0, mechanism='vf')
        host = why_not.ExaminedHost(name='h1', groups=(make.t4s(
            gpu, make.vf(gpu, 0, state=USED, vgpu_type='T4-4Q'),
            make.vf(gpu, 1), make.vf(gpu, 2)),))
        after = what_if.after_claim(host, base.request(1, Q4))
        self.assertEqual(
            [None, 'T4-4Q', 'T4-4Q', None],
            [device.vgpu_type for device in after.groups[0].devices])
        self.assertIsNone(what_if.after_claim(host, base.request(3, Q4)))
