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
"""Allocation policies of variants, which groups have by default."""

import sqlalchemy as sa
from alembic import op

from gpgpu_plugin.db import ddl

revision = '0023'
down_revision = '0022'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.add_column('variants', sa.Column(
        'allocation_policy', sa.String(32), nullable=False,
        server_default='depth_first'))
    for table, name in (('variant_changes', 'clears_groups'),
                        ('host_gpu_groups', 'own_policy')):
        ddl.add_column(table, sa.Column(
            name, sa.Boolean(), nullable=False, server_default='0'))
    # What an operator has set is the group's own.
    groups = sa.table(
        'host_gpu_groups', sa.column('allocation_policy', sa.String()),
        sa.column('own_policy', sa.Boolean()))
    op.execute(groups.update().values(own_policy=sa.true()).where(
        groups.c.allocation_policy != 'depth_first',
        groups.c.own_policy.is_(sa.false())))
