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
"""vGPUs: what is carved out of a card, and the rule by which."""

import typing

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

# What rows of the first schema get; the models fill in what comes later.
_NEW: dict[str, dict[str, tuple[typing.Any, object]]] = {
    'variants': {
        'mix_policy': (sa.String(length=16), 'same_type'),
        'enabled_types': (sa.Text(), '["passthrough"]')},
    'vgpu_types': {'listed': (sa.Boolean(), True)},
    'devices': {'kind': (sa.String(length=16), 'pci')},
}


def upgrade() -> None:
    for table, columns in _NEW.items():
        for name, (kind, value) in columns.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))
            op.execute(sa.table(table, sa.column(name, kind)).update()
                       .values({name: value}))
            with op.batch_alter_table(table) as batch:
                batch.alter_column(
                    name, existing_type=kind, nullable=False)
    op.add_column('devices', sa.Column(
        'vgpu_type', sa.String(length=64), nullable=True))
    op.add_column('devices', sa.Column(
        'placement_id', sa.Integer(), nullable=True))
    op.create_index(op.f('ix_devices_parent_id'), 'devices', ['parent_id'],
                    unique=False)
