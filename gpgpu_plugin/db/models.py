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

What a column means is its ``comment``, which the database has, too. Each
docstring gives the reason of every key and index. ``id`` is always the key
that other tables refer to. Every foreign key begins an index, since MariaDB
would otherwise make one without a name.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column
from gpgpu_plugin.db import variant_tables

Base = column.Base
Variant = variant_tables.Variant
VariantChange = variant_tables.VariantChange


class Host(Base):
    """A compute host.

    Unique keys: a live host is found by name and by node. Index
    ``changed_at``: ``changes_since`` reads only hosts that changed.
    """

    __tablename__ = 'hosts'
    __table_args__ = (
        sa.UniqueConstraint('name', 'deleted'),
        sa.UniqueConstraint('node_uuid', 'deleted'),
        sa.Index(None, 'changed_at'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Host that nova-compute reports as.')
    node: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Name of its resource provider, of which the '
        'names of its groups\' providers are made.')
    node_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='UUID of its resource provider.')
    generation: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Counts changes, so that nova-compute drops an older '
        'inventory.')
    changed_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double, default=0,
        comment='When the newest change was written, in seconds since the '
        'epoch; schedulers find changes by it.')
    deleted: orm.Mapped[int] = orm.mapped_column(
        default=0,
        comment='0, or the id after "host delete": schedulers learn of the '
        'deletion from the row, and name and node can be reported anew.')
    problems: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='[]',
        comment='JSON list of what the last scan could not read.')
    reported_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='When the last scan with news arrived (UTC); NULL before the '
        'first.')
    session: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Number of the start of nova-compute that speaks for the '
        'host.')
    session_began_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        comment='When that start began its first session (UTC).')
    variants_version: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Changes of variants up to this number are in its groups.')
    plugin_version: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='Version of its gpgpu_plugin.')
    start_uuid: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID,
        comment='That start. NULL: the host must begin a new session, since '
        'the database was restored.')
    machine: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='{}', comment='JSON of the identity of its machine.')
    heard_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double, comment='When it last called, in seconds since the epoch.')
    takeover: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='The operator allows the next start, whichever machine it is '
        'on.')
    report_number: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Last scan of the session that was stored; 0 before the '
        'first.')
    comparison_number: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Last comparison with Placement that was stored.')
    report_digest: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(64),
        comment='Digest of the last scan without news; NULL before the first '
        'since the machine booted.')
    report_generation: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Generation at which that scan has no news.')
    # Long, and only db.last_report reads it.
    report_answer: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, deferred=True, comment='Answer to that scan, as JSON.')


class Group(Base):
    """The GPUs of one variant on one host: one resource provider.

    Unique key: one group for each host and variant. Index ``variant_id``: a
    variant is changed and deleted together with its groups.
    """

    __tablename__ = 'host_gpu_groups'
    __table_args__ = (sa.UniqueConstraint('host_id', 'variant_id'),
                      sa.Index(None, 'variant_id'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    host_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('hosts.id'), comment='Host that has the GPUs.')
    variant_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('variants.id'), comment='Variant of the GPUs.')
    provider_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='UUID of the resource provider.')
    allocation_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), default='depth_first',
        comment='Which GPUs a claim takes if the flavor does not say.')
    own_policy: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='Whether the policy is its own, and not that of the variant.')
    link_partitions: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text,
        comment='Its own table of link partitions, as JSON; NULL: it has that '
        'of its variant.')
    variant: orm.Mapped[Variant] = orm.relationship(lazy='joined')
    types: orm.Mapped[list[VGPUType]] = orm.relationship(
        cascade='all, delete-orphan', order_by='VGPUType.id')


class VGPUType(Base):
    """A type that a group offers; ``passthrough`` is the whole GPU.

    The capacities are stored with each change, so that listings of a whole
    cloud compute nothing.

    Unique key: a group has each type once.
    """

    __tablename__ = 'vgpu_types'
    __table_args__ = (sa.UniqueConstraint('gpu_group_id', 'vgpu_type'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    gpu_group_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('host_gpu_groups.id'),
        comment='Group that offers the type.')
    vgpu_type: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='Name that the driver has for the type.')
    video_ram: orm.Mapped[int | None] = orm.mapped_column(
        comment='MiB of video RAM; NULL: the driver does not say.')
    max_heads: orm.Mapped[int | None] = orm.mapped_column(
        comment='Number of displays; NULL: the driver does not say.')
    max_resolution_x: orm.Mapped[int | None] = orm.mapped_column(
        comment='Pixels in a row; NULL: the driver does not say.')
    max_resolution_y: orm.Mapped[int | None] = orm.mapped_column(
        comment='Pixels in a column; NULL: the driver does not say.')
    max_vgpu_per_pgpu: orm.Mapped[int] = orm.mapped_column(
        default=1, comment='How many fit on one empty GPU.')
    max_capacity: orm.Mapped[int] = orm.mapped_column(
        default=0, comment='How many fit on all GPUs when empty.')
    remaining_capacity: orm.Mapped[int] = orm.mapped_column(
        default=0, comment='How many still fit on all GPUs.')
    enabled: orm.Mapped[bool] = orm.mapped_column(
        default=True, comment='Whether it is offered.')
    listed: orm.Mapped[bool] = orm.mapped_column(
        default=True,
        comment='It was enabled once, so that Placement knows its resource '
        'class, which then stays.')


class Device(Base):
    """A PCI function that a host reported, or a row for an mdev on it.

    Without a group it is unmanaged.

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
    uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='What operators and events call it.')
    host_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('hosts.id'), comment='Host that reports it.')
    group_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('host_gpu_groups.id'),
        comment='Group that offers it; NULL: it is unmanaged.')
    parent_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('devices.id'),
        comment='PF of a VF, GPU of an mdev row; NULL: it is a GPU itself.')
    kind: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), default='pci', comment='"pci" or "mdev".')
    vgpu_type: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(64),
        comment='Type of the vGPU that is there, or may be, until the device '
        'is available again.')
    placement_id: orm.Mapped[int | None] = orm.mapped_column(
        comment='Placement of that vGPU on its GPU, if its size needs one.')
    stable_id: orm.Mapped[str] = orm.mapped_column(
        column.NAME,
        comment='Its place in the PCI topology of its host, which survives '
        'reboots; "away-" and its UUID after another device took its place.')
    address: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), comment='Its PCI address at the last scan.')
    state: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), comment='Where it is in its life cycle.')
    present: orm.Mapped[bool] = orm.mapped_column(
        default=True, comment='The last scan saw it.')
    reason: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, comment='Why it is unmanaged, or waits.')
    clean_token: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID,
        comment='What made it dirty: its last assignment, or a request.')
    clean_attempt: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID,
        comment='Attempt to clean it that may end; a verdict on an earlier '
        'one is refused. If it is clean_token, a dirty device waits for '
        'another cleaning policy.')
    cleaned_steps: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(255),
        comment='Steps that the last cleaning passed, joined by "+"; NULL: it '
        'is new on its host; empty: something happened since that cleaning.')
    pci_function: orm.Mapped[str] = orm.mapped_column(
        sa.Text, comment='JSON of the PCI function that the last scan read.')
    new_in_place: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='What its host knows of its place is of another device, and '
        'no cleaning there has passed yet.')
    awaits_replacement: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='It is retired, and the next device in its place is '
        'accepted.')
    replaced_by: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID,
        comment='UUID of the device that took its place.')
    vendor_id: orm.Mapped[str] = orm.mapped_column(
        column.PCI_ID, comment='PCI vendor id; empty: it has none.')
    product_id: orm.Mapped[str] = orm.mapped_column(
        column.PCI_ID, comment='PCI device id; empty: it has none.')
    vgpu_capability: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text,
        comment='JSON of its vGPU mechanism and types; NULL: its driver has '
        'none. A scan that cannot see them does not overwrite it.')
    driver_capacity: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text,
        comment='JSON of how many vGPUs its driver would still create; NULL: '
        'it does not report it.')
    health: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(16),
        comment='Health that its host last reported; NULL: it has none of its '
        'own, such as a VF.')
    health_reason: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, comment='Why the health is not ok.')
    errors: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text,
        comment='JSON of the errors that the kernel of the host has counted, '
        'by kind.')
    generation: orm.Mapped[int] = orm.mapped_column(
        default=0, comment='Compare-and-swap of state.')
    group: orm.Mapped[Group | None] = orm.relationship()


class Hold(Base):
    """A hold of a device, and of the vGPUs on it, or of a host.

    Unique keys: a device, or a host, has one of each kind.
    """

    __tablename__ = 'holds'
    __table_args__ = (sa.UniqueConstraint('device_id', 'kind'),
                      sa.UniqueConstraint('host_id', 'kind'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    device_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('devices.id'),
        comment='Device that it holds; NULL: it holds a host.')
    host_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('hosts.id'),
        comment='Host that it holds; NULL: it holds a device.')
    kind: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), comment='Kind, such as "quarantined".')
    reason: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, comment='Why, in words; NULL: nobody said.')
    actor: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, comment='Operator who set it; NULL: a conductor did.')
    since: orm.Mapped[datetime.datetime] = orm.mapped_column(
        comment='Since when (UTC).')


class Assignment(Base):
    """One device assigned to one instance in one role; kept after it ended.

    It says who used the device and when, after Nova has forgotten the
    instance.

    Unique keys: an assignment is found by UUID; a device is assigned once; a
    claim is granted once, and its host is part of its key. Indexes: a host's
    active assignments are read with each claim, inventory and reconciliation;
    expired leases are looked for every minute; ``db purge`` deletes those that
    ended first.
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
    uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='What nova-compute calls it.')
    device_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('devices.id'), comment='Device that is assigned.')
    host_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('hosts.id'), comment='Host of the device.')
    instance_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Instance that it is assigned to.')
    role: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), comment='"instance", or "destination" of a migration.')
    migration_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Migration that it is for; empty: none.')
    ordinal: orm.Mapped[int] = orm.mapped_column(
        comment='Which of the devices of the claim it is.')
    active: orm.Mapped[int | None] = orm.mapped_column(
        comment='1 while it lasts, then NULL.')
    vgpu_type: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='Type that was claimed.')
    resource_class: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Class that Placement allocated for it.')
    request: orm.Mapped[str] = orm.mapped_column(
        sa.Text,
        comment='JSON of the claim: the same claim again gets the same '
        'devices, another one is refused. Empty: adopted from its host.')
    allocated: orm.Mapped[bool] = orm.mapped_column(
        default=False, comment='An allocation in Placement covers it.')
    project_id: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Project of the instance.')
    user_id: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='User who created the instance.')
    flavor: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Name of the flavor that was claimed for.')
    claimed_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        comment='When it was claimed (UTC).')
    lease_expires_at: orm.Mapped[float | None] = orm.mapped_column(
        sa.Double,
        comment='Until when a claim that nobody activated lasts, in seconds '
        'since the epoch; NULL: it was activated.')
    ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='When it ended (UTC); NULL: it lasts.')
    host_generation: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger,
        comment='Generation of the host before the claim, which orders the '
        'claims on it.')
    source_host: orm.Mapped[str | None] = orm.mapped_column(
        column.NAME,
        comment='Host that the migration is from, which may end the claim; '
        'NULL: there is none.')
    exact: orm.Mapped[bool] = orm.mapped_column(
        default=False,
        comment='The instance named the device instead of requesting one by '
        'its flavor.')
    guest_addresses: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text,
        comment='JSON list of the PCI addresses of its functions in the '
        'guest; NULL: unknown.')
    device: orm.Mapped[Device] = orm.relationship(lazy='joined')
