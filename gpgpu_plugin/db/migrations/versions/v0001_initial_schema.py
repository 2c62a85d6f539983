#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Initial schema. gpgpu_plugin.db.models says what each column is for."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None

_EMPTY_LIST = sa.text("('[]')")
_EMPTY_OBJECT = sa.text("('{}')")
_PASSTHROUGH_ONLY = sa.text("""('["passthrough"]')""")


def upgrade() -> None:
    # In the order in which foreign keys refer to each other.
    _events()
    _hosts()
    _locks()
    _variants()
    _host_gpu_groups()
    _devices()
    _vgpu_types()
    _assignments()


def _events() -> None:
    ddl.create_table(
        'events',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('at', sa.DateTime(), nullable=False,
                  server_default='1970-01-01 00:00:00'),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('host', sa.String(255), nullable=True),
        sa.Column('device_uuid', sa.String(36), nullable=True),
        sa.Column('assignment_uuid', sa.String(36), nullable=True),
        sa.Column('instance_uuid', sa.String(36), nullable=True),
        sa.Column('detail', sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_events'))
    ddl.create_index('ix_events_device_uuid', 'events', ['device_uuid'])
    ddl.create_index('ix_events_instance_uuid', 'events', ['instance_uuid'])


def _hosts() -> None:
    ddl.create_table(
        'hosts',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(255), nullable=False),
        sa.Column('node', sa.String(255), nullable=False),
        sa.Column('node_uuid', sa.String(36), nullable=False),
        sa.Column('generation', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('change_number', sa.BigInteger(), nullable=True),
        sa.Column('deleted', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('problems', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.Column('reported_at', sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_hosts'),
        sa.UniqueConstraint('name', 'deleted', name='uq_hosts_name_deleted'),
        sa.UniqueConstraint('node_uuid', 'deleted',
                            name='uq_hosts_node_uuid_deleted'))
    ddl.create_index('ix_hosts_change_number', 'hosts', ['change_number'])


def _locks() -> None:
    ddl.create_table(
        'locks',
        sa.Column('name', sa.String(32), nullable=False),
        sa.Column('value', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.PrimaryKeyConstraint('name', name='pk_locks'))
    for name in ('changes', 'variants'):
        ddl.insert_row('locks', name=name)


def _variants() -> None:
    ddl.create_table(
        'variants',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(64), nullable=False),
        sa.Column('normalized_name', sa.String(64), nullable=False),
        sa.Column('vendor', sa.String(4), nullable=False),
        sa.Column('device', sa.String(4), nullable=False),
        sa.Column('subsystem_vendor', sa.String(4), nullable=True),
        sa.Column('subsystem', sa.String(4), nullable=True),
        sa.Column('revision', sa.String(2), nullable=True),
        sa.Column('type', sa.String(32), nullable=False, server_default='gpu'),
        sa.Column('resource_class', sa.String(255), nullable=False),
        sa.Column('traits', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.Column('mix_policy', sa.String(16), nullable=False,
                  server_default='same_type'),
        sa.Column('enabled_types', sa.Text(), nullable=False,
                  server_default=_PASSTHROUGH_ONLY),
        sa.PrimaryKeyConstraint('id', name='pk_variants'),
        sa.UniqueConstraint('name', name='uq_variants_name'),
        sa.UniqueConstraint('normalized_name',
                            name='uq_variants_normalized_name'))


def _host_gpu_groups() -> None:
    ddl.create_table(
        'host_gpu_groups',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('variant_id', sa.Integer(), nullable=False),
        sa.Column('provider_uuid', sa.String(36), nullable=False),
        sa.Column('allocation_policy', sa.String(32), nullable=False,
                  server_default='depth_first'),
        sa.PrimaryKeyConstraint('id', name='pk_host_gpu_groups'),
        sa.ForeignKeyConstraint(['host_id'], ['hosts.id'],
                                name='fk_host_gpu_groups_host_id'),
        sa.ForeignKeyConstraint(['variant_id'], ['variants.id'],
                                name='fk_host_gpu_groups_variant_id'),
        sa.UniqueConstraint('host_id', 'variant_id',
                            name='uq_host_gpu_groups_host_id_variant_id'))
    ddl.create_index('ix_host_gpu_groups_variant_id', 'host_gpu_groups',
                     ['variant_id'])


def _devices() -> None:
    ddl.create_table(
        'devices',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('group_id', sa.Integer(), nullable=True),
        sa.Column('parent_id', sa.Integer(), nullable=True),
        sa.Column('kind', sa.String(16), nullable=False, server_default='pci'),
        sa.Column('vgpu_type', sa.String(64), nullable=True),
        sa.Column('placement_id', sa.Integer(), nullable=True),
        sa.Column('stable_id', sa.String(255), nullable=False),
        sa.Column('address', sa.String(32), nullable=False),
        sa.Column('state', sa.String(16), nullable=False,
                  server_default='quarantined'),
        sa.Column('enabled', sa.Boolean(), nullable=False, server_default='1'),
        sa.Column('present', sa.Boolean(), nullable=False, server_default='1'),
        sa.Column('reason', sa.Text(), nullable=True),
        sa.Column('clean_token', sa.String(36), nullable=True),
        sa.Column('pci_function', sa.Text(), nullable=False,
                  server_default=_EMPTY_OBJECT),
        sa.Column('vgpu_capability', sa.Text(), nullable=True),
        sa.Column('driver_capacity', sa.Text(), nullable=True),
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


def _vgpu_types() -> None:
    ddl.create_table(
        'vgpu_types',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('gpu_group_id', sa.Integer(), nullable=False),
        sa.Column('vgpu_type', sa.String(64), nullable=False),
        sa.Column('video_ram', sa.Integer(), nullable=True),
        sa.Column('max_heads', sa.Integer(), nullable=True),
        sa.Column('max_resolution_x', sa.Integer(), nullable=True),
        sa.Column('max_resolution_y', sa.Integer(), nullable=True),
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


def _assignments() -> None:
    ddl.create_table(
        'assignments',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('device_id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('role', sa.String(16), nullable=False),
        sa.Column('migration_uuid', sa.String(36), nullable=False),
        sa.Column('ordinal', sa.Integer(), nullable=False),
        sa.Column('active', sa.Integer(), nullable=True),
        sa.Column('vgpu_type', sa.String(64), nullable=False),
        sa.Column('resource_class', sa.String(255), nullable=False),
        sa.Column('request', sa.Text(), nullable=False,
                  server_default=_EMPTY_OBJECT),
        sa.Column('allocated', sa.Boolean(), nullable=False,
                  server_default='0'),
        sa.Column('project_id', sa.String(255), nullable=True),
        sa.Column('user_id', sa.String(255), nullable=True),
        sa.Column('claimed_at', sa.DateTime(), nullable=False,
                  server_default='1970-01-01 00:00:00'),
        sa.Column('lease_expires_at', sa.Double(), nullable=True),
        sa.Column('ended_at', sa.DateTime(), nullable=True),
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
