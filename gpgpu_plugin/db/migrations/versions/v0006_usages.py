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
"""Usage that outlives assignments, and indexes for what is deleted."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None

_UNKNOWN_TIME = '1970-01-01 00:00:00'


def upgrade() -> None:
    ddl.create_table(
        'usages',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('assignment_uuid', sa.String(36), nullable=False),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('role', sa.String(16), nullable=False),
        sa.Column('project_id', sa.String(255), nullable=True),
        sa.Column('user_id', sa.String(255), nullable=True),
        sa.Column('host', sa.String(255), nullable=False),
        sa.Column('variant', sa.String(64), nullable=True),
        sa.Column('vgpu_type', sa.String(64), nullable=False),
        sa.Column('resource_class', sa.String(255), nullable=False),
        sa.Column('began_at', sa.DateTime(), nullable=False,
                  server_default=_UNKNOWN_TIME),
        sa.Column('ended_at', sa.DateTime(), nullable=False,
                  server_default=_UNKNOWN_TIME),
        sa.PrimaryKeyConstraint('id', name='pk_usages'),
        sa.UniqueConstraint(
            'assignment_uuid', name='uq_usages_assignment_uuid'))
    ddl.create_index('ix_usages_project_id_ended_at', 'usages',
                     ['project_id', 'ended_at'])
    ddl.create_index('ix_events_at', 'events', ['at'])
    ddl.create_index('ix_assignments_ended_at', 'assignments', ['ended_at'])
