# SPDX-License-Identifier: Apache-2.0
"""Resize, cold and live migration of an instance with GPUs.

Source and destination have devices until Nova confirms or reverts. The
destination claims its devices together with Nova (``ClaimGPUs``), before the
source is called, so that a denial changes nothing. After that nothing
is undone here: Nova leaves the instance in ERROR on its host, with its
devices, until it is hard rebooted, reverted or deleted. A comparison with Nova
releases the devices that it does not need.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import host_numa
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import lifecycle
from gpgpu_plugin.virt import nova_devices
from gpgpu_plugin.virt import numa
from gpgpu_plugin.virt import requested_devices

LOG = logging.getLogger(__name__)


def _nothing() -> None:
    """Do nothing, as the end of a move without a claim."""


def _image_meta(image: object) -> nova_types.ImageMeta:
    """Return the image of Nova's claim, which may be a dictionary or None."""
    if image is None or isinstance(image, dict):
        image = objects.ImageMeta.from_dict(image or {})
    return typing.cast('nova_types.ImageMeta', image)


def claim(tracker: tracker_api.ResourceTrackerBase,
          request: claim_obj.ClaimRequest,
          fit: numa.MoveFit) -> End:
    """Claim devices for a guest that comes here.

    :param fit: moves the guest to NUMA nodes near its devices
    :returns: function that ends the claim if the guest does not come
    """
    request = fit.extend(request)
    granted = tracker.claim(request)
    uuids = {assignment.uuid for assignment in granted.assignments}
    end = functools.partial(
        tracker.release_instance, request.instance_uuid,
        lambda assignment: assignment.uuid in uuids)
    try:
        fit.follow(request, granted)
    except Exception:
        end()
        raise
    return end


class MigrationMixin(lifecycle.LifecycleMixin):
    """Mixin for devices on source and destination during a migration."""

    # -- on the source ------------------------------------------------------

    def migrate_disk_and_power_off(
            self, context: nova_types.Context, instance: nova_types.Instance,
            dest: str, flavor: nova_types.Flavor, *args: object,
            **kwargs: object) -> object:
        """Stop the guest and copy its disk; on failure end the claim."""
        try:
            return super().migrate_disk_and_power_off(
                context, instance, dest, flavor, *args, **kwargs)
        except Exception:
            if requested_devices.asks_for_gpus(flavor):
                self._gpu_unclaim(instance)
            raise

    def _gpu_unclaim(self, instance: nova_types.Instance) -> None:
        try:
            migration = assignment_selector.migration_at(instance,
                                                         self.gpu_tracker.host)
            self.gpu_tracker.release_instance(
                instance.uuid, assignment_selector.destination_of(migration),
                host=migration.dest_compute)
        except Exception:
            LOG.exception('Cannot end the claim that the failed migration of '
                          'instance %s made on its destination; the '
                          'destination releases it with its next comparison '
                          'with Nova', instance.uuid)

    def confirm_migration(
            self, context: nova_types.Context,
            migration: nova_types.Migration, instance: nova_types.Instance,
            network_info: object) -> None:
        """Remove the guest on the source, then confirm to the conductor.

        From then on the instance has its devices on the destination, and those
        on the source are released.
        """
        self._gpu_confirm_with(migration, instance, functools.partial(
            super().confirm_migration, context, migration, instance,
            network_info))

    def _gpu_confirm_with(self, migration: nova_types.Migration,
                          instance: nova_types.Instance,
                          remove: Callable[[], None]) -> None:
        """Remove the guest on the source, then confirm the migration.

        :param remove: Nova's own method that removes the guest
        """
        with self._gpu_working(instance, lambda: assignment_selector.any_role,
                               uses_assigned=False):
            try:
                remove()
            except Exception:
                self.gpu_tracker.request_reconcile(migration.uuid)
                raise
            self._gpu_confirm(migration, instance)

    def _gpu_confirm(self, migration: nova_types.Migration,
                     instance: nova_types.Instance) -> None:
        """Release what the instance does not need, and confirm what it has.

        Nova may confirm an older migration than the one that brought the
        instance where it is, even here.
        """
        tracker = self.gpu_tracker
        assigned = tracker.assigned(instance.uuid)
        unused = self._gpu_unused(instance, assignment_use.Operation(
            assignment_use.OperationKind.CONFIRM, migration.uuid))
        kept = {assignment.migration_uuid for assignment in assigned
                if unused is None or assignment.uuid not in unused}
        if unused is None or len(kept) > 1 or any(
                assignment.exact for assignment in assigned):
            # The migration's allocation has them, and Nova removes it next.
            tracker.request_reconcile(migration.uuid)
        if unused is None or len(kept) > 1:
            return
        # Across cells this cell's record still has the old flavor.
        if unused or any(
                requested_devices.asks_for_gpus(flavor) for flavor in (
                    instance.flavor, instance.new_flavor)
                if flavor is not None):
            tracker.confirm_migration(claim_obj.MigrationConfirmation(
                instance_uuid=instance.uuid,
                migration_uuid=next(filter(None, kept), migration.uuid),
                source_assignments=tuple(sorted(unused))))

    def finish_revert_migration(
            self, context: nova_types.Context, instance: nova_types.Instance,
            network_info: object, migration: nova_types.Migration,
            *args: object, **kwargs: object) -> None:
        """Create the guest on the source again, with the devices kept."""
        with self._gpu_working(instance, functools.partial(
                assignment_selector.current, instance,
                self.gpu_tracker, migration)):
            self.gpu_tracker.prepare(filter(
                self._gpu_at_work.selectors[instance.uuid],
                self.gpu_tracker.assigned(instance.uuid)))
            super().finish_revert_migration(
                context, instance, network_info, migration, *args, **kwargs)

    def check_can_live_migrate_source(
            self, context: nova_types.Context, instance: nova_types.Instance,
            *args: object, **kwargs: object) -> object:
        """Refuse to live migrate a guest with GPUs.

        :raises nova.exception.MigrationPreCheckError: before any work
        """
        if requested_devices.has_gpus(self.gpu_tracker, instance):
            raise nova_exception.MigrationPreCheckError(
                reason=f'instance {instance.uuid} has GPUs, which cannot be '
                       f'live migrated')
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs)

    # -- on the destination -------------------------------------------------

    def init_host(self, host: str) -> None:
        """Claim GPUs with each of Nova's claims for a move to this host.

        :raises ConfigInvalid: this Nova claims in another way
        """
        claim_with(
            nova_devices.tracker_of(self.virtapi), self._gpu_claim_move)
        super().init_host(host)

    def _gpu_claim_move(
            self, context: nova_types.Context, instance: nova_types.Instance,
            flavor: nova_types.Flavor, migration: nova_types.Migration,
            allocations: nova_types.Allocations | None, image: object,
            node: str) -> End:
        image_meta = _image_meta(image)
        request = request_mod.from_extra_specs(
            flavor.extra_specs, host_numa.image_policy(image_meta))
        if named := self._gpu_named.of(instance.uuid):
            self._gpu_keep_named(instance, request, named)
            return _nothing
        if not request and not request_mod.has_suffixed_groups(
                flavor.extra_specs):
            return _nothing
        assert instance.migration_context is not None
        return claim(
            self.gpu_tracker, self._gpu_claim_request(
                instance, flavor, request, allocations,
                instance.migration_context.new_numa_topology, migration),
            numa.MoveFit(
                virtapi=self.virtapi, instance=instance, flavor=flavor,
                image=image_meta, node_name=node))

    def _gpu_keep_named(self, instance: nova_types.Instance,
                        request: request_mod.Request,
                        named: Sequence[str]) -> None:
        """Check that an instance keeps the devices that it names here.

        They are claimed already: source and destination share them.

        :raises ClaimDenied: its flavor requests other GPUs, or it has them on
            another host
        """
        tracker = self.gpu_tracker
        refusal = None
        if request:
            refusal = request_mod.exact_mixed(request)
        elif not any(assignment.exact for assignment in
                     tracker.assigned(instance.uuid)):
            refusal = request_mod.exact_elsewhere(named)
        if refusal is not None:
            raise exception.ClaimDenied(
                instance=instance.uuid, host=tracker.host,
                reason=str(refusal.reason), detail=refusal.detail)

    def finish_migration(
            self, context: nova_types.Context,
            migration: nova_types.Migration, instance: nova_types.Instance,
            disk_info: object, network_info: object, image_meta: object,
            resize_instance: object,
            allocations: nova_types.Allocations | None, *args: object,
            **kwargs: object) -> None:
        """Create the guest with the devices that were claimed for it."""
        nova_finish = functools.partial(
            super().finish_migration, context, migration, instance,
            disk_info, network_info, image_meta, resize_instance,
            allocations, *args, **kwargs)
        with self._gpu_working(
                instance,
                lambda: assignment_selector.arriving_with(migration)):
            if requested_devices.asks_for_gpus(instance.flavor):
                finish(self.gpu_tracker, instance.uuid, migration,
                       allocations or {}, nova_finish)
            else:
                nova_finish()


def finish(tracker: tracker_api.ResourceTrackerBase, instance_uuid: str,
           migration: nova_types.Migration, providers: Iterable[str],
           nova_finish: Callable[[], None]) -> None:
    """Create the guest on the destination with the devices claimed for it.

    :param providers: UUIDs of the providers on which Placement allocated
    :raises NotFound: nothing was claimed although Placement allocated
    """
    assignments = list(filter(
        assignment_selector.destination_of(migration),
        tracker.assigned(instance_uuid)))
    if assignments:
        tracker.prepare(assignments)
        # Before the guest is made: whatever happens from here on, the devices
        # are the instance's, which is not built a second time.
        tracker.activate(instance_uuid, assignments)
    elif tracker.offered and not (
            tracker.offered.provider_uuids().isdisjoint(providers)):
        raise exception.NotFound(
            kind='claim for migration', name=migration.uuid)
    nova_finish()


# -- Claims of a destination, made where Nova can still try another host.
#
# Nova's compute manager claims for a resize or cold migration on the
# destination, before it tells the source to begin. The plugin claims right
# after it: a denial then leaves the guest as it is, and Nova tries the next
# alternate host.


End = Callable[[], None]
"""Ends a claim that is not used."""


class ClaimGPUs(typing.Protocol):
    """Claims GPUs for the destination of a move."""

    def __call__(self, context: nova_types.Context,
                 instance: nova_types.Instance, flavor: nova_types.Flavor,
                 migration: nova_types.Migration,
                 allocations: nova_types.Allocations | None,
                 image: object, node: str) -> End: ...


def claim_with(tracker: nova_types.NovaResourceTracker,
               claim_gpus: ClaimGPUs) -> None:
    """Make Nova's claims for moves claim GPUs as well.

    :param tracker: the resource tracker of this nova-compute
    :param claim_gpus: called after each of Nova's claims; what it raises
        denies the move on this host
    """
    nova_claim = tracker.resize_claim

    @functools.wraps(nova_claim)
    def resize_claim(
            context: nova_types.Context, instance: nova_types.Instance,
            flavor: nova_types.Flavor, nodename: str,
            migration: nova_types.Migration,
            allocations: nova_types.Allocations | None,
            image_meta: object = None, limits: object = None,
            ) -> nova_types.MoveClaim:
        claim = nova_claim(
            context, instance, flavor, nodename, migration, allocations,
            image_meta=image_meta, limits=limits)
        try:
            end = claim_gpus(
                context, instance, flavor, migration, allocations,
                image_meta, nodename)
        except Exception as exc:
            LOG.info('Migration %s of instance %s to this host is denied: %s',
                     migration.uuid, instance.uuid,
                     virt_exception.reason(exc))
            denial.record(
                context, instance.uuid, migration.dest_compute, exc)
            claim.abort()
            raise _rollback(exc) from exc
        _end_with(claim, end)
        return claim
    tracker.resize_claim = resize_claim  # type: ignore[method-assign]


def _rollback(exc: Exception) -> nova_exception.InstanceFaultRollback:
    """Return the error after which the server stays as it is.

    On any other class Nova sets it to ERROR when no host is left.
    """
    return nova_exception.InstanceFaultRollback(
        nova_exception.ComputeResourcesUnavailable(
            reason=virt_exception.public(exc)))


def _end_with(claim: nova_types.MoveClaim, end: End) -> None:
    """Make the end of Nova's claim end that of the plugin, too.

    Nova aborts its claim if the source cannot be called.
    """
    nova_abort = claim.abort

    def abort() -> None:
        try:
            nova_abort()
        finally:
            end()
    claim.abort = abort  # type: ignore[method-assign]


# -- Resize and cold migration of an instance with GPUs to another cell.
#
# Nova's procedure differs from that within a cell: nova-conductor runs it,
# both cells have a record of the instance, one of them hidden, and the driver
# is called as for a build and a delete. The destination claims as within a
# cell (``ClaimGPUs``). The key of its claim is the UUID of the migration,
# which is the same in both cells.


class CrossCellMixin(MigrationMixin):
    """Mixin for devices on source and destination in different cells."""

    def spawn(self, context: nova_types.Context,
              instance: nova_types.Instance,
              image_meta: nova_types.ImageMeta | None,
              injected_files: object, admin_password: object,
              allocations: nova_types.Allocations | None, *args: object,
              **kwargs: object) -> None:
        """Create a guest, or finish its migration from another cell."""
        spawn = functools.partial(
            super().spawn, context, instance, image_meta, injected_files,
            admin_password, allocations, *args, **kwargs)
        if (instance.task_state != task_states.RESIZE_FINISH
                or instance.uuid in self._gpu_at_work.selectors
                or not requested_devices.asks_for_gpus(instance.flavor)):
            spawn()
            return
        migration = assignment_selector.migration_at(instance,
                                                     self.gpu_tracker.host)
        with self._gpu_working(
                instance,
                lambda: assignment_selector.destination_of(migration)):
            try:
                finish(
                    self.gpu_tracker, instance.uuid, migration,
                    allocations or {}, spawn)
            except Exception:
                self._gpu_undo_finish(
                    migration, instance, functools.partial(
                        self.destroy, context, instance,
                        kwargs.get('network_info'),
                        kwargs.get('block_device_info')))
                raise

    def _gpu_undo_finish(self, migration: nova_types.Migration,
                         instance: nova_types.Instance,
                         destroy: functools.partial[None]) -> None:
        """Destroy the guest and release its devices; never raises.

        Nova removes its record of the instance in this cell, so that nothing
        would destroy the guest later.
        """
        try:
            destroy()
            self._gpu_release(instance, self.gpu_tracker,
                              assignment_use.Operation(
                assignment_use.OperationKind.FAIL, migration.uuid))
        except Exception:
            LOG.exception(
                'Cannot destroy the guest of instance %s on %s, to which '
                'migration %s failed. Its devices stay assigned until the '
                'guest is off; stop it in the hypervisor',
                instance.uuid, self.gpu_tracker.host, migration.uuid)
            self.gpu_tracker.request_reconcile()

    def cleanup(self, context: nova_types.Context,
                instance: nova_types.Instance, network_info: object,
                *args: object, **kwargs: object) -> None:
        """Clean up after a guest; confirm its migration to another cell."""
        cleanup = functools.partial(
            super().cleanup, context, instance, network_info, *args, **kwargs)
        if (instance.task_state == task_states.RESIZE_MIGRATED
                and instance.hidden):
            self._gpu_confirm_with(
                assignment_selector.migration_at(instance,
                                                 self.gpu_tracker.host),
                instance, cleanup)
        else:
            cleanup()
