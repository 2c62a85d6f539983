# SPDX-License-Identifier: Apache-2.0
"""Roles of an instance's assignments on one host.

During a resize or cold migration an instance has two sets of devices, on two
hosts or on one: those that it had before, and those claimed for the
destination under the migration's UUID.
"""

from __future__ import annotations

from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.objects import claim

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
            tracker: tracker_api.ResourceTrackerBase,
            without: nova_types.Migration
            | None = None) -> Selector:
    """Select the assignments that the instance uses here between migrations.

    Both roles may be on one host, until a resize is decided or after it
    failed, or where an earlier move failed.

    :param without: a migration that is being reverted to this host
    """
    claims = assignment_use.claims_of(
        assignment for assignment
        in tracker.assigned(instance.uuid)
        if without is None or assignment.migration_uuid != without.uuid)
    selected = (
        assignment_use.current(
            claims, leftovers.location(instance), tracker.host)
        if claims.keys() - {None} else claims.keys())
    return lambda assignment: assignment.migration_uuid in selected


def spawned(instance: nova_types.Instance,
            tracker: tracker_api.ResourceTrackerBase,
            keeps: bool) -> Selector:
    """Select the assignments that a guest gets that is spawned here.

    :param keeps: whether it is rebuilt in place
    """
    if keeps and tracker.assigned(instance.uuid):
        return current(instance, tracker)
    return of_build


def migration_at(instance: nova_types.Instance,
                 host: str) -> nova_types.Migration:
    """Return the migration with which an instance comes to or leaves a host.

    Across cells the instance has no migration context. Older migrations are
    not considered: Nova leaves the status of a migration as it was when
    nova-compute is killed.

    :raises NotFound: there is none, or the newest one is over
    """
    migrations = leftovers.migrations_of(instance)
    where = leftovers.location_with(instance, migrations)
    for migration, known in zip(migrations, where.migrations, strict=True):
        if host in (known.source, known.dest):
            if assignment_use.is_over(known, where):
                break
            return migration
    raise exception.NotFound(
        kind='unfinished migration of instance', name=instance.uuid)
