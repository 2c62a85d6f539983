# SPDX-License-Identifier: Apache-2.0
"""Variants, as operators create, change and delete them at run time.

One transaction changes a variant, and locks no host; hosts take the change
over in their next transactions (``variant_sweep``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects


def _infos(session: orm.Session, rows: Sequence[variant_db.VariantRow],
           ) -> tuple[objects.VariantInfo, ...]:
    counts = device_db.count_by_variant(session)
    doubts = variant_db.doubts(session)
    return tuple(
        _info(row, counts.get(row.id, 0), doubts.get(row.value.name),
              variant_db.hosts_pending(session, row)) for row in rows)


def _info(row: variant_db.VariantRow, devices: int, doubt: str | None,
          pending: int) -> objects.VariantInfo:
    status = (rules.VariantStatus.DELETING if row.deleting
              else rules.VariantStatus.APPLYING if pending
              else rules.VariantStatus.READY)
    return objects.VariantInfo(
        devices=devices, status=str(status), reason=doubt,
        hosts_pending=pending,
        **dataclasses.asdict(row.value))


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
           caller: variant_sweep.SweepCaller = variant_sweep.PATIENT,
           ) -> objects.VariantInfo:
    """Create a variant (ConductorAPI.variant_create)."""
    value = rules.check(view.without_devices())

    def work(session: orm.Session) -> None:
        version = variant_db.lock(session)
        rules.check_beside(value, variant_db.values(session))
        variant_db.insert(session, value, version)
        event_db.add(session, 'variant_create', detail=json.dumps(
            dataclasses.asdict(value)))
        caller.check_wanted()
    db.write(work)
    variant_sweep.run(db, caller)
    return show(db, value.name)


def preview(db: api.Database, views: Sequence[objects.VariantInfo],
            limit: int = objects.PAGE_SIZE, marker: str | None = None,
            ) -> tuple[objects.VariantPreview, ...]:
    """Return a page of what hosts would clean (Conductor.variant_preview)."""
    values = [rules.check(view.without_devices()) for view in views]
    after = 0 if marker is None else pages.number(marker, 'a host')
    with db.reader() as session:
        others = variant_db.values(session)
        for value in values:
            rules.check_beside(value, others)
        return variant_sweep.preview_page(
            session, values, pages.size(limit), after)


def set_(db: api.Database, view: objects.VariantInfo,
         caller: variant_sweep.SweepCaller = variant_sweep.PATIENT,
         read: objects.VariantInfo | None = None) -> objects.VariantInfo:
    """Replace a variant's fields (ConductorAPI.variant_set)."""
    value = rules.check(view.without_devices())

    def work(session: orm.Session) -> None:
        version = variant_db.lock(session)
        row = _settable(session, value.name)
        if read is not None and read.without_devices() != row.value:
            raise exception.Conflict(
                kind='variant', name=value.name,
                reason='somebody else changed it at the same time; nothing '
                       'was changed now; try again')
        changed = rules.changed(row.value, value)
        identity = [name for name in changed if name in rules.IDENTITY]
        if identity:
            _check_unused(session, row, identity)
        rules.check_beside(value, [
            other for other in variant_db.values(session)
            if other.name != value.name])
        variant_db.store(session, dataclasses.replace(
            row, value=value, version=version))
        event_db.add(session, 'variant_set', detail=json.dumps(
            dataclasses.asdict(value)))
        caller.check_wanted()
    db.write(work)
    variant_sweep.run(db, caller)
    return show(db, value.name)


def delete(db: api.Database, name: str,
           caller: variant_sweep.SweepCaller = variant_sweep.PATIENT) -> None:
    """Delete a variant (ConductorAPI.variant_delete)."""
    def work(session: orm.Session) -> None:
        version = variant_db.lock(session)
        row = _settable(session, name)
        _check_unused(session, row)
        event_db.add(session, 'variant_delete', detail=name)
        variant_db.store(session, dataclasses.replace(
            row, deleting=True, version=version))
        caller.check_wanted()
    db.write(work)
    variant_sweep.run(db, caller)


def _settable(session: orm.Session, name: str) -> variant_db.VariantRow:
    """Return a variant that can be changed.

    :raises NotFound: no such name
    :raises Conflict: it is being deleted
    """
    row = variant_db.get(session, name)
    if row.deleting:
        raise exception.Conflict(
            kind='variant', name=name,
            reason='it is being deleted, which ends with the last assignment '
                   'of its devices; "gpgpu-manage device list --variant '
                   f'{name}" lists them')
    return row


def _check_unused(session: orm.Session, row: variant_db.VariantRow,
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
        kind='variant', name=row.value.name,
        reason=f'instance {instance} has a device of this variant, so that '
               f'{why}; "gpgpu-manage device list --variant {row.value.name} '
               f'--state assigned" lists such instances: delete them or '
               f'resize them to another flavor, and try again')
