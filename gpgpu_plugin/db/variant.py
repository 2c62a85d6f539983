# SPDX-License-Identifier: Apache-2.0
"""Rows of ``variants``, and their conversion from and to domain values."""

from __future__ import annotations

import functools
import json
import typing

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


def lock(session: orm.Session) -> int:
    """Let no other writer change variants until the transaction ends.

    Must be the transaction's first statement (see db.api).

    :returns: number of the change that the transaction makes
    """
    host_db.lock_row(session, 'variants')
    session.execute(sa.update(host_db.LOCKS).where(_IS_LOCK).values(
        value=host_db.LOCKS.c.value + 1))
    return change_number(session)


def change_number(session: orm.Session) -> int:
    """Return the number of changes of variants that were made so far."""
    return int(session.scalars(
        sa.select(host_db.LOCKS.c.value).where(_IS_LOCK)).one())


class Change(typing.NamedTuple):
    """A change that hosts make in all groups of a variant.

    ``vgpu_type``: type that is enabled or disabled; None: groups lose the
    allocation policy of their own.
    """

    version: int
    variant_id: int
    vgpu_type: str | None
    enabled: bool


_CHANGES = models.Base.metadata.tables['variant_changes']


def add_change(session: orm.Session, change: Change) -> None:
    """Have all hosts make a change in the groups of a variant."""
    session.execute(sa.insert(_CHANGES).values(**change._asdict()))


def changes_after(session: orm.Session, version: int) -> list[Change]:
    """Return the changes that a host has not made yet, in their order.

    :param version: number of the last one that it has made
    """
    return [Change(*row) for row in session.execute(
        sa.select(*(_CHANGES.c[name] for name in Change._fields))
        .where(_CHANGES.c.version > version).order_by(_CHANGES.c.version))]


def prune(session: orm.Session) -> None:
    """Delete changes that all hosts have made, and variants without groups.

    Only those that are to be deleted. The caller has locked the variants.
    """
    hosts = models.Base.metadata.tables['hosts']
    behind = session.scalar(sa.select(
        sa.func.min(hosts.c.variants_version)).where(hosts.c.deleted == 0))
    session.execute(sa.delete(_CHANGES).where(
        sa.true() if behind is None else _CHANGES.c.version <= behind))
    variants = models.Base.metadata.tables['variants']
    groups = models.Base.metadata.tables['host_gpu_groups']
    gone = list(session.scalars(sa.select(variants.c.id).where(
        variants.c.deleting,
        sa.true() if behind is None else variants.c.version <= behind,
        variants.c.id.not_in(sa.select(groups.c.variant_id)))))
    if gone:
        session.execute(sa.delete(_CHANGES).where(
            _CHANGES.c.variant_id.in_(gone)))
        session.execute(sa.delete(variants).where(variants.c.id.in_(gone)))


def is_prunable(session: orm.Session) -> bool:
    """Return whether there is anything that ``prune`` may delete."""
    return session.scalar(sa.union_all(
        sa.select(_CHANGES.c.version),
        sa.select(models.Variant.id).where(models.Variant.deleting),
    ).limit(1)) is not None


def hosts_pending(session: orm.Session, row: models.Variant) -> int:
    """Return how many live hosts do not have the last change of a variant."""
    return session.scalars(
        sa.select(sa.func.count()).select_from(models.Host).where(
            models.Host.deleted == 0,
            models.Host.variants_version < row.version)).one()


def hosts_behind(session: orm.Session) -> list[int]:
    """Return the ids of live hosts without the last change of a variant.

    Those with a group of a variant that is being deleted are among them: its
    devices may be free now.
    """
    return list(session.scalars(
        sa.select(models.Host.id).where(models.Host.deleted == 0, sa.or_(
            models.Host.variants_version < sa.select(
                host_db.LOCKS.c.value).where(_IS_LOCK).scalar_subquery(),
            models.Host.id.in_(
                sa.select(models.Group.host_id)
                .join(models.Variant,
                      models.Variant.id == models.Group.variant_id)
                .where(models.Variant.deleting))))
        .order_by(models.Host.id)))


def has_class(session: orm.Session, resource_class: str) -> bool:
    """Return whether some variant has the resource class."""
    return session.scalar(
        sa.select(models.Variant.id)
        .where(models.Variant.resource_class == resource_class)
        .limit(1)) is not None


def enabled_types(row: models.Variant) -> set[str]:
    """Return the types that new groups offer, ``passthrough`` among them."""
    return set(json.loads(row.enabled_types))
