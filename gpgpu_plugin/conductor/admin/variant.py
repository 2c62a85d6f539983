#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Variants are data: created, changed and deleted at run time.

One transaction changes a variant and applies it to every host it concerns,
so that no crash leaves a host behind. It locks the row ``variants`` first,
then the hosts in the order of their ids.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects

_FIELDS = tuple(
    field.name for field in dataclasses.fields(rules.Variant))


def _to_domain(view: objects.VariantInfo) -> rules.Variant:
    return rules.check(rules.Variant(
        **{name: getattr(view, name) for name in _FIELDS}))


def _views(session: orm.Session,
           rows: list[models.Variant]) -> tuple[objects.VariantInfo, ...]:
    counts: collections.Counter[int] = collections.Counter(dict(
        session.execute(
            sa.select(models.Group.variant_id, sa.func.count())
            .join(models.Device, models.Device.group_id == models.Group.id)
            .group_by(models.Group.variant_id)).all()))
    return tuple(
        objects.VariantInfo(
            devices=counts[row.id],
            **{name: getattr(variant_db.to_domain(row), name)
               for name in _FIELDS})
        for row in rows)


def list_all(db: api.Database) -> tuple[objects.VariantInfo, ...]:
    """All variants, by name."""
    with db.reader() as session:
        return _views(session, variant_db.all(session))


def show(db: api.Database, name: str) -> objects.VariantInfo:
    """One variant. :raises NotFound: no such name"""
    with db.reader() as session:
        return _views(session, [variant_db.get(session, name)])[0]


def _apply(session: orm.Session,
           hosts: Sequence[models.Host]) -> list[str]:
    """Regroup all devices. :returns: names of the hosts that changed"""
    session.flush()
    before = {host.id: host.generation for host in hosts}
    variant_matching.apply(session, hosts)
    changed = [host for host in hosts if host.generation != before[host.id]]
    vgpu_type_admin.sync(session, [host.id for host in changed])
    inventory.refresh_all(session, [host.id for host in changed])
    return [host.name for host in changed]


def create(db: api.Database, view: objects.VariantInfo,
           ) -> tuple[objects.VariantInfo, list[str]]:
    """Create a variant (ConductorAPI.variant_create).

    :returns: it, and the hosts that changed
    """
    value = _to_domain(view)

    def work(session: orm.Session,
             ) -> tuple[objects.VariantInfo, list[str]]:
        host_db.lock_row(session, 'variants')
        hosts = host_db.lock_all(session)
        rules.check_beside(value, map(
            variant_db.to_domain, variant_db.all(session)))
        row = variant_db.fill(models.Variant(), value)
        session.add(row)
        event_db.add(session, 'variant_create', detail=json.dumps(
            dataclasses.asdict(value)))
        changed = _apply(session, hosts)
        return _views(session, [row])[0], changed
    return db.write(work)


def set_(db: api.Database, view: objects.VariantInfo,
         ) -> tuple[objects.VariantInfo, list[str]]:
    """Replace a variant's fields (ConductorAPI.variant_set)."""
    value = _to_domain(view)

    def work(session: orm.Session,
             ) -> tuple[objects.VariantInfo, list[str]]:
        host_db.lock_row(session, 'variants')
        hosts = host_db.lock_all(session)
        by_id = {host.id: host for host in hosts}
        row = variant_db.get(session, value.name)
        _check_unused(session, row)
        rules.check_beside(value, [
            variant_db.to_domain(other) for other in variant_db.all(session)
            if other.id != row.id])
        variant_db.fill(row, value)
        event_db.add(session, 'variant_set', detail=json.dumps(
            dataclasses.asdict(value)))
        touched = {by_id[group.host_id] for group in _groups(session, row)}
        for host in touched:
            host_db.changed(host)
        changed = {host.name for host in touched} | set(
            _apply(session, hosts))
        return _views(session, [row])[0], sorted(changed)
    return db.write(work)


def delete(db: api.Database, name: str) -> list[str]:
    """Delete a variant (ConductorAPI.variant_delete).

    :returns: the hosts that changed
    """
    def work(session: orm.Session) -> list[str]:
        host_db.lock_row(session, 'variants')
        hosts = host_db.lock_all(session)
        by_id = {host.id: host for host in hosts}
        row = variant_db.get(session, name)
        _check_unused(session, row)
        groups = _groups(session, row)
        session.execute(
            sa.update(models.Device)
            .where(models.Device.group_id.in_([each.id for each in groups]))
            .values(group_id=None))
        changed = set()
        for group in groups:
            host_db.changed(by_id[group.host_id])
            changed.add(by_id[group.host_id].name)
            session.delete(group)
        session.flush()
        session.delete(row)
        event_db.add(session, 'variant_delete', detail=name)
        return sorted(changed | set(_apply(session, hosts)))
    return db.write(work)


def _groups(session: orm.Session,
            row: models.Variant) -> list[models.Group]:
    return list(session.scalars(
        sa.select(models.Group).where(models.Group.variant_id == row.id)
        .options(orm.selectinload(models.Group.types))))


def _check_unused(session: orm.Session, row: models.Variant) -> None:
    holder = session.scalar(
        sa.select(models.Assignment.instance_uuid)
        .join(models.Device).join(
            models.Group, models.Device.group_id == models.Group.id)
        .where(models.Assignment.active == 1,
               models.Group.variant_id == row.id).limit(1))
    if holder is not None:
        raise exception.Conflict(
            kind='variant', name=row.name,
            reason=f'instance {holder} holds a device of it')
