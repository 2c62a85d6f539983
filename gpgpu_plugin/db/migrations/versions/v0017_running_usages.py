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
"""Usages that begin with the guest, what they need, and the flavor."""

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0017'
down_revision = '0016'
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.add_column('assignments', sa.Column('flavor', sa.String(255)))
    for name, kind in (
            ('flavor', sa.String(255)), ('device_uuid', sa.String(36)),
            ('address', sa.String(32)), ('serial', sa.String(255)),
            ('exported_at', sa.DateTime())):
        ddl.add_column('usages', sa.Column(name, kind))
    # The previous version always writes it.
    ddl.make_nullable('usages', sa.Column('ended_at', sa.DateTime()))
