# SPDX-License-Identifier: Apache-2.0
"""Tests of GpuNUMATopologyFilter: NUMA nodes for guest and GPUs."""

import types

import fixtures
from nova import objects
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.scheduler_filters import gpu_numa_topology_filter
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.compute import test_host_numa
from tests.unit.scheduler_filters import make

objects.register_all()


def candidate(node, number=0):
    return {'allocations': {node: {}, f'{node}-rp': {}}, 'mappings': {},
            'number': number}


def host(node, used=(), sockets=(0, 1), **fields):
    """Return a host of 1024 MB per node, of which some nodes are full."""
    topology = test_host_numa.topology(*sockets)
    for cell in topology.cells:
        cell.memory_usage = 1024 if cell.id in used else 0
    return types.SimpleNamespace(**{
        'host': node, 'nodename': node, 'uuid': node, 'limits': {},
        'numa_topology': topology, 'pci_stats': None,
        'ram_allocation_ratio': 1.0, 'cpu_allocation_ratio': 1.0,
        'allocation_candidates': [candidate(node)], **fields})


def spec(policy='required', gpus=2, rebuild=False, cells=1, **specs):
    return objects.RequestSpec(
        instance_uuid='11111111-1111-1111-1111-111111111111',
        project_id='p1',
        flavor=objects.Flavor(extra_specs={
            f'resources:{make.RC}': str(gpus), 'gpgpu:numa_policy': policy,
            **{key.replace('__', ':'): value
               for key, value in specs.items()}}),
        image=objects.ImageMeta.from_dict({}), pci_requests=None,
        scheduler_hints={'_nova_check_type': ['rebuild']} if rebuild else {},
        numa_topology=objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(
                id=number, cpuset={number}, pcpuset=set(), memory=512)
            for number in range(cells)]) if cells else None)


class GpuNUMATopologyFilterTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.scheduler_filters'))

    def passed(self, spec, *hosts, free=0b1100):
        """Return names of hosts; node 1 has the free GPUs by default."""
        self.api = make.FakeAPI(make.changes(*(
            make.groups(found.host, free) for found in hosts)))
        subject = gpu_numa_topology_filter.GpuNUMATopologyFilter(
            scheduler_view.SchedulerViewCache(self.api))
        return [found.host for found in subject.filter_all(hosts, spec)]

    def test_memory_and_gpus_on_different_nodes_are_refused(self):
        self.assertEqual(['a'], self.passed(
            spec(), host('a'), host('b', used=[1])))
        self.assertEqual([(0, None)], self.api.asked)

    def test_refused_hosts_are_one_record(self):
        cache = scheduler_view.SchedulerViewCache(make.FakeAPI(make.changes(
            make.groups('a', 0b1100), make.groups('b', 0b1100),
            make.groups('c', 0b1100))))
        subject = gpu_numa_topology_filter.GpuNUMATopologyFilter(cache)
        list(subject.filter_all([
            host('a'), host('b', used=[1]), host('c', used=[1])], spec()))
        [found] = cache.refused.oldest()
        self.assertEqual(
            ('GpuNUMATopologyFilter', {'numa_policy_required': 2}, 1, 'p1'),
            (found.filter, found.reasons, found.passed, found.project_id))

    def test_gpus_on_two_nodes_suffice_a_guest_on_both(self):
        for free, cells, expected in (
                (0b1111, 2, ['a']), (0b1111, 1, []), (0b0111, 2, [])):
            self.assertEqual(expected, self.passed(
                spec(gpus=4, cells=cells), host('a'), free=free))

    def test_host_keeps_its_topology_and_gets_the_limits_of_nova(self):
        found = host('a')
        self.passed(spec(), found)
        self.assertEqual(
            [1024, 1024], [cell.memory for cell in found.numa_topology.cells])
        self.assertIn('numa_topology', found.limits)

    def test_candidates_of_providers_without_gpus_are_dropped(self):
        found = host('a')
        found.allocation_candidates.append(
            {'allocations': {'a': {}}, 'mappings': {}})
        self.assertEqual(['a'], self.passed(spec(), found))
        self.assertEqual([candidate('a')], found.allocation_candidates)

    def test_gpus_on_the_same_socket_are_near_by_the_policy_socket(self):
        asked = spec('none', hw__pci_numa_affinity_policy='socket')
        self.assertEqual(['b'], self.passed(
            asked, host('a', used=[1]),
            host('b', used=[1], sockets=(0, 0)),
            host('c', used=[1], sockets=(None, None))))

    def test_policies_that_allow_any_gpu_leave_it_to_nova_without_a_call(
            self):
        for asked in (spec('preferred'), spec('none'), spec(cells=0),
                      spec(rebuild=True)):
            self.assertEqual(['a'], self.passed(asked, host('a', used=[1])))
            self.assertEqual([], self.api.asked)
        self.assertEqual([], self.passed(
            spec('preferred'), host('a', used=[0, 1])))

    def test_forced_host_is_left_to_nova(self):
        self.assertEqual([], self.passed(
            spec(), host('a', used=[0, 1], allocation_candidates=[])))

    def test_host_without_numa_nodes_is_refused_as_by_nova(self):
        self.assertEqual([], self.passed(
            spec(), host('a', numa_topology=None)))

    def test_classes_of_others_are_left_to_nova(self):
        asked = spec(resources__CUSTOM_FPGA='1')
        del asked.flavor.extra_specs[f'resources:{make.RC}']
        self.assertEqual(['a'], self.passed(asked, host('a', used=[1])))

    def test_nova_decides_if_no_conductor_answers(self):
        subject = gpu_numa_topology_filter.GpuNUMATopologyFilter(
            scheduler_view.SchedulerViewCache(make.FakeAPI(
                exception.ConductorUnavailable(method='x', timeout=1))))
        self.assertEqual(1, len(list(
            subject.filter_all([host('a', used=[1])], spec()))))
        self.assertIn('GpuNUMATopologyFilter ignores GPUs', self.log.output)
