# SPDX-License-Identifier: Apache-2.0
"""Tests of builds whose guest follows its GPUs' NUMA nodes."""

import contextlib
import types

import fixtures
from nova import objects
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import inventory
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import numa
from tests.fixtures import tenant
from tests.unit.compute import test_host_numa

objects.register_all()


class GuestFitTest(base.BaseTestCase):
    """Guest of 512 MB on node 0 of two nodes of 1024 MB."""

    kind = numa.GuestFit

    def setUp(self):
        super().setUp()
        topology = test_host_numa.topology(0, 1)
        topology.cells[0].memory_usage = 512
        topology.cells[0].cpu_usage = 1
        topology.cells[0].mempages[0].used = 512 * 256
        self.node = types.SimpleNamespace(
            numa_topology=topology._to_json(), cpu_allocation_ratio=1.0,
            ram_allocation_ratio=1.0)
        self.flavor = objects.Flavor(vcpus=1, memory_mb=512, extra_specs={
            'hw:numa_nodes': '1'})
        self.done = []
        self.tracker = types.SimpleNamespace(
            compute_nodes={'n': self.node}, tracked_migrations={},
            _update=lambda context, node: self.done.append('update'))
        self.instance = types.SimpleNamespace(
            uuid='i', node='n', pci_requests=None,
            flavor=self.flavor,
            numa_topology=objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(
                    id=0, cpuset={0}, pcpuset=set(), memory=512)]),
            save=lambda: self.done.append('save'))

    def guest(self):
        """Return the guest's topology here."""
        return self.instance.numa_topology

    def want_pci_device(self):
        self.instance.pci_requests = types.SimpleNamespace(requests=[1])

    def fit(self, movable=True):
        return self.kind(
            virtapi=types.SimpleNamespace(
                _compute=types.SimpleNamespace(rt=self.tracker)),
            instance=self.instance, image=objects.ImageMeta.from_dict({}),
            flavor=self.flavor, node_name='n', movable=movable)

    def request(self, numa_nodes=(0,), **fields):
        return claim.ClaimRequest(
            **tenant.TENANT,
            instance_uuid='i', host='h', numa_nodes=numa_nodes,
            request=request.Request(**fields))

    def change(self, **fields):
        """Change node 1 of the host."""
        topology = objects.NUMATopology.obj_from_db_obj(
            self.node.numa_topology)
        for name, value in fields.items():
            setattr(topology.cells[1], name, value)
        self.node.numa_topology = topology._to_json()

    def granted(self, nodes):
        return claim.Claim(
            assignments=(), numa_nodes=nodes,
            inventory=inventory.HostInventory(
                host='h', node_uuid='u', generation=1))

    def used(self):
        return [cell.memory_usage for cell in (
            objects.NUMATopology.obj_from_db_obj(
                self.node.numa_topology).cells)]

    def test_claim_names_sockets_and_other_nodes(self):
        extended = self.fit().extend(self.request())
        self.assertEqual((((1,),), ((0,), (1,))), (
            extended.numa_choices, extended.sockets))
        self.assertEqual([512, 0], self.used())

    def test_node_without_memory_is_no_choice(self):
        self.change(memory_usage=600)
        self.assertEqual((), self.fit().extend(self.request()).numa_choices)

    def test_own_usage_does_not_count_against_the_guest(self):
        self.guest().cells[0].id = 1
        self.change(memory_usage=1000, cpu_usage=2)
        extended = self.fit().extend(self.request((0,)))
        self.assertEqual(((1,),), extended.numa_choices)

    @contextlib.contextmanager
    def only_sockets_are_named(self):
        self.assertEqual(((1,),), self.fit().extend(
            self.request()).numa_choices)
        yield
        extended = self.fit().extend(self.request())
        self.assertEqual(((), ((0,), (1,))), (
            extended.numa_choices, extended.sockets))

    def test_guest_with_pci_devices_of_nova_stays(self):
        with self.only_sockets_are_named():
            self.want_pci_device()

    def test_guest_on_a_host_with_networks_near_to_nodes_stays(self):
        with self.only_sockets_are_named():
            self.change(network_metadata=objects.NetworkMetadata(
                physnets={'net'}, tunneled=False))

    def test_guest_that_exists_stays(self):
        self.assertEqual(
            (), self.fit(movable=False).extend(self.request()).numa_choices)

    def test_guest_whose_memory_does_not_matter_stays(self):
        self.assertEqual((), self.fit().extend(self.request(
            numa_policy=request.NUMAPolicy.NONE)).numa_choices)

    def test_guest_or_host_without_nodes_changes_nothing(self):
        asked = self.request(None)
        self.assertEqual(asked, self.fit().extend(asked))
        self.node.numa_topology = None
        self.assertEqual(self.request(), self.fit().extend(self.request()))

    def test_guest_follows_its_gpus(self):
        self.fit().follow(self.request(), self.granted((1,)))
        self.assertEqual([0, 512], self.used())
        self.assertEqual(
            [1], [cell.id for cell in self.guest().cells])
        self.assertEqual(['save', 'update'], self.done)

    def test_guest_near_its_gpus_stays(self):
        for nodes in ((0,), None):
            self.fit().follow(self.request(), self.granted(nodes))
        self.assertEqual(([512, 0], []), (self.used(), self.done))

    def test_nodes_taken_meanwhile_deny_if_gpus_must_be_near(self):
        self.change(memory_usage=600)
        exc = self.assertRaises(
            exception.ClaimDenied, self.fit().follow, self.request(
                numa_policy=request.NUMAPolicy.REQUIRED),
            self.granted((1,)))
        self.assertEqual('numa_policy_required', exc.reason)
        self.assertEqual(([512, 600], []), (self.used(), self.done))

    def test_nodes_taken_meanwhile_leave_a_guest_that_prefers_near_gpus(
            self):
        self.change(memory_usage=600)
        self.fit().follow(self.request(), self.granted((1,)))
        self.assertEqual(([512, 600], []), (self.used(), self.done))


class MoveFitTest(GuestFitTest):
    """Guest that is resized to here; on its source it has 128 MB on node 1."""

    kind = numa.MoveFit

    def setUp(self):
        super().setUp()
        self.instance.migration_context = types.SimpleNamespace(
            new_numa_topology=self.instance.numa_topology,
            new_pci_requests=None)
        self.old = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(
                id=1, cpuset={0}, pcpuset=set(), memory=128)])
        self.instance.numa_topology = self.old
        self.instance.flavor = objects.Flavor(
            vcpus=1, memory_mb=128, extra_specs={})

    def guest(self):
        return self.instance.migration_context.new_numa_topology

    def want_pci_device(self):
        self.instance.migration_context.new_pci_requests = (
            types.SimpleNamespace(requests=[1]))

    def test_topology_on_the_source_is_not_changed(self):
        self.instance.pci_requests = types.SimpleNamespace(requests=[1])
        self.fit().follow(self.request(), self.granted((1,)))
        self.assertEqual([0, 512], self.used())
        self.assertIs(self.old, self.instance.numa_topology)
        self.assertEqual([1], [cell.id for cell in self.old.cells])


class EvacuationFitTest(GuestFitTest):
    """Guest that is evacuated to here."""

    def setUp(self):
        super().setUp()
        self.tracker.tracked_migrations['i'] = object()
        self.instance.node = 'failed'
        self.instance.migration_context = types.SimpleNamespace(
            new_numa_topology=self.instance.numa_topology)
        # A save of the instance would save it on its failed host.
        self.instance.save = lambda: self.done.append('instance')
        self.saved = types.SimpleNamespace(
            migration_context=types.SimpleNamespace(new_numa_topology=None),
            save=lambda: self.done.append('save'))
        self.useFixture(fixtures.MockPatchObject(
            objects.Instance, 'get_by_uuid', return_value=self.saved))

    def fit(self, movable=True):
        return numa.fit_of(
            virt_exception.Build.EVACUATION if movable
            else virt_exception.Build.REBUILD,
            types.SimpleNamespace(
                _compute=types.SimpleNamespace(rt=self.tracker)),
            self.instance, objects.ImageMeta.from_dict({}))

    def test_guest_that_exists_stays(self):
        self.instance.node = 'n'
        super().test_guest_that_exists_stays()

    def test_all_records_follow_the_gpus(self):
        self.fit().follow(self.request(), self.granted((1,)))
        for record in (self.saved.migration_context,
                       self.instance.migration_context):
            self.assertIs(self.guest(), record.new_numa_topology)

    def test_guest_that_nova_does_not_count_stays(self):
        with self.only_sockets_are_named():
            self.tracker.tracked_migrations.clear()
        self.fit().follow(self.request(), self.granted((1,)))
        self.assertEqual(([512, 0], []), (self.used(), self.done))
