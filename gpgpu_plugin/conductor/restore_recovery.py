# SPDX-License-Identifier: Apache-2.0
"""Adoption of what a host has and the database does not know.

A database that was restored from a backup does not know the claims that were
made since, and shows devices as available that guests use or have used. The
host's first report of a session has the host's book. What the database does
not know is adopted from it, never dropped; what nobody holds is cleaned
before it is offered again.
"""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Collection
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import claim as objects

LOG = logging.getLogger(__name__)

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState
_Rows = host_rows.HostRows
_Row = host_rows.Assignment

_MAX_SECONDS = 10 * 365 * 86400
"""Seconds of the longest usage that is adopted; a host may name any number."""


def adopt(rows: _Rows, book: Sequence[objects.Assignment] | None,
          adopted: Sequence[objects.Assignment],
          at: datetime.datetime) -> Adopted:
    """Bring the rows of a (locked) host in line with its book.

    :param book: assignments in the host's book; None: it was not sent
    :param adopted: those of them that the database does not know
    :param at: time of the transaction (UTC)
    :raises Invalid: the database was restored and the book was not sent
    """
    is_restored = rows.is_held(device_rules.HostHoldKind.RESTORED)
    if book is None:
        if is_restored:
            raise exception.Invalid(
                field='assignments', value=None,
                expected='the assignments in the book of the host, since the '
                         'database was restored')
        return Adopted(rows)
    if not adopted and not is_restored:
        return Adopted(rows)
    listed = {assignment.uuid for assignment in book}
    result = Adopted(rows)
    for assignment in adopted:
        result = _adopt(result, assignment, listed, at)
    return result._replace(rows=_distrust_free(result.rows.hold_host(
        device_rules.HostHoldKind.RESTORED, held=False), listed))


def unknown(session: orm.Session, book: Sequence[objects.Assignment],
            ) -> list[objects.Assignment]:
    """Return the part of a host's book that the database does not know."""
    known = assignment_db.known(
        session, [assignment.uuid for assignment in book])
    return [assignment for assignment in book
            if assignment.uuid not in known]


class Adopted(typing.NamedTuple):
    """Rows of a host after an adoption.

    ``active``: adopted assignments. ``ended``: those that are only known from
    now on.
    """

    rows: _Rows
    active: Sequence[_Row] = ()
    ended: Sequence[_Row] = ()

    def store(self, session: orm.Session, stored: _Rows) -> None:
        """Store what ended, and the usage of all that was adopted.

        The book may be out of date: usage elsewhere goes on.

        :param stored: the rows, as settled
        """
        now = clock.utc(session)
        by_stable_id = stored.by_stable_id
        assignment_db.insert(session, [
            dataclasses.replace(
                row, device=by_stable_id[row.device.stable_id])
            for row in self.ended], ended_at=now)
        for row in (*self.active, *self.ended):
            if objects.is_used(row.role, row.lease_expires_at):
                usage_db.begin(session, [row.uuid], row.claimed_at,
                               ends_elsewhere=False)
        ended = [row.uuid for row in self.ended
                 if objects.is_used(row.role, row.lease_expires_at)]
        if ended:
            usage_db.end(session, ended, now)


def _device(rows: _Rows, assignment: objects.Assignment,
            ) -> tuple[_Rows, host_rows.Device]:
    """Return the row of a device, also of one that is absent.

    Without a row the assignment would stay unknown, and each comparison would
    find the database restored.
    """
    stable_id = assignment.stable_id
    gpu_id = pci.function_id_of(stable_id)
    if gpu_id not in rows.by_stable_id:
        rows = rows.put(dataclasses.replace(device_rows.new_row(
            rows, gpu_id, assignment.address), present=False))
    if stable_id not in rows.by_stable_id:
        rows = rows.put(device_rows.new_mdev_row(
            rows, rows.by_stable_id[gpu_id], stable_id))
    return rows, rows.by_stable_id[stable_id]


def _adopt(result: Adopted, assignment: objects.Assignment,
           listed: Collection[str], at: datetime.datetime) -> Adopted:
    """Adopt one assignment.

    :param listed: UUIDs of all that the book has
    """
    rows, device = _device(result.rows, assignment)
    in_the_way = _in_the_way(rows, assignment, device, listed)
    twice = next((row for row in in_the_way if row.uuid in listed), None)
    if twice is not None:
        # The book has one device twice: neither can be believed.
        LOG.error('Assignment %s of instance %s on %s (device %s) is in the '
                  'book of the host but not in the database, and cannot be '
                  'adopted: assignment %s of the book has the same device. '
                  'Its device is not offered', assignment.uuid,
                  assignment.instance_uuid, rows.host.name, assignment.address,
                  twice.uuid)
        return result._replace(
            rows=rows.note('adopt_failed', [twice],
                           f'also held by {assignment.uuid}'),
            ended=[*result.ended, _row(rows, assignment, device, at)])
    rows = releases.released(rows, in_the_way)
    rows = rows.apply(device, _Event.ADOPT, clean_token=None, **(
        {} if assignment.vgpu_type == naming.PASSTHROUGH else {
            'vgpu_type': assignment.vgpu_type,
            'placement_id': assignment.placement_id}))
    row = _row(rows, assignment, rows.now(device), at)
    LOG.warning('Adopted assignment %s of instance %s on %s (device %s), '
                'which the database did not know', row.uuid,
                row.instance_uuid, rows.host.name, device.address)
    return result._replace(
        rows=rows.assign([row]).note('adopt', [row]),
        active=[*result.active, row])


def _in_the_way(rows: _Rows, assignment: objects.Assignment,
                device: host_rows.Device,
                listed: Collection[str]) -> list[_Row]:
    """Return active rows that the host's book does not support.

    The device's own, and those under the same key, which the database had
    before what the book has was claimed.
    """
    return [row for row in rows.assignments if row.device.id == device.id or (
        row.uuid not in listed and _key(row) == _key(assignment))]


def _key(row: objects.Assignment | _Row) -> tuple[str, str, str]:
    return row.instance_uuid, str(row.role), row.migration_uuid or ''


def _row(rows: _Rows, assignment: objects.Assignment,
         device: host_rows.Device, at: datetime.datetime) -> _Row:
    ordinals = {row.ordinal for row in rows.assignments
                if _key(row) == _key(assignment)}
    return _Row(
        uuid=assignment.uuid, device=device, host_id=rows.host.id,
        instance_uuid=assignment.instance_uuid, role=assignment.role,
        migration_uuid=assignment.migration_uuid or '',
        source_host=assignment.source_host,
        ordinal=next(number for number in range(len(ordinals) + 1)
                     if number not in ordinals),
        vgpu_type=assignment.vgpu_type,
        resource_class=assignment.resource_class,
        request=assignment_db.UNKNOWN_REQUEST, allocated=False,
        # It was claimed earlier, which matters less than its usage.
        claimed_at=at - datetime.timedelta(seconds=min(
            assignment.used_seconds or 0, _MAX_SECONDS)),
        lease_expires_at=None,
        host_generation=assignment.host_generation,
        exact=assignment.exact, project_id=assignment.project_id,
        user_id=assignment.user_id, flavor=assignment.flavor)


def _distrust_free(rows: _Rows, listed: Collection[str]) -> _Rows:
    """Have devices cleaned that the database shows as available, or as new.

    Somebody may have used them since the backup. A GPU of which the book has
    a vGPU was clean when it was claimed, and is not used itself. A GPU that
    got its VFs after the backup is dirty until these are removed
    (observation).
    """
    # A vGPU that only the backup has may have ended, and the whole GPU have
    # been used after it. If it has not, the GPU is cleaned once it has.
    parents = {row.device.parent_id for row in rows.assignments
               if row.uuid in listed}
    for device in rows.devices:
        if (device.kind == device_rules.DeviceKind.PCI
                and (device.state == _State.AVAILABLE
                     or device.cleaned_steps is None)
                and device.id not in parents and _may_be_used(device)):
            rows = rows.change(
                device, cleaned_steps=device_db.NOTHING_PASSED,
            ).note('distrust', [device])
    return rows


def _may_be_used(device: host_rows.Device) -> bool:
    """Return whether the device itself may have had a guest.

    Nobody can have a whole GPU while it has vGPUs, which are only made on
    clean ones.
    """
    return (device.parent_id is not None
            or not device_db.pci_function(device).has_vgpus)
