# SPDX-License-Identifier: Apache-2.0
"""GPUs in the life of one guest on one host."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator

import nova.conf
from nova import exception as nova_exception
from nova.compute import task_states
from nova.compute import vm_states
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import host_numa
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import nova_devices
from gpgpu_plugin.virt import numa
from gpgpu_plugin.virt import requested_devices
from gpgpu_plugin.virt import service
from gpgpu_plugin.virt import steps

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF


class _AtWork(threading.local):
    """Selectors of instances whose guests this thread creates or destroys."""

    def __init__(self) -> None:
        self.selectors: dict[str, assignment_selector.Selector] = {}


class LifecycleMixin(service.ServiceMixin):
    """Mixin that claims before a guest is created and releases after it.

    Every call that creates a guest, and every ``destroy``, holds the lock of
    the instance, also for instances without GPUs: a claim may be under way.
    ``migrate_disk_and_power_off`` and ``power_off`` create none and do not
    hold it, so that a delete can abort a copy of disks that takes hours, as
    in Nova. All other deletes wait for the call under way.
    """

    def __init__(self, virtapi: nova_types.VirtAPI, *args: object,
                 **kwargs: object) -> None:
        super().__init__(virtapi, *args, **kwargs)
        self._gpu_locks = InstanceLocks()
        self._gpu_at_work = _AtWork()
        self._gpu_named = requested_devices.NamedDevices(CONF.host)

    def init_host(self, host: str) -> None:
        """Wrap the methods of Nova that the driver must know of.

        They end a rebuild that failed, or have the scheduler hints.

        :raises ConfigInvalid: this Nova has others
        """
        self._gpu_named = requested_devices.NamedDevices(host)
        requested_devices.listen_for_hints(self.virtapi, self._gpu_named)
        notify_rebuild_failure(
            nova_devices.tracker_of(self.virtapi),
            self._gpu_rebuild_failed)
        super().init_host(host)

    def _gpu_rebuild_failed(self, instance: nova_types.Instance) -> None:
        tracker = self.gpu_tracker
        if (instance.host == tracker.host
                and tracker.assigned(instance.uuid)):
            # The devices stay; an evacuation releases them itself.
            tracker.request_reconcile(instance.uuid)

    @contextlib.contextmanager
    def _gpu_working(self, instance: nova_types.Instance,
                     select: assignment_selector.Select | None = None, *,
                     uses_assigned: bool = True,
                     was_assigned: bool = False,
                     claims: bool = False) -> Iterator[None]:
        """Hold the instance's lock while its guest is created or destroyed.

        Calls of spawn and destroy by this thread within the context neither
        claim nor release.

        :param select: returns which of the instance's assignments the guest
            gets; default those that it uses between migrations
        :param uses_assigned: whether the guest gets devices that the instance
            has already
        :param was_assigned: whether it had some when the driver was called
        :param claims: whether the caller claims devices if it has none
        :raises GPUAssignmentsEnded: the devices were released while this
            call waited; nothing was changed
        :raises GPUOperationFailed: an error of the plugin, as the guest would
            have too few of them
        """
        tracker, selectors = self.gpu_tracker, self._gpu_at_work.selectors
        if instance.uuid in selectors:
            # Called by another method of the driver, such as power_on by
            # FakeDriver's reboot: the outer one decides.
            yield
            return
        assigned = was_assigned or tracker.assigned(instance.uuid)
        # Registered first: from then on no comparison ends what is assigned.
        with (self._gpu_locks.hold(instance.uuid),
              tracker.building(instance.uuid),
              virt_exception.explained(instance)):
            if uses_assigned and assigned and not tracker.assigned(
                    instance.uuid):
                raise virt_exception.GPUAssignmentsEnded(
                    instance=instance.uuid)
            if select is None:
                select = functools.partial(
                    assignment_selector.current, instance, tracker)
            if uses_assigned:
                requested_devices.ensure(
                    tracker, instance, select, claims=claims)
            selectors[instance.uuid] = select()
            try:
                yield
            except Exception:
                self._gpu_compare(instance)
                raise
            finally:
                del selectors[instance.uuid]

    # -- spawn --------------------------------------------------------------

    def spawn(self, context: nova_types.Context,
              instance: nova_types.Instance,
              image_meta: nova_types.ImageMeta | None,
              injected_files: object, admin_password: object,
              allocations: nova_types.Allocations | None, *args: object,
              **kwargs: object) -> None:
        """Create a guest; if it has GPUs, claim before and activate after."""
        nova_spawn = functools.partial(
            super().spawn, context, instance, image_meta, injected_files,
            admin_password, allocations, *args, **kwargs)
        if instance.uuid in self._gpu_at_work.selectors:
            # FakeDriver's finish_migration.
            nova_spawn()
            return
        was_assigned = bool(
            self.gpu_tracker.assigned(instance.uuid))
        build = self._gpu_build(instance)
        with self._gpu_denial(context, instance, build):
            named = self._gpu_named.of(instance.uuid)
            request = request_mod.from_extra_specs(
                instance.flavor.extra_specs,
                host_numa.image_policy(image_meta))
            if nova_types.requires_gpu(image_meta) and not (
                    request or named or was_assigned):
                # No filter has refused it if its host was forced.
                raise exception.ClaimDenied(
                    instance=instance.uuid, host=self.gpu_tracker.host,
                    reason=request_mod.GPU_REQUIRED.reason,
                    detail=request_mod.GPU_REQUIRED.detail)
        if not request and not named and (
                build is virt_exception.Build.REBUILD
                or not self._gpu_is_allocated(allocations)):
            nova_spawn()
            return
        fit = numa.fit_of(build, self.virtapi, instance, image_meta)
        run = steps.Spawn(
            tracker=self.gpu_tracker, claimed=fit.follow,
            request=fit.extend(self._gpu_claim_request(
                instance, instance.flavor, request, allocations,
                instance.numa_topology, named=named)),
            spawn=nova_spawn, client=self._gpu_client,
            destroy=functools.partial(
                super().destroy, context, instance,
                kwargs.get('network_info'), kwargs.get('block_device_info')),
            keeps=build is virt_exception.Build.REBUILD,
            allocation_removal=build is virt_exception.Build.EVACUATION)
        with (self._gpu_working(
                  instance, functools.partial(
                      assignment_selector.spawned, instance,
                      self.gpu_tracker, run.keeps),
                  uses_assigned=run.keeps, was_assigned=was_assigned,
                  claims=run.keeps),
              self._gpu_denial(context, instance, build)):
            steps.execute(run)
            if run.keeps:
                self._gpu_activate_late(instance)
                self._gpu_compare(instance)

    def _gpu_is_allocated(
            self, allocations: nova_types.Allocations | None) -> bool:
        """Return whether Placement may have allocated GPUs of this host.

        If the flavor requests none, their claim is denied.
        """
        offered = self.gpu_tracker.offered
        return (not offered.provider_uuids().isdisjoint(allocations or ())
                if offered is not None else
                any(request_mod.may_be_gpu(name)
                    for allocation in (allocations or {}).values()
                    for name in allocation['resources']))

    @contextlib.contextmanager
    def _gpu_denial(self, context: nova_types.Context,
                    instance: nova_types.Instance,
                    build: virt_exception.Build) -> Iterator[None]:
        """Translate the plugin's errors for Nova; do what it leaves undone."""
        try:
            with denial.translated(
                    context, instance, self.gpu_tracker.host, build):
                yield
        except virt_exception.GPUClaimDenied:
            if instance.vm_state == vm_states.BUILDING:
                self._gpu_remove_allocation(context, instance.uuid)
            raise

    def _gpu_remove_allocation(self, context: nova_types.Context,
                               instance_uuid: str) -> None:
        """Remove the allocation of a build that was denied.

        Nova keeps it if it does not try another host: it takes the denial for
        one by the policy of a server group, after which there is none. An
        evacuated or shelved instance keeps it, since the same consumer may
        have resources elsewhere.
        """
        try:
            self._gpu_client.delete_allocation_for_instance(
                context, instance_uuid, force=True)
        except Exception:
            LOG.exception('Cannot remove the allocation of instance %s, whose '
                          'build was denied; delete the instance, or remove '
                          'it with "openstack resource provider allocation '
                          'delete"', instance_uuid)

    def _gpu_build(self, instance: nova_types.Instance,
                   ) -> virt_exception.Build:
        if instance.task_state not in (
                task_states.REBUILDING, task_states.REBUILD_SPAWNING):
            return virt_exception.Build.NEW
        if instance.host == self.gpu_tracker.host:
            return virt_exception.Build.REBUILD
        return virt_exception.Build.EVACUATION

    def _gpu_claim_request(
            self, instance: nova_types.Instance, flavor: nova_types.Flavor,
            request: request_mod.Request,
            allocations: nova_types.Allocations | None,
            topology: nova_types.NUMATopology | None,
            migration: nova_types.Migration | None = None,
            named: tuple[str, ...] = (),
            ) -> claim_obj.ClaimRequest:
        """Return the claim to send.

        :param migration: claim for its destination, which is this host
        :param named: devices that the instance names
        """
        role, migration_uuid = (
            (claim_obj.ClaimRole.INSTANCE, None) if migration is None else
            (claim_obj.ClaimRole.DESTINATION, migration.uuid))
        return claim_obj.ClaimRequest(
            instance_uuid=instance.uuid, host=self.gpu_tracker.host,
            role=role, migration_uuid=migration_uuid,
            source_host=(None if migration is None
                         else migration.source_compute),
            project_id=instance.project_id, user_id=instance.user_id,
            flavor=flavor.name,
            numa_nodes=None if topology is None else tuple(
                sorted({cell.id for cell in topology.cells})),
            request=request, exact_devices=named, allocated={
                provider: dict(allocation['resources'])
                for provider, allocation in (allocations or {}).items()})

    # -- a guest that is made anew ------------------------------------------

    # A driver may destroy the guest to start it: nothing is released then.

    def reboot(self, context: nova_types.Context,
               instance: nova_types.Instance, network_info: object,
               reboot_type: str, *args: object, **kwargs: object) -> None:
        """Reboot a guest with its devices ready.

        A hard reboot ends what a failed migration left here.
        """
        with self._gpu_working(instance):
            self._gpu_restore(instance)
            super().reboot(context, instance, network_info, reboot_type,
                           *args, **kwargs)
            if reboot_type == 'HARD':
                self._gpu_compare(instance)

    def _gpu_compare(self, instance: nova_types.Instance) -> None:
        """Make a comparison due if moves that failed left devices here.

        It ends what the guest does not have, and begins the usage of the rest.
        """
        if any(assignment.migration_uuid for assignment in
               self.gpu_tracker.assigned(instance.uuid)):
            self.gpu_tracker.request_reconcile()

    def power_on(self, context: nova_types.Context,
                 instance: nova_types.Instance, *args: object,
                 **kwargs: object) -> None:
        """Start a guest with its devices ready, as a hard reboot does."""
        with self._gpu_working(instance):
            self._gpu_restore(instance)
            super().power_on(context, instance, *args, **kwargs)
            self._gpu_compare(instance)

    def resume_state_on_host_boot(
            self, context: nova_types.Context, instance: nova_types.Instance,
            *args: object, **kwargs: object) -> None:
        """Start a guest again; init_host has prepared its devices."""
        with self._gpu_working(instance):
            super().resume_state_on_host_boot(
                context, instance, *args, **kwargs)

    def rescue(self, context: nova_types.Context,
               instance: nova_types.Instance, *args: object,
               **kwargs: object) -> None:
        """Start a guest from another image, with its devices."""
        with self._gpu_working(instance):
            super().rescue(context, instance, *args, **kwargs)

    def unrescue(self, context: nova_types.Context,
                 instance: nova_types.Instance) -> None:
        """Start a guest as it was before its rescue."""
        with self._gpu_working(instance):
            super().unrescue(context, instance)

    def _gpu_restore(self, instance: nova_types.Instance) -> None:
        """Prepare devices again, for example after a driver was reloaded.

        :raises HostError: a device is still missing; the guest was not changed
        """
        tracker_api.restore(self.gpu_tracker, self._gpu_of_guest(instance))
        self.gpu_attachments(instance)
        self._gpu_activate_late(instance)

    def _gpu_activate_late(self, instance: nova_types.Instance) -> None:
        """Activate what a failed migration or killed build left here."""
        tracker_api.activate_late(
            self.gpu_tracker, instance.uuid, self._gpu_of_guest(instance))

    def gpu_attachments(
            self, instance: nova_types.Instance) -> list[base.Attachment]:
        """Return the attachments of the guest, in an order that never changes.

        :raises HostError: a device is missing
        """
        return [self.gpu_tracker.attachment(assignment)
                for assignment in self._gpu_of_guest(instance)]

    def _gpu_of_guest(self, instance: nova_types.Instance,
                      ) -> list[claim_obj.Assignment]:
        """Return the assignments of the guest, in the same order."""
        assigned = self.gpu_tracker.assigned(instance.uuid)
        if not assigned:
            return []
        selector = self._gpu_at_work.selectors.get(
            instance.uuid) or assignment_selector.current(
                instance, self.gpu_tracker)
        return sorted(filter(selector, assigned),
                      key=lambda assignment: assignment.stable_id)

    # -- destroy ------------------------------------------------------------

    def destroy(self, context: nova_types.Context,
                instance: nova_types.Instance, *args: object,
                **kwargs: object) -> None:
        """Destroy the guest, then release devices that it does not keep."""
        with self._gpu_locks.hold(instance.uuid):
            super().destroy(context, instance, *args, **kwargs)
            if (self._gpu_tracker is not None
                    and instance.uuid not in self._gpu_at_work.selectors):
                self._gpu_release(instance, self._gpu_tracker)

    def _gpu_release(
            self, instance: nova_types.Instance,
            tracker: tracker_api.ResourceTrackerBase,
            operation: assignment_use.Operation = assignment_use.DESTROY,
            ) -> None:
        """Release what the instance does not need without its guest here."""
        assigned = tracker.assigned(instance.uuid)
        unused = self._gpu_unused(instance, operation) or frozenset()
        if len(unused) < len(assigned) and instance.task_state is None:
            # An evacuation is not over; nobody calls when it is.
            tracker.request_reconcile()
        # Otherwise Nova removes the allocation with retries.
        without_retry = (CONF.reclaim_instance_interval > 0
                         or instance.host != tracker.host)
        tracker.release_instance(
            instance.uuid, lambda assignment: assignment.uuid in unused,
            allocation_removal=instance.uuid if without_retry else None)

    def _gpu_unused(self, instance: nova_types.Instance,
                    operation: assignment_use.Operation) -> frozenset[
                        str] | None:
        """Return the UUIDs of what an operation ends here; never raises.

        :returns: None: it is unknown; a comparison ends it later
        """
        try:
            return leftovers.find_orphans(
                self.gpu_tracker.assigned(instance.uuid),
                self._gpu_domain, operation, instance)
        except Exception:
            LOG.exception(
                'Cannot determine which devices instance %s needs on %s; they '
                'stay assigned until the next comparison with Nova',
                instance.uuid, self.gpu_tracker.host)
            self.gpu_tracker.request_reconcile()
            return None

    # -- what a GPU cannot do -----------------------------------------------

    def suspend(self, context: nova_types.Context,
                instance: nova_types.Instance) -> None:
        """Refuse to suspend a guest with GPUs: their state cannot be saved.

        :raises nova.exception.InstanceFaultRollback: before any work
        """
        if requested_devices.has_gpus(self.gpu_tracker, instance):
            raise nova_exception.InstanceFaultRollback(
                virt_exception.GPUOperationUnsupported(
                    operation='Suspend', instance=instance.uuid))
        super().suspend(context, instance)


# -- Locks for the calls of the driver that create or destroy a guest.
#
# Nova has a lock of its own per instance, but starts, rebuilds, rescues and
# both halves of a resize and of its revert run without it, beside a delete.
# Without this lock a guest could be created whose GPUs a delete has just
# released.
#
# ``nova.utils.synchronized`` with the instance's UUID is Nova's own lock,
# which its callers of the driver hold already and which is not re-entrant.


@dataclasses.dataclass(eq=False)
class _Lock:
    """Lock of one instance.

    :ivar users: threads that hold it or wait for it, counted per call
    """

    # With eventlet, as in nova-compute of Nova 33, the class is patched, and
    # belongs to a green thread in the same way.
    lock: threading.RLock = dataclasses.field(
        default_factory=threading.RLock)
    users: int = 0


class InstanceLocks:
    """Re-entrant locks by instance UUID. Thread-safe.

    The lock of an instance exists while a thread holds it or waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, _Lock] = {}

    @contextlib.contextmanager
    def hold(self, instance_uuid: str) -> Iterator[None]:
        """Hold the lock of an instance; wait until no other thread has it."""
        with self._lock:
            entry = self._locks.setdefault(instance_uuid, _Lock())
            entry.users += 1
        try:
            with entry.lock:
                yield
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    del self._locks[instance_uuid]

    def users(self, instance_uuid: str) -> int:
        """Return how many calls hold the lock of an instance or wait."""
        with self._lock:
            entry = self._locks.get(instance_uuid)
            return 0 if entry is None else entry.users


# -- Rebuilds that fail in place, after which Nova removes the allocation.
#
# Nova's rebuild_instance takes such a failure for that of an evacuation,
# wherever it happened: before the driver was called, as when the image cannot
# be written to the volume of a volume-backed server, in the driver, or after
# it.


def notify_rebuild_failure(tracker: nova_types.NovaResourceTracker,
                           removing: Callable[[nova_types.Instance],
                                              None]) -> None:
    """Call a function before Nova removes the allocation of a failed rebuild.

    :param tracker: the resource tracker of this nova-compute
    :param removing: called with the instance; its errors are logged
    """
    nova_delete = tracker.delete_allocation_for_evacuated_instance

    @functools.wraps(nova_delete)
    def delete_allocation_for_evacuated_instance(
            context: nova_types.Context, instance: nova_types.Instance,
            node: str, node_type: str = 'source') -> None:
        try:
            removing(instance)
        except Exception:
            LOG.exception('Cannot reserve the GPUs of instance %s in '
                          'Placement at once, although Nova removes their '
                          'allocation; the next comparison with Nova does',
                          instance.uuid)
        nova_delete(context, instance, node, node_type=node_type)
    tracker.delete_allocation_for_evacuated_instance = (  # type: ignore[method-assign]
        delete_allocation_for_evacuated_instance)
