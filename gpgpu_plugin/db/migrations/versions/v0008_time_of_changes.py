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
"""The time of each host's newest change, instead of its number."""

import sqlalchemy as sa
from alembic import op

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import ddl

revision = '0008'
down_revision = '0007'
branch_labels = None
depends_on = None

_HOSTS = sa.table('hosts', sa.column('changed_at'))
_LOCKS = sa.table('locks', sa.column('name'))


def upgrade() -> None:
    ddl.add_column('hosts', sa.Column(
        'changed_at', sa.Double(), nullable=False, server_default='0'))
    # All hosts count as changed now. One statement: a row for each host.
    op.execute(_HOSTS.update().where(_HOSTS.c.changed_at == 0).values(
        changed_at=clock.now()))
    ddl.create_index('ix_hosts_changed_at', 'hosts', ['changed_at'])
    # No released version used the numbers.
    ddl.drop_index('ix_hosts_change_number', 'hosts')
    ddl.drop_column('hosts', 'change_number')
    op.execute(_LOCKS.delete().where(_LOCKS.c.name == 'changes'))
