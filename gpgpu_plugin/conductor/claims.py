# SPDX-License-Identifier: Apache-2.0
"""Claims and the assignments that they make.

Every writing transaction locks its host first. An assignment is
authoritative for who uses a device; an allocation in Placement only says that
there was capacity.
"""

from __future__ import annotations

import dataclasses
import json
import typing
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import selection
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as objects
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState
_Reason = request_mod.Reason

_FUNCTIONS = 8
"""Functions that a device has at most, with an address each in the guest."""


def claim(db: api.Database, request: objects.ClaimRequest,
          lease: float, origin: report_obj.Origin | None = None,
          is_wanted: Callable[[], None] = lambda: None,
          exact_projects: Collection[str] = ()) -> objects.Claim:
    """Assign devices to an instance, all or none (ConductorAPI.claim).

    :param lease: seconds until a claim that nobody activated may be aborted
    :param is_wanted: raises if the caller has given up
    :param exact_projects: projects whose instances may name devices
    :raises ClaimDenied: with the reason's name
    :raises Invalid: another host asks
    """

    def work(session: orm.Session) -> objects.Claim:
        host = _lock_host(session, request, origin)
        before = host_rows.load_one(session, host)
        after = variant_matching.up_to_date(session, before)
        assigned = _assigned_before(request, after.assignments)
        if not assigned:
            assigned = _assign(session, after, request, lease, _select(
                session, host, request, capacity.groups(after),
                exact_projects))
            after = after.assign(assigned).note('claim', assigned)
        granted = _granted(session, request, before, after, assigned)
        # Last of all: the transaction may have waited for the lock.
        is_wanted()
        return granted
    if origin is not None and origin.host != request.host:
        raise exception.Invalid(
            field='host', value=request.host,
            expected=f'{origin.host}, since a host claims its own devices')
    return db.write(work)


def _select(session: orm.Session, host: host_db.HostRow,
            request: objects.ClaimRequest,
            groups: Sequence[capacity.LoadedGroup],
            exact_projects: Collection[str]) -> list[_Selected]:
    """Return the units that a claim gets, each with its offer.

    :raises ClaimDenied: it cannot get them
    """
    offers = selection.offers(groups)
    if request.exact_devices:
        selected = selection.choose_exact(
            session, host, request, groups, exact_projects)
    else:
        demands = selection.own_demands(session, request, offers)
        selection.check_allocation(request, request.request, groups)
        selected = selection.choose(request, demands, offers)
    return [_Selected(resource_class, offers[resource_class], unit)
            for resource_class, chosen in sorted(selected.items())
            for unit in chosen]


class _Selected(typing.NamedTuple):
    """A unit that was selected for a claim."""

    resource_class: str
    offer: selection.OfferedUnits
    unit: offer_mod.Selection


def _granted(session: orm.Session, request: objects.ClaimRequest,
             before: host_rows.HostRows, after: host_rows.HostRows,
             assigned: Sequence[assignment_db.AssignmentRow]) -> objects.Claim:
    """Return what the caller gets, and write what the host offers now."""
    variants = {group.id: group.variant.name for group in after.bare_groups}
    return objects.Claim(
        inventory=settle.settle(session, before, after),
        assignments=tuple(
            view(assignment_db.Active(row, after.host.name, variants.get(
                row.device.group_id or 0))) for row in assigned),
        numa_nodes=selection.numa_nodes(request, after, assigned))


def _lock_host(session: orm.Session, request: objects.ClaimRequest,
               origin: report_obj.Origin | None) -> host_db.HostRow:
    """Return the host, locked.

    :raises ClaimDenied: it has not reported its devices
    """
    host = host_db.lock(session, request.host)
    sessions.check(session, host, origin, reported=False)
    if host is None or (origin is not None and not host.report_number):
        raise selection.denied(
            request, _Reason.HOST_UNKNOWN,
            'the host has not reported its devices')
    return host


def _fingerprint(request: objects.ClaimRequest) -> str:
    if request.exact_devices:
        return json.dumps({'exact_devices': request.exact_devices})
    return json.dumps(codec.to_primitive(request.request), sort_keys=True)


def _has_key(row: assignment_db.AssignmentRow,
             request: objects.ClaimRequest) -> bool:
    return (row.instance_uuid, row.role, row.migration_uuid) == (
        request.instance_uuid, request.role, request.migration_uuid or '')


def _assigned_before(request: objects.ClaimRequest,
                     active: Iterable[assignment_db.AssignmentRow],
                     ) -> list[assignment_db.AssignmentRow]:
    """Return the assignments that the same claim got before.

    :raises ClaimDenied: another request was made under the claim's key
    """
    found = [row for row in active if _has_key(row, request)]
    # That of an adopted assignment is not known.
    if found and found[0].request not in (
            assignment_db.UNKNOWN_REQUEST, _fingerprint(request)):
        raise selection.denied(
            request, _Reason.REQUEST_CHANGED,
            f'the instance has devices on this host that were claimed for '
            f'another request: {found[0].request}')
    return found


def _assign(session: orm.Session, rows: host_rows.HostRows,
            request: objects.ClaimRequest, lease: float,
            units: Sequence[_Selected],
            ) -> list[assignment_db.AssignmentRow]:
    """Return the assignments of a claim."""
    devices = device_rows.take(
        rows, ((unit.offer.group, unit.unit) for unit in units))
    allocated = {
        unit.resource_class: request.allocated.get(
            unit.offer.group.value.provider_uuid, {}).get(
                unit.resource_class, 0) for unit in units}
    is_exact = bool(request.exact_devices)
    assigned: list[assignment_db.AssignmentRow] = []
    for unit, device in zip(units, devices, strict=True):
        assigned.append(assignment_db.AssignmentRow(
            uuid=str(uuid.uuid4()), device=device, host_id=rows.host.id,
            instance_uuid=request.instance_uuid, role=request.role,
            migration_uuid=request.migration_uuid or '',
            ordinal=len(assigned),
            vgpu_type=unit.offer.type.vgpu_type,
            resource_class=unit.resource_class,
            request=_fingerprint(request),
            # The host adds named devices to the allocation next.
            allocated=is_exact or allocated[unit.resource_class] > 0,
            claimed_at=clock.utc(session),
            lease_expires_at=clock.epoch(session) + lease,
            host_generation=rows.host.generation,
            source_host=request.source_host,
            project_id=request.project_id, user_id=request.user_id,
            flavor=request.flavor, exact=is_exact))
        allocated[unit.resource_class] -= 1
    return assigned


def view(active: assignment_db.Active) -> objects.Assignment:
    """Return an active assignment as it crosses RPC."""
    row, host, variant = active
    device = row.device
    return objects.Assignment(
        uuid=row.uuid, instance_uuid=row.instance_uuid, host=host,
        role=objects.ClaimRole(row.role),
        migration_uuid=row.migration_uuid or None,
        source_host=row.source_host, device_uuid=device.uuid,
        stable_id=device.stable_id, address=device.address,
        variant=variant or '', resource_class=row.resource_class,
        vgpu_type=row.vgpu_type,
        placement_id=device.placement_id, state=device.state,
        lease_expires_at=row.lease_expires_at,
        host_generation=row.host_generation, exact=row.exact,
        project_id=row.project_id, user_id=row.user_id, flavor=row.flavor)


def activate(db: api.Database, uuids: Sequence[str],
             driver_capacities: report_obj.DriverCapacities | None = None,
             origin: report_obj.Origin | None = None,
             guest_addresses: objects.GuestAddresses | None = None,
             ) -> inventory_obj.HostInventory:
    """Record that the guest runs (ConductorAPI.activate)."""
    host_id = releases.host_id_of(db, uuids)

    def work(session: orm.Session) -> inventory_obj.HostInventory:
        [host] = host_db.lock_ids(
            session, [host_id] if host_id is not None else [])
        sessions.check(session, host, origin)
        before = host_rows.load_one(session, host)
        found = [row for row in before.assignments if row.uuid in uuids]
        missing = set(uuids) - {row.uuid for row in found}
        if missing:
            raise _not_active(missing)
        rows = activated(
            variant_matching.up_to_date(session, before), found)
        rows = rows.put_assignments(*(
            dataclasses.replace(row, guest_addresses=_checked(
                guest_addresses[row.uuid]))
            for row in rows.assignments
            if guest_addresses and row.uuid in uuids
            and row.uuid in guest_addresses))
        return settle.settle(session, before, capacity.with_driver_capacity(
            session, rows, driver_capacities))
    if host_id is None:
        raise _not_active(uuids)
    return db.write(work)


def activated(rows: host_rows.HostRows,
              found: Iterable[assignment_db.AssignmentRow],
              ) -> host_rows.HostRows:
    """Return the rows after the end of the leases of claims.

    :raises InvalidTransition: a device is in a state without this event
    """
    waiting = [row for row in found if row.device.state != _State.ASSIGNED]
    for row in waiting:
        rows = rows.apply(row.device, _Event.ACTIVATE)
    return rows.put_assignments(*(
        dataclasses.replace(row, lease_expires_at=None) for row in waiting),
    ).note('activate', waiting) if waiting else rows


def _checked(addresses: Sequence[str]) -> str | None:
    """Return JSON of addresses in a guest; None if one of them is malformed.

    A tenant gets them, and the host may send anything.
    """
    try:
        found = [str(pci.PCIAddress.parse(address))
                 for address in addresses[:_FUNCTIONS]]
    except exception.Invalid:
        return None
    return json.dumps(found) if found else None


def _not_active(uuids: Iterable[str]) -> exception.NotFound:
    return exception.NotFound(
        kind='active assignment', name=', '.join(sorted(uuids)))


def of_host(db: api.Database,
            host_name: str) -> tuple[objects.Assignment, ...]:
    """Return all active assignments on a host."""
    with db.reader() as session:
        host = host_db.find(session, host_name)
        if host is None:
            return ()
        return tuple(map(view, assignment_db.of_hosts(session, [host.id])))


def of_origin(db: api.Database, origin: report_obj.Origin,
              known: Sequence[str]) -> tuple[objects.Assignment, ...]:
    """Return a host's active assignments (Conductor.host_assignments)."""
    with db.reader() as session:
        host = host_db.find(session, origin.host)
        sessions.refuse(host, origin)
        assert host is not None
        active = assignment_db.of_hosts(session, [host.id])
        missing = set(known) - {found.row.uuid for found in active}
        unknown = missing - assignment_db.known(session, missing)
        if unknown:
            raise exception.SessionLost(
                host=host.name, session=origin.session,
                reason=f'it does not have assignments '
                       f'{", ".join(sorted(unknown))} in the book of the '
                       f'host')
        return tuple(map(view, active))


def of_instance(db: api.Database,
                instance_uuid: str) -> tuple[objects.Assignment, ...]:
    """Return all active assignments of an instance."""
    with db.reader() as session:
        return tuple(map(view, assignment_db.of_instance(
            session, instance_uuid)))


# -- Confirmed migrations: devices of the destination become the instance's.


def confirm(
    db: api.Database, confirmation: objects.MigrationConfirmation,
    origin: report_obj.Origin | None = None,
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
                 origin: report_obj.Origin | None) -> bool:
    """Return whether the caller may confirm what was claimed.

    Each host can claim devices of its own for any migration, and say from
    where that is. Such a claim must not prevent the confirmation of others.
    """
    return (origin is None or assignment.host_id == origin_id
            or releases.is_source(assignment, origin))


def _host_ids(db: api.Database, confirmation: objects.MigrationConfirmation,
              origin: report_obj.Origin | None) -> tuple[set[int], int]:
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
        rows = activated(rows, [
            row for row in own
            if row.device.state == device_rules.DeviceState.PROVISIONING])
    rows = releases.released(
        rows, [row for row in ended if row.host_id == rows.host.id])
    uuids = {row.uuid for row in own}
    found = [dataclasses.replace(
        row, role=str(objects.ClaimRole.INSTANCE), migration_uuid='')
        for row in rows.assignments if row.uuid in uuids]
    return rows.put_assignments(*found).note('confirm', found)
