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
"""Resize and cold migration of an instance with GPUs.

Both sides hold devices until Nova decides. The source claims those of the
destination before the guest is stopped, so that a denial changes nothing; the
devices of the destination have the role ``destination`` under the migration's
UUID. After that nothing is undone here: Nova leaves the instance in ERROR
where it is, with what it holds, to be rebooted hard, reverted or deleted. A
hard reboot ends what the guest then does not use on its host.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim

LOG = logging.getLogger(__name__)


Selector = Callable[[claim.Assignment], bool]
"""Whether an assignment of an instance on this host is meant."""


def any_role(_assignment: claim.Assignment) -> bool:
    """Select every assignment of the instance."""
    return True


def destination_of(migration: objects.Migration) -> Selector:
    """Select what was claimed for the destination of a migration."""
    uuid = migration.uuid
    return lambda assignment: bool(
        assignment.role is claim.ClaimRole.DESTINATION
        and assignment.migration_uuid == uuid)


def source_of(migration: objects.Migration) -> Selector:
    """Select what the instance had before a migration."""
    is_destination = destination_of(migration)
    return lambda assignment: not is_destination(assignment)


def current(instance: objects.Instance,
            tracker: resource_tracker.ResourceTracker) -> Selector:
    """Select what the instance uses on this host while Nova does not migrate
    it.

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
           instance: objects.Instance) -> None:
    """End what a failed migration left here, after the guest was made anew.

    What the guest has becomes the instance's; all else that the instance has
    on this host is released, so that it is not in the way of the next move.
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


def migration_of(instance: objects.Instance) -> objects.Migration:
    """Nova's record of the migration that an instance is in."""
    return objects.Migration.get_by_id(
        nova_context.get_admin_context(),
        instance.migration_context.migration_id)


def unclaim(tracker: resource_tracker.ResourceTracker,
            granted: claim.Claim) -> None:
    """Give back what was claimed for the destination.

    Never raises: the destination ends what is left over.
    """
    uuids = [each.uuid for each in granted.assignments]
    if not uuids:
        return
    try:
        # A destination that was started anew meanwhile made ready all that is
        # held there, this claim, too.
        tracker.api.abort(gpgpu_context.admin(), uuids, touched=True)
    except Exception:
        LOG.exception('Assignments %s of a migration that failed could not '
                      'be ended; their host ends them later', uuids)


def finish(tracker: resource_tracker.ResourceTracker, instance_uuid: str,
           migration: objects.Migration, providers: Iterable[str],
           nova_finish: Callable[[], None]) -> None:
    """Make the guest on the destination, with what was claimed for it.

    :param providers: UUIDs of the providers on which Placement allocated
    :raises NotFound: nothing was claimed although Placement allocated
    """
    is_destination = destination_of(migration)
    assignments = [
        assignment for assignment in tracker.api.instance_assignments(
            gpgpu_context.admin(), instance_uuid)
        if assignment.host == tracker.host and is_destination(assignment)]
    if not assignments:
        if tracker.inventory.owns_any(providers):
            raise exception.NotFound(
                kind='claim for migration', name=migration.uuid)
        nova_finish()
        return
    tracker.assignments.add(instance_uuid, assignments)
    prepare(tracker, assignments)
    # Before the guest is made: what happens from here on, the devices are the
    # instance's, which is not built a second time.
    tracker.inventory.accept(tracker.api.activate(
        gpgpu_context.admin(), [each.uuid for each in assignments],
        tracker.backend.driver_capacity(map(base.HostDevice.of, assignments))))
    nova_finish()
    tracker.inventory.push()


def prepare(tracker: resource_tracker.ResourceTracker,
            assignments: Iterable[claim.Assignment]) -> None:
    """Make devices ready for a guest, which does no harm if they are."""
    for each in assignments:
        tracker.backend.prepare(base.HostDevice.of(each))
