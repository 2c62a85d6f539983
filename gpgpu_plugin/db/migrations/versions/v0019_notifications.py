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
"""Notifications that are to be sent."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from gpgpu_plugin.db import ddl

revision = '0019'
down_revision = '0018'
branch_labels = None
depends_on = None

_EMPTY_OBJECT = sa.text("('{}')")


def upgrade() -> None:
    ddl.create_table(
        'notifications',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('message_id', sa.String(36), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False,
                  server_default='0'),
        sa.Column('message', sa.Text().with_variant(
            mysql.MEDIUMTEXT(), 'mysql', 'mariadb'), nullable=False,
            server_default=_EMPTY_OBJECT),
        sa.PrimaryKeyConstraint('id', name='pk_notifications'),
        sa.UniqueConstraint(
            'message_id', name='uq_notifications_message_id'))
    ddl.create_table(
        'notification_states',
        sa.Column('name', sa.String(32), nullable=False),
        sa.Column('sender', sa.String(36), nullable=True),
        sa.Column('sends_until', sa.Double(), nullable=True),
        sa.Column('dropped', sa.BigInteger(), nullable=False,
                  server_default='0'),
        sa.Column('audited_until', sa.DateTime(), nullable=True),
        sa.Column('audited_usage_id', sa.Integer(), nullable=False,
                  server_default='0'),
        sa.PrimaryKeyConstraint('name', name='pk_notification_states'))
    ddl.insert_row('notification_states', name='all')
