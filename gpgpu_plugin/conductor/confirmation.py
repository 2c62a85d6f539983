# SPDX-License-Identifier: Apache-2.0
"""Confirmed migrations: devices of the destination become the instance's."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim as objects
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import session as session_obj


def confirm(
    db: api.Database, confirmation: objects.MigrationConfirmation,
    origin: session_obj.Origin | None = None,
) -> tuple[tuple[inventory_obj.HostInventory, ...], tuple[str, ...]]:
    """Confirm a migration (ConductorAPI.confirm_migration).

    :returns: what source and destination offer now, and the hosts that have
        to compare: those on which roles changed, and others on which the
        instance has devices, which a failed move may have left there
    """
    host_ids, origin_id = _host_ids(db, confirmation, origin)

    def work(session: orm.Session) -> tuple[
            tuple[inventory_obj.HostInventory, ...], tuple[str, ...]]:
        hosts = {host.id: host
                 for host in host_db.lock_ids(session, sorted(host_ids))}
        sessions.check(hosts.get(origin_id), origin, reported=False)
        everywhere = assignment_db.of_instance(
            session, confirmation.instance_uuid)
        active = [assignment for assignment in everywhere
                  if assignment.host_id in hosts]
        claimed = [
            assignment for assignment in active
            if assignment.migration_uuid == confirmation.migration_uuid
            and _may_confirm(assignment, origin_id, origin)]
        outdated = _outdated(active, claimed)
        destination = [assignment for assignment in claimed
                       if assignment not in outdated]
        at = clock.utc(session)
        _activate(session, hosts, (
            assignment for assignment in destination
            if assignment.host_id == origin_id))
        _begin_usage(session, destination, at)
        for assignment in (
                *outdated, *_replaced(active, destination, confirmation)):
            releases.release_active(
                session, hosts[assignment.host_id], assignment, at=at,
                by_host=assignment.host_id == origin_id)
        # The unique key is checked by each statement: what is replaced must
        # have left it first.
        session.flush()
        _become_instance(session, hosts, destination)
        return (tuple(inventory.refresh(session, host)
                      for host in hosts.values()),
                tuple(sorted({
                    session.get_one(models.Host, assignment.host_id).name
                    for assignment in everywhere
                    if assignment in claimed
                    or assignment.host_id not in hosts})))
    return db.write(work) if host_ids else ((), ())


def _may_confirm(assignment: models.Assignment, origin_id: int,
                 origin: session_obj.Origin | None) -> bool:
    """Return whether the caller may confirm what was claimed.

    Each host can claim devices of its own for any migration, and say from
    where that is. Such a claim must not prevent the confirmation of others.
    """
    return (origin is None or assignment.host_id == origin_id
            or releases.is_source(assignment, origin))


def _host_ids(db: api.Database, confirmation: objects.MigrationConfirmation,
              origin: session_obj.Origin | None) -> tuple[set[int], int]:
    """Return ids of the hosts of source and destination, and the speaker's.

    They are read before the writing transaction, which must begin with its
    locks; an assignment's host never changes.

    :raises NotOwner: all of it is other hosts'
    """
    with db.reader() as session:
        speaker = (None if origin is None
                   else host_db.find(session, origin.host))
        if origin is not None:
            sessions.refuse(speaker, origin, reported=False)
        source = assignment_db.host_ids(
            session, confirmation.source_assignments)
        claimed = [
            assignment for assignment in assignment_db.of_instance(
                session, confirmation.instance_uuid)
            if assignment.migration_uuid == confirmation.migration_uuid]
    own_id = speaker.id if speaker is not None else 0
    own = {assignment.host_id for assignment in claimed
           if _may_confirm(assignment, own_id, origin)}
    if origin is None:
        return source | own, own_id
    if source - {own_id} or (claimed and not own and not source):
        raise sessions.not_owner(
            origin, f'to confirm migration {confirmation.migration_uuid}')
    return own | {own_id}, own_id


def _outdated(active: Sequence[models.Assignment],
              claimed: Sequence[models.Assignment],
              ) -> list[models.Assignment]:
    """Return the assignments of the destination that a later build replaced.

    If the confirmation is delivered late, the instance may have been built
    there again, as by unshelve. Then it uses what it claimed for that build.
    """
    built = {
        assignment.host_id: assignment.host_generation
        for assignment in active
        if assignment.role == objects.ClaimRole.INSTANCE}
    return [assignment for assignment in claimed
            if assignment.host_generation
            < built.get(assignment.host_id, 0)]


def _replaced(active: Sequence[models.Assignment],
              destination: Collection[models.Assignment],
              confirmation: objects.MigrationConfirmation,
              ) -> list[models.Assignment]:
    """Return the assignments that the destination's devices replace.

    These are the assignments that the source names, and those that a failed
    move left on the destination's host in the role ``instance``: the guest
    there has just been defined again, without them.
    """
    hosts = {assignment.host_id for assignment in destination}
    return [
        assignment for assignment in active
        if assignment not in destination and (
            assignment.uuid in confirmation.source_assignments
            or (assignment.host_id in hosts
                and assignment.role == objects.ClaimRole.INSTANCE))]


def _activate(session: orm.Session, hosts: Mapping[int, models.Host],
              own: Iterable[models.Assignment]) -> None:
    """Activate claims that their own host confirms.

    It does so once their guest was hard rebooted. As claims of the role
    ``instance`` they would count as those of a build that failed.
    """
    for assignment in own:
        if assignment.device.state == device_rules.DeviceState.PROVISIONING:
            device_db.transition(session, assignment.device,
                                 device_rules.DeviceEvent.ACTIVATE)
            assignment.lease_expires_at = None
            event_db.add(session, 'activate', hosts[assignment.host_id].name,
                         assignment.device, assignment)


def _begin_usage(session: orm.Session,
                 destination: Sequence[models.Assignment],
                 at: datetime.datetime) -> None:
    used = [assignment.uuid for assignment in destination
            if assignment.lease_expires_at is None]
    if used:
        usage_db.begin(session, used, at)


def _become_instance(session: orm.Session, hosts: Mapping[int, models.Host],
                     destination: Sequence[models.Assignment]) -> None:
    for assignment in destination:
        assignment.role = objects.ClaimRole.INSTANCE
        assignment.migration_uuid = ''
        event_db.add(session, 'confirm', hosts[assignment.host_id].name,
                     assignment.device, assignment)
