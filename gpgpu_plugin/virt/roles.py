#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Roles of an instance's assignments on one host.

During a resize or cold migration an instance has two sets of devices, on two
hosts or on one: those that it had before, and those claimed for the
destination under the migration's UUID.
"""

from __future__ import annotations

from collections.abc import Callable

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.objects import claim

Selector = Callable[[claim.Assignment], bool]
"""Whether an assignment of an instance on this host is meant."""


def any_role(_assignment: claim.Assignment) -> bool:
    """Select every assignment of the instance."""
    return True


def destination_of(migration: nova_types.Migration) -> Selector:
    """Select the assignments claimed for the destination of a migration."""
    uuid = migration.uuid
    return lambda assignment: bool(
        assignment.role is claim.ClaimRole.DESTINATION
        and assignment.migration_uuid == uuid)


def source_of(migration: nova_types.Migration) -> Selector:
    """Select the assignments that the instance had before a migration."""
    is_destination = destination_of(migration)
    return lambda assignment: not is_destination(assignment)


def current(instance: nova_types.Instance,
            tracker: resource_tracker.ResourceTracker) -> Selector:
    """Select the assignments that the instance uses here between migrations.

    Both roles may be on one host, until a resize is decided or after it
    failed, or where an earlier move failed.
    """
    if instance.migration_context is None:
        return any_role
    migration = migration_of(instance)
    is_destination = destination_of(migration)
    if not any(map(is_destination,
                   tracker.assignments.of_instance(instance.uuid))):
        # Confirmed already, or no resize and no cold migration.
        return any_role
    if migration.source_compute != migration.dest_compute:
        return is_destination
    new = instance.new_flavor
    return (is_destination
            if new is not None and instance.flavor.id == new.id
            else source_of(migration))


def settle(tracker: resource_tracker.ResourceTracker,
           instance: nova_types.Instance) -> None:
    """Release what a failed migration left here, after the guest's creation.

    The devices of the guest get the role ``instance``. All other devices of
    the instance on this host are released, so that they do not block the next
    migration.
    """
    if (instance.migration_context is None
            or instance.vm_state == vm_states.RESIZED):
        return
    migration = migration_of(instance)
    if migration.status != 'error':
        return
    used = current(instance, tracker)
    assignments = tracker.assignments.of_instance(instance.uuid)
    unused = tuple(assignment.uuid for assignment in assignments
                   if not used(assignment))
    if any(map(destination_of(migration), filter(used, assignments))):
        tracker.confirm_migration(claim.MigrationConfirmation(
            instance_uuid=instance.uuid, migration_uuid=migration.uuid,
            source_assignments=unused))
    else:
        tracker.release_instance(
            instance.uuid, lambda assignment: not used(assignment))


def migration_of(instance: nova_types.Instance) -> nova_types.Migration:
    """Return Nova's record of the migration that an instance is in."""
    assert instance.migration_context is not None
    migration: nova_types.Migration = objects.Migration.get_by_id(
        nova_context.get_admin_context(),
        instance.migration_context.migration_id)
    return migration
