# SPDX-License-Identifier: Apache-2.0
"""Rules for which assignments of an instance on one host are still used.

An assignment lives while Nova's instance is on the host, or moves to it or
from it, and while a guest runs with the device. What Nova does at the moment,
such as a delete or the confirmation of a migration, is an ``Operation``: it
changes where the instance is, and the same rules apply to the outcome. Nothing
else decides what an operation ends. All functions are of values. In doubt an
assignment counts as used: cleaning a device under a running guest is worse
than waiting.

A *claim* is named by the UUID of the migration whose destination it is for;
None names the claim of the role ``instance``. The generation of the host at
the time of the claim says which of two claims came first.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set

from nova.compute import task_states
from nova.compute import vm_states

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim as claim_obj

_MOVING = (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING,
           task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)
"""Tasks in which a migration has a claim for its destination."""

_BUILDING = (task_states.SPAWNING, task_states.UNSHELVING)
"""Tasks of an instance that is not on any host yet."""

OVER = ('error', 'failed', 'confirmed', 'reverted', 'completed', 'cancelled')
"""Statuses of a migration that nothing follows any more."""

_ON_SOURCE = ('queued', 'accepted', 'preparing', 'pre-migrating', 'migrating',
              'post-migrating')
"""Statuses before the guest is on the destination."""

_RELEASING = (
    task_states.DELETING, task_states.SOFT_DELETING, task_states.SHELVING,
    task_states.SHELVING_IMAGE_PENDING_UPLOAD,
    task_states.SHELVING_IMAGE_UPLOADING, task_states.SHELVING_OFFLOADING)
"""Tasks in which Nova destroys a guest for good."""

_GONE = (vm_states.BUILDING, vm_states.SOFT_DELETED, vm_states.DELETED)
"""States in which Nova destroys a guest for good, whatever its task."""

Claims = Mapping[str | None, int]
"""Generations of the host at the time of claims, by migration."""


@dataclasses.dataclass(frozen=True)
class Domain:
    """State of an instance's domain on the host.

    :ivar devices: addresses and mdev UUIDs of the host devices with which it
        runs; None: unknown
    """

    ABSENT: typing.ClassVar[Domain]
    INACTIVE: typing.ClassVar[Domain]
    ACTIVE: typing.ClassVar[Domain]

    state: str
    devices: frozenset[str] | None = None

    @property
    def is_active(self) -> bool:
        """Return whether the guest runs, or is paused."""
        return self.state == 'active'

    def __str__(self) -> str:
        return self.state


Domain.ABSENT = Domain('absent')
Domain.INACTIVE = Domain('inactive')
Domain.ACTIVE = Domain('active')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Migration:
    """A resize, cold migration, live migration or evacuation.

    :ivar new_flavor: id of the flavor that the instance gets by it
    """

    uuid: str
    status: str
    source: str | None
    dest: str | None
    is_evacuation: bool = False
    new_flavor: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Location:
    """Hosts of an instance, by Nova's record of it.

    :ivar is_hidden: whether users see its record in another cell instead of
        this one. During a move to another cell, until it is confirmed or
        reverted, both cells have a record
    :ivar flavor: id of the instance's flavor
    :ivar migrations: all of the instance, newest first
    """

    host: str | None
    vm_state: str | None = None
    task: str | None = None
    is_hidden: bool = False
    flavor: int | None = None
    migrations: tuple[Migration, ...] = ()

    @property
    def is_deleting(self) -> bool:
        """Return whether Nova is deleting it, which cannot be undone."""
        return bool(self.task == task_states.DELETING
                    or self.vm_state == vm_states.DELETED)

    @property
    def is_destroyed_for_good(self) -> bool:
        """Return whether Nova destroys its guest to give its host up."""
        return self.task in _RELEASING or self.vm_state in _GONE

    def of_host(self, host: str) -> Iterator[Migration]:
        """Return the migrations from or to a host, newest first."""
        return (migration for migration in self.migrations
                if host in (migration.source, migration.dest))

    def decided(self, migration_uuid: str | None, status: str) -> Location:
        """Return where the instance is once a migration has a status."""
        return dataclasses.replace(self, migrations=tuple(
            dataclasses.replace(migration, status=status)
            if migration.uuid == migration_uuid else migration
            for migration in self.migrations))


class OperationKind(enum.Enum):
    """Kind of what Nova does with an instance on a host at this moment."""

    BUILD = enum.auto()
    """A guest is built here next, with a claim of its own."""

    PREPARE = enum.auto()
    """A migration to this host is prepared; its claim is made next."""

    DESTROY = enum.auto()
    """Nova's driver has destroyed the guest here."""

    CONFIRM = enum.auto()
    """A migration from this host is confirmed."""

    FAIL = enum.auto()
    """A migration to this host has failed."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """Operation of Nova on an instance on a host at this moment.

    :ivar migration: UUID of the migration that is prepared or decided
    """

    kind: OperationKind
    migration: str | None = None

    def outcome(self, location: Location | None,
                host: str) -> Location | None:
        """Return where the instance is then; None: it needs nothing here."""
        if location is None or self.kind is OperationKind.BUILD:
            return None
        if self.kind is OperationKind.DESTROY:
            return _destroyed(location, host)
        if self.kind is OperationKind.PREPARE:
            # No other one is under way while Nova prepares one.
            return dataclasses.replace(location, task=None, migrations=tuple(
                migration for migration in location.migrations
                if migration.uuid != self.migration))
        return location.decided(
            self.migration,
            'confirmed' if self.kind is OperationKind.CONFIRM else 'failed')


DESTROY = Operation(OperationKind.DESTROY)


def _destroyed(location: Location, host: str) -> Location | None:
    """Return where an instance is whose guest Nova has destroyed on a host.

    Nova also destroys guests to reboot, rebuild or move them. What it does
    follows from the instance, not from the method's name
    (nova/compute/manager.py).
    """
    if location.is_destroyed_for_good:
        return None
    if location.task == task_states.RESIZE_REVERTING:
        reverted = next((
            migration for migration in location.of_host(host)
            if migration.dest == host and migration.status == 'reverting'),
            None)
        return location if reverted is None else dataclasses.replace(
            location.decided(reverted.uuid, 'reverted'),
            host=reverted.source, task=None)
    if (location.task is None and location.host == host
            and location.vm_state != vm_states.RESIZED and not any(
                migration.is_evacuation and migration.source == host
                and migration.status not in OVER
                for migration in location.migrations)):
        # A delete that confirms a resize first has no task any more when Nova
        # destroys the guest. The only other guest without a task is that of an
        # evacuation, which Nova destroys when the source starts, even before
        # the evacuation has moved the instance. If the evacuation fails, the
        # instance stays here and needs its devices.
        return None
    return location


def unused(assignments: Collection[claim_obj.Assignment],
           location: Location | None, host: str, domain: Domain,
           operation: Operation | None = None) -> frozenset[str]:
    """Return the UUIDs of assignments that Nova does not need any more.

    What the guest runs with is not considered; see ``may_run_with``.

    :param assignments: all of one instance on the host
    :param location: None: the instance is deleted
    :param operation: what Nova does at this moment; None: nothing, and no
        build is under way
    """
    if operation is not None:
        location = operation.outcome(location, host)
        if operation.kind is OperationKind.PREPARE:
            assignments = [
                assignment for assignment in assignments
                if assignment.migration_uuid != operation.migration]
    if location is None or (
            location.host is None and location.task not in _BUILDING):
        return frozenset(assignment.uuid for assignment in assignments)
    # By the host's book it is unknown during an operation.
    abandoned = {
        assignment.uuid for assignment in assignments
        if operation is None and domain == Domain.ABSENT
        and _is_abandoned_build(assignment)}
    claims = claims_of(assignment for assignment in assignments
                       if assignment.uuid not in abandoned)
    needed = _needed(claims, location, host, domain)
    return frozenset(
        assignment.uuid for assignment in assignments
        if assignment.uuid in abandoned
        or assignment.migration_uuid not in needed)


def may_run_with(unused: Collection[str],
                 assignments: Iterable[claim_obj.Assignment], domain: Domain,
                 operation: Operation | None = None) -> bool:
    """Return whether the guest may run with what Nova does not need.

    It does not if it runs with everything else, or if Nova has just confirmed
    the migration that made it and nobody knows its devices.

    :param assignments: all of one instance on the host
    """
    if not domain.is_active:
        return False
    if domain.devices is None:
        return operation is None or operation.kind is not OperationKind.CONFIRM
    return any((assignment.uuid in unused)
               is not domain.devices.isdisjoint(
                   (assignment.uuid, assignment.address))
               for assignment in assignments)


def claims_of(assignments: Iterable[claim_obj.Assignment]) -> Claims:
    """Return the claims that made assignments of one instance on a host."""
    return {assignment.migration_uuid: assignment.host_generation
            for assignment in assignments}


def describe(instance_uuid: str, location: Location | None, host: str,
             domain: Domain) -> str:
    """Return where an instance is, in one sentence for an operator."""
    guest = f'its guest on {host} is {domain}'
    if location is None:
        return f'instance {instance_uuid} is deleted in Nova, and {guest}'
    newest = next(location.of_host(host), None)
    migration = '' if newest is None else (
        f', its newest migration from or to {host}, {newest.uuid}, is '
        f'{newest.status}')
    hidden = ', its record in this cell is hidden' * location.is_hidden
    return (f'instance {instance_uuid} is on {location.host or "no host"} '
            f'with task {location.task or "none"}{migration}{hidden}, and '
            f'{guest}')


def _is_abandoned_build(assignment: claim_obj.Assignment) -> bool:
    """Return whether a build that is over has made this claim."""
    return (assignment.state == device_rules.DeviceState.PROVISIONING
            and assignment.role is claim_obj.ClaimRole.INSTANCE)


def _needed(claims: Claims, location: Location, host: str,
            domain: Domain) -> Set[str | None]:
    if location.host is None:
        return claims.keys()
    if location.host == host:
        return _needed_here(claims, location, host)
    if location.is_deleting:
        # Nova destroys the guest on the instance's host alone, which
        # releases nothing here.
        return set()
    return {claim for claim in claims
            if _is_needed_while_away(claim, location, host, domain)}


def _needed_here(claims: Claims, location: Location,
                 host: str) -> Set[str | None]:
    newest = next(location.of_host(host), None)
    if (location.is_hidden and newest is not None
            and newest.status in OVER):
        # The instance stays in the other cell. Nova removes this record,
        # except if confirming or reverting failed here.
        return set()
    if newest is not None and newest.status != 'done' and not (
            is_over(newest, location)
            or (newest.status == 'finished' and newest.source != host)):
        # It is decided later which of them stays.
        return claims.keys()
    return current(claims, location, host)


def is_over(migration: Migration, location: Location) -> bool:
    """Return whether Nova does nothing more for a migration.

    Nova resets the task of an instance when nova-compute was killed while the
    guest moved, and leaves the status of the migration as it was.
    """
    return migration.status in OVER or (
        migration.status in _ON_SOURCE
        and not migration.is_evacuation and not location.is_deleting
        and location.task not in (*_MOVING, task_states.MIGRATING))


def current(claims: Claims, location: Location,
            host: str) -> Set[str | None]:
    """Return the claim of the guest of an instance that is on a host.

    The newest migration that brought the instance here decides, unless the
    instance was built here after that, as by unshelve. If none did, several
    claims may be returned, which does not happen with Nova.
    """
    left = set(claims)
    for migration in location.of_host(host):
        if _brought_here(migration, location, host):
            if _is_built_after(claims, migration):
                return {None}
            # The claim of a confirmed migration is the instance's.
            return left & {migration.uuid} or left & {None} or left
        left.discard(migration.uuid)
    return left


def _is_built_after(claims: Claims, migration: Migration) -> bool:
    """Return whether the role ``instance`` was claimed after a migration.

    Nova builds no guest of an instance that a migration is bringing here.
    """
    return (migration.uuid in claims and None in claims
            and claims[migration.uuid] < claims[None])


def brought_by(location: Location, host: str) -> Migration | None:
    """Return the newest migration that brought the instance to a host."""
    return next((
        migration for migration in location.of_host(host)
        if _brought_here(migration, location, host)), None)


def _brought_here(migration: Migration, location: Location,
                  host: str) -> bool:
    """Return whether the instance has what the migration claimed here."""
    if migration.dest != host or migration.status in ('reverted', 'failed'):
        return False
    return (migration.source != host or migration.status == 'confirmed'
            or migration.new_flavor == location.flavor)


def _is_needed_while_away(claim: str | None, location: Location, host: str,
                          domain: Domain) -> bool:
    """Return whether an instance on another host needs a claim here."""
    migrations = list(location.of_host(host))
    leaving = next((migration for migration in migrations
                    if migration.source == host), None)
    if leaving is not None and not _has_left(leaving, location, domain):
        return True
    # What came before the instance left has gone with it.
    arriving = list(itertools.takewhile(
        lambda migration: migration.source != host, migrations))
    if claim is None:
        evacuation = next((migration for migration in arriving
                           if migration.is_evacuation), None)
        return evacuation is not None and (
            evacuation.status not in (*OVER, 'done'))
    own = next((migration for migration in arriving
                if migration.uuid == claim), None)
    if own is None or own.status in _ON_SOURCE:
        return location.task in _MOVING
    return own.status not in OVER


def _has_left(migration: Migration, location: Location,
              domain: Domain) -> bool:
    """Return whether a guest cannot return to the source of a migration."""
    if (migration.status == 'reverted'
            and location.task == task_states.RESIZE_REVERTING):
        # The destination has done its part of the revert, and the source will
        # create the guest again.
        return False
    if domain == Domain.ABSENT and (
            migration.status == 'confirming' or migration.is_evacuation):
        return True
    return migration.status in OVER
