# SPDX-License-Identifier: Apache-2.0
"""Tables of variants and their changes; ``models`` exports them with all."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class Variant(column.Base):
    """A name for devices with certain ids.

    ``name``: what operators and flavors call it. ``normalized_name``: its
    form in resource classes and traits, where two names may be one.
    ``vendor``, ``device``, ``subsystem_vendor``, ``subsystem``,
    ``revision``: PCI ids that a device must have, NULL for any. ``type``: the
    kind of accelerator, as operators list it. ``resource_class``: of a whole
    GPU. ``traits``: JSON list of what its providers get beside the plugin's
    own. ``mix_policy``: which vGPUs may be on one GPU together.
    ``cleaning_policy``: what its GPUs must pass between two tenants, a name or
    steps. ``memory_mib``: MiB of memory of a GPU, NULL for unknown.
    ``unsupported_ok``: whether GPUs that no guest can use as a whole are
    offered all the same. ``allocation_policy``: of groups without one of their
    own. ``link_partitions``: table of groups without one of their own, as JSON
    (domain.link_table), NULL if nothing is known of links.
    ``enabled_types``: JSON list of the vGPU types that new groups offer.
    ``status``: a domain.variant.Status, whether a change of it is being
    applied to hosts. ``reason``: why its last change was undone, NULL if it
    was not.

    Unique keys: each variant is found by name, and no two have the same
    resource classes.
    """

    __tablename__ = 'variants'
    __table_args__ = (sa.UniqueConstraint('name'),
                      sa.UniqueConstraint('normalized_name'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    normalized_name: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    vendor: orm.Mapped[str] = orm.mapped_column(column.PCI_ID)
    device: orm.Mapped[str] = orm.mapped_column(column.PCI_ID)
    subsystem_vendor: orm.Mapped[str | None] = orm.mapped_column(column.PCI_ID)
    subsystem: orm.Mapped[str | None] = orm.mapped_column(column.PCI_ID)
    revision: orm.Mapped[str | None] = orm.mapped_column(sa.String(2))
    type: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), server_default='gpu')
    resource_class: orm.Mapped[str] = orm.mapped_column(column.NAME)
    traits: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='[]', server_default=column.EMPTY_LIST)
    mix_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), default='same_type', server_default='same_type')
    cleaning_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(255), default='default', server_default='default')
    memory_mib: orm.Mapped[int | None]
    unsupported_ok: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    allocation_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), default='depth_first', server_default='depth_first')
    link_partitions: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    enabled_types: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='["passthrough"]',
        server_default=column.PASSTHROUGH_ONLY)
    status: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), default='ready', server_default='ready')
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)


class VariantChange(column.Base):
    """A change of a variant that some hosts do not have yet.

    ``variant_id``: the variant, which has its new values already. ``ids``:
    JSON list of pairs of vendor and product id; hosts with such devices are
    concerned. ``before``: JSON of the values to which the variant returns if
    the change is undone, NULL if it was created. ``vgpu_type``, ``enabled``:
    the type that is being enabled or disabled, NULL if that is not the change.
    ``clears_groups``: the change is that groups lose what they have of their
    own.
    ``last_host_id``: hosts up to this id are done, but for
    ``skipped_hosts``: JSON list of the ids of hosts that were locked, or on
    which the change failed, to be done one by one.

    Unique key: a variant has one change at a time.
    """

    __tablename__ = 'variant_changes'
    __table_args__ = (sa.UniqueConstraint('variant_id'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    variant_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('variants.id'))
    ids: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='[]', server_default=column.EMPTY_LIST)
    before: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    vgpu_type: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    enabled: orm.Mapped[bool | None]
    clears_groups: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    last_host_id: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default='0')
    skipped_hosts: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='[]', server_default=column.EMPTY_LIST)
