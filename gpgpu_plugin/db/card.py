# SPDX-License-Identifier: Apache-2.0
"""Rows of ``card_numbers``: serial numbers of GPUs, wherever they were."""

from __future__ import annotations

import collections
import datetime
import typing
import uuid
from collections.abc import Collection
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci

_LONGEST = 255
"""Characters of a number that are stored and compared."""

_EPOCH = datetime.datetime(1970, 1, 1)
_LONG_AGO = datetime.datetime(1970, 1, 2)

MOST = 64
"""Hosts whose GPUs may have one number; what more have identifies none. It is
also how many GPUs of one host may have it."""


_Column = orm.InstrumentedAttribute[str | None]
"""A column of numbers."""


class Sighting(typing.NamedTuple):
    """A GPU in the place where its host found it, with its numbers."""

    card: models.Card
    device: models.Device
    host: models.Host


def numbers(identity: pci.Identity) -> tuple[str | None, str | None]:
    """Return the numbers of a device as they are compared: dsn and serial.

    Databases differ in whether the case of letters counts.
    """
    return (identity.dsn and identity.dsn[:_LONGEST],
            identity.serial and identity.serial.upper()[:_LONGEST])


def of_devices(session: orm.Session,
               uuids: Iterable[str]) -> dict[str, models.Card]:
    """Return the rows of devices, by the device's UUID."""
    return {card.device_uuid: card for card in session.scalars(
        sa.select(models.Card).where(
            models.Card.device_uuid.in_(list(uuids))))}


_SIGHTINGS = (
    sa.select(models.Card, models.Device, models.Host)
    .join(models.Device, models.Device.uuid == models.Card.device_uuid)
    .join(models.Host, models.Host.id == models.Device.host_id))


def with_numbers(session: orm.Session, dsns: Collection[str],
                 serials: Collection[str]) -> list[Sighting]:
    """Return all GPUs that have one of some numbers, by the device's id.

    These are the numbers of the card before if another one is in its place.
    Numbers that GPUs of more than ``MOST`` hosts have are left out. So is a
    host on which more GPUs than that have one number: no host can hide by it
    what others know of the number.
    """
    if not dsns and not serials:
        return []
    return [Sighting(*found) for found in session.execute(
        _SIGHTINGS.where(sa.or_(*(
            _has_number(session, column, numbers)
            for column, numbers in ((models.Card.dsn, dsns),
                                    (models.Card.serial, serials)))))
        .order_by(models.Device.id)).tuples()]


def _has_number(session: orm.Session, column: _Column,
                numbers: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a GPU has one of some numbers."""
    counts = _counts(session, column, numbers)
    return sa.and_(
        column.in_(set(numbers) - _frequent(counts)),
        models.Device.host_id.not_in(
            {count.host_id for count in counts if count.gpus > MOST}))


def frequent(session: orm.Session, dsns: Collection[str],
             serials: Collection[str]) -> tuple[set[str], set[str]]:
    """Return those of some numbers that GPUs of more than ``MOST`` hosts have.

    :returns: DSNs and serial numbers
    """
    return (_frequent(_counts(session, models.Card.dsn, dsns)),
            _frequent(_counts(session, models.Card.serial, serials)))


def left_behind(session: orm.Session, dsns: Collection[str],
                serials: Collection[str]) -> list[models.Card]:
    """Return the rows with some numbers whose hosts were deleted."""
    if not dsns and not serials:
        return []
    return list(session.scalars(sa.select(models.Card).where(
        sa.or_(models.Card.dsn.in_(dsns), models.Card.serial.in_(serials)),
        models.Card.found_at.is_not(None),
        ~sa.exists().where(models.Device.uuid == models.Card.device_uuid))
        .order_by(models.Card.found_at)))


def delete_of_host(session: orm.Session, host: models.Host) -> None:
    """Delete the rows of a host's devices, but not those of unclean cards.

    A card that it had when it called last was there until then, whatever other
    hosts found before. After a restore, no card of a host that has not
    reported is known to be clean.
    """
    devices = session.execute(
        sa.select(models.Device.id, models.Device.uuid, models.Device.state,
                  models.Device.parent_id, models.Device.whole_use,
                  models.Device.cleaned_steps,
                  models.Device.present, models.Device.before_swap)
        .where(models.Device.host_id == host.id)).all()
    of_host = models.Card.device_uuid.in_([device.uuid for device in devices])
    available = str(device_rules.DeviceState.AVAILABLE)
    parents = {device.parent_id for device in devices
               if device.state != available}
    whole = {device.uuid for device in devices
             if device.state != available or host.restored
             or device.whole_use is not None
             or device.cleaned_steps == device_db.NOTHING_PASSED}
    # What these were in their last place is not known yet.
    whole.update(session.scalars(sa.select(models.Card.device_uuid).where(
        of_host, models.Card.waits_for.is_not(None))))
    unclean = whole | {
        device.uuid for device in devices if device.id in parents}
    session.execute(sa.delete(models.Card).where(
        of_host, models.Card.device_uuid.not_in(unclean)))
    # Unknown for cards that were there before migration 0031.
    found_at = sa.func.coalesce(models.Card.found_at, _LONG_AGO)
    heard_at = _EPOCH + datetime.timedelta(seconds=host.heard_at or 0.0)
    there = models.Card.device_uuid.in_([
        device.uuid for device in devices
        if device.present and device.before_swap is None])
    session.execute(sa.update(models.Card).where(of_host).values(
        found_at=sa.case((sa.and_(there, found_at < heard_at), heard_at),
                         else_=found_at),
        waits_for=None, whole_unclean=models.Card.device_uuid.in_(whole)))
    for device in unaccepted(session, host.id):
        dsn, serial = numbers(device_db.identity(device))
        if dsn or serial:
            # The device's own row has the numbers of the card before.
            session.add(models.Card(
                device_uuid=str(uuid.uuid4()), dsn=dsn, serial=serial,
                found_at=device.swapped_at, whole_unclean=True))


def unaccepted(session: orm.Session,
               host_id: int | None = None) -> list[models.Device]:
    """Return the GPUs in whose place another card is that nobody accepted.

    Their rows of ``card_numbers`` have the numbers of the card before. There
    are few of them, and an index finds them.

    :param host_id: only those of this host
    """
    query = sa.select(models.Device).where(
        models.Device.swapped_at.is_not(None),
        models.Device.parent_id.is_(None))
    if host_id is not None:
        query = query.where(models.Device.host_id == host_id)
    return list(session.scalars(query.order_by(models.Device.id)))


class _Count(typing.NamedTuple):
    """The number of GPUs of a host that have a DSN or serial number."""

    number: str
    host_id: int
    gpus: int


def _counts(session: orm.Session, column: _Column,
            numbers: Collection[str]) -> list[_Count]:
    """Return on which hosts GPUs have some numbers."""
    if not numbers:
        return []
    found = session.execute(
        sa.select(column, models.Device.host_id, sa.func.count())
        .join(models.Device, models.Device.uuid == models.Card.device_uuid)
        .where(column.in_(numbers))
        .group_by(column, models.Device.host_id)).tuples()
    return [_Count(number, host_id, gpus) for number, host_id, gpus in found
            if number is not None]


def _frequent(counts: Iterable[_Count]) -> set[str]:
    """Return the numbers that GPUs of more than ``MOST`` hosts have."""
    hosts = collections.Counter(count.number for count in counts)
    return {number for number, found in hosts.items() if found > MOST}


def waiting(session: orm.Session) -> list[tuple[str, int]]:
    """Return the devices that wait for another host, with their hosts."""
    return list(session.execute(
        sa.select(models.Device.uuid, models.Device.host_id)
        .join(models.Card, models.Card.device_uuid == models.Device.uuid)
        .where(models.Card.waits_for.is_not(None))
        .order_by(models.Device.host_id, models.Device.id)).tuples())


def waits(session: orm.Session, device_uuid: str) -> models.Card | None:
    """Return the row of a device that waits for another host."""
    return session.scalar(sa.select(models.Card).where(
        models.Card.device_uuid == device_uuid,
        models.Card.waits_for.is_not(None)))


_OTHER = orm.aliased(models.Device)
_WAITED_FOR = (
    sa.select(models.Card.device_uuid, models.Host.name, _OTHER.address)
    .outerjoin(_OTHER, _OTHER.uuid == models.Card.waits_for)
    .outerjoin(models.Host, models.Host.id == _OTHER.host_id)
    .where(models.Card.device_uuid.in_(
               sa.bindparam('of_uuids', expanding=True)),
           models.Card.waits_for.is_not(None)))


def waited_for(session: orm.Session, device_uuids: Collection[str],
               ) -> dict[str, tuple[str, str] | None]:
    """Return what some devices wait for: the host and address of another one.

    :returns: by the UUID of the device that waits; None: the other one is gone
    """
    return {uuid: None if host is None else (host, address)
            for uuid, host, address in session.execute(
                _WAITED_FOR, {'of_uuids': list(device_uuids)}).tuples()}
