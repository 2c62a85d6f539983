# SPDX-License-Identifier: Apache-2.0
"""All tables."""

import uuid

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from gpgpu_plugin.db import migration

revision = '0001_initial'
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(255)
_UUID = sa.String(36)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


def upgrade() -> None:
    # In the order in which foreign keys refer to each other.
    _locks()
    _hosts()
    _variants()
    _variant_changes()
    _host_gpu_groups()
    _vgpu_types()
    _devices()
    _assignments()
    _holds()
    _sightings()
    _usages()
    _events()
    _cleanings()
    _cleaning_chains()
    _caller_keys()
    _executed_calls()
    _clouds()
    _unsent()
    _notification_states()
    _request_kinds()
    _counted_instances()


def _locks() -> None:
    migration.create_table(
        'locks',
        sa.Column('name', sa.String(32), nullable=False,
                  comment='What the lock is for, such as "variants".'),
        sa.Column('value', sa.BigInteger(), nullable=False,
                  comment='Of "variants": number of changes of variants.'),
        sa.PrimaryKeyConstraint('name', name='pk_locks'))
    migration.insert_row('locks', name='variants', value=0)


def _hosts() -> None:
    migration.create_table(
        'hosts',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', _NAME, nullable=False,
                  comment='Host that nova-compute reports as.'),
        sa.Column('node', _NAME, nullable=False,
                  comment='Name of its resource provider, of which the '
                          "names of its groups' providers are made."),
        sa.Column('node_uuid', _UUID, nullable=False,
                  comment='UUID of its resource provider.'),
        sa.Column('generation', sa.BigInteger(), nullable=False,
                  comment='Counts changes, so that nova-compute drops an '
                          'older inventory.'),
        sa.Column('changed_at', sa.Double(), nullable=False,
                  comment='When the newest change was written, in seconds '
                          'since the epoch; schedulers find changes by it.'),
        sa.Column('deleted', sa.Integer(), nullable=False,
                  comment='0, or the id after "host delete": schedulers '
                          'learn of the deletion from the row, and name and '
                          'node can be reported anew.'),
        sa.Column('problems', sa.Text(), nullable=False,
                  comment='JSON list of what the last scan could not read.'),
        sa.Column('reported_at', sa.DateTime(),
                  comment='When the last scan with news arrived (UTC); NULL '
                          'before the first.'),
        sa.Column('session', sa.BigInteger(), nullable=False,
                  comment='Number of the start of nova-compute that speaks '
                          'for the host.'),
        sa.Column('session_began_at', sa.DateTime(), nullable=False,
                  comment='When that start began its first session (UTC).'),
        sa.Column('variants_version', sa.BigInteger(), nullable=False,
                  comment='Changes of variants up to this number are in its '
                          'groups.'),
        sa.Column('plugin_version', sa.String(64), nullable=False,
                  comment='Version of its gpgpu_plugin.'),
        sa.Column('start_uuid', _UUID,
                  comment='That start. NULL: the host must begin a new '
                          'session, since the database was restored.'),
        sa.Column('key_number', sa.Integer(),
                  comment='Number of the key with which that start signs; '
                          'NULL: it does not.'),
        sa.Column('machine', sa.Text(), nullable=False,
                  comment='JSON of the identity of its machine.'),
        sa.Column('heard_at', sa.Double(), nullable=False,
                  comment='When it last called, in seconds since the epoch.'),
        sa.Column('takeover', sa.Boolean(), nullable=False,
                  comment='The operator allows the next start, whichever '
                          'machine it is on.'),
        sa.Column('report_number', sa.BigInteger(), nullable=False,
                  comment='Last scan of the session that was stored; 0 '
                          'before the first.'),
        sa.Column('comparison_number', sa.BigInteger(), nullable=False,
                  comment='Last comparison with Placement that was stored.'),
        sa.Column('report_digest', sa.String(64),
                  comment='Digest of the last scan without news; NULL '
                          'before the first since the machine booted.'),
        sa.Column('report_generation', sa.BigInteger(), nullable=False,
                  comment='Generation at which that scan has no news.'),
        sa.Column('report_answer', sa.Text(),
                  comment='Answer to that scan, as JSON.'),
        sa.PrimaryKeyConstraint('id', name='pk_hosts'),
        sa.UniqueConstraint('name', 'deleted', name='uq_hosts_name_deleted'),
        sa.UniqueConstraint('node_uuid', 'deleted',
                            name='uq_hosts_node_uuid_deleted'))
    migration.create_index('ix_hosts_changed_at', 'hosts', ['changed_at'])


def _variants() -> None:
    migration.create_table(
        'variants',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(64), nullable=False,
                  comment='What operators and flavors call it.'),
        sa.Column('normalized_name', sa.String(64), nullable=False,
                  comment='Its form in resource classes and traits, where '
                          'two names may be one.'),
        sa.Column('vendor', sa.String(4), nullable=False,
                  comment='PCI vendor id of its devices.'),
        sa.Column('device', sa.String(4), nullable=False,
                  comment='PCI device id of its devices.'),
        sa.Column('subsystem_vendor', sa.String(4),
                  comment='PCI subsystem vendor id; NULL: any.'),
        sa.Column('subsystem', sa.String(4),
                  comment='PCI subsystem id; NULL: any.'),
        sa.Column('revision', sa.String(2),
                  comment='PCI revision; NULL: any.'),
        sa.Column('type', sa.String(32), nullable=False,
                  comment='Kind of accelerator, as operators list it.'),
        sa.Column('resource_class', _NAME, nullable=False,
                  comment='Class of a whole GPU.'),
        sa.Column('traits', sa.Text(), nullable=False,
                  comment='JSON list of the traits that its providers get '
                          'beside those of the plugin.'),
        sa.Column('mix_policy', sa.String(16), nullable=False,
                  comment='Which vGPUs may be on one GPU together.'),
        sa.Column('cleaning_policy', _NAME, nullable=False,
                  comment='What its GPUs must pass between two tenants: a '
                          'name, or steps.'),
        sa.Column('memory_mib', sa.Integer(),
                  comment='MiB of memory of a GPU; NULL: unknown.'),
        sa.Column('unsupported_ok', sa.Boolean(), nullable=False,
                  comment='Whether GPUs that no guest can use as a whole '
                          'are offered all the same.'),
        sa.Column('allocation_policy', sa.String(32), nullable=False,
                  comment='Allocation policy of groups without one of their '
                          'own.'),
        sa.Column('link_partitions', sa.Text(),
                  comment='Table of link partitions of groups without one '
                          'of their own, as JSON; NULL: nothing is known of '
                          'links.'),
        sa.Column('enabled_types', sa.Text(), nullable=False,
                  comment='JSON list of the vGPU types that new groups '
                          'offer.'),
        sa.Column('deleting', sa.Boolean(), nullable=False,
                  comment='It matches no devices any more, and is deleted '
                          'with its last group.'),
        sa.Column('version', sa.BigInteger(), nullable=False,
                  comment='Number of its last change; hosts with a lower '
                          'variants_version do not have it yet.'),
        sa.PrimaryKeyConstraint('id', name='pk_variants'),
        sa.UniqueConstraint('name', name='uq_variants_name'),
        sa.UniqueConstraint('normalized_name',
                            name='uq_variants_normalized_name'))


def _variant_changes() -> None:
    migration.create_table(
        'variant_changes',
        sa.Column('version', sa.BigInteger(), autoincrement=False,
                  nullable=False,
                  comment='Number among the changes of all variants.'),
        sa.Column('variant_id', sa.Integer(), nullable=False,
                  comment='Variant of the groups.'),
        sa.Column('vgpu_type', sa.String(64), nullable=False,
                  comment='Type that is enabled or disabled.'),
        sa.Column('enabled', sa.Boolean(), nullable=False,
                  comment='Whether that type is enabled.'),
        sa.PrimaryKeyConstraint('version', name='pk_variant_changes'),
        sa.ForeignKeyConstraint(['variant_id'], ['variants.id'],
                                name='fk_variant_changes_variant_id'))
    migration.create_index('ix_variant_changes_variant_id', 'variant_changes',
                           ['variant_id'])


def _host_gpu_groups() -> None:
    migration.create_table(
        'host_gpu_groups',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False,
                  comment='Host that has the GPUs.'),
        sa.Column('variant_id', sa.Integer(), nullable=False,
                  comment='Variant of the GPUs.'),
        sa.Column('provider_uuid', _UUID, nullable=False,
                  comment='UUID of the resource provider.'),
        sa.Column('allocation_policy', sa.String(32), nullable=False,
                  comment='Which GPUs a claim takes if the flavor does not '
                          'say.'),
        sa.Column('own_policy', sa.Boolean(), nullable=False,
                  comment='Whether the policy is its own, and not that of '
                          'the variant.'),
        sa.Column('link_partitions', sa.Text(),
                  comment='Its own table of link partitions, as JSON; NULL: '
                          'it has that of its variant.'),
        sa.PrimaryKeyConstraint('id', name='pk_host_gpu_groups'),
        sa.ForeignKeyConstraint(['host_id'], ['hosts.id'],
                                name='fk_host_gpu_groups_host_id'),
        sa.ForeignKeyConstraint(['variant_id'], ['variants.id'],
                                name='fk_host_gpu_groups_variant_id'),
        sa.UniqueConstraint('host_id', 'variant_id',
                            name='uq_host_gpu_groups_host_id_variant_id'))
    migration.create_index('ix_host_gpu_groups_variant_id', 'host_gpu_groups',
                           ['variant_id'])


def _vgpu_types() -> None:
    migration.create_table(
        'vgpu_types',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('gpu_group_id', sa.Integer(), nullable=False,
                  comment='Group that offers the type.'),
        sa.Column('vgpu_type', sa.String(64), nullable=False,
                  comment='Name that the driver has for the type.'),
        sa.Column('video_ram', sa.Integer(),
                  comment='MiB of video RAM; NULL: the driver does not say.'),
        sa.Column('max_heads', sa.Integer(),
                  comment='Number of displays; NULL: the driver does not '
                          'say.'),
        sa.Column('max_resolution_x', sa.Integer(),
                  comment='Pixels in a row; NULL: the driver does not say.'),
        sa.Column('max_resolution_y', sa.Integer(),
                  comment='Pixels in a column; NULL: the driver does not '
                          'say.'),
        sa.Column('max_vgpu_per_pgpu', sa.Integer(), nullable=False,
                  comment='How many fit on one empty GPU.'),
        sa.Column('max_capacity', sa.Integer(), nullable=False,
                  comment='How many fit on all GPUs when empty.'),
        sa.Column('remaining_capacity', sa.Integer(), nullable=False,
                  comment='How many still fit on all GPUs.'),
        sa.Column('enabled', sa.Boolean(), nullable=False,
                  comment='Whether it is offered.'),
        sa.Column('listed', sa.Boolean(), nullable=False,
                  comment='It was enabled once, so that Placement knows its '
                          'resource class, which then stays.'),
        sa.PrimaryKeyConstraint('id', name='pk_vgpu_types'),
        sa.ForeignKeyConstraint(['gpu_group_id'], ['host_gpu_groups.id'],
                                name='fk_vgpu_types_gpu_group_id'),
        sa.UniqueConstraint('gpu_group_id', 'vgpu_type',
                            name='uq_vgpu_types_gpu_group_id_vgpu_type'))


def _devices() -> None:
    migration.create_table(
        'devices',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', _UUID, nullable=False,
                  comment='What operators and events call it.'),
        sa.Column('host_id', sa.Integer(), nullable=False,
                  comment='Host that reports it.'),
        sa.Column('group_id', sa.Integer(),
                  comment='Group that offers it; NULL: it is unmanaged.'),
        sa.Column('parent_id', sa.Integer(),
                  comment='PF of a VF, GPU of an mdev row; NULL: it is a '
                          'GPU itself.'),
        sa.Column('kind', sa.String(16), nullable=False,
                  comment='"pci" or "mdev".'),
        sa.Column('vgpu_type', sa.String(64),
                  comment='Type of the vGPU that is there, or may be, until '
                          'the device is available again.'),
        sa.Column('placement_id', sa.Integer(),
                  comment='Placement of that vGPU on its GPU, if its size '
                          'needs one.'),
        sa.Column('stable_id', _NAME, nullable=False,
                  comment='Its place in the PCI topology of its host, which '
                          'survives reboots; "away-" and its UUID after '
                          'another device took its place.'),
        sa.Column('address', sa.String(32), nullable=False,
                  comment='Its PCI address at the last scan.'),
        sa.Column('state', sa.String(16), nullable=False,
                  comment='Where it is in its life cycle.'),
        sa.Column('present', sa.Boolean(), nullable=False,
                  comment='The last scan saw it.'),
        sa.Column('reason', sa.Text(),
                  comment='Why it is unmanaged, or waits.'),
        sa.Column('clean_token', _UUID,
                  comment='What made it dirty: its last assignment, or a '
                          'request.'),
        sa.Column('clean_attempt', _UUID,
                  comment='Attempt to clean it that may end; a verdict on '
                          'an earlier one is refused. If it is clean_token, '
                          'a dirty device waits for another cleaning '
                          'policy.'),
        sa.Column('cleaned_steps', _NAME,
                  comment='Steps that the last cleaning passed, joined by '
                          '"+"; NULL: it is new on its host; empty: '
                          'something happened since that cleaning.'),
        sa.Column('pci_function', sa.Text(), nullable=False,
                  comment='JSON of the PCI function that the last scan '
                          'read.'),
        sa.Column('new_in_place', sa.Boolean(), nullable=False,
                  comment='What its host knows of its place is of another '
                          'device: no cleaning there has passed, and nobody '
                          'has claimed it yet.'),
        sa.Column('awaits_replacement', sa.Boolean(), nullable=False,
                  comment='It is retired, and the next device in its place '
                          'is accepted.'),
        sa.Column('replaced_by', _UUID,
                  comment='UUID of the device that took its place.'),
        sa.Column('vendor_id', sa.String(4), nullable=False,
                  comment='PCI vendor id; empty: it has none.'),
        sa.Column('product_id', sa.String(4), nullable=False,
                  comment='PCI device id; empty: it has none.'),
        sa.Column('vgpu_capability', sa.Text(),
                  comment='JSON of its vGPU mechanism and types; NULL: its '
                          'driver has none. A scan that cannot see them '
                          'does not overwrite it.'),
        sa.Column('driver_capacity', sa.Text(),
                  comment='JSON of how many vGPUs its driver would still '
                          'create; NULL: it does not report it.'),
        sa.Column('health', sa.String(16),
                  comment='Health that its host last reported; NULL: it has '
                          'none of its own, such as a VF.'),
        sa.Column('health_reason', sa.Text(),
                  comment='Why the health is not ok.'),
        sa.Column('errors', sa.Text(),
                  comment='JSON of the errors that the kernel of the host '
                          'has counted, by kind.'),
        sa.Column('generation', sa.Integer(), nullable=False,
                  comment='Compare-and-swap of state.'),
        sa.PrimaryKeyConstraint('id', name='pk_devices'),
        sa.ForeignKeyConstraint(['group_id'], ['host_gpu_groups.id'],
                                name='fk_devices_group_id'),
        sa.ForeignKeyConstraint(['host_id'], ['hosts.id'],
                                name='fk_devices_host_id'),
        sa.ForeignKeyConstraint(['parent_id'], ['devices.id'],
                                name='fk_devices_parent_id'),
        sa.UniqueConstraint('host_id', 'stable_id',
                            name='uq_devices_host_id_stable_id'),
        sa.UniqueConstraint('uuid', name='uq_devices_uuid'))
    migration.create_index('ix_devices_group_id', 'devices', ['group_id'])
    migration.create_index('ix_devices_parent_id', 'devices', ['parent_id'])
    migration.create_index('ix_devices_vendor_id_product_id_host_id',
                           'devices', ['vendor_id', 'product_id', 'host_id'])


def _assignments() -> None:
    migration.create_table(
        'assignments',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', _UUID, nullable=False,
                  comment='What nova-compute calls it.'),
        sa.Column('device_id', sa.Integer(), nullable=False,
                  comment='Device that is assigned.'),
        sa.Column('host_id', sa.Integer(), nullable=False,
                  comment='Host of the device.'),
        sa.Column('instance_uuid', _UUID, nullable=False,
                  comment='Instance that it is assigned to.'),
        sa.Column('role', sa.String(16), nullable=False,
                  comment='"instance", or "destination" of a migration.'),
        sa.Column('migration_uuid', _UUID, nullable=False,
                  comment='Migration that it is for; empty: none.'),
        sa.Column('ordinal', sa.Integer(), nullable=False,
                  comment='Which of the devices of the claim it is.'),
        sa.Column('active', sa.Integer(),
                  comment='1 while it lasts, then NULL.'),
        sa.Column('vgpu_type', sa.String(64), nullable=False,
                  comment='Type that was claimed.'),
        sa.Column('resource_class', _NAME, nullable=False,
                  comment='Class that Placement allocated for it.'),
        sa.Column('request', sa.Text(), nullable=False,
                  comment='JSON of the claim: the same claim again gets the '
                          'same devices, another one is refused. Empty: '
                          'adopted from its host.'),
        sa.Column('allocated', sa.Boolean(), nullable=False,
                  comment='An allocation in Placement covers it.'),
        sa.Column('project_id', _NAME, nullable=False,
                  comment='Project of the instance.'),
        sa.Column('user_id', _NAME, nullable=False,
                  comment='User who created the instance.'),
        sa.Column('flavor', _NAME, nullable=False,
                  comment='Name of the flavor that was claimed for.'),
        sa.Column('claimed_at', sa.DateTime(), nullable=False,
                  comment='When it was claimed (UTC).'),
        sa.Column('lease_expires_at', sa.Double(),
                  comment='Until when a claim that nobody activated lasts, '
                          'in seconds since the epoch; NULL: it was '
                          'activated.'),
        sa.Column('ended_at', sa.DateTime(),
                  comment='When it ended (UTC); NULL: it lasts.'),
        sa.Column('host_generation', sa.BigInteger(), nullable=False,
                  comment='Generation of the host before the claim, which '
                          'orders the claims on it.'),
        sa.Column('source_host', _NAME,
                  comment='Host that the migration is from, which may end '
                          'the claim; NULL: there is none.'),
        sa.Column('exact', sa.Boolean(), nullable=False,
                  comment='The instance named the device instead of '
                          'requesting one by its flavor.'),
        sa.Column('guest_addresses', sa.Text(),
                  comment='JSON list of the PCI addresses of its functions '
                          'in the guest; NULL: unknown.'),
        sa.PrimaryKeyConstraint('id', name='pk_assignments'),
        sa.ForeignKeyConstraint(['device_id'], ['devices.id'],
                                name='fk_assignments_device_id'),
        sa.ForeignKeyConstraint(['host_id'], ['hosts.id'],
                                name='fk_assignments_host_id'),
        sa.UniqueConstraint('instance_uuid', 'host_id', 'role',
                            'migration_uuid', 'ordinal', 'active',
                            name='uq_assignments_claim_key'),
        sa.UniqueConstraint('device_id', 'active',
                            name='uq_assignments_device_id_active'),
        sa.UniqueConstraint('uuid', name='uq_assignments_uuid'))
    migration.create_index('ix_assignments_ended_at', 'assignments',
                           ['ended_at'])
    migration.create_index('ix_assignments_host_id_active', 'assignments',
                           ['host_id', 'active'])
    migration.create_index('ix_assignments_lease_expires_at', 'assignments',
                           ['lease_expires_at'])


def _holds() -> None:
    migration.create_table(
        'holds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_id', sa.Integer(),
                  comment='Device that it holds; NULL: it holds a host.'),
        sa.Column('host_id', sa.Integer(),
                  comment='Host that it holds; NULL: it holds a device.'),
        sa.Column('kind', sa.String(32), nullable=False,
                  comment='Kind, such as "quarantined".'),
        sa.Column('reason', sa.Text(),
                  comment='Why, in words; NULL: nobody said.'),
        sa.Column('actor', sa.Text(),
                  comment='Operator who set it; NULL: a conductor did.'),
        sa.Column('since', sa.DateTime(), nullable=False,
                  comment='Since when (UTC).'),
        sa.PrimaryKeyConstraint('id', name='pk_holds'),
        sa.ForeignKeyConstraint(['device_id'], ['devices.id'],
                                name='fk_holds_device_id'),
        sa.ForeignKeyConstraint(['host_id'], ['hosts.id'],
                                name='fk_holds_host_id'),
        sa.UniqueConstraint('device_id', 'kind',
                            name='uq_holds_device_id_kind'),
        sa.UniqueConstraint('host_id', 'kind',
                            name='uq_holds_host_id_kind'))


def _sightings() -> None:
    # An id is never used again: it is the order of the sightings.
    migration.create_table(
        'sightings',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False,
                  comment='UUID of the GPU.'),
        sa.Column('dsn', _NAME,
                  comment='PCIe Device Serial Number; NULL: none is known.'),
        sa.Column('serial', _NAME,
                  comment='Serial number of the VPD, in upper case; NULL: '
                          'none is known.'),
        sa.Column('known', sa.Integer(), nullable=False,
                  comment='Newest sighting of the card elsewhere that its '
                          'verdict here takes into account; 0: none.'),
        sa.PrimaryKeyConstraint('id', name='pk_sightings'),
        sqlite_autoincrement=True)
    migration.create_index('ix_sightings_device_uuid', 'sightings',
                           ['device_uuid'])
    migration.create_index('ix_sightings_dsn', 'sightings', ['dsn'])
    migration.create_index('ix_sightings_serial', 'sightings', ['serial'])


def _usages() -> None:
    migration.create_table(
        'usages',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('assignment_uuid', _UUID, nullable=False,
                  comment='UUID of the assignment.'),
        sa.Column('instance_uuid', _UUID, nullable=False,
                  comment='Instance that used the device.'),
        sa.Column('project_id', _NAME, nullable=False,
                  comment='Project of the instance.'),
        sa.Column('user_id', _NAME, nullable=False,
                  comment='User who created the instance.'),
        sa.Column('flavor', _NAME, nullable=False,
                  comment='Name of the flavor that was claimed for.'),
        sa.Column('host', _NAME, nullable=False, comment='Name of the host.'),
        sa.Column('device_uuid', _UUID, nullable=False,
                  comment='UUID of the device.'),
        sa.Column('address', sa.String(32), nullable=False,
                  comment='PCI address of the device.'),
        sa.Column('serial', _NAME,
                  comment='Serial number of the GPU; NULL: unknown.'),
        sa.Column('variant', sa.String(64),
                  comment='Name of the variant; NULL: the device was in no '
                          'group.'),
        sa.Column('vgpu_type', sa.String(64), nullable=False,
                  comment='Type that was claimed.'),
        sa.Column('resource_class', _NAME, nullable=False,
                  comment='Class that Placement allocated for it.'),
        sa.Column('began_at', sa.DateTime(), nullable=False,
                  comment='When it began (UTC, whole seconds).'),
        sa.Column('ended_at', sa.DateTime(),
                  comment='When it ended (UTC, whole seconds); NULL: it '
                          'goes on.'),
        sa.Column('exported_at', sa.DateTime(),
                  comment='When "usage export" wrote it (UTC); NULL: not '
                          'yet.'),
        sa.PrimaryKeyConstraint('id', name='pk_usages'),
        sa.UniqueConstraint('assignment_uuid',
                            name='uq_usages_assignment_uuid'))
    migration.create_index('ix_usages_ended_at', 'usages', ['ended_at'])
    migration.create_index('ix_usages_exported_at_ended_at', 'usages',
                           ['exported_at', 'ended_at'])
    migration.create_index('ix_usages_host_ended_at', 'usages',
                           ['host', 'ended_at'])
    migration.create_index('ix_usages_instance_uuid', 'usages',
                           ['instance_uuid'])
    migration.create_index('ix_usages_project_id_ended_at', 'usages',
                           ['project_id', 'ended_at'])


def _events() -> None:
    migration.create_table(
        'events',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('at', sa.DateTime(), nullable=False,
                  comment='When it happened (UTC).'),
        sa.Column('kind', sa.String(32), nullable=False,
                  comment='What happened.'),
        sa.Column('host', _NAME,
                  comment='Name of the host that it concerns, if any.'),
        sa.Column('device_uuid', _UUID,
                  comment='UUID of the device that it concerns, if any.'),
        sa.Column('assignment_uuid', _UUID,
                  comment='UUID of the assignment that it concerns, if any.'),
        sa.Column('instance_uuid', _UUID,
                  comment='UUID of the instance that it concerns, if any.'),
        sa.Column('project_id', _NAME, comment='Project of that instance.'),
        sa.Column('actor', _NAME, nullable=False,
                  comment='Who caused it, such as "host compute1".'),
        sa.Column('request_id', sa.String(40),
                  comment='Request of the user to Nova, or else the call '
                          'that caused it; NULL: no call did.'),
        sa.Column('reason', sa.String(64),
                  comment='Name of the reason of a refusal.'),
        sa.Column('detail', sa.Text(),
                  comment='Further information for operators.'),
        sa.Column('count', sa.Integer(), nullable=False,
                  comment='How many refusals the row stands for.'),
        sa.Column('notifications', _LONG_TEXT,
                  comment='JSON of the messages that publish it, with the '
                          'facts of then; NULL: there are none.'),
        sa.PrimaryKeyConstraint('id', name='pk_events'),
        sqlite_autoincrement=True)
    migration.create_index('ix_events_at', 'events', ['at'])
    migration.create_index('ix_events_device_uuid', 'events', ['device_uuid'])
    migration.create_index('ix_events_host_id', 'events', ['host', 'id'])
    migration.create_index('ix_events_instance_uuid', 'events',
                           ['instance_uuid'])
    migration.create_index('ix_events_kind_id', 'events', ['kind', 'id'])
    migration.create_index('ix_events_project_id_id', 'events',
                           ['project_id', 'id'])
    migration.create_index('ix_events_request_id', 'events', ['request_id'])


def _cleanings() -> None:
    # A record outlives its device and its host: no foreign keys.
    migration.create_table(
        'cleanings',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False,
                  comment='Device in whose chain it is.'),
        sa.Column('number', sa.BigInteger(), nullable=False,
                  comment='Its place in the chain.'),
        sa.Column('content', _LONG_TEXT, nullable=False,
                  comment='Its fields as the JSON that was hashed, so that '
                          'no database writes a time or a number in another '
                          'way.'),
        sa.Column('hash', sa.String(64), nullable=False,
                  comment='SHA-256 of the content.'),
        sa.PrimaryKeyConstraint('id', name='pk_cleanings'),
        sa.UniqueConstraint('device_uuid', 'number',
                            name='uq_cleanings_device_uuid_number'))


def _cleaning_chains() -> None:
    migration.create_table(
        'cleaning_chains',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False,
                  comment='Device whose chain it is.'),
        sa.Column('number', sa.BigInteger(), nullable=False,
                  comment='Number of its last record; 0 before the first.'),
        sa.Column('hash', sa.String(64),
                  comment='Hash of that record; NULL before the first.'),
        sa.Column('started_at', sa.DateTime(),
                  comment='When the cleaning began that has no record yet '
                          '(UTC); NULL: there is none.'),
        sa.Column('settings', _LONG_TEXT,
                  comment='JSON of what the step "settings" found in the '
                          'last cleaning that passed; NULL before it, and '
                          'after an operator has released the device as it '
                          'is.'),
        sa.PrimaryKeyConstraint('id', name='pk_cleaning_chains'),
        sa.UniqueConstraint('device_uuid',
                            name='uq_cleaning_chains_device_uuid'))


def _caller_keys() -> None:
    migration.create_table(
        'caller_keys',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(16), nullable=False,
                  comment='Kind of the caller, such as "host".'),
        sa.Column('name', _NAME, nullable=False,
                  comment='Name of the caller, such as that of the host.'),
        sa.Column('number', sa.Integer(), nullable=False,
                  comment='Random number of the key.'),
        sa.Column('master_id', sa.String(16), nullable=False,
                  comment='ID of the master key.'),
        sa.Column('created_at', sa.DateTime(), nullable=False,
                  comment='When it was made (UTC).'),
        sa.Column('revoked_at', sa.DateTime(),
                  comment='From when on it is refused (UTC); NULL: it is '
                          'valid.'),
        sa.PrimaryKeyConstraint('id', name='pk_caller_keys'),
        sa.UniqueConstraint('kind', 'name', 'number',
                            name='uq_caller_keys_kind_name_number'))


def _executed_calls() -> None:
    migration.create_table(
        'executed_calls',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('nonce', sa.String(64), nullable=False,
                  comment='Nonce of the signature.'),
        sa.Column('until', sa.Double(), nullable=False,
                  comment='When a copy is refused for its age, and the row '
                          'deleted, in seconds since the epoch.'),
        sa.PrimaryKeyConstraint('id', name='pk_executed_calls'),
        sa.UniqueConstraint('nonce', name='uq_executed_calls_nonce'))
    migration.create_index('ix_executed_calls_until', 'executed_calls',
                           ['until'])


def _clouds() -> None:
    migration.create_table(
        'clouds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', _UUID, nullable=False,
                  comment='Made with the table; hosts keep it.'),
        sa.PrimaryKeyConstraint('id', name='pk_clouds'))
    clouds = sa.table('clouds', sa.column('id', sa.Integer()),
                      sa.column('uuid', sa.String()))
    connection = op.get_bind()
    # A run that was interrupted may have made it.
    if connection.scalar(sa.select(clouds.c.id)) is None:
        connection.execute(clouds.insert().values(
            id=1, uuid=str(uuid.uuid4())))


def _unsent() -> None:
    migration.create_table(
        'unsent',
        sa.Column('event_id', sa.Integer(), nullable=False,
                  autoincrement=False,
                  comment='Event of which the broker has not confirmed all '
                          'notifications.'),
        sa.PrimaryKeyConstraint('event_id', name='pk_unsent'))


def _notification_states() -> None:
    migration.create_table(
        'notification_states',
        sa.Column('name', sa.String(32), nullable=False, comment='"all".'),
        sa.Column('sender', _UUID,
                  comment='UUID of the conductor that sends; NULL: none.'),
        sa.Column('sends_until', sa.Double(),
                  comment='Until when that conductor sends, in seconds '
                          'since the epoch.'),
        sa.Column('audited_until', sa.DateTime(),
                  comment='End of the last period of which all "exists" '
                          'notifications were written (UTC); NULL before '
                          'the first audit.'),
        sa.Column('audited_usage_id', sa.Integer(), nullable=False,
                  comment='Last usage whose notification was written for '
                          'the period after that.'),
        sa.Column('audited_since', sa.DateTime(),
                  comment='Beginning of the first audit period (UTC); NULL '
                          'before the first audit.'),
        sa.Column('auditing_until', sa.DateTime(),
                  comment='End of a period of which some notifications were '
                          'written (UTC); NULL: there is none.'),
        sa.PrimaryKeyConstraint('name', name='pk_notification_states'))
    migration.insert_row('notification_states', name='all', audited_usage_id=0)


def _request_kinds() -> None:
    migration.create_table(
        'request_kinds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('vcpus', sa.Integer(), nullable=False,
                  comment='Number of vCPUs of an instance.'),
        sa.Column('memory_mib', sa.Integer(), nullable=False,
                  comment='MiB of RAM of an instance.'),
        sa.Column('resource_class', _NAME, nullable=False,
                  comment='Class of its GPUs; empty: it has none.'),
        sa.Column('units', sa.Integer(), nullable=False,
                  comment='How many of the class it gets.'),
        sa.Column('weight', sa.Double(), nullable=False,
                  comment='How many there were, each multiplied by a number '
                          'that grows with time: older ones count less '
                          'without a write.'),
        sa.Column('arrivals', sa.BigInteger(), nullable=False,
                  comment='How many there were.'),
        sa.PrimaryKeyConstraint('id', name='pk_request_kinds'),
        sa.UniqueConstraint('vcpus', 'memory_mib', 'resource_class', 'units',
                            name='uq_request_kinds_kind'))


def _counted_instances() -> None:
    migration.create_table(
        'counted_instances',
        sa.Column('instance_uuid', _UUID, nullable=False,
                  comment='UUID of the instance.'),
        sa.Column('at', sa.Double(), nullable=False,
                  comment='When it was counted, in seconds since the epoch.'),
        sa.PrimaryKeyConstraint('instance_uuid', name='pk_counted_instances'))
    migration.create_index('ix_counted_instances_at', 'counted_instances',
                           ['at'])
