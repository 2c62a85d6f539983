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
"""Cleaning policies of variants, and the steps that devices passed."""

import sqlalchemy as sa
from alembic import op

from gpgpu_plugin.db import ddl

revision = '0011'
down_revision = '0010'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.add_column('variants', sa.Column(
        'cleaning_policy', sa.String(255), nullable=False,
        server_default='default'))
    ddl.add_column('variants', sa.Column('memory_mib', sa.Integer()))
    ddl.add_column('devices', sa.Column('cleaned_steps', sa.String(255)))
    ddl.add_column('devices', sa.Column('clean_attempt', sa.String(36)))
    # Nothing is known about the memory of a whole GPU that had a tenant. It is
    # cleaned by the policy that its variant has now; its own UUID is the
    # request.
    op.execute("UPDATE devices SET cleaned_steps = '', state = 'dirty', "
               "clean_token = uuid WHERE state = 'available' "
               "AND kind = 'pci' AND parent_id IS NULL "
               "AND id IN (SELECT device_id FROM assignments)")
