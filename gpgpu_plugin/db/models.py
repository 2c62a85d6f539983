# SPDX-License-Identifier: Apache-2.0
"""Tables of the database.

The row of a device has three independent facts in three columns: ``state``
(life cycle), ``enabled`` (operator) and ``present`` (scan). Unique keys ensure
that a device has at most one active assignment, and that each combination of
instance, host, role and migration has at most one set of devices: ``active``
is 1 while an assignment lasts and NULL afterwards, and NULLs never collide.
For this reason ``migration_uuid`` is NOT NULL: it is '' for the role
``instance``, since PostgreSQL, MariaDB and SQLite would all accept a second
set of devices in that role if it were NULL.

Each docstring gives the reason of every column and index. ``id`` is always
the key that other tables refer to. Every foreign key begins an index, since
MariaDB would otherwise make one without a name. Columns that are neither
key, foreign key nor identity have a server default, so that a process that
does not know them can insert rows (doc/source/contributor/database.rst).
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import caller_key_tables
from gpgpu_plugin.db import column
from gpgpu_plugin.db import history_tables
from gpgpu_plugin.db import ledger_tables
from gpgpu_plugin.db import notification_tables
from gpgpu_plugin.db import request_tables
from gpgpu_plugin.db import sighting
from gpgpu_plugin.db import variant_tables

Base = column.Base
Cleaning = ledger_tables.Cleaning
CleaningChain = ledger_tables.CleaningChain
Sighting = sighting.Sighting
CountedInstance = request_tables.CountedInstance
RequestKind = request_tables.RequestKind
CallerKey = caller_key_tables.CallerKey
Cloud = caller_key_tables.Cloud
ExecutedCall = caller_key_tables.ExecutedCall
HostAnswer = caller_key_tables.HostAnswer
Event = history_tables.Event
Usage = history_tables.Usage
Notification = notification_tables.Notification
NotificationState = notification_tables.NotificationState
Variant = variant_tables.Variant
VariantChange = variant_tables.VariantChange


class Lock(Base):
    """Rows that are locked where no other row orders two writers.

    ``name``: what the lock is for (``variants``). ``value``: of ``variants``,
    the number of changes of variants.
    """

    __tablename__ = 'locks'
    name: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    value: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')


class Host(Base):
    """A compute host.

    ``name``: the host that nova-compute reports as. ``node``: name of its
    resource provider, of which the names of its groups' providers are made.
    ``node_uuid``: UUID of that provider. ``generation``: counts changes, so
    that nova-compute drops an older inventory. ``changed_at``: when the newest
    change was written, in seconds since the epoch by the database's clock;
    conductor.scheduler_feed finds changes by it. ``deleted``: 0, or the row's
    id after ``host delete``: schedulers learn of the deletion from the row,
    and its name and node can be reported anew. ``problems``: JSON list of what
    the last scan could not read, for ``host show``. ``reported_at``: when that
    scan arrived, in UTC. ``session``: number of the start of nova-compute that
    speaks for the host, 0 before the first. ``session_began_at``: when that
    start began it (UTC). ``plugin_version``: of its
    gpgpu_plugin. ``start_uuid``: that start; NULL when
    the host must begin a new session, after a restore of the database, or if
    the change of a variant failed on it.
    ``machine``: JSON of the identity of its machine. ``heard_at``: seconds
    since the epoch when it last called. ``takeover``: the operator allows the
    next start, whichever machine it is on. ``restored``: the host knows more
    than the database, and offers nothing until it has reported it.
    ``draining``: the operator lets no instance get a device of it.
    ``service_disabled``: nova-compute is disabled in Nova.
    ``report_number``: the last scan of the session that was stored, 0 before
    the first. ``report_digest``: of the last scan without news, NULL before
    the first since the machine booted. ``report_generation``: the generation
    at which it has none. ``report_answer``: the answer to it, as JSON.
    ``comparison_number``: the last comparison with Placement that was stored.

    Unique keys: a live host is found by name and by node. Index
    ``changed_at``: ``changes_since`` reads only hosts that changed.
    """

    __tablename__ = 'hosts'
    __table_args__ = (
        sa.UniqueConstraint('name', 'deleted'),
        sa.UniqueConstraint('node_uuid', 'deleted'),
        sa.Index(None, 'changed_at'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(column.NAME)
    node: orm.Mapped[str] = orm.mapped_column(column.NAME)
    node_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    generation: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    changed_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double, default=0, server_default='0')
    deleted: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default='0')
    problems: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='[]', server_default=column.EMPTY_LIST)
    reported_at: orm.Mapped[datetime.datetime | None]
    session: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    session_began_at: orm.Mapped[datetime.datetime]
    plugin_version: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    start_uuid: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    machine: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='{}', server_default=column.EMPTY_OBJECT)
    heard_at: orm.Mapped[float] = orm.mapped_column(sa.Double)
    takeover: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    restored: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    draining: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    service_disabled: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    report_number: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    comparison_number: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    report_digest: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    report_generation: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    # Long, and only db.last_report reads it.
    report_answer: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, deferred=True)


class Group(Base):
    """The GPUs of one variant on one host: one resource provider.

    ``host_id``, ``variant_id``: the host and the variant. ``provider_uuid``:
    the resource provider. ``allocation_policy``: which GPUs a claim takes if
    the flavor does not say. ``own_policy``: the group has it of its own, and
    not from its variant. ``link_partitions``: its own table, NULL if it has
    that of its variant.

    Unique key: one group for each host and variant. Index ``variant_id``: a
    variant is changed and deleted together with its groups.
    """

    __tablename__ = 'host_gpu_groups'
    __table_args__ = (sa.UniqueConstraint('host_id', 'variant_id'),
                      sa.Index(None, 'variant_id'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey('hosts.id'))
    variant_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('variants.id'))
    provider_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    allocation_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), default='depth_first', server_default='depth_first')
    own_policy: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    link_partitions: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    variant: orm.Mapped[Variant] = orm.relationship(lazy='joined')
    types: orm.Mapped[list[VGPUType]] = orm.relationship(
        cascade='all, delete-orphan', order_by='VGPUType.id')


class VGPUType(Base):
    """A type that a group offers; ``passthrough`` is the whole GPU.

    ``gpu_group_id``: the group. ``vgpu_type``: the driver's name of the type.
    ``video_ram`` (MiB), ``max_heads``, ``max_resolution_x``,
    ``max_resolution_y``: what operators choose a type by, NULL where the
    driver does not say. ``max_vgpu_per_pgpu``: how many fit on one empty GPU.
    ``max_capacity``, ``remaining_capacity``: how many fit on all GPUs when
    empty, and now; stored with each change, so that listings of a whole cloud
    compute nothing. ``enabled``: whether it is offered. ``listed``: it was
    enabled once, so that Placement knows its resource class, which then
    stays.

    Unique key: a group has each type once.
    """

    __tablename__ = 'vgpu_types'
    __table_args__ = (sa.UniqueConstraint('gpu_group_id', 'vgpu_type'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    gpu_group_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('host_gpu_groups.id'))
    vgpu_type: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    video_ram: orm.Mapped[int | None]
    max_heads: orm.Mapped[int | None]
    max_resolution_x: orm.Mapped[int | None]
    max_resolution_y: orm.Mapped[int | None]
    max_vgpu_per_pgpu: orm.Mapped[int] = orm.mapped_column(
        default=1, server_default='1')
    max_capacity: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default='0')
    remaining_capacity: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default='0')
    enabled: orm.Mapped[bool] = orm.mapped_column(
        default=True, server_default='1')
    listed: orm.Mapped[bool] = orm.mapped_column(
        default=True, server_default='1')


class Device(Base):
    """A PCI function that a host reported, or a row for an mdev on it.

    Without a group it is unmanaged.

    ``uuid``: what operators and events call it. ``host_id``: the host that
    reports it. ``group_id``: the group that offers it. ``parent_id``: the PF
    of a VF, the GPU of an mdev row. ``kind``: ``pci`` or ``mdev``.
    ``vgpu_type`` and ``placement_id``: the vGPU that is there, or may be,
    until the device is available again. ``stable_id``: its place in the host's
    PCI topology, which survives reboots. ``address``: its PCI address at the
    last scan. ``state``: where it is in its life cycle; a row inserted without
    one is quarantined, so that nobody gets a device of which nothing is known.
    ``enabled``: the operator offers it. ``present``: the last scan saw it.
    ``reason``: why it is quarantined or unmanaged, or waits.
    ``clean_token``: what made it dirty, its last assignment or a request.
    ``clean_attempt``: the attempt to clean it that may end; a verdict on an
    earlier one is refused. If it is ``clean_token``, a dirty device waits for
    another cleaning policy.
    ``cleaned_steps``: those that the last cleaning passed, joined by ``+``;
    NULL: it is new on its host; '': something happened since that cleaning
    (conductor.recleaning). ``pci_function``:
    JSON of the PCI function that the last scan read. ``identity``: JSON of
    the ids and serial numbers that any scan of the device could read; NULL:
    ``pci_function`` has all of them. ``swapped``: how a scan
    showed that another device took its place; NULL: none did, or an operator
    accepted it. ``before_swap``: JSON of the PCI function of the device before
    that. ``withdrawn``: why an assigned device is quarantined
    when its assignment ends; NULL: it is not. ``withdrawn_by``: the operator
    who wants that; NULL: none.
    ``awaits_replacement``: it is retired, and the next device in its place is
    accepted. ``replaced_by``:
    UUID of the device that took the place of a retired one, whose stable id is
    no place then. ``vendor_id``,
    ``product_id``: its ids, '' for none. ``vgpu_capability``,
    ``driver_capacity``: JSON of what is known of its vGPUs, NULL where its
    driver has none or reports nothing; a scan that cannot see it does not
    overwrite it. ``health``: a domain.health.Health, as its host last
    reported it; NULL for what has none of its own, such as VFs.
    ``health_reason``: why it is not ok. ``errors``: JSON of the errors that
    the host's kernel has counted, by kind. ``generation``: compare-and-swap of
    ``state``.

    Unique keys: a device is found by UUID, and by its place on its host.
    Indexes: the devices of a variant's groups, when it changes; the VFs and
    mdevs of a device, when it is shown; the hosts with devices that a variant
    matches, in the order of their ids.
    """

    __tablename__ = 'devices'
    __table_args__ = (sa.UniqueConstraint('uuid'),
                      sa.UniqueConstraint('host_id', 'stable_id'),
                      sa.Index(None, 'group_id'),
                      sa.Index(None, 'parent_id'),
                      sa.Index(None, 'vendor_id', 'product_id', 'host_id'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey('hosts.id'))
    group_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('host_gpu_groups.id'))
    parent_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('devices.id'))
    kind: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), default='pci', server_default='pci')
    vgpu_type: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    placement_id: orm.Mapped[int | None]
    stable_id: orm.Mapped[str] = orm.mapped_column(column.NAME)
    address: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    state: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), server_default='quarantined')
    enabled: orm.Mapped[bool] = orm.mapped_column(
        default=True, server_default='1')
    present: orm.Mapped[bool] = orm.mapped_column(
        default=True, server_default='1')
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    clean_token: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    clean_attempt: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    cleaned_steps: orm.Mapped[str | None] = orm.mapped_column(sa.String(255))
    pci_function: orm.Mapped[str] = orm.mapped_column(
        sa.Text, server_default=column.EMPTY_OBJECT)
    identity: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    swapped: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    before_swap: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    withdrawn: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    withdrawn_by: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    awaits_replacement: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    replaced_by: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    vendor_id: orm.Mapped[str] = orm.mapped_column(column.PCI_ID)
    product_id: orm.Mapped[str] = orm.mapped_column(column.PCI_ID)
    vgpu_capability: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    driver_capacity: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    health: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    health_reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    errors: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    generation: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default='0')
    group: orm.Mapped[Group | None] = orm.relationship()


class Assignment(Base):
    """One device assigned to one instance in one role; kept after it ended.

    ``uuid``: what nova-compute calls it. ``device_id``, ``host_id``: the
    device, and its host, which is part of the claim's key. ``instance_uuid``,
    ``role``, ``migration_uuid``, ``ordinal``: whose it is, in which role
    (objects.claim.ClaimRequest), for which migration ('' for none), and which
    of its devices. ``active``: 1 while it lasts, then NULL. ``vgpu_type``,
    ``resource_class``: what was claimed, as Placement allocated it.
    ``request``: JSON of the claim; the same claim again gets the same
    devices, another one is refused. ``allocated``: an allocation in Placement
    covers it. ``project_id``, ``user_id``, ``claimed_at``, ``ended_at``: who
    used the device and when (UTC), after Nova has forgotten the instance.
    ``flavor``: name of the flavor that was claimed for.
    ``lease_expires_at``: seconds since the epoch until which a claim that
    nobody activated lasts. ``host_generation``: the generation of the host
    before the claim, which orders the claims on it.
    ``source_host``: from which the migration is, which may end the claim.
    ``exact``: the instance named the device instead of requesting one by its
    flavor. ``guest_addresses``: JSON list of the PCI addresses of the device's
    functions in the guest, NULL if unknown.

    Unique keys: an assignment is found by UUID; a device is assigned once; a
    claim is granted once. Indexes: a host's active assignments are read with
    each claim, inventory and reconciliation; expired leases are looked for
    every minute; ``db purge`` deletes those that ended first.
    """

    __tablename__ = 'assignments'
    __table_args__ = (
        sa.UniqueConstraint('uuid'),
        sa.UniqueConstraint('device_id', 'active'),
        sa.UniqueConstraint('instance_uuid', 'host_id', 'role',
                            'migration_uuid', 'ordinal', 'active',
                            name='uq_assignments_claim_key'),
        sa.Index(None, 'host_id', 'active'),
        sa.Index(None, 'lease_expires_at'),
        sa.Index(None, 'ended_at'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    device_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('devices.id'))
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey('hosts.id'))
    instance_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    role: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    migration_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    ordinal: orm.Mapped[int]
    active: orm.Mapped[int | None]
    vgpu_type: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    resource_class: orm.Mapped[str] = orm.mapped_column(column.NAME)
    request: orm.Mapped[str] = orm.mapped_column(
        sa.Text, server_default=column.EMPTY_OBJECT)
    allocated: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    project_id: orm.Mapped[str] = orm.mapped_column(column.NAME)
    user_id: orm.Mapped[str] = orm.mapped_column(column.NAME)
    flavor: orm.Mapped[str] = orm.mapped_column(column.NAME)
    claimed_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        server_default=column.UNKNOWN_TIME)
    lease_expires_at: orm.Mapped[float | None] = orm.mapped_column(
        sa.Double)
    ended_at: orm.Mapped[datetime.datetime | None]
    host_generation: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    source_host: orm.Mapped[str | None] = orm.mapped_column(column.NAME)
    exact: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
    guest_addresses: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    device: orm.Mapped[Device] = orm.relationship(lazy='joined')
