# SPDX-License-Identifier: Apache-2.0
"""Rows of ``cleanings`` and ``cleaning_chains``.

Records are added in transactions that locked the device's host, so that they
are one chain. Nothing changes or deletes them.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models
from gpgpu_plugin.domain import ledger


def chain(session: orm.Session,
          device_uuid: str) -> models.CleaningChain | None:
    """Return the end of a device's chain; None: it has no record."""
    return session.scalar(sa.select(models.CleaningChain).where(
        models.CleaningChain.device_uuid == device_uuid))


def lengthen(session: orm.Session,
             device_uuid: str) -> models.CleaningChain:
    """Return the end of a device's chain, which may be a new one."""
    found = chain(session, device_uuid)
    if found is None:
        found = models.CleaningChain(device_uuid=device_uuid, number=0)
        session.add(found)
    return found


def start(session: orm.Session, device_uuid: str,
          at: datetime.datetime) -> None:
    """Note when a cleaning began, for its record."""
    lengthen(session, device_uuid).started_at = at


def add(session: orm.Session, end: models.CleaningChain,
        record: ledger.Record) -> None:
    """Add a record to a chain."""
    session.add(models.Cleaning(
        device_uuid=end.device_uuid, number=record.number,
        content=record.content, hash=record.hash))
    end.number, end.hash, end.started_at = record.number, record.hash, None
    session.flush()


def listed(session: orm.Session, device_uuid: str, limit: int,
           after: int = 0) -> tuple[ledger.Record, ...]:
    """Return records of a device, in their order.

    :param after: number of the record before the first one
    """
    return tuple(
        ledger.Record(number=number, content=content, hash=digest)
        for number, content, digest in session.execute(
            sa.select(models.Cleaning.number, models.Cleaning.content,
                      models.Cleaning.hash)
            .where(models.Cleaning.device_uuid == device_uuid,
                   models.Cleaning.number > after)
            .order_by(models.Cleaning.number).limit(limit)))


def last(session: orm.Session,
         device_uuids: Collection[str]) -> list[str]:
    """Return the content of the last record of each of some devices."""
    chains = models.CleaningChain
    return list(session.scalars(
        sa.select(models.Cleaning.content)
        .join(chains, sa.and_(
            chains.device_uuid == models.Cleaning.device_uuid,
            chains.number == models.Cleaning.number))
        .where(models.Cleaning.device_uuid.in_(device_uuids))))
