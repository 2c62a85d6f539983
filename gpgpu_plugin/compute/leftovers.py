# SPDX-License-Identifier: Apache-2.0
"""Assignments that nobody uses, or that Nova does not expect.

``assignment_use`` decides which are used; this module asks Nova and the
hypervisor.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.objects import claim

LOG = logging.getLogger(__name__)

_READINGS = 5
"""Times that an instance is read until nothing changes meanwhile."""


def find_orphans(assignments: Sequence[claim.Assignment],
                 domain_of: Callable[[str], assignment_use.Domain],
                 operation: assignment_use.Operation | None = None,
                 instance: nova_types.Instance
                 | None = None) -> frozenset[str]:
    """Return the UUIDs of assignments on this host that nobody uses any more.

    :param assignments: all of one instance on the host
    :param domain_of: returns the state of an instance's domain on the host
    :param operation: what Nova does with the instance at this moment; None:
        nothing, and nothing is being built
    :param instance: the instance, as Nova's call has it; None: it is read
    :raises Exception: Nova or the hypervisor does not answer
    """
    if not assignments:
        return frozenset()
    instance_uuid, host = assignments[0].instance_uuid, assignments[0].host
    domain = domain_of(instance_uuid)
    found = assignment_use.unused(
        assignments, location_of(instance_uuid) if instance is None
        else _location(instance), host, domain, operation)
    if found and assignment_use.may_run_with(found, assignments, domain,
                                             operation):
        LOG.warning(
            'Instance %s runs on %s and Nova does not need its assignments '
            '%s there. They stay assigned while it runs with them',
            instance_uuid, host, ', '.join(sorted(found)))
        return frozenset()
    if found and instance is None and _is_unknown(instance_uuid, domain):
        LOG.warning(
            'Instance %s has a guest on %s, which is off, and Nova has no '
            'record of it. Its assignments %s stay. Undefine the domain, or '
            'run "gpgpu-manage assignment end"', instance_uuid, host,
            ', '.join(sorted(found)))
        return frozenset()
    return found


def _location(instance: nova_types.Instance) -> assignment_use.Location:
    """Return where an instance is; a delete does not wait for migrations."""
    where = location_with(instance)
    return where if where.is_destroyed_for_good else location(instance)


def arrived_with(instance_uuid: str, host: str, domain_of: Callable[
        [str], assignment_use.Domain]) -> str | None:
    """Return the UUID of the migration that made a guest that runs here.

    :returns: None: there is none, or it is not over
    """
    location = location_of(instance_uuid)
    brought = None if location is None else assignment_use.brought_by(location,
                                                                      host)
    if (location is None or brought is None
            or not assignment_use.is_over(brought, location)
            or not domain_of(instance_uuid).is_active):
        return None
    return brought.uuid


def is_here(instance_uuid: str, host: str) -> bool:
    """Return whether Nova has an instance on this host.

    An evacuated instance is elsewhere, also while its guest is still here.
    """
    location = location_of(instance_uuid)
    return location is not None and location.host == host


def usage(assignments: Sequence[claim.Assignment],
          domain_of: Callable[[str], assignment_use.Domain],
          building: Collection[str]) -> tuple[claim.Usage, ...]:
    """Return whether instances use their assignments on this host, and why.

    :param assignments: for each instance all that it has on the host
    :param domain_of: returns the state of an instance's domain on the host
    :param building: UUIDs of instances whose guests are being created here
    """
    by_instance: dict[str, list[claim.Assignment]] = {}
    for assignment in assignments:
        by_instance.setdefault(
            assignment.instance_uuid, []).append(assignment)
    return tuple(
        judged for instance_uuid, its in by_instance.items()
        for judged in _usage_of(instance_uuid, its, domain_of, building))


def _usage_of(instance_uuid: str, assignments: Sequence[claim.Assignment],
              domain_of: Callable[[str], assignment_use.Domain],
              building: Collection[str]) -> Iterator[claim.Usage]:
    host = assignments[0].host
    try:
        domain, location = domain_of(instance_uuid), location_of(instance_uuid)
    except Exception as exc:
        LOG.exception('Cannot determine where instance %s is; whether it uses '
                      'its assignments on this host is unknown', instance_uuid)
        for assignment in assignments:
            yield claim.Usage(
                uuid=assignment.uuid, used=None,
                reason=f'Nova or the hypervisor of {host} does not answer: '
                       f'{type(exc).__name__}')
        return
    reason = assignment_use.describe(instance_uuid, location, host, domain)
    unused = (frozenset() if instance_uuid in building else
              assignment_use.unused(assignments, location, host, domain))
    if assignment_use.may_run_with(unused, assignments, domain):
        unused = frozenset()
    if unused and _is_unknown(instance_uuid, domain):
        unused = frozenset()
        reason = (f'Nova has no record of instance {instance_uuid}, and its '
                  f'guest on {host} is {domain}')
    for assignment in assignments:
        yield claim.Usage(
            uuid=assignment.uuid, used=assignment.uuid not in unused,
            reason=reason)


def _is_unknown(instance_uuid: str, domain: assignment_use.Domain) -> bool:
    """Return whether a host has the guest of an instance that Nova lacks.

    The record may be in another database than the one that was read.
    """
    return (domain == assignment_use.Domain.INACTIVE
            and record_of(instance_uuid) is None)


def location(instance: nova_types.Instance) -> assignment_use.Location:
    """Return where an instance is, by itself and its migrations.

    :raises Exception: Nova's database does not answer
    """
    return location_with(instance, migrations_of(instance))


def location_with(instance: nova_types.Instance,
                  migrations: Sequence[nova_types.Migration] = (),
                  ) -> assignment_use.Location:
    """Return where an instance is, by itself and these migrations."""
    return assignment_use.Location(
        host=instance.host, task=instance.task_state,
        vm_state=(vm_states.DELETED if instance.deleted
                  else instance.vm_state),
        is_hidden=bool(instance.hidden),
        flavor=instance.flavor.id, migrations=tuple(
            assignment_use.Migration(
                uuid=migration.uuid, status=migration.status,
                source=migration.source_compute,
                dest=migration.dest_compute,
                is_evacuation=migration.migration_type == 'evacuation',
                new_flavor=migration.new_instance_type_id)
            for migration in migrations))


def migrations_of(instance: nova_types.Instance) -> list[nova_types.Migration]:
    """Return all migrations of an instance, newest first.

    Nova copies them into the cell to which it moves an instance, in any
    order: there the ids do not say which is the newest.
    """
    return sorted(objects.MigrationList.get_by_filters(
        nova_context.get_admin_context(), {'instance_uuid': instance.uuid}),
        key=lambda migration: (migration.created_at, migration.id),
        reverse=True)


def location_of(instance_uuid: str) -> assignment_use.Location | None:
    """Return where the instance is; None if Nova deleted it.

    Nova first saves on which host an instance is, and then that its migration
    is done. Read between the two, an instance would be on its old host with a
    migration that is done.

    :raises Conflict: it changed each time while it was read
    """
    for _ in range(_READINGS):
        instance = record_of(instance_uuid)
        if instance is None or instance.deleted:
            return None
        where = location(instance)
        again = record_of(instance_uuid)
        if again is not None and (instance.host, instance.task_state) == (
                again.host, again.task_state):
            return where
    raise exception.Conflict(
        kind='instance', name=instance_uuid,
        reason='it changes while Nova is asked where it is')


def record_of(instance_uuid: str) -> nova_types.Instance | None:
    """Return the record of an instance, deleted or not, if there is one."""
    try:
        instance: nova_types.Instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(read_deleted='yes'),
            instance_uuid, expected_attrs=['flavor'])
    except nova_exception.InstanceNotFound:
        return None
    return instance


# -- Assignments that Nova's resource tracker does not expect on this host.
#
# A move that failed leaves devices assigned on a host that nobody calls any
# more. Nova's resource tracker knows, after each of its periodic updates,
# which instances are on the host and which migrations to or from it are not
# over. Where the host's book has more, a comparison with Nova's database is
# due. That comparison decides what is released; here memory alone is read.


UNEXPECTED_PATIENCE = 30
"""Seconds for which a difference must last: while a claim is made or ended,
Nova and the plugin differ for a moment."""

UNEXPECTED_REPEAT = 3600
"""Seconds after which a difference that is still there is found again."""

_Finding = tuple[str, frozenset[str]]
"""An instance, and all its assignments on the host."""


class UnexpectedAssignments:
    """Differences between the book and Nova's resource tracker.

    A comparison may find that Nova still needs the assignments, as those of a
    migration that was interrupted. If Nova deletes the instance afterwards,
    the difference is the same as before. Therefore it is found again.

    :param clock: returns the seconds of a monotonic clock
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[_Finding, float] = {}

    def find(self, assignments: Iterable[claim.Assignment],
             nova: nova_types.NovaResourceTracker,
             builds: Collection[str]) -> list[str]:
        """Return instances with a lasting difference, each once an hour.

        :param assignments: all in the host's book
        :param builds: UUIDs of instances that are being built here
        """
        now = self._clock()
        found = _unexpected(assignments, nova, builds)
        self._due = {finding: self._due.get(finding, now + UNEXPECTED_PATIENCE)
                     for finding in found}
        lasting = [finding for finding, due in self._due.items()
                   if due <= now]
        self._due.update(dict.fromkeys(lasting, now + UNEXPECTED_REPEAT))
        return sorted(instance_uuid for instance_uuid, _ in lasting)


def _unexpected(assignments: Iterable[claim.Assignment],
                nova: nova_types.NovaResourceTracker,
                builds: Collection[str]) -> set[_Finding]:
    by_instance: dict[str, list[claim.Assignment]] = {}
    for assignment in assignments:
        by_instance.setdefault(
            assignment.instance_uuid, []).append(assignment)
    return {
        (instance_uuid, frozenset(assignment.uuid for assignment in its))
        for instance_uuid, its in by_instance.items()
        if instance_uuid not in builds
        and instance_uuid not in nova.tracked_migrations
        and (instance_uuid not in nova.tracked_instances
             or len({assignment.migration_uuid for assignment in its}) > 1)}
