# SPDX-License-Identifier: Apache-2.0
"""The ledger of cleanings, as operators read it."""

from __future__ import annotations

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, device: str, limit: int = objects.PAGE_SIZE,
             marker: str | None = None) -> tuple[ledger.Record, ...]:
    """Return a page of records (Conductor.device_history)."""
    after = pages.number(marker or '0', 'a record')
    with db.reader() as session:
        _head(session, device)
        return ledger_db.listed(
            session, device, pages.size(limit), after)


def head(db: api.Database, device: str) -> ledger.Head:
    """Return the end of a chain (Conductor.device_ledger_head)."""
    with db.reader() as session:
        return _head(session, device)


def _head(session: orm.Session, uuid: str) -> ledger.Head:
    """Return the end of a chain.

    :raises NotFound: no device has or had this UUID
    """
    end = ledger_db.chain(session, uuid)
    try:
        was_cleaned = bool(device_db.get(session, uuid).cleaned_steps)
    except exception.NotFound:
        if end.id is None:
            raise
        was_cleaned = end.number > 0
    return ledger.Head(device_uuid=uuid, number=end.number,
                       hash=end.hash or '', was_cleaned=was_cleaned)
