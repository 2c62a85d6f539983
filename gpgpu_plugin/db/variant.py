# SPDX-License-Identifier: Apache-2.0
"""Rows of ``variants``, and their conversion from and to domain values."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as rules

_IDS = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'revision',
        'type', 'resource_class', 'mix_policy', 'cleaning_policy',
        'memory_mib', 'unsupported_ok', 'allocation_policy',
        'link_partitions')

_IS_LOCK = host_db.LOCKS.c.name == 'variants'

COLUMNS = tuple(tables.VARIANTS.c[name]
                for name in ('name', 'traits', *_IDS))
"""Columns that ``value`` takes, in its order."""



@functools.lru_cache(maxsize=1000)
def value(name: str, traits: str, *ids: str | int | None,
          ) -> rules.Variant:
    """Return the value of some columns, made once in this process."""
    return rules.Variant(
        name=name, traits=tuple(json.loads(traits)),
        **dict(zip(_IDS, ids, strict=True)))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantRow:
    """A row as it was read; tables.VARIANTS gives its columns' meaning.

    :ivar value: what operators say of the variant
    """

    id: int
    version: int
    deleting: bool
    enabled_types: frozenset[str]
    value: rules.Variant


_ROWS = sa.select(
    *(tables.VARIANTS.c[name] for name in (
        'id', 'version', 'deleting', 'enabled_types')), *COLUMNS)


def _rows(session: orm.Session, query: sa.Select[*tuple[typing.Any, ...]],
          ) -> list[VariantRow]:
    return [
        VariantRow(id=id, version=version, deleting=deleting,
                   enabled_types=frozenset(json.loads(types)),
                   value=value(*columns))
        for id, version, deleting, types, *columns in session.execute(query)]


def _columns(variant: rules.Variant) -> dict[str, object]:
    return {'name': variant.name, 'traits': json.dumps(variant.traits),
            'normalized_name': naming.normalize(variant.name),
            **{name: getattr(variant, name) for name in _IDS}}


def insert(session: orm.Session, variant: rules.Variant,
           version: int) -> None:
    """Store a new variant.

    :param version: number of the change
    """
    session.execute(sa.insert(tables.VARIANTS).values(
        version=version, **_columns(variant)))


def store(session: orm.Session, row: VariantRow) -> None:
    """Store how a variant is now."""
    session.execute(sa.update(tables.VARIANTS).where(
        tables.VARIANTS.c.id == row.id).values(
            version=row.version, deleting=row.deleting,
            enabled_types=json.dumps(sorted(row.enabled_types)),
            **_columns(row.value)))


def all(session: orm.Session) -> list[VariantRow]:
    """Return all variants, by name."""
    return _rows(session, _ROWS.order_by(tables.VARIANTS.c.name))


def values(session: orm.Session) -> list[rules.Variant]:
    """Return what operators say of all variants, by name."""
    return [row.value for row in all(session)]


def get(session: orm.Session, name: str) -> VariantRow:
    """Return one variant.

    :raises NotFound: no such name
    """
    found = _rows(session, _ROWS.where(tables.VARIANTS.c.name == name))
    if not found:
        raise exception.NotFound(kind='variant', name=name)
    return found[0]


def doubts(session: orm.Session) -> dict[str, str]:
    """Return why GPUs of variants may not pass their cleaning policy.

    :returns: by name; a variant of which a device has passed it is left out
    """
    passed = session.execute(
        sa.select(tables.GROUPS.c.variant_id, tables.DEVICES.c.cleaned_steps)
        .join(tables.DEVICES, tables.DEVICES.c.group_id == tables.GROUPS.c.id)
        .where(tables.DEVICES.c.cleaned_steps.is_not(None)).distinct()).all()
    return {
        row.value.name: text for row in all(session)
        if (text := cleaning.doubt(
            row.value.cleaning_policy, row.value.vendor,
            row.value.device)) is not None
        and not any(variant_id == row.id and cleaning.is_proven(
            steps, cleaning.steps_of(row.value.cleaning_policy))
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
    """A type that hosts enable or disable in all groups of a variant."""

    version: int
    variant_id: int
    vgpu_type: str
    enabled: bool


_CHANGES = tables.VARIANT_CHANGES


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
    hosts = tables.HOSTS.c
    behind = session.scalar(sa.select(
        sa.func.min(hosts.variants_version)).where(hosts.deleted == 0))
    session.execute(sa.delete(_CHANGES).where(
        sa.true() if behind is None else _CHANGES.c.version <= behind))
    variants = tables.VARIANTS.c
    gone = list(session.scalars(sa.select(variants.id).where(
        variants.deleting,
        sa.true() if behind is None else variants.version <= behind,
        variants.id.not_in(sa.select(tables.GROUPS.c.variant_id)))))
    if gone:
        session.execute(sa.delete(_CHANGES).where(
            _CHANGES.c.variant_id.in_(gone)))
        session.execute(sa.delete(tables.VARIANTS).where(
            variants.id.in_(gone)))


def is_prunable(session: orm.Session) -> bool:
    """Return whether there is anything that ``prune`` may delete."""
    return session.scalar(sa.union_all(
        sa.select(_CHANGES.c.version),
        sa.select(tables.VARIANTS.c.id).where(tables.VARIANTS.c.deleting),
    ).limit(1)) is not None


def hosts_pending(session: orm.Session, row: VariantRow) -> int:
    """Return how many live hosts do not have the last change of a variant."""
    return session.scalars(
        sa.select(sa.func.count()).select_from(tables.HOSTS).where(
            tables.HOSTS.c.deleted == 0,
            tables.HOSTS.c.variants_version < row.version)).one()


def hosts_behind(session: orm.Session) -> list[int]:
    """Return the ids of live hosts without the last change of a variant.

    Those with a group of a variant that is being deleted are among them: its
    devices may be free now.
    """
    return list(session.scalars(
        sa.select(tables.HOSTS.c.id).where(tables.HOSTS.c.deleted == 0, sa.or_(
            tables.HOSTS.c.variants_version < sa.select(
                host_db.LOCKS.c.value).where(_IS_LOCK).scalar_subquery(),
            tables.HOSTS.c.id.in_(
                sa.select(tables.GROUPS.c.host_id)
                .join(tables.VARIANTS,
                      tables.VARIANTS.c.id == tables.GROUPS.c.variant_id)
                .where(tables.VARIANTS.c.deleting))))
        .order_by(tables.HOSTS.c.id)))


def classes(session: orm.Session) -> list[str]:
    """Return the resource classes of all variants, by the variants' names."""
    return list(session.scalars(
        sa.select(tables.VARIANTS.c.resource_class)
        .order_by(tables.VARIANTS.c.name)))
