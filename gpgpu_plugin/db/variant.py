# SPDX-License-Identifier: Apache-2.0
"""Rows of ``variants``, and their conversion from and to domain values."""

from __future__ import annotations

import dataclasses
import functools
import json

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as rules

_IDS = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'revision',
        'type', 'resource_class', 'mix_policy', 'cleaning_policy',
        'memory_mib', 'unsupported_ok', 'allocation_policy',
        'link_partitions')

_IS_LOCK = host_db.LOCKS.c.name == 'variants'

COLUMNS = tuple(models.Base.metadata.tables['variants'].c[name]
                for name in ('name', 'traits', *_IDS))
"""Columns that ``value`` takes, in its order."""


@functools.lru_cache(maxsize=1000)
def value(name: str, traits: str, *ids: str | int | None,
          ) -> rules.Variant:
    """Return the value of some columns, made once in this process."""
    return rules.Variant(
        name=name, traits=tuple(json.loads(traits)),
        **dict(zip(_IDS, ids, strict=True)))  # type: ignore[arg-type]


def to_domain(row: models.Variant) -> rules.Variant:
    """Return the value of a row."""
    return value(row.name, row.traits, *(getattr(row, name) for name in _IDS))


def fill(row: models.Variant, variant: rules.Variant) -> models.Variant:
    """Write a value into a row, and return the row."""
    row.name = variant.name
    row.normalized_name = naming.normalize(variant.name)
    row.traits = json.dumps(variant.traits)
    for name in _IDS:
        setattr(row, name, getattr(variant, name))
    return row


def all(session: orm.Session) -> list[models.Variant]:
    """Return all variants, by name."""
    return list(session.scalars(
        sa.select(models.Variant).order_by(models.Variant.name)))


def get(session: orm.Session, name: str) -> models.Variant:
    """Return one variant.

    :raises NotFound: no such name
    """
    row = session.scalar(
        sa.select(models.Variant).where(models.Variant.name == name))
    if row is None:
        raise exception.NotFound(kind='variant', name=name)
    return row


def doubts(session: orm.Session) -> dict[str, str]:
    """Return why GPUs of variants may not pass their cleaning policy.

    :returns: by name; a variant of which a device has passed it is left out
    """
    passed = session.execute(
        sa.select(models.Group.variant_id, models.Device.cleaned_steps)
        .join(models.Device, models.Device.group_id == models.Group.id)
        .where(models.Device.cleaned_steps.is_not(None)).distinct()).all()
    return {
        row.name: text for row in all(session)
        if (text := cleaning.doubt(row.cleaning_policy, row.vendor,
                                   row.device)) is not None
        and not any(variant_id == row.id and cleaning.is_proven(
            steps, cleaning.steps_of(row.cleaning_policy))
            for variant_id, steps in passed)}


def lock(session: orm.Session) -> None:
    """Let no other writer change variants until the transaction ends.

    The change gets a number, see ``change_number``. Must be the transaction's
    first statement (see db.api).
    """
    host_db.lock_row(session, 'variants')
    session.execute(sa.update(host_db.LOCKS).where(_IS_LOCK).values(
        value=host_db.LOCKS.c.value + 1))


def change_number(session: orm.Session) -> int:
    """Return the number of changes of variants that were made so far."""
    return int(session.scalars(
        sa.select(host_db.LOCKS.c.value).where(_IS_LOCK)).one())


def status(row: models.Variant) -> rules.Status:
    """Return whether a change of the variant is being applied to hosts."""
    return rules.Status(row.status)


def has_class(session: orm.Session, resource_class: str) -> bool:
    """Return whether some variant has the resource class."""
    return session.scalar(
        sa.select(models.Variant.id)
        .where(models.Variant.resource_class == resource_class)
        .limit(1)) is not None


def enabled_types(row: models.Variant) -> set[str]:
    """Return the types that new groups offer, ``passthrough`` among them."""
    return set(json.loads(row.enabled_types))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """What groups of a variant have if they have nothing of their own.

    :ivar enabled_types: ``passthrough`` among them
    """

    enabled_types: frozenset[str]
    allocation_policy: str


def keep_defaults(session: orm.Session, variant_id: int) -> Defaults:
    """Return what new groups have until the transaction ends.

    Who changes it meanwhile waits, and then finds the groups that this
    transaction adds.
    """
    types, policy = session.execute(
        sa.select(models.Variant.enabled_types,
                  models.Variant.allocation_policy)
        .where(models.Variant.id == variant_id)
        .with_for_update(read=True)).tuples().one()
    return Defaults(enabled_types=frozenset(json.loads(types)),
                    allocation_policy=policy)
