# SPDX-License-Identifier: Apache-2.0
"""Rows of ``variant_changes``, and the hosts that a change concerns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import variant as rules


def add(session: orm.Session, row: models.Variant, status: rules.Status,
        values: Iterable[rules.Variant],
        before: rules.Variant | None) -> models.VariantChange:
    """Add a change of a variant, which no host has yet.

    :param values: hosts with devices that have the ids of these are concerned
    :param before: to what the variant returns if the change is undone
    """
    row.status, row.reason = str(status), None
    session.flush()
    change = models.VariantChange(
        variant_id=row.id, last_host_id=0, skipped_hosts='[]',
        ids=json.dumps(sorted({
            (value.vendor, value.device) for value in values})),
        before=None if before is None else json.dumps(
            dataclasses.asdict(before)))
    session.add(change)
    session.flush()
    return change


def add_type(session: orm.Session, row: models.Variant, vgpu_type: str, *,
             enabled: bool) -> models.VariantChange:
    """Add the enabling or disabling of a type on all hosts of a variant."""
    change = add(session, row, rules.Status.APPLYING, [], None)
    change.vgpu_type, change.enabled = vgpu_type, enabled
    return change


def add_clearing(session: orm.Session,
                 row: models.Variant) -> models.VariantChange:
    """Add that all groups of a variant lose what they have of their own."""
    change = add(session, row, rules.Status.APPLYING, [], None)
    change.clears_groups = True
    return change


def matches(change: models.VariantChange) -> bool:
    """Return whether devices may change their groups."""
    return change.vgpu_type is None and not change.clears_groups


def before(change: models.VariantChange) -> rules.Variant | None:
    """Return to what the variant returns if the change is undone."""
    if change.before is None:
        return None
    fields = json.loads(change.before)
    return rules.Variant(**{**fields, 'traits': tuple(fields['traits'])})


def skipped(change: models.VariantChange) -> list[int]:
    """Return the ids of hosts to which the change could not be applied.

    They were locked when it was their turn, or it failed.
    """
    found: list[int] = json.loads(change.skipped_hosts)
    return found


def all(session: orm.Session) -> list[models.VariantChange]:
    """Return all changes, oldest first."""
    return list(session.scalars(
        sa.select(models.VariantChange).order_by(models.VariantChange.id)))


def types_being_enabled(session: orm.Session) -> list[tuple[str, str]]:
    """Return the types that some hosts do not offer yet.

    :returns: name of the variant and of the type
    """
    return [(name, vgpu_type) for name, vgpu_type in session.execute(
        sa.select(models.Variant.name, models.VariantChange.vgpu_type)
        .join(models.VariantChange,
              models.VariantChange.variant_id == models.Variant.id)
        .where(models.VariantChange.enabled.is_(True)))
        if vgpu_type is not None]


def of_variant(session: orm.Session,
               variant_id: int) -> models.VariantChange | None:
    """Return the change of a variant, if some host does not have it yet."""
    return session.scalar(sa.select(models.VariantChange).where(
        models.VariantChange.variant_id == variant_id))


def lock(session: orm.Session, change_id: int) -> models.VariantChange | None:
    """Return a change, locked until the transaction ends.

    :returns: None if it has ended, or another conductor is working on it
    """
    return session.scalar(
        sa.select(models.VariantChange)
        .where(models.VariantChange.id == change_id)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True))


def next_hosts(session: orm.Session, change: models.VariantChange,
               limit: int | None = None) -> list[int]:
    """Return the ids of the next hosts that a change concerns, in order.

    Those are hosts that have a group of the variant and, unless only groups
    change, hosts with devices of its ids.
    """
    pairs = json.loads(change.ids) if matches(change) else []
    found = set(group_db.host_ids_of_variant(
        session, change.variant_id, change.last_host_id, limit))
    for vendor, product in pairs:
        found.update(device_db.host_ids_by_ids(
            session, vendor, product, change.last_host_id, limit))
    return sorted(found)[:limit]


def hosts_pending(session: orm.Session, change: models.VariantChange) -> int:
    """Return how many hosts do not have the change yet."""
    return len(next_hosts(session, change)) + len(skipped(change))
