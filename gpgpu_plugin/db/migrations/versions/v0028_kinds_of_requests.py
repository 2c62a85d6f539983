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
"""Add the kinds of requests that schedulers were asked for."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0028'
down_revision = '0027'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        'request_kinds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('vcpus', sa.Integer(), nullable=False),
        sa.Column('memory_mib', sa.Integer(), nullable=False),
        sa.Column('resource_class', sa.String(255), nullable=False),
        sa.Column('units', sa.Integer(), nullable=False),
        sa.Column('weight', sa.Double(), nullable=False, server_default='0'),
        sa.Column('arrivals', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.PrimaryKeyConstraint('id', name='pk_request_kinds'),
        sa.UniqueConstraint('vcpus', 'memory_mib', 'resource_class', 'units',
                            name='uq_request_kinds_kind'))
