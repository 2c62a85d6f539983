# SPDX-License-Identifier: Apache-2.0
"""Tables of variants and their changes; ``models`` exports them with all."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class Variant(column.Base):
    """A name for devices with certain ids.

    Unique keys: each variant is found by name, and no two have the same
    resource classes.
    """

    __tablename__ = 'variants'
    __table_args__ = (sa.UniqueConstraint('name'),
                      sa.UniqueConstraint('normalized_name'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='What operators and flavors call it.')
    normalized_name: orm.Mapped[str] = orm.mapped_column(
        sa.String(64),
        comment='Its form in resource classes and traits, where two names may '
        'be one.')
    vendor: orm.Mapped[str] = orm.mapped_column(
        column.PCI_ID, comment='PCI vendor id of its devices.')
    device: orm.Mapped[str] = orm.mapped_column(
        column.PCI_ID, comment='PCI device id of its devices.')
    subsystem_vendor: orm.Mapped[str | None] = orm.mapped_column(
        column.PCI_ID, comment='PCI subsystem vendor id; NULL: any.')
    subsystem: orm.Mapped[str | None] = orm.mapped_column(
        column.PCI_ID, comment='PCI subsystem id; NULL: any.')
    revision: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(2), comment='PCI revision; NULL: any.')
    type: orm.Mapped[str] = orm.mapped_column(
        sa.String(32),
        comment='Kind of accelerator, as operators list it.')
    resource_class: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Class of a whole GPU.')
    traits: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='[]',
        comment='JSON list of the traits that its providers get beside those '
        'of the plugin.')
    mix_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), default='same_type',
        comment='Which vGPUs may be on one GPU together.')
    cleaning_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(255), default='default',
        comment='What its GPUs must pass between two tenants: a name, or '
        'steps.')
    memory_mib: orm.Mapped[int | None] = orm.mapped_column(
        comment='MiB of memory of a GPU; NULL: unknown.')
    unsupported_ok: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='Whether GPUs that no guest can use as a whole are offered '
        'all the same.')
    allocation_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), default='depth_first',
        comment='Allocation policy of groups without one of their own.')
    link_partitions: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text,
        comment='Table of link partitions of groups without one of their own, '
        'as JSON; NULL: nothing is known of links.')
    enabled_types: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='["passthrough"]',
        comment='JSON list of the vGPU types that new groups offer.')
    deleting: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='It matches no devices any more, and is deleted with its last '
        'group.')
    version: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Number of its last change; hosts with a lower '
        'variants_version do not have it yet.')


class VariantChange(column.Base):
    """A change that sets something in all groups of a variant.

    Hosts that do not have it yet make it in its order. Index: a variant is
    deleted together with its changes.
    """

    __tablename__ = 'variant_changes'
    __table_args__ = (sa.Index(None, 'variant_id'),)
    version: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, primary_key=True, autoincrement=False,
        comment='Number among the changes of all variants.')
    variant_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('variants.id'), comment='Variant of the groups.')
    vgpu_type: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(64),
        comment='Type that is enabled or disabled; NULL: groups lose the '
        'allocation policy of their own.')
    enabled: orm.Mapped[bool] = orm.mapped_column(
        default=False, comment='Whether that type is enabled.')
