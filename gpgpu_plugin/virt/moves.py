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
migration's UUID is the slot under which the new side holds them. After that
nothing is undone here: Nova leaves the instance in ERROR where it is, with
what it holds, to be rebooted hard, reverted or deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim

LOG = logging.getLogger(__name__)


Side = Callable[[claim.Assignment], bool]
"""Whether an assignment belongs to one side of a migration."""


def any_side(_assignment: claim.Assignment) -> bool:
    """Of an instance that is in no migration."""
    return True


def new_side(migration: objects.Migration) -> Side:
    """What was claimed for the migration's destination."""
    slot = migration.uuid
    return lambda each: bool(each.slot == slot)


def old_side(migration: objects.Migration) -> Side:
    """What the instance held before the migration."""
    slot = migration.uuid
    return lambda each: bool(each.slot != slot)


def current_side(instance: objects.Instance) -> Side:
    """The side on which the instance is while nobody migrates it.

    Both may be on one host, until a resize is decided or after it failed.
    """
    if instance.migration_context is None:
        return any_side
    migration = migration_of(instance)
    if migration.source_compute != migration.dest_compute:
        return any_side
    new = instance.new_flavor
    return (new_side if new is not None and instance.flavor.id == new.id
            else old_side)(migration)


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
           slot: str, providers: Iterable[str],
           nova_finish: Callable[[], None]) -> None:
    """Make the guest on the destination, with what was claimed for it.

    :param providers: UUIDs of the providers on which Placement allocated
    :raises NotFound: nothing was claimed although Placement allocated
    """
    assignments = [
        each for each in tracker.api.instance_assignments(
            gpgpu_context.admin(), instance_uuid)
        if (each.host, each.slot) == (tracker.host, slot)]
    if not assignments:
        if tracker.inventory.owns_any(providers):
            raise exception.NotFound(
                kind='claim for migration', name=slot)
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
