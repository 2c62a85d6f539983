# SPDX-License-Identifier: Apache-2.0
"""Tests of the tree of a map."""


from oslotest import base

from gpgpu_plugin.gpu_map import tree
from tests.fixtures import gpu_maps


class BuildTest(base.BaseTestCase):

    def test_gpus_are_below_their_node_and_bridge(self):
        [host] = gpu_maps.build(
            gpu_maps.gpu(number) for number in reversed(range(8))).hosts
        self.assertEqual([
            ('NUMA node 0', [
                ('switch 0000:00:01.0/00.0', ['0000:00:00.0',
                                              '0000:01:00.0']),
                ('switch 0000:10:01.0/00.0', ['0000:02:00.0',
                                              '0000:03:00.0'])]),
            ('NUMA node 1', [
                ('switch 0000:20:01.0/00.0', ['0000:04:00.0',
                                              '0000:05:00.0']),
                ('switch 0000:30:01.0/00.0', ['0000:06:00.0',
                                              '0000:07:00.0'])])],
            [(node.name, [(bridge.name, [gpu.address for gpu in bridge.gpus])
                          for bridge in node.bridges])
             for node in host.numa_nodes])

    def test_unknown_node_and_bridge_are_named(self):
        [host] = gpu_maps.build([gpu_maps.gpu(
            0, numa_node=None, stable_id='/devices/virtual/mtty/mtty')]).hosts
        [node] = host.numa_nodes
        self.assertEqual(('NUMA node unknown', tree.NOT_PCI),
                         (node.name, node.bridges[0].name))

    def test_vgpus_in_use_are_parts_of_their_gpu(self):
        parent = gpu_maps.gpu(0, 'assigned', variant='T4')
        [gpu] = gpu_maps.build([
            parent, gpu_maps.vgpu(1, parent, **gpu_maps.owned('i1')),
            gpu_maps.vgpu(0, parent, 'dirty', vgpu_type='T4-1Q'),
            gpu_maps.vgpu(2, parent, 'available')]).gpus
        self.assertEqual(
            [('dirty', 'T4-1Q', None, None, 2),
             ('assigned', 'T4-4Q', gpu_maps.name_uuid('i1'),
              gpu_maps.PROJECTS[0], 4)],
            [(part.state, part.kind, part.instance, part.project, part.share)
             for part in gpu.vgpus])

    def test_mdev_row_on_a_vf_is_a_part_of_the_pf(self):
        pf = gpu_maps.gpu(0, 'assigned')
        vf = gpu_maps.gpu(1, parent=pf.uuid, stable_id=f'{pf.stable_id}/vf0')
        row = gpu_maps.vgpu(0, vf, **gpu_maps.owned('i1'))
        [gpu] = gpu_maps.build([pf, vf, row]).gpus
        self.assertEqual(['assigned'], [part.state for part in gpu.vgpus])

    def test_vf_whose_pf_is_not_listed_is_drawn_as_a_gpu(self):
        vf = gpu_maps.gpu(1, parent=gpu_maps.name_uuid('pf'))
        self.assertEqual(
            ['0000:01:00.0'],
            [gpu.address for gpu in gpu_maps.build([vf]).gpus])

    def test_host_without_gpu_is_drawn_unless_filtered(self):
        for empty_hosts, names in ((True, ['h1', 'h2']), (False, ['h2'])):
            found = gpu_maps.build(
                [gpu_maps.gpu(0, on='h2')], empty_hosts=empty_hosts,
                hosts=[gpu_maps.host('h1'), gpu_maps.host('h2')])
            self.assertEqual(names, [host.name for host in found.hosts])

    def test_type_that_is_enabled_nowhere_is_shown_while_assigned(self):
        found = gpu_maps.build([], types=[
            gpu_maps.vgpu_type('T4-1Q', enabled=False, assigned=0),
            gpu_maps.vgpu_type('T4-2Q', enabled=False, assigned=1),
            gpu_maps.vgpu_type('T4-4Q', assigned=0)])
        self.assertEqual(['T4-2Q', 'T4-4Q'], [
            capacity.vgpu_type for capacity in found.capacities])

    def test_link_partitions_are_counted_by_variant_size_and_state(self):
        found = gpu_maps.build(
            [gpu_maps.gpu(0, link_partitions=('p0', 'p01')),
             gpu_maps.gpu(0, on='h2')],
            groups=[gpu_maps.linked(
                p01='taken', p23='broken', p0='overlapped', p2='free',
                p1='overlapped', p3='new state')])
        first, second = found.hosts
        self.assertEqual([
            ('H100', 1, {'free': ('p2',), 'overlapped': ('p0', 'p1'),
                         'new state': ('p3',)}),
            ('H100', 2, {'taken': ('p01',), 'broken': ('p23',)})],
            [(part.variant, part.size, part.names)
             for part in first.partitions])
        self.assertEqual(['free', 'overlapped', 'new state'],
                         list(first.partitions[0].names))
        self.assertEqual((), second.partitions)
        self.assertEqual(('p0', 'p01'), first.gpus[0].partitions)
