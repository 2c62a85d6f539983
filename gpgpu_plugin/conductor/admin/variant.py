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
"""Variants, as operators create, change and delete them at run time.

One transaction changes a variant and applies it to all hosts concerned, so
that a crash cannot leave out a host. It locks the row ``variants`` first, then
the hosts in the order of their ids.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects


def _infos(session: orm.Session,
           rows: list[models.Variant]) -> tuple[objects.VariantInfo, ...]:
    counts = device_db.count_by_variant(session)
    return tuple(
        objects.VariantInfo(
            devices=counts.get(row.id, 0),
            **dataclasses.asdict(variant_db.to_domain(row)))
        for row in rows)


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


def _apply(session: orm.Session,
           hosts: Sequence[models.Host]) -> list[str]:
    """Bring all devices into their groups.

    :returns: names of the hosts that changed
    """
    session.flush()
    before = {host.id: host.generation for host in hosts}
    variant_matching.apply(session, hosts)
    changed = [host for host in hosts if host.generation != before[host.id]]
    type_sync.sync(session, [host.id for host in changed])
    inventory.refresh_all(session, [host.id for host in changed])
    return [host.name for host in changed]


def create(db: api.Database, view: objects.VariantInfo,
           ) -> tuple[objects.VariantInfo, list[str]]:
    """Create a variant (ConductorAPI.variant_create).

    :returns: it, and the hosts that changed
    """
    value = rules.check(view.without_devices())

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
        return _infos(session, [row])[0], changed
    return db.write(work)


def set_(db: api.Database, view: objects.VariantInfo,
         ) -> tuple[objects.VariantInfo, list[str]]:
    """Replace a variant's fields (ConductorAPI.variant_set)."""
    value = rules.check(view.without_devices())

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
        touched = {
            by_id[group.host_id]
            for group in group_db.of_variant(session, row.id)
        }
        for host in touched:
            host_db.changed(host)
        changed = {host.name for host in touched} | set(
            _apply(session, hosts))
        return _infos(session, [row])[0], sorted(changed)
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
        groups = group_db.of_variant(session, row.id)
        device_db.leave_groups(session, [group.id for group in groups])
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


def _check_unused(session: orm.Session, row: models.Variant) -> None:
    instance = assignment_db.instance_of_variant(session, row.id)
    if instance is not None:
        raise exception.Conflict(
            kind='variant', name=row.name,
            reason=f'instance {instance} has a device of this variant')
