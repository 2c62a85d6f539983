# SPDX-License-Identifier: Apache-2.0
"""All tables. gpgpu_plugin.db.models says what each column is for."""

import uuid

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from gpgpu_plugin.db import ddl

revision = '0001_initial'
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(255)
_UUID = sa.String(36)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')
_EMPTY_LIST = sa.text("('[]')")
_EMPTY_OBJECT = sa.text("('{}')")
_PASSTHROUGH_ONLY = sa.text("""('["passthrough"]')""")
_UNKNOWN_TIME = '1970-01-01 00:00:00'


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
    _sightings()
    _usages()
    _events()
    _cleanings()
    _cleaning_chains()
    _caller_keys()
    _executed_calls()
    _host_answers()
    _clouds()
    _notifications()
    _notification_states()
    _request_kinds()
    _counted_instances()


def _locks() -> None:
    ddl.create_table(
        'locks',
        sa.Column('name', sa.String(32), nullable=False),
        sa.Column('value', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.PrimaryKeyConstraint('name', name='pk_locks'))
    ddl.insert_row('locks', name='variants')


def _hosts() -> None:
    ddl.create_table(
        'hosts',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', _NAME, nullable=False),
        sa.Column('node', _NAME, nullable=False),
        sa.Column('node_uuid', _UUID, nullable=False),
        sa.Column('generation', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('changed_at', sa.Double(), nullable=False,
                  server_default='0'),
        sa.Column('deleted', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('problems', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.Column('reported_at', sa.DateTime()),
        sa.Column('session', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('session_began_at', sa.DateTime(), nullable=False),
        sa.Column('plugin_version', sa.String(64), nullable=False),
        sa.Column('start_uuid', _UUID),
        sa.Column('machine', sa.Text(), nullable=False,
                  server_default=_EMPTY_OBJECT),
        sa.Column('heard_at', sa.Double(), nullable=False),
        sa.Column('takeover', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('restored', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('draining', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('service_disabled', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('report_number', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('comparison_number', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('report_digest', sa.String(64)),
        sa.Column('report_generation', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('report_answer', sa.Text()),
        sa.PrimaryKeyConstraint('id', name='pk_hosts'),
        sa.UniqueConstraint('name', 'deleted', name='uq_hosts_name_deleted'),
        sa.UniqueConstraint('node_uuid', 'deleted',
                            name='uq_hosts_node_uuid_deleted'))
    ddl.create_index('ix_hosts_changed_at', 'hosts', ['changed_at'])


def _variants() -> None:
    ddl.create_table(
        'variants',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(64), nullable=False),
        sa.Column('normalized_name', sa.String(64), nullable=False),
        sa.Column('vendor', sa.String(4), nullable=False),
        sa.Column('device', sa.String(4), nullable=False),
        sa.Column('subsystem_vendor', sa.String(4)),
        sa.Column('subsystem', sa.String(4)),
        sa.Column('revision', sa.String(2)),
        sa.Column('type', sa.String(32), nullable=False, server_default='gpu'),
        sa.Column('resource_class', _NAME, nullable=False),
        sa.Column('traits', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.Column('mix_policy', sa.String(16), nullable=False,
                  server_default='same_type'),
        sa.Column('cleaning_policy', _NAME, nullable=False,
                  server_default='default'),
        sa.Column('memory_mib', sa.Integer()),
        sa.Column('unsupported_ok', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('allocation_policy', sa.String(32), nullable=False,
                  server_default='depth_first'),
        sa.Column('link_partitions', sa.Text()),
        sa.Column('enabled_types', sa.Text(), nullable=False,
                  server_default=_PASSTHROUGH_ONLY),
        sa.Column('status', sa.String(16), nullable=False,
                  server_default='ready'),
        sa.Column('reason', sa.Text()),
        sa.PrimaryKeyConstraint('id', name='pk_variants'),
        sa.UniqueConstraint('name', name='uq_variants_name'),
        sa.UniqueConstraint('normalized_name',
                            name='uq_variants_normalized_name'))


def _variant_changes() -> None:
    ddl.create_table(
        'variant_changes',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('variant_id', sa.Integer(), nullable=False),
        sa.Column('ids', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.Column('before', sa.Text()),
        sa.Column('vgpu_type', sa.String(64)),
        sa.Column('enabled', sa.Boolean()),
        sa.Column('clears_groups', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('last_host_id', sa.Integer(), nullable=False,
                  server_default='0'),
        sa.Column('skipped_hosts', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.PrimaryKeyConstraint('id', name='pk_variant_changes'),
        sa.ForeignKeyConstraint(['variant_id'], ['variants.id'],
                                name='fk_variant_changes_variant_id'),
        sa.UniqueConstraint('variant_id',
                            name='uq_variant_changes_variant_id'))


def _host_gpu_groups() -> None:
    ddl.create_table(
        'host_gpu_groups',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('variant_id', sa.Integer(), nullable=False),
        sa.Column('provider_uuid', _UUID, nullable=False),
        sa.Column('allocation_policy', sa.String(32), nullable=False,
                  server_default='depth_first'),
        sa.Column('own_policy', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('link_partitions', sa.Text()),
        sa.PrimaryKeyConstraint('id', name='pk_host_gpu_groups'),
        sa.ForeignKeyConstraint(['host_id'], ['hosts.id'],
                                name='fk_host_gpu_groups_host_id'),
        sa.ForeignKeyConstraint(['variant_id'], ['variants.id'],
                                name='fk_host_gpu_groups_variant_id'),
        sa.UniqueConstraint('host_id', 'variant_id',
                            name='uq_host_gpu_groups_host_id_variant_id'))
    ddl.create_index('ix_host_gpu_groups_variant_id', 'host_gpu_groups',
                     ['variant_id'])


def _vgpu_types() -> None:
    ddl.create_table(
        'vgpu_types',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('gpu_group_id', sa.Integer(), nullable=False),
        sa.Column('vgpu_type', sa.String(64), nullable=False),
        sa.Column('video_ram', sa.Integer()),
        sa.Column('max_heads', sa.Integer()),
        sa.Column('max_resolution_x', sa.Integer()),
        sa.Column('max_resolution_y', sa.Integer()),
        sa.Column('max_vgpu_per_pgpu', sa.Integer(), nullable=False,
                  server_default='1'),
        sa.Column('max_capacity', sa.Integer(), nullable=False,
                  server_default='0'),
        sa.Column('remaining_capacity', sa.Integer(), nullable=False,
                  server_default='0'),
        sa.Column('enabled', sa.Boolean(), nullable=False, server_default='1'),
        sa.Column('listed', sa.Boolean(), nullable=False, server_default='1'),
        sa.PrimaryKeyConstraint('id', name='pk_vgpu_types'),
        sa.ForeignKeyConstraint(['gpu_group_id'], ['host_gpu_groups.id'],
                                name='fk_vgpu_types_gpu_group_id'),
        sa.UniqueConstraint('gpu_group_id', 'vgpu_type',
                            name='uq_vgpu_types_gpu_group_id_vgpu_type'))


def _devices() -> None:
    ddl.create_table(
        'devices',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', _UUID, nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('group_id', sa.Integer()),
        sa.Column('parent_id', sa.Integer()),
        sa.Column('kind', sa.String(16), nullable=False, server_default='pci'),
        sa.Column('vgpu_type', sa.String(64)),
        sa.Column('placement_id', sa.Integer()),
        sa.Column('stable_id', _NAME, nullable=False),
        sa.Column('address', sa.String(32), nullable=False),
        sa.Column('state', sa.String(16), nullable=False,
                  server_default='quarantined'),
        sa.Column('enabled', sa.Boolean(), nullable=False, server_default='1'),
        sa.Column('present', sa.Boolean(), nullable=False, server_default='1'),
        sa.Column('reason', sa.Text()),
        sa.Column('clean_token', _UUID),
        sa.Column('clean_attempt', _UUID),
        sa.Column('cleaned_steps', _NAME),
        sa.Column('pci_function', sa.Text(), nullable=False,
                  server_default=_EMPTY_OBJECT),
        sa.Column('identity', sa.Text()),
        sa.Column('swapped', sa.Text()),
        sa.Column('before_swap', sa.Text()),
        sa.Column('withdrawn', sa.Text()),
        sa.Column('withdrawn_by', sa.Text()),
        sa.Column('awaits_replacement', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('replaced_by', _UUID),
        sa.Column('vendor_id', sa.String(4), nullable=False),
        sa.Column('product_id', sa.String(4), nullable=False),
        sa.Column('vgpu_capability', sa.Text()),
        sa.Column('driver_capacity', sa.Text()),
        sa.Column('health', sa.String(16)),
        sa.Column('health_reason', sa.Text()),
        sa.Column('errors', sa.Text()),
        sa.Column('generation', sa.Integer(), nullable=False,
                  server_default='0'),
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
    ddl.create_index('ix_devices_group_id', 'devices', ['group_id'])
    ddl.create_index('ix_devices_parent_id', 'devices', ['parent_id'])
    ddl.create_index('ix_devices_vendor_id_product_id_host_id', 'devices',
                     ['vendor_id', 'product_id', 'host_id'])


def _assignments() -> None:
    ddl.create_table(
        'assignments',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', _UUID, nullable=False),
        sa.Column('device_id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('instance_uuid', _UUID, nullable=False),
        sa.Column('role', sa.String(16), nullable=False),
        sa.Column('migration_uuid', _UUID, nullable=False),
        sa.Column('ordinal', sa.Integer(), nullable=False),
        sa.Column('active', sa.Integer()),
        sa.Column('vgpu_type', sa.String(64), nullable=False),
        sa.Column('resource_class', _NAME, nullable=False),
        sa.Column('request', sa.Text(), nullable=False,
                  server_default=_EMPTY_OBJECT),
        sa.Column('allocated', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('project_id', _NAME, nullable=False),
        sa.Column('user_id', _NAME, nullable=False),
        sa.Column('flavor', _NAME, nullable=False),
        sa.Column('claimed_at', sa.DateTime(), nullable=False,
                  server_default=_UNKNOWN_TIME),
        sa.Column('lease_expires_at', sa.Double()),
        sa.Column('ended_at', sa.DateTime()),
        sa.Column('host_generation', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('source_host', _NAME),
        sa.Column('exact', sa.Boolean(), nullable=False, server_default='0'),
        sa.Column('guest_addresses', sa.Text()),
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
    ddl.create_index('ix_assignments_host_id_active', 'assignments',
                     ['host_id', 'active'])
    ddl.create_index('ix_assignments_lease_expires_at', 'assignments',
                     ['lease_expires_at'])
    ddl.create_index('ix_assignments_ended_at', 'assignments', ['ended_at'])


def _sightings() -> None:
    # An id is never used again: it is the order of the sightings.
    ddl.create_table(
        'sightings',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False,
                  comment='UUID of the GPU.'),
        sa.Column('dsn', _NAME, comment='PCIe Device Serial Number; NULL: '
                                        'none is known.'),
        sa.Column('serial', _NAME, comment='Serial number of the VPD, in '
                                           'upper case; NULL: none is known.'),
        sa.Column('known', sa.Integer(), nullable=False,
                  server_default='0',
                  comment='Newest sighting of the card elsewhere that its '
                          'verdict here takes into account; 0: none.'),
        sa.PrimaryKeyConstraint('id', name='pk_sightings'),
        sqlite_autoincrement=True)
    ddl.create_index('ix_sightings_device_uuid', 'sightings',
                     ['device_uuid'])
    ddl.create_index('ix_sightings_dsn', 'sightings', ['dsn'])
    ddl.create_index('ix_sightings_serial', 'sightings', ['serial'])


def _usages() -> None:
    ddl.create_table(
        'usages',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('assignment_uuid', _UUID, nullable=False),
        sa.Column('instance_uuid', _UUID, nullable=False),
        sa.Column('role', sa.String(16), nullable=False),
        sa.Column('project_id', _NAME, nullable=False),
        sa.Column('user_id', _NAME, nullable=False),
        sa.Column('flavor', _NAME, nullable=False),
        sa.Column('host', _NAME, nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False),
        sa.Column('address', sa.String(32), nullable=False),
        sa.Column('serial', _NAME),
        sa.Column('variant', sa.String(64)),
        sa.Column('vgpu_type', sa.String(64), nullable=False),
        sa.Column('resource_class', _NAME, nullable=False),
        sa.Column('began_at', sa.DateTime(), nullable=False,
                  server_default=_UNKNOWN_TIME),
        sa.Column('ended_at', sa.DateTime()),
        sa.Column('exported_at', sa.DateTime()),
        sa.PrimaryKeyConstraint('id', name='pk_usages'),
        sa.UniqueConstraint('assignment_uuid',
                            name='uq_usages_assignment_uuid'))
    ddl.create_index('ix_usages_instance_uuid', 'usages', ['instance_uuid'])
    ddl.create_index('ix_usages_project_id_ended_at', 'usages',
                     ['project_id', 'ended_at'])
    ddl.create_index('ix_usages_host_ended_at', 'usages', ['host', 'ended_at'])
    ddl.create_index('ix_usages_ended_at', 'usages', ['ended_at'])
    ddl.create_index('ix_usages_exported_at_ended_at', 'usages',
                     ['exported_at', 'ended_at'])


def _events() -> None:
    ddl.create_table(
        'events',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('at', sa.DateTime(), nullable=False,
                  server_default=_UNKNOWN_TIME),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('host', _NAME),
        sa.Column('device_uuid', _UUID),
        sa.Column('assignment_uuid', _UUID),
        sa.Column('instance_uuid', _UUID),
        sa.Column('project_id', _NAME),
        sa.Column('actor', _NAME, nullable=False),
        sa.Column('request_id', sa.String(40)),
        sa.Column('reason', sa.String(64)),
        sa.Column('detail', sa.Text()),
        sa.Column('count', sa.Integer(), nullable=False, server_default='1'),
        sa.PrimaryKeyConstraint('id', name='pk_events'))
    ddl.create_index('ix_events_at', 'events', ['at'])
    ddl.create_index('ix_events_kind_id', 'events', ['kind', 'id'])
    ddl.create_index('ix_events_host_id', 'events', ['host', 'id'])
    ddl.create_index('ix_events_device_uuid', 'events', ['device_uuid'])
    ddl.create_index('ix_events_instance_uuid', 'events', ['instance_uuid'])
    ddl.create_index('ix_events_project_id_id', 'events', ['project_id', 'id'])
    ddl.create_index('ix_events_request_id', 'events', ['request_id'])


def _cleanings() -> None:
    # A record outlives its device and its host: no foreign keys.
    ddl.create_table(
        'cleanings',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False),
        sa.Column('number', sa.BigInteger(), nullable=False),
        sa.Column('content', _LONG_TEXT, nullable=False),
        sa.Column('hash', sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_cleanings'),
        sa.UniqueConstraint('device_uuid', 'number',
                            name='uq_cleanings_device_uuid_number'))


def _cleaning_chains() -> None:
    ddl.create_table(
        'cleaning_chains',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', _UUID, nullable=False),
        sa.Column('number', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('hash', sa.String(64)),
        sa.Column('started_at', sa.DateTime()),
        sa.Column('settings', _LONG_TEXT),
        sa.PrimaryKeyConstraint('id', name='pk_cleaning_chains'),
        sa.UniqueConstraint('device_uuid',
                            name='uq_cleaning_chains_device_uuid'))


def _caller_keys() -> None:
    ddl.create_table(
        'caller_keys',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(16), nullable=False),
        sa.Column('name', _NAME, nullable=False),
        sa.Column('number', sa.Integer(), nullable=False),
        sa.Column('master_id', sa.String(16), nullable=False,
                  server_default='unknown'),
        sa.Column('created_at', sa.DateTime(), nullable=False,
                  server_default=_UNKNOWN_TIME),
        sa.Column('revoked_at', sa.DateTime()),
        sa.PrimaryKeyConstraint('id', name='pk_caller_keys'),
        sa.UniqueConstraint('kind', 'name', 'number',
                            name='uq_caller_keys_kind_name_number'))


def _executed_calls() -> None:
    ddl.create_table(
        'executed_calls',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('nonce', sa.String(64), nullable=False),
        sa.Column('until', sa.Double(), nullable=False, server_default='0'),
        sa.PrimaryKeyConstraint('id', name='pk_executed_calls'),
        sa.UniqueConstraint('nonce', name='uq_executed_calls_nonce'))
    ddl.create_index('ix_executed_calls_until', 'executed_calls', ['until'])


def _host_answers() -> None:
    ddl.create_table(
        'host_answers',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('question', _UUID, nullable=False),
        sa.Column('host', _NAME, nullable=False),
        sa.Column('usages', _LONG_TEXT),
        sa.Column('asked_at', sa.Double(), nullable=False, server_default='0'),
        sa.PrimaryKeyConstraint('id', name='pk_host_answers'),
        sa.UniqueConstraint('question', name='uq_host_answers_question'))
    ddl.create_index('ix_host_answers_asked_at', 'host_answers', ['asked_at'])


def _clouds() -> None:
    ddl.create_table(
        'clouds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', _UUID, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_clouds'))
    clouds = sa.table('clouds', sa.column('id', sa.Integer()),
                      sa.column('uuid', sa.String()))
    connection = op.get_bind()
    # A run that was interrupted may have made it.
    if connection.scalar(sa.select(clouds.c.id)) is None:
        connection.execute(clouds.insert().values(
            id=1, uuid=str(uuid.uuid4())))


def _notifications() -> None:
    ddl.create_table(
        'notifications',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('message_id', _UUID, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False,
                  server_default='0'),
        sa.Column('message', _LONG_TEXT, nullable=False,
                  server_default=_EMPTY_OBJECT),
        sa.PrimaryKeyConstraint('id', name='pk_notifications'),
        sa.UniqueConstraint('message_id', name='uq_notifications_message_id'))


def _notification_states() -> None:
    ddl.create_table(
        'notification_states',
        sa.Column('name', sa.String(32), nullable=False),
        sa.Column('sender', _UUID),
        sa.Column('sends_until', sa.Double()),
        sa.Column('dropped', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('audited_until', sa.DateTime()),
        sa.Column('audited_usage_id', sa.Integer(), nullable=False,
                  server_default='0'),
        sa.Column('audited_since', sa.DateTime()),
        sa.Column('auditing_until', sa.DateTime()),
        sa.PrimaryKeyConstraint('name', name='pk_notification_states'))
    ddl.insert_row('notification_states', name='all')


def _request_kinds() -> None:
    ddl.create_table(
        'request_kinds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('vcpus', sa.Integer(), nullable=False),
        sa.Column('memory_mib', sa.Integer(), nullable=False),
        sa.Column('resource_class', _NAME, nullable=False),
        sa.Column('units', sa.Integer(), nullable=False),
        sa.Column('weight', sa.Double(), nullable=False, server_default='0'),
        sa.Column('arrivals', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.PrimaryKeyConstraint('id', name='pk_request_kinds'),
        sa.UniqueConstraint('vcpus', 'memory_mib', 'resource_class', 'units',
                            name='uq_request_kinds_kind'))


def _counted_instances() -> None:
    ddl.create_table(
        'counted_instances',
        sa.Column('instance_uuid', _UUID, nullable=False),
        sa.Column('at', sa.Double(), nullable=False, server_default='0'),
        sa.PrimaryKeyConstraint('instance_uuid', name='pk_counted_instances'))
    ddl.create_index('ix_counted_instances_at', 'counted_instances', ['at'])
