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
"""Initial schema."""

import sqlalchemy as sa
from alembic import op

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'events',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('at', sa.DateTime(), nullable=False),
        sa.Column('kind', sa.String(length=32), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=True),
        sa.Column('device_uuid', sa.String(length=36), nullable=True),
        sa.Column('assignment_uuid', sa.String(length=36), nullable=True),
        sa.Column('instance_uuid', sa.String(length=36), nullable=True),
        sa.Column('detail', sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_events')),
    )
    op.create_index(
        op.f('ix_events_device_uuid'), 'events', ['device_uuid'], unique=False
    )
    op.create_index(
        op.f('ix_events_instance_uuid'),
        'events',
        ['instance_uuid'],
        unique=False,
    )

    op.create_table(
        'hosts',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('node', sa.String(length=255), nullable=False),
        sa.Column('node_uuid', sa.String(length=36), nullable=False),
        sa.Column('generation', sa.BigInteger(), nullable=False),
        sa.Column('change_number', sa.BigInteger(), nullable=True),
        sa.Column('deleted', sa.Integer(), nullable=False),
        sa.Column('problems', sa.Text(), nullable=False),
        sa.Column('reported_at', sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_hosts')),
        sa.UniqueConstraint(
            'name', 'deleted', name=op.f('uq_hosts_name_deleted')
        ),
        sa.UniqueConstraint(
            'node_uuid', 'deleted', name=op.f('uq_hosts_node_uuid_deleted')
        ),
    )
    op.create_index(
        op.f('ix_hosts_change_number'),
        'hosts',
        ['change_number'],
        unique=False,
    )

    op.create_table(
        'locks',
        sa.Column('name', sa.String(length=32), nullable=False),
        sa.Column('value', sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint('name', name=op.f('pk_locks')),
    )
    op.create_table(
        'variants',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=64), nullable=False),
        sa.Column('normalized_name', sa.String(length=64), nullable=False),
        sa.Column('vendor', sa.String(length=4), nullable=False),
        sa.Column('device', sa.String(length=4), nullable=False),
        sa.Column('subsystem_vendor', sa.String(length=4), nullable=True),
        sa.Column('subsystem', sa.String(length=4), nullable=True),
        sa.Column('revision', sa.String(length=2), nullable=True),
        sa.Column('type', sa.String(length=32), nullable=False),
        sa.Column('resource_class', sa.String(length=255), nullable=False),
        sa.Column('traits', sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_variants')),
        sa.UniqueConstraint('name', name=op.f('uq_variants_name')),
        sa.UniqueConstraint(
            'normalized_name', name=op.f('uq_variants_normalized_name')
        ),
    )
    op.create_table(
        'host_gpu_groups',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('variant_id', sa.Integer(), nullable=False),
        sa.Column('provider_uuid', sa.String(length=36), nullable=False),
        sa.Column('allocation_policy', sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ['host_id'], ['hosts.id'], name=op.f('fk_host_gpu_groups_host_id')
        ),
        sa.ForeignKeyConstraint(
            ['variant_id'],
            ['variants.id'],
            name=op.f('fk_host_gpu_groups_variant_id'),
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_host_gpu_groups')),
        sa.UniqueConstraint(
            'host_id',
            'variant_id',
            name=op.f('uq_host_gpu_groups_host_id_variant_id'),
        ),
    )
    op.create_index(
        op.f('ix_host_gpu_groups_variant_id'),
        'host_gpu_groups',
        ['variant_id'],
        unique=False,
    )

    op.create_table(
        'devices',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('group_id', sa.Integer(), nullable=True),
        sa.Column('parent_id', sa.Integer(), nullable=True),
        sa.Column('stable_id', sa.String(length=255), nullable=False),
        sa.Column('address', sa.String(length=32), nullable=False),
        sa.Column('state', sa.String(length=16), nullable=False),
        sa.Column('enabled', sa.Boolean(), nullable=False),
        sa.Column('present', sa.Boolean(), nullable=False),
        sa.Column('reason', sa.Text(), nullable=True),
        sa.Column('clean_token', sa.String(length=36), nullable=True),
        sa.Column('facts', sa.Text(), nullable=False),
        sa.Column('generation', sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ['group_id'],
            ['host_gpu_groups.id'],
            name=op.f('fk_devices_group_id'),
        ),
        sa.ForeignKeyConstraint(
            ['host_id'], ['hosts.id'], name=op.f('fk_devices_host_id')
        ),
        sa.ForeignKeyConstraint(
            ['parent_id'], ['devices.id'], name=op.f('fk_devices_parent_id')
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_devices')),
        sa.UniqueConstraint(
            'host_id', 'stable_id', name=op.f('uq_devices_host_id_stable_id')
        ),
        sa.UniqueConstraint('uuid', name=op.f('uq_devices_uuid')),
    )
    op.create_index(
        op.f('ix_devices_group_id'), 'devices', ['group_id'], unique=False
    )

    op.create_table(
        'vgpu_types',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('gpu_group_id', sa.Integer(), nullable=False),
        sa.Column('vgpu_type', sa.String(length=64), nullable=False),
        sa.Column('video_ram', sa.Integer(), nullable=True),
        sa.Column('max_heads', sa.Integer(), nullable=True),
        sa.Column('max_resolution_x', sa.Integer(), nullable=True),
        sa.Column('max_resolution_y', sa.Integer(), nullable=True),
        sa.Column('max_vgpu_per_pgpu', sa.Integer(), nullable=False),
        sa.Column('max_capacity', sa.Integer(), nullable=False),
        sa.Column('remaining_capacity', sa.Integer(), nullable=False),
        sa.Column('enabled', sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ['gpu_group_id'],
            ['host_gpu_groups.id'],
            name=op.f('fk_vgpu_types_gpu_group_id'),
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_vgpu_types')),
        sa.UniqueConstraint(
            'gpu_group_id',
            'vgpu_type',
            name=op.f('uq_vgpu_types_gpu_group_id_vgpu_type'),
        ),
    )
    op.create_table(
        'assignments',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('device_id', sa.Integer(), nullable=False),
        sa.Column('host_id', sa.Integer(), nullable=False),
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('slot', sa.String(length=36), nullable=False),
        sa.Column('ordinal', sa.Integer(), nullable=False),
        sa.Column('active', sa.Integer(), nullable=True),
        sa.Column('vgpu_type', sa.String(length=64), nullable=False),
        sa.Column('resource_class', sa.String(length=255), nullable=False),
        sa.Column('request', sa.Text(), nullable=False),
        sa.Column('allocated', sa.Boolean(), nullable=False),
        sa.Column('project_id', sa.String(length=255), nullable=True),
        sa.Column('user_id', sa.String(length=255), nullable=True),
        sa.Column('claimed_at', sa.DateTime(), nullable=False),
        sa.Column('lease_expires_at', sa.Double(), nullable=True),
        sa.Column('ended_at', sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ['device_id'],
            ['devices.id'],
            name=op.f('fk_assignments_device_id'),
        ),
        sa.ForeignKeyConstraint(
            ['host_id'], ['hosts.id'], name=op.f('fk_assignments_host_id')
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_assignments')),
        sa.UniqueConstraint(
            'device_id', 'active', name=op.f('uq_assignments_device_id_active')
        ),
        sa.UniqueConstraint(
            'instance_uuid',
            'host_id',
            'slot',
            'ordinal',
            'active',
            name='uq_assignments_claim_key',
        ),
        sa.UniqueConstraint('uuid', name=op.f('uq_assignments_uuid')),
    )
    op.create_index(
        op.f('ix_assignments_host_id_active'),
        'assignments',
        ['host_id', 'active'],
        unique=False,
    )
    op.execute(
        'INSERT INTO locks (name, value) '
        "VALUES ('changes', 0), ('variants', 0)"
    )
