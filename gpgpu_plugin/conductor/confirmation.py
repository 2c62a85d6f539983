# SPDX-License-Identifier: Apache-2.0
"""Confirmed migrations: devices of the destination become the instance's."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
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
        sessions.check(session, hosts.get(origin_id), origin,
                       reported=False)
        rows = host_rows.load(session, hosts.values())
        active = [row for host_id in hosts
                  for row in rows[host_id].assignments
                  if row.instance_uuid == confirmation.instance_uuid]
        claimed = [
            row for row in active
            if row.migration_uuid == confirmation.migration_uuid
            and _may_confirm(row, origin_id, origin)]
        outdated = _outdated(active, claimed)
        destination = [row for row in claimed if row not in outdated]
        ended = [*outdated, *_replaced(active, destination, confirmation)]
        at = clock.utc(session)
        return (tuple(
            settle.settle(
                session, rows[host.id], _confirmed(
                    variant_matching.up_to_date(session, rows[host.id]),
                    destination, ended, is_own=host.id == origin_id),
                settle.Ending(
                    at=at, alive_since=host.session_began_at
                    if host.id == origin_id else None))
            for host in hosts.values()), tuple(sorted({
                *(hosts[row.host_id].name for row in claimed),
                *assignment_db.hosts_of_instance(
                    session, confirmation.instance_uuid, hosts)})))
    return db.write(work) if host_ids else ((), ())


def _may_confirm(assignment: assignment_db.AssignmentRow, origin_id: int,
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
            assignment for assignment, *_ in assignment_db.of_instance(
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


def _outdated(active: Sequence[host_rows.Assignment],
              claimed: Sequence[host_rows.Assignment],
              ) -> list[host_rows.Assignment]:
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


def _replaced(active: Sequence[host_rows.Assignment],
              destination: Collection[host_rows.Assignment],
              confirmation: objects.MigrationConfirmation,
              ) -> list[host_rows.Assignment]:
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


def _confirmed(rows: host_rows.HostRows,
               destination: Sequence[host_rows.Assignment],
               ended: Sequence[host_rows.Assignment], *,
               is_own: bool) -> host_rows.HostRows:
    """Return the rows of a host after the confirmation.

    :param destination: what becomes the instance's, on all hosts
    :param ended: what is released, on all hosts
    :param is_own: whether the host itself confirms. It does so once the guest
        was hard rebooted. As claims of the role ``instance`` they would count
        as those of a build that failed
    """
    own = [row for row in destination if row.host_id == rows.host.id]
    if is_own:
        rows = claims.activated(rows, [
            row for row in own
            if row.device.state == device_rules.DeviceState.PROVISIONING])
    rows = releases.released(
        rows, [row for row in ended if row.host_id == rows.host.id])
    uuids = {row.uuid for row in own}
    found = [dataclasses.replace(
        row, role=str(objects.ClaimRole.INSTANCE), migration_uuid='')
        for row in rows.assignments if row.uuid in uuids]
    return rows.put_assignments(*found).note('confirm', found)
