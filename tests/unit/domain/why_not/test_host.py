# SPDX-License-Identifier: Apache-2.0
"""Tests of all reasons of a host to refuse a request."""

import dataclasses

from oslotest import base as oslotest_base

from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from tests.unit.domain.why_not import base

_S = base.State
FREE, USED = _S.AVAILABLE, _S.ASSIGNED
SAME_NUMA = request_mod.Topology.SAME_NUMA


def reasons(host, request, **fields):
    return [found.reason
            for found in host_mod.findings(host, request, **fields)]


class FindingsTest(oslotest_base.BaseTestCase):

    def test_host_with_enough_gpus_has_no_reason(self):
        self.assertEqual([], reasons(base.t4s(FREE, FREE), base.request(2)))

    def test_shortage_names_numbers_by_state(self):
        [found] = host_mod.findings(
            base.t4s(FREE, USED, USED, _S.CLEANING, base.HELD),
            base.request(2))
        self.assertEqual('not_enough_available', found.reason)
        self.assertEqual(
            '2 of CUSTOM_GPU_T4 requested, 1 available; 5 GPUs of T4: '
            '2 assigned, 1 available, 1 cleaning, 1 quarantined',
            found.detail)

    def test_all_reasons_are_named(self):
        host = base.t4s(FREE, USED, state=host_state.HostState.SILENT,
                        draining=True, is_deleting=True)
        [group] = host.groups
        host = dataclasses.replace(host, groups=(dataclasses.replace(
            group, types=tuple(
                dataclasses.replace(offered, enabled=False)
                for offered in group.types)),))
        self.assertEqual(
            ['host_silent', 'host_draining', 'variant_deleting',
             'type_disabled', 'not_enough_available'],
            reasons(host, base.request(2)))

    def test_gpus_of_a_drained_host_are_counted(self):
        self.assertEqual(['host_draining'], reasons(
            base.t4s(FREE, FREE, draining=True), base.request(2)))

    def test_disabled_host_is_named_as_nova_does(self):
        self.assertEqual(['host_disabled'], reasons(
            base.t4s(FREE, state=host_state.HostState.DISABLED),
            base.request(1)))

    def test_host_that_must_report_after_a_restore_is_named(self):
        self.assertEqual(['host_restored'], reasons(
            base.t4s(FREE, state=host_state.HostState.RESTORED),
            base.request(1)))

    def test_topology_is_examined_if_there_are_enough(self):
        host = base.t4s(FREE, USED, FREE, USED, draining=True)
        self.assertEqual(
            ['host_draining', 'topology_same_numa'],
            reasons(host, base.request(2, topology=SAME_NUMA)))
        self.assertEqual(
            ['host_draining', 'not_enough_available'],
            reasons(host, base.request(3, topology=SAME_NUMA)))

    def test_numa_policy_is_examined_for_the_number_of_guest_nodes(self):
        host = base.t4s(FREE, USED, FREE, USED)
        near = base.request(
            2, numa_policy=request_mod.NUMAPolicy.REQUIRED)
        self.assertEqual(['numa_policy_required'], reasons(host, near))
        self.assertEqual(['numa_policy_required'],
                         reasons(host, near, guest_nodes=1))
        self.assertEqual([], reasons(host, near, guest_nodes=2))

    def test_class_that_the_host_does_not_have(self):
        [found] = host_mod.findings(
            base.t4s(FREE), base.request(1, 'CUSTOM_GPU_H100'))
        self.assertEqual('no_such_group', found.reason)
        self.assertIn('which has CUSTOM_GPU_T4, CUSTOM_VGPU_T4_T4_16Q',
                      found.detail)
        [found] = host_mod.findings(host_mod.Host(name='h2'), base.request(1))
        self.assertIn('which has no group', found.detail)
