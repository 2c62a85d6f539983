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
"""Add the instances whose requests were counted."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0032'
down_revision = '0031'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        'counted_instances',
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('at', sa.Double(), nullable=False, server_default='0'),
        sa.PrimaryKeyConstraint('instance_uuid',
                                name='pk_counted_instances'))
    ddl.create_index('ix_counted_instances_at', 'counted_instances', ['at'])
