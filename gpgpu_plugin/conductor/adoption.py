# SPDX-License-Identifier: Apache-2.0
"""Adoption of what a host has and the database does not know.

A database that was restored from a backup does not know the claims that were
made since, and shows devices as available that guests use or have used. The
host's first report of a session has the host's book. What the database does
not know is adopted from it, never dropped; what nobody holds is cleaned
before it is offered again.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import claim as objects

LOG = logging.getLogger(__name__)

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState

_LONGEST = 10 * 365 * 86400
"""Seconds of the longest usage that is adopted; a host may name any number."""


def adopt(session: orm.Session, host: models.Host,
          book: Sequence[objects.Assignment] | None) -> None:
    """Bring the (locked) host's rows in line with its book.

    :param book: assignments in the host's book; None: it was not sent
    :raises Invalid: the database was restored and the book was not sent
    """
    if book is None:
        if host.restored:
            raise exception.Invalid(
                field='assignments', value=None,
                expected='the assignments in the book of the host, since the '
                         'database was restored')
        return
    adopted = unknown(session, book)
    if not adopted and not host.restored:
        return
    adoption = _Adoption(session, host, book, adopted)
    adoption.run()
    # Devices that the database did not know have no group yet.
    variant_matching.apply(session, [host])
    adoption.begin_usage()
    _distrust_free(session, host, book)
    host.restored = False
    host_db.changed(host)


def unknown(session: orm.Session, book: Sequence[objects.Assignment],
            ) -> list[objects.Assignment]:
    """Return the part of a host's book that the database does not know."""
    known = assignment_db.known(
        session, [assignment.uuid for assignment in book])
    return [assignment for assignment in book
            if assignment.uuid not in known]


class _Adoption:
    """One adoption.

    :param unknown: the part of the book that the database does not know
    """

    def __init__(self, session: orm.Session, host: models.Host,
                 book: Iterable[objects.Assignment],
                 unknown: Collection[objects.Assignment]) -> None:
        self._session = session
        self._host = host
        self._listed = {assignment.uuid for assignment in book}
        self._unknown = unknown
        self._adopted: list[models.Assignment] = []
        self._devices = {
            device.stable_id: device
            for device in device_db.of_hosts(session, [host.id])}

    def run(self) -> None:
        """Adopt all that the database does not know."""
        for assignment in self._unknown:
            self._adopt(assignment, self._device(assignment))
        self._session.flush()

    def begin_usage(self) -> None:
        """Record the usage of what was adopted.

        The book may be out of date: usage elsewhere goes on.
        """
        for row in self._adopted:
            if objects.is_used(row.role, row.lease_expires_at):
                usage_db.begin(self._session, [row.uuid], row.claimed_at,
                               ends_elsewhere=False)
                if row.ended_at is not None:
                    usage_db.end(self._session, [row.uuid], row.ended_at)

    def _device(self, assignment: objects.Assignment) -> models.Device:
        """Return the row of a device, also of one that is absent.

        Without a row the assignment would stay unknown, and each comparison
        would find the database restored.
        """
        stable_id = assignment.stable_id
        gpu_id = pci.function_id_of(stable_id)
        if gpu_id not in self._devices:
            self._devices[gpu_id] = device_rows.new_absent_row(
                self._session, self._host, gpu_id, assignment.address)
            self._session.flush()
        if stable_id not in self._devices:
            self._devices[stable_id] = device_rows.new_mdev_row(
                self._session, self._devices[gpu_id], stable_id)
            self._session.flush()
        return self._devices[stable_id]

    def _adopt(self, assignment: objects.Assignment,
               device: models.Device) -> None:
        for row in self._in_the_way(assignment, device):
            if row.uuid in self._listed:
                # The book has one device twice: neither can be believed.
                self._log(assignment, f'assignment {row.uuid} of the book '
                                      f'has the same device')
                self._store_ended(assignment, device)
                event_db.add(self._session, 'adopt_failed', self._host.name,
                             device, row, f'also held by {assignment.uuid}')
                return
            releases.release_active(self._session, self._host, row)
        self._session.flush()
        if assignment.vgpu_type != naming.PASSTHROUGH:
            device.vgpu_type = assignment.vgpu_type
            device.placement_id = assignment.placement_id
        device_db.transition(self._session, device, _Event.ADOPT)
        device.clean_token = None
        row = self._row(assignment, device)
        self._session.add(row)
        self._adopted.append(row)
        event_db.add(self._session, 'adopt', self._host.name, device, row)
        LOG.warning('Adopted assignment %s of instance %s on %s (device %s), '
                    'which the database did not know', row.uuid,
                    row.instance_uuid, self._host.name, device.address)

    def _store_ended(self, assignment: objects.Assignment,
                     device: models.Device) -> None:
        """Store an assignment as ended, so that it is known from now on."""
        row = self._row(assignment, device)
        row.active, row.ended_at = None, clock.utc(self._session)
        self._session.add(row)
        self._adopted.append(row)

    def _in_the_way(self, assignment: objects.Assignment,
                    device: models.Device) -> list[models.Assignment]:
        """Return active rows that the host's book does not support.

        The device's own, and those under the same key, which the database
        had before what the book has was claimed.
        """
        rows = assignment_db.of_hosts(self._session, [self._host.id])
        return [
            row for row in rows
            if row.device_id == device.id or (
                row.uuid not in self._listed
                and (row.instance_uuid, row.role, row.migration_uuid) == (
                    assignment.instance_uuid, assignment.role,
                    assignment.migration_uuid or ''))]

    def _row(self, assignment: objects.Assignment,
             device: models.Device) -> models.Assignment:
        ordinals = collections.Counter(
            row.ordinal for row in assignment_db.of_instance(
                self._session, assignment.instance_uuid)
            if row.host_id == self._host.id and row.role == assignment.role
            and row.migration_uuid == (assignment.migration_uuid or ''))
        return models.Assignment(
            uuid=assignment.uuid, device=device, host_id=self._host.id,
            instance_uuid=assignment.instance_uuid, role=assignment.role,
            migration_uuid=assignment.migration_uuid or '',
            source_host=assignment.source_host,
            ordinal=next(number for number in range(len(ordinals) + 1)
                         if number not in ordinals),
            active=1, vgpu_type=assignment.vgpu_type,
            resource_class=assignment.resource_class,
            request=assignment_db.UNKNOWN_REQUEST, allocated=False,
            # It was claimed earlier, which matters less than its usage.
            claimed_at=clock.utc(self._session, ago=min(
                assignment.used_seconds or 0, _LONGEST)),
            host_generation=assignment.host_generation,
            exact=assignment.exact, project_id=assignment.project_id,
            user_id=assignment.user_id, flavor=assignment.flavor)

    def _log(self, assignment: objects.Assignment, reason: str) -> None:
        LOG.error('Assignment %s of instance %s on %s (device %s) is in the '
                  'book of the host but not in the database, and cannot be '
                  'adopted: %s. Its device is not offered', assignment.uuid,
                  assignment.instance_uuid, self._host.name,
                  assignment.address, reason)


def _distrust_free(session: orm.Session, host: models.Host,
                   book: Iterable[objects.Assignment]) -> None:
    """Have devices cleaned that the database shows as available, or as new.

    Somebody may have used them since the backup. A GPU of which the book has
    a vGPU was clean when it was claimed, and is not used itself. A GPU that
    got its VFs after the backup is dirty until these are removed (reports).
    """
    devices = device_db.of_hosts(session, [host.id])
    # A vGPU that only the backup has may have ended, and the whole GPU have
    # been used after it. If it has not, the GPU is cleaned once it has.
    listed = {assignment.uuid for assignment in book}
    parents = {row.device.parent_id
               for row in assignment_db.of_hosts(session, [host.id])
               if row.uuid in listed}
    for device in devices:
        if (device.kind == device_rules.DeviceKind.PCI
                and (device.state == _State.AVAILABLE
                     or device.cleaned_steps is None)
                and device.id not in parents and _may_be_used(device)):
            device.cleaned_steps = device_db.NOTHING_PASSED
            event_db.add(session, 'distrust', host.name, device)


def _may_be_used(device: models.Device) -> bool:
    """Return whether the device itself may have had a guest.

    Nobody can have a whole GPU while it has vGPUs, which are only made on
    clean ones.
    """
    return (device.parent_id is not None
            or not device_db.pci_function(device).has_vgpus)
