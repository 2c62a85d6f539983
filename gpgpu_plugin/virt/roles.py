# SPDX-License-Identifier: Apache-2.0
"""Roles of an instance's assignments on one host.

During a resize or cold migration an instance has two sets of devices, on two
hosts or on one: those that it had before, and those claimed for the
destination under the migration's UUID.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.objects import claim
from gpgpu_plugin.virt import liveness

Selector = Callable[[claim.Assignment], bool]
"""Returns whether it selects an assignment of an instance on this host."""

Select = Callable[[], Selector]
"""Returns a selector that follows the content of the book at this moment."""


def any_role(_assignment: claim.Assignment) -> bool:
    """Select every assignment of the instance."""
    return True


def destination_of(migration: nova_types.Migration) -> Selector:
    """Select the assignments claimed for the destination of a migration."""
    uuid = migration.uuid
    return lambda assignment: bool(
        assignment.role is claim.ClaimRole.DESTINATION
        and assignment.migration_uuid == uuid)


def _stays(migration: nova_types.Migration,
           assignment: claim.Assignment) -> bool:
    """Return whether a device is the instance's before and after a resize.

    An instance that named its device keeps it in a resize on one host.
    """
    return (assignment.exact
            and migration.source_compute == migration.dest_compute)


def arriving_with(migration: nova_types.Migration) -> Selector:
    """Select the assignments of the guest that a migration brings."""
    is_destination = destination_of(migration)
    return lambda assignment: (is_destination(assignment)
                               or _stays(migration, assignment))


def of_build(assignment: claim.Assignment) -> bool:
    """Select the assignments that a build, not a migration, claimed."""
    return assignment.role is claim.ClaimRole.INSTANCE


def current(instance: nova_types.Instance,
            tracker: resource_tracker.ResourceTracker,
            without: nova_types.Migration | None = None) -> Selector:
    """Select the assignments that the instance uses here between migrations.

    Both roles may be on one host, until a resize is decided or after it
    failed, or where an earlier move failed.

    :param without: a migration that is being reverted to this host
    """
    claims = liveness.claims_of(
        assignment for assignment
        in tracker.assignments.of_instance(instance.uuid)
        if without is None or assignment.migration_uuid != without.uuid)
    selected = (
        liveness.current(claims, location(instance), tracker.host)
        if claims.keys() - {None} else claims.keys())
    return lambda assignment: assignment.migration_uuid in selected


def spawned(instance: nova_types.Instance,
            tracker: resource_tracker.ResourceTracker,
            keeps: bool) -> Selector:
    """Select the assignments that a guest gets that is spawned here.

    :param keeps: whether it is rebuilt in place
    """
    if keeps and tracker.assignments.of_instance(instance.uuid):
        return current(instance, tracker)
    return of_build


def location(instance: nova_types.Instance) -> liveness.Location:
    """Return where an instance is, by itself and its migrations.

    :raises Exception: Nova's database does not answer
    """
    return location_with(instance, _migrations(instance))


def location_with(instance: nova_types.Instance,
                  migrations: Sequence[nova_types.Migration] = (),
                  ) -> liveness.Location:
    """Return where an instance is, by itself and these migrations."""
    return liveness.Location(
        host=instance.host, task=instance.task_state,
        vm_state=(vm_states.DELETED if instance.deleted
                  else instance.vm_state),
        is_hidden=bool(instance.hidden),
        flavor=instance.flavor.id, migrations=tuple(
            liveness.Migration(
                uuid=migration.uuid, status=migration.status,
                source=migration.source_compute,
                dest=migration.dest_compute,
                is_evacuation=migration.migration_type == 'evacuation',
                new_flavor=migration.new_instance_type_id)
            for migration in migrations))


def _migrations(instance: nova_types.Instance) -> list[nova_types.Migration]:
    """Return all migrations of an instance, newest first.

    Nova copies them into the cell to which it moves an instance, in any
    order: there the ids do not say which is the newest.
    """
    return sorted(objects.MigrationList.get_by_filters(
        nova_context.get_admin_context(), {'instance_uuid': instance.uuid}),
        key=lambda migration: (migration.created_at, migration.id),
        reverse=True)


def migration_at(instance: nova_types.Instance,
                 host: str) -> nova_types.Migration:
    """Return the migration with which an instance comes to or leaves a host.

    Across cells the instance has no migration context. Older migrations are
    not considered: Nova leaves the status of a migration as it was when
    nova-compute is killed.

    :raises NotFound: there is none, or the newest one is over
    """
    migrations = _migrations(instance)
    where = location_with(instance, migrations)
    for migration, known in zip(migrations, where.migrations, strict=True):
        if host in (known.source, known.dest):
            if liveness.is_over(known, where):
                break
            return migration
    raise exception.NotFound(
        kind='unfinished migration of instance', name=instance.uuid)
