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
"""Keys of callers, executed calls, answers, the source of a migration."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from gpgpu_plugin.db import ddl

revision = '0013'
down_revision = '0012'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        'caller_keys',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(16), nullable=False),
        sa.Column('name', sa.String(255), nullable=False),
        sa.Column('number', sa.Integer(), nullable=False),
        sa.Column('master_id', sa.String(16), nullable=False,
                  server_default='unknown'),
        sa.Column('created_at', sa.DateTime(), nullable=False,
                  server_default='1970-01-01 00:00:00'),
        sa.Column('revoked_at', sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_caller_keys'),
        sa.UniqueConstraint('kind', 'name', 'number',
                            name='uq_caller_keys_kind_name_number'))
    ddl.create_table(
        'executed_calls',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('nonce', sa.String(64), nullable=False),
        sa.Column('until', sa.Double(), nullable=False, server_default='0'),
        sa.PrimaryKeyConstraint('id', name='pk_executed_calls'),
        sa.UniqueConstraint('nonce', name='uq_executed_calls_nonce'))
    ddl.create_index('ix_executed_calls_until', 'executed_calls', ['until'])
    ddl.create_table(
        'host_answers',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('question', sa.String(36), nullable=False),
        sa.Column('host', sa.String(255), nullable=False),
        sa.Column(
            'usages',
            sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb'),
            nullable=True),
        sa.Column('asked_at', sa.Double(), nullable=False,
                  server_default='0'),
        sa.PrimaryKeyConstraint('id', name='pk_host_answers'),
        sa.UniqueConstraint('question', name='uq_host_answers_question'))
    ddl.create_index('ix_host_answers_asked_at', 'host_answers', ['asked_at'])
    ddl.add_column('assignments', sa.Column(
        'source_host', sa.String(255), nullable=True))
