# SPDX-License-Identifier: Apache-2.0
"""Tests of NUMA nodes: a GPU is near to a node that has CPUs."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.host.discovery import machine
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import machine as machine_host
from gpgpu_plugin.host.fake import recording


class NUMATestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path
        self.problems = []

    def nodes(self, has_cpu='0-1,3', online='0-3', **distances):
        self.write('has_cpu', has_cpu)
        self.write('online', online)
        for name, text in distances.items():
            self.write(f'{name}/distance', text)
        return machine.NUMANodes(sysfs.Sysfs(self.root), self.problems)

    def write(self, name, text):
        path = pathlib.Path(self.root, machine.NODE_FOLDER, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{text}\n')


class NUMANodesTest(NUMATestCase):

    def test_node_with_cpus_is_kept(self):
        nodes = self.nodes()
        self.assertEqual([0, 1, 3], [
            nodes.with_cpus(node) for node in (0, 1, 3)])

    def test_unknown_node_stays_unknown(self):
        self.assertIsNone(self.nodes().with_cpus(None))

    def test_node_without_cpus_is_replaced_by_the_nearest(self):
        self.assertEqual(1, self.nodes(
            node2='20 15 10 40').with_cpus(2))

    def test_first_of_the_nearest_is_taken(self):
        self.assertEqual(0, self.nodes(node2='20 20 10 20').with_cpus(2))

    def test_nodes_that_are_offline_have_no_distance(self):
        self.assertEqual(5, self.nodes(
            '0,5', '0,3,5-6', node3='30 10 20 11').with_cpus(3))

    def test_machine_without_the_files_is_taken_as_it_is(self):
        nodes = machine.NUMANodes(sysfs.Sysfs(self.root), self.problems)
        self.assertEqual(2, nodes.with_cpus(2))
        self.assertEqual([], self.problems)

    def test_distance_that_cannot_be_read_is_a_problem_and_no_guess(self):
        for distance in ('20 15', 'x y z 1'):
            self.assertEqual(2, self.nodes(node2=distance).with_cpus(2))
            [problem] = self.problems
            self.assertIn('NUMA nodes: distance of node 2', problem)
            self.problems.clear()

    def test_list_that_cannot_be_read_is_a_problem_and_no_guess(self):
        nodes = self.nodes(has_cpu='0-x')
        self.assertEqual([2, 2], [nodes.with_cpus(2), nodes.with_cpus(2)])
        [problem] = self.problems
        self.assertIn('NUMA nodes: has_cpu', problem)


class ScanTest(NUMATestCase):

    def gpu_nodes(self, root):
        return sorted(
            function.numa_node for function in scanner.scan(
                sysfs.Sysfs(root)).functions if function.device == '26b9')

    def test_gpus_of_a_node_without_cpus_are_scanned_as_near_to_another(self):
        machine_host.build(machine_host.load('pcie-l40s-4'), self.root)
        self.assertEqual([0, 0, 1, 1], self.gpu_nodes(self.root))
        self.nodes('0,2', '0-2', node1='20 10 15')
        self.assertEqual([0, 0, 2, 2], self.gpu_nodes(self.root))

    def test_recording_has_the_nodes(self):
        machine_host.build(machine_host.load('pcie-l40s-4'), self.root)
        self.nodes('0,2', '0-2', node1='20 10 15')
        tree = recording.record(sysfs.Sysfs(self.root))
        self.assertEqual(
            {'has_cpu': '0,2', 'online': '0-2'},
            {name: text.strip() for name,
             text in tree[machine.NODE_FOLDER].items()})
        self.assertEqual(
            '20 10 15',
            tree[f'{machine.NODE_FOLDER}/node1']['distance'].strip())
