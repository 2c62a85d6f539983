# SPDX-License-Identifier: Apache-2.0
"""Resource tracker that knows the GPUs of Acme by itself, without a database.

It forgets everything when nova-compute ends: a real one must not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory

RESOURCE_CLASS = 'CUSTOM_GPU_ACME'
GPUS = ('0000:a1:00.0', '0000:a2:00.0')
_NAMESPACE = uuid.UUID('6f1c9c5c-0000-4000-8000-000000000001')


class AcmeTracker(tracker_api.ResourceTrackerBase):
    """Tracker of a host with two GPUs.

    :ivar prepared: addresses of GPUs that were prepared for a guest
    """

    def __init__(self, conf: object, host: str,
                 driver: tracker_api.VirtDriver) -> None:
        super().__init__(conf, host, driver)
        self._lock = threading.Lock()
        self._assigned: dict[str, claim_obj.Assignment] = {}
        self._node_uuid = ''
        self.prepared: list[str] = []

    def start(self, node: str, node_uuid: str,
              owners: tracker_api.Owners) -> None:
        self._node_uuid = node_uuid

    def stop(self) -> None:
        pass

    def update_provider_tree(self, tree: nova_types.ProviderTree,
                             node: str) -> None:
        [group] = self.offered.groups
        if not tree.exists(group.provider_uuid):
            tree.new_child(group.provider_name, node, group.provider_uuid)
        tree.update_inventory(group.provider_uuid, {RESOURCE_CLASS: {
            'total': len(GPUS), 'reserved': 0, 'min_unit': 1,
            'max_unit': len(GPUS), 'step_size': 1, 'allocation_ratio': 1.0}})

    @property
    def offered(self) -> inventory.HostInventory:
        return inventory.HostInventory(
            host=self.host, node_uuid=self._node_uuid, generation=1,
            groups=(inventory.GroupInventory(
                variant='ACME', provider_name=f'{self.host}_acme',
                provider_uuid=str(uuid.uuid5(_NAMESPACE, self.host)),
                traits=(), types=(inventory.TypeInventory(
                    resource_class=RESOURCE_CLASS, total=len(GPUS),
                    reserved=0, max_unit=len(GPUS)),)),))

    def assigned(self, instance_uuid: str | None = None,
                 ) -> tuple[claim_obj.Assignment, ...]:
        return tuple(
            assignment for assignment in list(self._assigned.values())
            if instance_uuid in (None, assignment.instance_uuid))

    def building(self, instance_uuid: str,
                 ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def request_reconcile(self,
                          allocation_removal: str | None = None) -> None:
        """Do nothing: nothing is compared."""

    def claim(self, request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        count = sum(demand.count for demand in request.request.demands
                    if demand.resource_class == RESOURCE_CLASS)
        with self._lock:
            used = {assignment.address for assignment in self.assigned()}
            free = [address for address in GPUS if address not in used]
            if count > len(free):
                raise exception.ClaimDenied(
                    instance=request.instance_uuid, host=self.host,
                    reason=request_mod.Reason.NOT_ENOUGH_AVAILABLE,
                    detail=f'{len(free)} available')
            granted = tuple(
                self._assignment(request, address)
                for address in free[:count])
            for assignment in granted:
                self._assigned[assignment.uuid] = assignment
        return claim_obj.Claim(
            assignments=granted, inventory=self.offered,
            numa_nodes=request.numa_nodes)

    def _assignment(self, request: claim_obj.ClaimRequest,
                    address: str) -> claim_obj.Assignment:
        return claim_obj.Assignment(
            uuid=str(uuid.uuid4()), instance_uuid=request.instance_uuid,
            host=self.host, role=request.role,
            migration_uuid=request.migration_uuid,
            source_host=request.source_host,
            device_uuid=str(uuid.uuid5(_NAMESPACE, address)),
            stable_id=address, address=address, variant='ACME',
            resource_class=RESOURCE_CLASS, state='provisioning',
            host_generation=1, project_id=request.project_id,
            user_id=request.user_id, flavor=request.flavor)

    def prepare(self, assignments: Iterable[claim_obj.Assignment]) -> None:
        self.prepared += [assignment.address for assignment in assignments
                          if assignment.address not in self.prepared]

    def attachment(self, assignment: claim_obj.Assignment) -> base.Attachment:
        return base.Attachment(functions=(assignment.address,))

    def place(self, found: claim_obj.GuestAddresses) -> None:
        """Do nothing: nobody asks where guests have their GPUs."""

    def activate(self, instance_uuid: str,
                 claimed: Sequence[claim_obj.Assignment]) -> None:
        for assignment in claimed:
            self._assigned[assignment.uuid] = dataclasses.replace(
                assignment, state='assigned')

    def release_instance(
            self, instance_uuid: str,
            which: Callable[[claim_obj.Assignment], bool] | None = None, *,
            host: str | None = None,
            allocation_removal: str | None = None) -> None:
        if host not in (None, self.host):
            return
        for assignment in self.assigned(instance_uuid):
            if which is None or which(assignment):
                del self._assigned[assignment.uuid]

    def confirm_migration(
            self, confirmation: claim_obj.MigrationConfirmation) -> None:
        for name in confirmation.source_assignments:
            self._assigned.pop(name, None)
