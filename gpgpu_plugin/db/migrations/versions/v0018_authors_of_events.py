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
"""Author, request, project and reason of events."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0018'
down_revision = '0017'
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
            sa.Column('actor', sa.String(255), nullable=True),
            sa.Column('request_id', sa.String(40), nullable=True),
            sa.Column('project_id', sa.String(255), nullable=True),
            sa.Column('reason', sa.String(64), nullable=True),
            sa.Column('count', sa.Integer(), nullable=False,
                      server_default='1')):
        ddl.add_column('events', column)
