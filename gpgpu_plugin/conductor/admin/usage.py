# SPDX-License-Identifier: Apache-2.0
"""Usage of devices, as operators list, sum and export it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import usage_list
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import usage as objects


def list_all(db: api.Database, query: objects.UsageQuery,
             limit: int = admin.PAGE_SIZE, marker: str | None = None,
             ) -> tuple[objects.UsageInfo, ...]:
    """Return a page of usage (Conductor.usage_list)."""
    pages.check_period(query.since, query.until)
    with db.reader() as session:
        return usage_list.listed(
            session, query, clock.utc(session), pages.size(limit), marker)


def summary(db: api.Database, query: objects.UsageQuery, by: Sequence[str],
            limit: int = admin.PAGE_SIZE, marker: str | None = None,
            ) -> tuple[objects.UsageSum, ...]:
    """Return a page of sums (Conductor.usage_summary)."""
    pages.check_period(query.since, query.until)
    keys = _keys(by)
    with db.reader() as session:
        return usage_list.summed(
            session, query, keys, clock.utc(session), pages.size(limit),
            None if marker is None else _values(marker, len(keys)))


def unexported(db: api.Database, limit: int = admin.PAGE_SIZE,
               marker: str | None = None) -> tuple[objects.UsageInfo, ...]:
    """Return a page of what is to be exported (Conductor.usage_unexported)."""
    with db.reader() as session:
        return usage_list.unexported(session, pages.size(limit), marker)


def mark_exported(db: api.Database, usages: Sequence[str]) -> int:
    """Mark usage as exported (Conductor.usage_mark_exported)."""
    return db.write(lambda session: usage_list.mark_exported(
        session, usages, clock.utc(session)))


def _keys(names: Sequence[str]) -> list[objects.UsageKey]:
    """Return the keys that usage is summed by, each once.

    :raises Invalid: one is unknown, or there is none
    """
    known = list(objects.UsageKey)
    if not names or not set(names) <= set(known):
        raise exception.Invalid(
            field='by', value=','.join(names),
            expected=f'some of {", ".join(known)}')
    return [objects.UsageKey(name) for name in dict.fromkeys(names)]


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
