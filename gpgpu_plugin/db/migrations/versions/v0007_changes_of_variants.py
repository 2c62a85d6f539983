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
"""Changes of variants that are applied host by host."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None

_EMPTY_LIST = sa.text("('[]')")


def upgrade() -> None:
    ddl.add_column('variants', sa.Column(
        'status', sa.String(16), nullable=False, server_default='ready'))
    ddl.add_column('variants', sa.Column('reason', sa.Text(), nullable=True))
    ddl.create_table(
        'variant_changes',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('variant_id', sa.Integer(), nullable=False),
        sa.Column('ids', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.Column('before', sa.Text(), nullable=True),
        sa.Column('last_host_id', sa.Integer(), nullable=False,
                  server_default='0'),
        sa.Column('skipped_hosts', sa.Text(), nullable=False,
                  server_default=_EMPTY_LIST),
        sa.PrimaryKeyConstraint('id', name='pk_variant_changes'),
        sa.ForeignKeyConstraint(
            ['variant_id'], ['variants.id'],
            name='fk_variant_changes_variant_id'),
        sa.UniqueConstraint(
            'variant_id', name='uq_variant_changes_variant_id'))
