# SPDX-License-Identifier: Apache-2.0
"""The history of events, as operators read it."""

from __future__ import annotations

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.domain import event as rules
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import event as objects


def list_all(db: api.Database, wanted: objects.EventFilter, *,
             limit: int = admin.PAGE_SIZE, marker: str | None = None,
             ) -> tuple[objects.EventInfo, ...]:
    """Return a page of events (Conductor.event_list)."""
    if wanted.kind is not None and wanted.kind not in rules.KINDS:
        raise exception.Invalid(
            field='kind', value=wanted.kind,
            expected='one of ' + ', '.join(rules.KINDS))
    pages.check_period(wanted.since, wanted.until)
    after = None if marker is None else pages.number(marker, 'an event')
    with db.reader() as session:
        return event_db.listed(session, wanted, pages.size(limit), after)
