# SPDX-License-Identifier: Apache-2.0
"""Tables of hosts and what they have, and the metadata of all."""

from __future__ import annotations

import typing
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

# -- Metadata, types and naming of all tables.


CONSTRAINTS = {
    'ix': 'ix_%(table_name)s_%(column_0_N_name)s',
    'uq': 'uq_%(table_name)s_%(column_0_N_name)s',
    'ck': 'ck_%(table_name)s_%(constraint_name)s',
    'fk': 'fk_%(table_name)s_%(column_0_N_name)s',
    'pk': 'pk_%(table_name)s',
}

METADATA = sa.MetaData(naming_convention=CONSTRAINTS)

NAME = sa.String(255)
UUID = sa.String(36)
PCI_ID = sa.String(4)
# TEXT of MariaDB has 64 KiB.
LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


# -- Tables of hosts and what they have, which queries join with each other.
#
# Other tables stand in the modules that write them. Unique keys ensure that a
# device has at most one active assignment, and that each combination of
# instance, host, role and migration has at most one set of devices: ``active``
# is 1 while an assignment lasts and NULL afterwards, and NULLs never collide.
# For this reason ``migration_uuid`` is NOT NULL: it is '' for the role
# ``instance``, since PostgreSQL, MariaDB and SQLite would all accept a second
# set of devices in that role if it were NULL.
#
# What a column means is its ``comment``, which the database has, too. The text
# below each table gives the reason of every key and index. ``id`` is always
# the key that other tables refer to. Every foreign key begins an index, since
# MariaDB would otherwise make one without a name.


HOSTS = sa.Table(
    'hosts', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('name', NAME, nullable=False,
              comment='Host that nova-compute reports as.'),
    sa.Column('node', NAME, nullable=False,
              comment='Name of its resource provider, of which the names of '
              'its groups\' providers are made.'),
    sa.Column('node_uuid', UUID, nullable=False,
              comment='UUID of its resource provider.'),
    sa.Column('generation', sa.BigInteger, nullable=False, default=0,
              comment='Counts changes, so that nova-compute drops an older '
              'inventory.'),
    sa.Column('changed_at', sa.Double, nullable=False, default=0,
              comment='When the newest change was written, in seconds since '
              'the epoch; schedulers find changes by it.'),
    sa.Column('deleted', sa.Integer, nullable=False, default=0,
              comment='0, or the id after "host delete": schedulers learn of '
              'the deletion from the row, and name and node can be reported '
              'anew.'),
    sa.Column('problems', sa.Text, nullable=False, default='[]',
              comment='JSON list of what the last scan could not read.'),
    sa.Column('reported_at', sa.DateTime,
              comment='When the last scan with news arrived (UTC); NULL '
              'before the first.'),
    sa.Column('session', sa.BigInteger, nullable=False, default=0,
              comment='Number of the start of nova-compute that speaks for '
              'the host.'),
    sa.Column('session_began_at', sa.DateTime, nullable=False,
              comment='When that start began its first session (UTC).'),
    sa.Column('variants_version', sa.BigInteger, nullable=False, default=0,
              comment='Changes of variants up to this number are in its '
              'groups.'),
    sa.Column('plugin_version', sa.String(64), nullable=False,
              comment='Version of its gpgpu_plugin.'),
    sa.Column('start_uuid', UUID,
              comment='That start. NULL: the host must begin a new session, '
              'since the database was restored.'),
    sa.Column('key_number', sa.Integer,
              comment='Number of the key with which that start signs; NULL: '
              'it does not.'),
    sa.Column('machine', sa.Text, nullable=False, default='{}',
              comment='JSON of the identity of its machine.'),
    sa.Column('heard_at', sa.Double, nullable=False,
              comment='When it last called, in seconds since the epoch.'),
    sa.Column('takeover', sa.Boolean, nullable=False, default=False,
              comment='The operator allows the next start, whichever machine '
              'it is on.'),
    sa.Column('report_number', sa.BigInteger, nullable=False, default=0,
              comment='Last scan of the session that was stored; 0 before the '
              'first.'),
    sa.Column('comparison_number', sa.BigInteger, nullable=False, default=0,
              comment='Last comparison with Placement that was stored.'),
    sa.Column('report_digest', sa.String(64),
              comment='Digest of the last scan without news; NULL before the '
              'first since the machine booted.'),
    sa.Column('report_generation', sa.BigInteger, nullable=False, default=0,
              comment='Generation at which that scan has no news.'),
    sa.Column('report_answer', sa.Text,
              comment='Answer to that scan, as JSON.'),
    sa.UniqueConstraint('name', 'deleted'),
    sa.UniqueConstraint('node_uuid', 'deleted'),
    sa.Index(None, 'changed_at'))
"""A compute host.

Unique keys: a live host is found by name and by node. Index
``changed_at``: ``changes_since`` reads only hosts that changed.
"""

VARIANTS = sa.Table(
    'variants', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('name', sa.String(64), nullable=False,
              comment='What operators and flavors call it.'),
    sa.Column('normalized_name', sa.String(64), nullable=False,
              comment='Its form in resource classes and traits, where two '
              'names may be one.'),
    sa.Column('vendor', PCI_ID, nullable=False,
              comment='PCI vendor id of its devices.'),
    sa.Column('device', PCI_ID, nullable=False,
              comment='PCI device id of its devices.'),
    sa.Column('subsystem_vendor', PCI_ID,
              comment='PCI subsystem vendor id; NULL: any.'),
    sa.Column('subsystem', PCI_ID,
              comment='PCI subsystem id; NULL: any.'),
    sa.Column('revision', sa.String(2), comment='PCI revision; NULL: any.'),
    sa.Column('type', sa.String(32), nullable=False,
              comment='Kind of accelerator, as operators list it.'),
    sa.Column('resource_class', NAME, nullable=False,
              comment='Class of a whole GPU.'),
    sa.Column('traits', sa.Text, nullable=False, default='[]',
              comment='JSON list of the traits that its providers get beside '
              'those of the plugin.'),
    sa.Column('mix_policy', sa.String(16), nullable=False,
              default='same_type',
              comment='Which vGPUs may be on one GPU together.'),
    sa.Column('cleaning_policy', sa.String(255), nullable=False,
              default='default',
              comment='What its GPUs must pass between two tenants: a name, '
              'or steps.'),
    sa.Column('memory_mib', sa.Integer,
              comment='MiB of memory of a GPU; NULL: unknown.'),
    sa.Column('unsupported_ok', sa.Boolean, nullable=False, default=False,
              comment='Whether GPUs that no guest can use as a whole are '
              'offered all the same.'),
    sa.Column('allocation_policy', sa.String(32), nullable=False,
              default='depth_first',
              comment='Allocation policy of groups without one of their own.'),
    sa.Column('link_partitions', sa.Text,
              comment='Table of link partitions of groups without one of '
              'their own, as JSON; NULL: nothing is known of links.'),
    sa.Column('enabled_types', sa.Text, nullable=False,
              default='["passthrough"]',
              comment='JSON list of the vGPU types that new groups offer.'),
    sa.Column('deleting', sa.Boolean, nullable=False, default=False,
              comment='It matches no devices any more, and is deleted with '
              'its last group.'),
    sa.Column('version', sa.BigInteger, nullable=False, default=0,
              comment='Number of its last change; hosts with a lower '
              'variants_version do not have it yet.'),
    sa.UniqueConstraint('name'),
    sa.UniqueConstraint('normalized_name'))
"""A name for devices with certain ids.

Unique keys: each variant is found by name, and no two have the same
resource classes.
"""

VARIANT_CHANGES = sa.Table(
    'variant_changes', METADATA,
    sa.Column('version', sa.BigInteger, primary_key=True, autoincrement=False,
              comment='Number among the changes of all variants.'),
    sa.Column('variant_id', sa.Integer, sa.ForeignKey('variants.id'),
              nullable=False, comment='Variant of the groups.'),
    sa.Column('vgpu_type', sa.String(64), nullable=False,
              comment='Type that is enabled or disabled.'),
    sa.Column('enabled', sa.Boolean, nullable=False,
              comment='Whether that type is enabled.'),
    sa.Index(None, 'variant_id'))
"""A type that is enabled or disabled in all groups of a variant.

Hosts that do not have it yet make it in its order. Index: a variant is
deleted together with its changes.
"""

GROUPS = sa.Table(
    'host_gpu_groups', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('host_id', sa.Integer, sa.ForeignKey('hosts.id'),
              nullable=False, comment='Host that has the GPUs.'),
    sa.Column('variant_id', sa.Integer, sa.ForeignKey('variants.id'),
              nullable=False, comment='Variant of the GPUs.'),
    sa.Column('provider_uuid', UUID, nullable=False,
              comment='UUID of the resource provider.'),
    sa.Column('allocation_policy', sa.String(32), nullable=False,
              default='depth_first',
              comment='Which GPUs a claim takes if the flavor does not say.'),
    sa.Column('own_policy', sa.Boolean, nullable=False, default=False,
              comment='Whether the policy is its own, and not that of the '
              'variant.'),
    sa.Column('link_partitions', sa.Text,
              comment='Its own table of link partitions, as JSON; NULL: it '
              'has that of its variant.'),
    sa.UniqueConstraint('host_id', 'variant_id'),
    sa.Index(None, 'variant_id'))
"""The GPUs of one variant on one host: one resource provider.

Unique key: one group for each host and variant. Index ``variant_id``: the
groups of a variant, in lists, and when the variant is deleted.
"""

TYPES = sa.Table(
    'vgpu_types', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('gpu_group_id', sa.Integer, sa.ForeignKey('host_gpu_groups.id'),
              nullable=False, comment='Group that offers the type.'),
    sa.Column('vgpu_type', sa.String(64), nullable=False,
              comment='Name that the driver has for the type.'),
    sa.Column('video_ram', sa.Integer,
              comment='MiB of video RAM; NULL: the driver does not say.'),
    sa.Column('max_heads', sa.Integer,
              comment='Number of displays; NULL: the driver does not say.'),
    sa.Column('max_resolution_x', sa.Integer,
              comment='Pixels in a row; NULL: the driver does not say.'),
    sa.Column('max_resolution_y', sa.Integer,
              comment='Pixels in a column; NULL: the driver does not say.'),
    sa.Column('max_vgpu_per_pgpu', sa.Integer, nullable=False, default=1,
              comment='How many fit on one empty GPU.'),
    sa.Column('max_capacity', sa.Integer, nullable=False, default=0,
              comment='How many fit on all GPUs when empty.'),
    sa.Column('remaining_capacity', sa.Integer, nullable=False, default=0,
              comment='How many still fit on all GPUs.'),
    sa.Column('enabled', sa.Boolean, nullable=False, default=True,
              comment='Whether it is offered.'),
    sa.Column('listed', sa.Boolean, nullable=False, default=True,
              comment='It was enabled once, so that Placement knows its '
              'resource class, which then stays.'),
    sa.UniqueConstraint('gpu_group_id', 'vgpu_type'))
"""A type that a group offers; ``passthrough`` is the whole GPU.

The capacities are stored with each change, so that listings of a whole
cloud compute nothing.

Unique key: a group has each type once.
"""

DEVICES = sa.Table(
    'devices', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('uuid', UUID, nullable=False,
              comment='What operators and events call it.'),
    sa.Column('host_id', sa.Integer, sa.ForeignKey('hosts.id'),
              nullable=False, comment='Host that reports it.'),
    sa.Column('group_id', sa.Integer, sa.ForeignKey('host_gpu_groups.id'),
              comment='Group that offers it; NULL: it is unmanaged.'),
    sa.Column('parent_id', sa.Integer, sa.ForeignKey('devices.id'),
              comment='PF of a VF, GPU of an mdev row; NULL: it is a GPU '
              'itself.'),
    sa.Column('kind', sa.String(16), nullable=False, default='pci',
              comment='"pci" or "mdev".'),
    sa.Column('vgpu_type', sa.String(64),
              comment='Type of the vGPU that is there, or may be, until the '
              'device is available again.'),
    sa.Column('placement_id', sa.Integer,
              comment='Placement of that vGPU on its GPU, if its size needs '
              'one.'),
    sa.Column('stable_id', NAME, nullable=False,
              comment='Its place in the PCI topology of its host, which '
              'survives reboots; "away-" and its UUID after another device '
              'took its place.'),
    sa.Column('address', sa.String(32), nullable=False,
              comment='Its PCI address at the last scan.'),
    sa.Column('state', sa.String(16), nullable=False,
              comment='Where it is in its life cycle.'),
    sa.Column('present', sa.Boolean, nullable=False, default=True,
              comment='The last scan saw it.'),
    sa.Column('reason', sa.Text, comment='Why it is unmanaged, or waits.'),
    sa.Column('clean_token', UUID,
              comment='What made it dirty: its last assignment, or a '
              'request.'),
    sa.Column('clean_attempt', UUID,
              comment='Attempt to clean it that may end; a verdict on an '
              'earlier one is refused. If it is clean_token, a dirty device '
              'waits for another cleaning policy.'),
    sa.Column('cleaned_steps', sa.String(255),
              comment='Steps that the last cleaning passed, joined by "+"; '
              'NULL: it is new on its host; empty: something happened since '
              'that cleaning.'),
    sa.Column('pci_function', sa.Text, nullable=False,
              comment='JSON of the PCI function that the last scan read.'),
    sa.Column('new_in_place', sa.Boolean, nullable=False, default=False,
              comment='What its host knows of its place is of another device: '
              'no cleaning there has passed, and nobody has claimed it yet.'),
    sa.Column('awaits_replacement', sa.Boolean, nullable=False, default=False,
              comment='It is retired, and the next device in its place is '
              'accepted.'),
    sa.Column('replaced_by', UUID,
              comment='UUID of the device that took its place.'),
    sa.Column('vendor_id', PCI_ID, nullable=False,
              comment='PCI vendor id; empty: it has none.'),
    sa.Column('product_id', PCI_ID, nullable=False,
              comment='PCI device id; empty: it has none.'),
    sa.Column('vgpu_capability', sa.Text,
              comment='JSON of its vGPU mechanism and types; NULL: its driver '
              'has none. A scan that cannot see them does not overwrite it.'),
    sa.Column('driver_capacity', sa.Text,
              comment='JSON of how many vGPUs its driver would still create; '
              'NULL: it does not report it.'),
    sa.Column('health', sa.String(16),
              comment='Health that its host last reported; NULL: it has none '
              'of its own, such as a VF.'),
    sa.Column('health_reason', sa.Text, comment='Why the health is not ok.'),
    sa.Column('errors', sa.Text,
              comment='JSON of the errors that the kernel of the host has '
              'counted, by kind.'),
    sa.Column('generation', sa.Integer, nullable=False, default=0,
              comment='Compare-and-swap of state.'),
    sa.UniqueConstraint('uuid'),
    sa.UniqueConstraint('host_id', 'stable_id'),
    sa.Index(None, 'group_id'),
    sa.Index(None, 'parent_id'),
    sa.Index(None, 'vendor_id', 'product_id', 'host_id'))
"""A PCI function that a host reported, or a row for an mdev on it.

Without a group it is unmanaged.

Unique keys: a device is found by UUID, and by its place on its host.
Indexes: the devices of groups, in lists and counts; the VFs and mdevs of a
device, when it is shown; the hosts with devices that a variant matches, in the
order of their ids.
"""

HOLDS = sa.Table(
    'holds', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('device_id', sa.Integer, sa.ForeignKey('devices.id'),
              comment='Device that it holds; NULL: it holds a host.'),
    sa.Column('host_id', sa.Integer, sa.ForeignKey('hosts.id'),
              comment='Host that it holds; NULL: it holds a device.'),
    sa.Column('kind', sa.String(32), nullable=False,
              comment='Kind, such as "quarantined".'),
    sa.Column('reason', sa.Text, comment='Why, in words; NULL: nobody said.'),
    sa.Column('actor', sa.Text,
              comment='Operator who set it; NULL: a conductor did.'),
    sa.Column('since', sa.DateTime, nullable=False,
              comment='Since when (UTC).'),
    sa.UniqueConstraint('device_id', 'kind'),
    sa.UniqueConstraint('host_id', 'kind'))
"""A hold of a device, and of the vGPUs on it, or of a host.

Unique keys: a device, or a host, has one of each kind.
"""

ASSIGNMENTS = sa.Table(
    'assignments', METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('uuid', UUID, nullable=False,
              comment='What nova-compute calls it.'),
    sa.Column('device_id', sa.Integer, sa.ForeignKey('devices.id'),
              nullable=False, comment='Device that is assigned.'),
    sa.Column('host_id', sa.Integer, sa.ForeignKey('hosts.id'),
              nullable=False, comment='Host of the device.'),
    sa.Column('instance_uuid', UUID, nullable=False,
              comment='Instance that it is assigned to.'),
    sa.Column('role', sa.String(16), nullable=False,
              comment='"instance", or "destination" of a migration.'),
    sa.Column('migration_uuid', UUID, nullable=False,
              comment='Migration that it is for; empty: none.'),
    sa.Column('ordinal', sa.Integer, nullable=False,
              comment='Which of the devices of the claim it is.'),
    sa.Column('active', sa.Integer, comment='1 while it lasts, then NULL.'),
    sa.Column('vgpu_type', sa.String(64), nullable=False,
              comment='Type that was claimed.'),
    sa.Column('resource_class', NAME, nullable=False,
              comment='Class that Placement allocated for it.'),
    sa.Column('request', sa.Text, nullable=False,
              comment='JSON of the claim: the same claim again gets the same '
              'devices, another one is refused. Empty: adopted from its '
              'host.'),
    sa.Column('allocated', sa.Boolean, nullable=False, default=False,
              comment='An allocation in Placement covers it.'),
    sa.Column('project_id', NAME, nullable=False,
              comment='Project of the instance.'),
    sa.Column('user_id', NAME, nullable=False,
              comment='User who created the instance.'),
    sa.Column('flavor', NAME, nullable=False,
              comment='Name of the flavor that was claimed for.'),
    sa.Column('claimed_at', sa.DateTime, nullable=False,
              comment='When it was claimed (UTC).'),
    sa.Column('lease_expires_at', sa.Double,
              comment='Until when a claim that nobody activated lasts, in '
              'seconds since the epoch; NULL: it was activated.'),
    sa.Column('ended_at', sa.DateTime,
              comment='When it ended (UTC); NULL: it lasts.'),
    sa.Column('host_generation', sa.BigInteger, nullable=False,
              comment='Generation of the host before the claim, which orders '
              'the claims on it.'),
    sa.Column('source_host', NAME,
              comment='Host that the migration is from, which may end the '
              'claim; NULL: there is none.'),
    sa.Column('exact', sa.Boolean, nullable=False, default=False,
              comment='The instance named the device instead of requesting '
              'one by its flavor.'),
    sa.Column('guest_addresses', sa.Text,
              comment='JSON list of the PCI addresses of its functions in the '
              'guest; NULL: unknown.'),
    sa.UniqueConstraint('uuid'),
    sa.UniqueConstraint('device_id', 'active'),
    sa.UniqueConstraint(
        'instance_uuid', 'host_id', 'role', 'migration_uuid', 'ordinal',
        'active', name='uq_assignments_claim_key'),
    sa.Index(None, 'host_id', 'active'),
    sa.Index(None, 'lease_expires_at'),
    sa.Index(None, 'ended_at'))
"""One device assigned to one instance in one role; kept after it ended.

It says who used the device and when, after Nova has forgotten the
instance.

Unique keys: an assignment is found by UUID; a device is assigned once; a
claim is granted once, and its host is part of its key. Indexes: a host's
active assignments are read with each claim, inventory and reconciliation;
expired leases are looked for every minute; ``db purge`` deletes those that
ended first.
"""


# -- Pages of lists, in the order of the columns that they are sorted by.


def page_after(columns: Sequence[sa.SQLColumnExpression[typing.Any]],
               values: Sequence[object]) -> sa.ColumnElement[bool]:
    """Return the condition that a row comes after another one.

    It is written so that each database finds the first row by the index of the
    first column, instead of reading all rows before it.

    :param columns: columns by which rows are sorted; together they are unique
    :param values: of the other row
    """
    [*pairs, (column, value)] = zip(columns, values, strict=True)
    condition = column > value
    for column, value in reversed(pairs):
        condition = sa.or_(column > value,
                           sa.and_(column == value, condition))
    return sa.and_(columns[0] >= values[0], condition)
