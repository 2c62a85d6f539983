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
"""Ledger of the cleanings of devices, and two tables for it."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from gpgpu_plugin.db import ddl

revision = '0012'
down_revision = '0011'
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A record outlives its device and its host: no foreign keys.
    ddl.create_table(
        'cleanings',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', sa.String(36), nullable=False),
        sa.Column('number', sa.BigInteger(), nullable=False),
        sa.Column(
            'content',
            sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb'),
            nullable=False),
        sa.Column('hash', sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_cleanings'),
        sa.UniqueConstraint('device_uuid', 'number',
                            name='uq_cleanings_device_uuid_number'))
    ddl.create_table(
        'cleaning_chains',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', sa.String(36), nullable=False),
        sa.Column('number', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('hash', sa.String(64), nullable=True),
        sa.Column('started_at', sa.DateTime(), nullable=True),
        sa.Column(
            'settings',
            sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb'),
            nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_cleaning_chains'),
        sa.UniqueConstraint('device_uuid',
                            name='uq_cleaning_chains_device_uuid'))
