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
"""Sessions of hosts, and an index for expired leases."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

_EMPTY_OBJECT = sa.text("('{}')")


def upgrade() -> None:
    for column in (
            sa.Column('session', sa.BigInteger(), nullable=False,
                      server_default='0'),
            sa.Column('start_uuid', sa.String(36), nullable=True),
            sa.Column('machine', sa.Text(), nullable=False,
                      server_default=_EMPTY_OBJECT),
            sa.Column('heard_at', sa.Double(), nullable=True),
            sa.Column('takeover', sa.Boolean(), nullable=False,
                      server_default='0'),
            sa.Column('restored', sa.Boolean(), nullable=False,
                      server_default='0'),
            sa.Column('report_number', sa.BigInteger(), nullable=False,
                      server_default='0'),
            sa.Column('comparison_number', sa.BigInteger(), nullable=False,
                      server_default='0')):
        ddl.add_column('hosts', column)
    ddl.create_index('ix_assignments_lease_expires_at', 'assignments',
                     ['lease_expires_at'])
