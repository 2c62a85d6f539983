# SPDX-License-Identifier: Apache-2.0
"""Events, cleanings and usage, as operators read them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.db import usage
from gpgpu_plugin.domain import event as rules
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import history


def list_events(db: api.Database, wanted: history.EventFilter, *,
                limit: int = admin.PAGE_SIZE, marker: str | None = None,
                ) -> tuple[history.EventInfo, ...]:
    """Return a page of events (Conductor.event_list)."""
    if wanted.kind is not None and wanted.kind not in rules.KINDS:
        raise exception.Invalid(
            field='kind', value=wanted.kind,
            expected='one of ' + ', '.join(rules.KINDS))
    pages.check_period(wanted.since, wanted.until)
    after = None if marker is None else pages.number(marker, 'an event')
    with db.reader() as session:
        return event_db.listed(session, wanted, pages.size(limit), after)


# -- The ledger of cleanings, as operators read it.


def list_cleanings(db: api.Database, device: str, limit: int = admin.PAGE_SIZE,
                   marker: str | None = None) -> tuple[ledger.Record, ...]:
    """Return a page of records (Conductor.device_history)."""
    after = pages.number(marker or '0', 'a record')
    with db.reader() as session:
        _head(session, device)
        return ledger_db.listed(
            session, device, pages.size(limit), after)


def ledger_head(db: api.Database, device: str) -> ledger.Head:
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


# -- Usage of devices, as operators list, sum and export it.


def list_usage(db: api.Database, query: history.UsageQuery,
               limit: int = admin.PAGE_SIZE, marker: str | None = None,
               ) -> tuple[history.UsageInfo, ...]:
    """Return a page of usage (Conductor.usage_list)."""
    pages.check_period(query.since, query.until)
    with db.reader() as session:
        return usage.listed(
            session, query, clock.utc(session), pages.size(limit), marker)


def usage_summary(db: api.Database, query: history.UsageQuery,
                  by: Sequence[str],
                  limit: int = admin.PAGE_SIZE, marker: str | None = None,
                  ) -> tuple[history.UsageSum, ...]:
    """Return a page of sums (Conductor.usage_summary)."""
    pages.check_period(query.since, query.until)
    keys = _keys(by)
    with db.reader() as session:
        return usage.summed(
            session, query, keys, clock.utc(session), pages.size(limit),
            None if marker is None else _values(marker, len(keys)))


def unexported(db: api.Database, limit: int = admin.PAGE_SIZE,
               marker: str | None = None) -> tuple[history.UsageInfo, ...]:
    """Return a page of what is to be exported (Conductor.usage_unexported)."""
    with db.reader() as session:
        return usage.unexported(session, pages.size(limit), marker)


def mark_exported(db: api.Database, usages: Sequence[str]) -> int:
    """Mark usage as exported (Conductor.usage_mark_exported)."""
    return db.write(lambda session: usage.mark_exported(
        session, usages, clock.utc(session)))


def _keys(names: Sequence[str]) -> list[history.UsageKey]:
    """Return the keys that usage is summed by, each once.

    :raises Invalid: one is unknown, or there is none
    """
    known = list(history.UsageKey)
    if not names or not set(names) <= set(known):
        raise exception.Invalid(
            field='by', value=','.join(names),
            expected=f'some of {", ".join(known)}')
    return [history.UsageKey(name) for name in dict.fromkeys(names)]


def _values(marker: str, count: int) -> tuple[str | None, ...]:
    """Return the values that a marker names.

    :raises Invalid: it is not the marker of a sum by as many keys
    """
    try:
        values = codec.from_primitive(
            tuple[str | None, ...], json.loads(marker))
    except (exception.Invalid, ValueError):
        values = ()
    if len(values) != count:
        raise exception.Invalid(
            field='marker', value=marker,
            expected=json.dumps(['VALUE'] * count))
    return values
