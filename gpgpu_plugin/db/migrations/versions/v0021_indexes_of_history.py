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
"""Indexes of usages and events, built while claims go on.

Apart from the columns: each is built outside of a transaction on PostgreSQL.
"""

from gpgpu_plugin.db import ddl

revision = '0021'
down_revision = '0020'
branch_labels = None
depends_on = None

# Events without the time: the rows of each list are in the order of ids.
INDEXES = (
    ('usages', ['host', 'ended_at']), ('usages', ['ended_at']),
    ('usages', ['instance_uuid']), ('usages', ['exported_at', 'ended_at']),
    ('events', ['host', 'id']), ('events', ['kind', 'id']),
    ('events', ['project_id', 'id']), ('events', ['request_id']))


def upgrade() -> None:
    for table, columns in INDEXES:
        ddl.create_index_online(
            f'ix_{table}_{"_".join(columns)}', table, columns)
