# SPDX-License-Identifier: Apache-2.0
"""Variants, as operators create, change and delete them at run time.

One transaction changes a variant, and locks no host. ``variant_changes``
applies the change to the hosts that it concerns, a chunk of them at a time.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import variant_changes
from gpgpu_plugin.conductor import variant_preview
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import variant_change as change_db
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects

_NAMED = 8
"""Number of hosts that a reason names."""


def _infos(session: orm.Session,
           rows: list[models.Variant]) -> tuple[objects.VariantInfo, ...]:
    counts = device_db.count_by_variant(session)
    changes = {change.variant_id: change
               for change in change_db.all(session)}
    pending = {variant_id: change_db.hosts_pending(session, change)
               for variant_id, change in changes.items()}
    doubts = variant_db.doubts(session)
    return tuple(
        objects.VariantInfo(
            devices=counts.get(row.id, 0), status=row.status,
            reason=row.reason or _waits_for(session, changes.get(row.id))
            or doubts.get(row.name),
            hosts_pending=pending.get(row.id, 0),
            **dataclasses.asdict(variant_db.to_domain(row)))
        for row in rows)


def _waits_for(session: orm.Session,
               change: models.VariantChange | None) -> str | None:
    """Return which hosts keep a change from ending, if it tried them."""
    skipped = change_db.skipped(change) if change is not None else []
    if not skipped:
        return None
    names = [host.name for host in host_db.by_ids(session, skipped[:_NAMED])]
    more = len(skipped) - len(names)
    return (f'its last change could not be applied to {", ".join(names)}'
            f'{f" and {more} more" if more else ""}, where a transaction had '
            f'the lock or the change failed; gpgpu-conductor tries again and '
            f'logs the cause')


def list_all(db: api.Database) -> tuple[objects.VariantInfo, ...]:
    """Return all variants, by name."""
    with db.reader() as session:
        return _infos(session, variant_db.all(session))


def show(db: api.Database, name: str) -> objects.VariantInfo:
    """Return one variant.

    :raises NotFound: no such name
    """
    with db.reader() as session:
        return _infos(session, [variant_db.get(session, name)])[0]


def create(db: api.Database, view: objects.VariantInfo,
           caller: variant_changes.Caller = variant_changes.PATIENT,
           ) -> objects.VariantInfo:
    """Create a variant (ConductorAPI.variant_create)."""
    value = rules.check(view.without_devices())

    def work(session: orm.Session) -> int:
        variant_db.lock(session)
        rules.check_beside(value, _others(session))
        row = variant_db.fill(models.Variant(), value)
        session.add(row)
        event_db.add(session, 'variant_create', detail=json.dumps(
            dataclasses.asdict(value)))
        change = change_db.add(
            session, row, rules.Status.APPLYING, [value], None)
        caller.check_wanted()
        return change.id
    variant_changes.apply(db, db.write(work), caller)
    return show(db, value.name)


def preview(db: api.Database, views: Sequence[objects.VariantInfo],
            limit: int = objects.PAGE_SIZE, marker: str | None = None,
            ) -> tuple[objects.VariantPreview, ...]:
    """Return a page of what hosts would clean (Conductor.variant_preview)."""
    values = [rules.check(view.without_devices()) for view in views]
    after = 0 if marker is None else pages.number(marker, 'a host')
    with db.reader() as session:
        others = _others(session)
        for value in values:
            rules.check_beside(value, others)
        return variant_preview.page(
            session, values, pages.size(limit), after)


def set_(db: api.Database, view: objects.VariantInfo,
         caller: variant_changes.Caller = variant_changes.PATIENT,
         read: objects.VariantInfo | None = None) -> objects.VariantInfo:
    """Replace a variant's fields (ConductorAPI.variant_set)."""
    value = rules.check(view.without_devices())

    def work(session: orm.Session) -> int:
        variant_db.lock(session)
        row = variant_db.get(session, value.name)
        before = variant_db.to_domain(row)
        if read is not None and read.without_devices() != before:
            raise exception.Conflict(
                kind='variant', name=row.name,
                reason='somebody else changed it at the same time; nothing '
                       'was changed now; try again')
        variant_changes.check_settled(session, row)
        changed = rules.changed(before, value)
        identity = [name for name in changed if name in rules.IDENTITY]
        if identity:
            _check_unused(session, row, identity)
        rules.check_beside(value, [
            other for other in _others(session)
            if other.name != value.name])
        variant_db.fill(row, value)
        event_db.add(session, 'variant_set', detail=json.dumps(
            dataclasses.asdict(value)))
        change = change_db.add(
            session, row, rules.Status.CHANGING, [before, value], before,
        ) if identity else change_db.add(
            session, row, rules.Status.APPLYING, [value],
            # What groups offer changes, even where no device moves.
            None if set(rules.OFFER).isdisjoint(changed) else before)
        caller.check_wanted()
        return change.id
    variant_changes.apply(db, db.write(work), caller)
    return show(db, value.name)


def delete(db: api.Database, name: str,
           caller: variant_changes.Caller = variant_changes.PATIENT) -> None:
    """Delete a variant (ConductorAPI.variant_delete)."""
    def work(session: orm.Session) -> int:
        variant_db.lock(session)
        row = variant_db.get(session, name)
        variant_changes.check_settled(session, row)
        _check_unused(session, row)
        value = variant_db.to_domain(row)
        event_db.add(session, 'variant_delete', detail=name)
        change = change_db.add(
            session, row, rules.Status.DELETING, [value], value)
        caller.check_wanted()
        return change.id
    variant_changes.apply(db, db.write(work), caller)


def _others(session: orm.Session) -> list[rules.Variant]:
    """Return what a variant must not conflict with.

    A change that is not applied yet may be undone.
    """
    changes = [change_db.before(change) for change in change_db.all(session)]
    return [
        *map(variant_db.to_domain, variant_db.all(session)),
        *(value for value in changes if value is not None)]


def _check_unused(session: orm.Session, row: models.Variant,
                  fields: Sequence[str] = ()) -> None:
    """Refuse to delete a variant in use, or to change what it is.

    :param fields: those that would change; none: it is to be deleted
    :raises Conflict: it says which fields can change and how to go on
    """
    instance = assignment_db.instance_of_variant(session, row.id)
    if instance is None:
        return
    names = ', '.join(name.replace('_', ' ') for name in fields)
    why = (f'{names} cannot change meanwhile, all other fields can'
           if fields else 'it cannot be deleted meanwhile')
    raise exception.Conflict(
        kind='variant', name=row.name,
        reason=f'instance {instance} has a device of this variant, so that '
               f'{why}; "gpgpu-manage device list --variant {row.name} '
               f'--state assigned" lists such instances: delete them or '
               f'resize them to another flavor, and try again')
