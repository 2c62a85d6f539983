# SPDX-License-Identifier: Apache-2.0
"""Tests of a host's NUMA nodes as Nova stores them."""

import types

from nova import objects
from oslotest import base

from gpgpu_plugin.compute import host_numa

objects.register_all()


def topology(*sockets, memory=1024):
    """Return a host whose node i is on the i-th of some sockets."""
    return objects.NUMATopology(cells=[
        objects.NUMACell(
            id=number, cpuset={2 * number, 2 * number + 1}, pcpuset=set(),
            memory=memory, cpu_usage=0, memory_usage=0,
            mempages=[objects.NUMAPagesTopology(
                size_kb=4, total=memory * 256, used=0, reserved=0)],
            pinned_cpus=set(), siblings=[], socket=socket)
        for number, socket in enumerate(sockets)])


class HostNUMATest(base.BaseTestCase):

    def test_sockets_have_their_nodes(self):
        self.assertEqual([{0, 1}, {2}], host_numa.sockets(topology(0, 0, 1)))

    def test_sockets_are_unknown_if_one_is(self):
        self.assertEqual([], host_numa.sockets(topology(0, None)))

    def test_nodes_without_cpus_are_no_place_for_a_guest(self):
        host = topology(0, None, 1)
        host.cells[1].cpuset = set()
        self.assertEqual([{0}, {2}], host_numa.sockets(host))
        guest = types.SimpleNamespace(cells=[None])
        self.assertEqual([{0}, {2}], list(host_numa.choices(host, guest)))
        host.cells[1].pcpuset = {2}
        self.assertEqual([], host_numa.sockets(host))
        self.assertEqual(
            [{0}, {1}, {2}], list(host_numa.choices(host, guest)))

    def test_choices_are_sets_of_as_many_nodes_as_the_guest_has(self):
        guest = types.SimpleNamespace(cells=[None, None])
        self.assertEqual([{0, 1}, {0, 2}, {1, 2}], list(
            host_numa.choices(topology(0, 0, 1), guest)))

    def test_confined_topology_has_memory_on_the_nodes_alone(self):
        host = topology(0, 1)
        self.assertEqual([0, 1024], [
            cell.memory for cell in host_numa.confined(host, {1}).cells])
        self.assertEqual([1024, 1024], [cell.memory for cell in host.cells])

    def test_image_without_the_property_has_no_policy(self):
        self.assertIsNone(host_numa.image_policy(None))
        for value in (None, 'required'):
            properties = {} if value is None else {
                'hw_pci_numa_affinity_policy': value}
            image = objects.ImageMeta.from_dict({'properties': properties})
            self.assertEqual(value, host_numa.image_policy(image))
