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
"""Add the identity of the cloud of this database."""

import uuid

import sqlalchemy as sa
from alembic import op

from gpgpu_plugin.db import ddl

revision = '0039'
down_revision = '0038'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        'clouds',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_clouds'))
    clouds = sa.table('clouds', sa.column('id', sa.Integer()),
                      sa.column('uuid', sa.String()))
    connection = op.get_bind()
    # A run that was interrupted may have made it.
    if connection.scalar(sa.select(clouds.c.id)) is None:
        connection.execute(clouds.insert().values(
            id=1, uuid=str(uuid.uuid4())))
