# SPDX-License-Identifier: Apache-2.0
"""Base classes: a fake machine, a conductor, a recording report client."""

import os
import uuid

import fixtures
from nova import exception as nova_exception
from nova.compute import provider_tree
from nova.scheduler.client import report
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import orphans
from tests.fixtures import tenant
from tests.fixtures import virt_driver

NODE = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'h1'))


class FakeReportClient:
    """Report client that records what Nova's would write to Placement.

    :ivar writes: provider UUIDs, one each write
    :ivar fetches: provider UUIDs, one each time that Placement was asked
    :ivar allocations: providers by consumer
    :ivar deleted: consumers whose allocations were deleted
    :ivar conflicts: how many next writes meet another generation
    """

    def __init__(self):
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root('h1', NODE)
        self.writes = []
        self.fetches = []
        self._stale = set()
        self.conflicts = 0
        self.error = None
        self.allocations = {}
        self.deleted = []

    def get_provider_tree_and_ensure_root(
            self, ctxt, rp_uuid, name=None, parent_provider_uuid=None):
        if not self.tree.exists(rp_uuid):
            self.tree.new_child(name, parent_provider_uuid, uuid=rp_uuid)
            self._stale.add(rp_uuid)
        if rp_uuid in self._stale:
            self._stale.remove(rp_uuid)
            self.fetches.append(rp_uuid)
        return self.tree

    def get_allocs_for_consumer(self, ctxt, consumer):
        if self.error is not None:
            raise self.error
        return {'allocations': self.allocations.get(consumer, {})}

    def get_allocations_for_resource_provider(self, ctxt, rp_uuid):
        if not self.tree.exists(rp_uuid):
            raise nova_exception.ResourceProviderAllocationRetrievalFailed(
                rp_uuid=rp_uuid, error='404')
        return report.ProviderAllocInfo(allocations={
            consumer: {'resources': allocated[rp_uuid]}
            for consumer, allocated in self.allocations.items()
            if allocated.get(rp_uuid)})

    def delete_allocation_for_instance(
            self, ctxt, uuid, consumer_type='instance', force=False):
        assert force, 'its generation may have changed'
        if self.error is not None:
            raise self.error
        self.deleted.append(uuid)

    def set_inventory_for_provider(self, ctxt, rp_uuid, records):
        if not self.tree.has_inventory_changed(rp_uuid, records):
            return
        if self.error is not None:
            raise self.error
        if self.conflicts:
            self.conflicts -= 1
            raise nova_exception.ResourceProviderUpdateConflict(
                uuid=rp_uuid, generation=0, error='')
        self.writes.append(rp_uuid)
        self.tree.update_inventory(rp_uuid, records)

    def set_traits_for_provider(self, ctxt, rp_uuid, traits):
        self.tree.update_traits(rp_uuid, traits)

    def invalidate_resource_provider(self, rp_uuid, cacheonly=False):
        assert cacheonly, 'Nova may be about to write it'
        self._stale.add(rp_uuid)


class ComputeTestCase(base.BaseTestCase):

    machine = 'hgx-h100-8'

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.conf.set_override('state_path', self.state_path, 'gpgpu_compute')
        self.conductor = self.useFixture(
            conductor_fixture.ConductorFixture(self.conf))
        self.api = conductor_client.ConductorAPI(
            self.conf, rpc_transport.get_transport(self.conf))
        self.api.variant_create(context.admin(), admin.VariantInfo(
            name='H100', vendor='10de', device='2330', unsupported_ok=True))
        self.client = FakeReportClient()
        self.gone = set()
        self.seconds = 0.0
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.update_tree()
        self.tracker.run_once()

    def make_tracker(self):
        host = fake_host.FakeHost.for_machine(
            self.machine, os.path.join(self.state_path, 'sys'))
        self.addCleanup(self._close, host)
        tracker = resource_tracker.ResourceTracker(
            self.conf, 'h1', host, self.api, virt_driver.make(self.client),
            orphans.search(self.is_orphaned),
            clock=lambda: self.seconds)
        tracker.set_node('h1', NODE)
        return tracker

    @staticmethod
    def _close(host):
        """Close the files that a host watches, as the end of a process does.

        A process of tests may have only so many open.
        """
        if host._watch is not None:
            host._watch.close()

    def is_orphaned(self, assignment):
        return (assignment.state == 'provisioning'
                or assignment.instance_uuid in self.gone)

    def update_tree(self):
        """Update the provider tree and write it, as Nova does."""
        self.tracker.update_provider_tree(self.client.tree, 'h1')

    def request(self, count=2, instance='i1'):
        name = naming.resource_class('H100')
        # As the scheduler did.
        self.client.allocations[instance] = {self.provider: {name: count}}
        return claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=instance, host='h1', request=request.Request(
                demands=(request.Demand(
                    resource_class=name, count=count),)),
            allocated={self.provider: {name: count}})

    @property
    def provider(self):
        return naming.provider_uuid(NODE, 'H100')

    def placement(self):
        """Return (total, reserved) from Placement."""
        record = self.client.tree.data(self.provider).inventory[
            'CUSTOM_GPU_H100']
        return record['total'], record['reserved']

    def states(self):
        result = {}
        for device in self.api.device_list(context.admin(), variant='H100'):
            result[device.shown_state] = result.get(device.shown_state, 0) + 1
        return result

    def drivers(self):
        return {function.driver
                for function in self.tracker.backend.scan().functions
                if function.device == '2330'}

    def boot(self, count=2, instance='i1'):
        claim = self.tracker.session.call(
            self.api.claim, self.request(count, instance))
        uuids = [assignment.uuid for assignment in claim.assignments]
        for assignment in claim.assignments:
            self.tracker.backend.prepare(host_base.HostDevice.of(assignment))
        self.tracker.session.call(
            self.api.activate, uuids)
        self.tracker.assignments.add(instance, claim.assignments)
        self.tracker.assignments.activated(instance, uuids)
        return uuids
