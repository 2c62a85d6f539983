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
"""Serial numbers of GPUs, by which they are recognised in another place."""

import json

import sqlalchemy as sa
from alembic import op

from gpgpu_plugin.db import ddl

revision = '0031'
down_revision = '0030'
branch_labels = None
depends_on = None

_BATCH = 1000
_LONGEST = 255
_DEVICES = sa.table('devices', *(sa.column(name) for name in (
    'id', 'uuid', 'kind', 'parent_id', 'pci_function', 'identity')))
_NUMBERS = sa.table('card_numbers', *(sa.column(name) for name in (
    'device_uuid', 'dsn', 'serial')))
_PLACEHOLDERS = ('N/A', 'NA', 'NONE', 'UNKNOWN')


def upgrade() -> None:
    ddl.create_table(
        'card_numbers',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('device_uuid', sa.String(36), nullable=False),
        sa.Column('dsn', sa.String(255), nullable=True),
        sa.Column('serial', sa.String(255), nullable=True),
        sa.Column('found_at', sa.DateTime(), nullable=True),
        sa.Column('waits_for', sa.String(36), nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_card_numbers'),
        sa.UniqueConstraint('device_uuid', name='uq_card_numbers_device_uuid'))
    for name in ('dsn', 'serial'):
        ddl.create_index(f'ix_card_numbers_{name}', 'card_numbers', [name])
    # Nobody else writes the table yet, and devices are only read: no claim
    # waits for this transaction.
    last: int | None = 0
    while last is not None:
        last = _fill(op.get_bind(), last)


def _fill(connection: sa.Connection, after: int) -> int | None:
    """Copy the numbers of some GPUs from their JSON.

    :param after: id of the last row of the batch before
    :returns: id of the last row; None if there was none
    """
    columns = _DEVICES.c
    rows = connection.execute(
        sa.select(columns.id, columns.uuid, columns.pci_function,
                  columns.identity)
        .where(columns.id > after, columns.kind == 'pci',
               columns.parent_id.is_(None),
               ~sa.exists().where(_NUMBERS.c.device_uuid == columns.uuid))
        .order_by(columns.id).limit(_BATCH)).all()
    for row in rows:
        known = json.loads(row.identity or row.pci_function)
        numbers = {name: _number(known.get(name))
                   for name in ('dsn', 'serial')}
        if any(numbers.values()):
            connection.execute(_NUMBERS.insert().values(
                device_uuid=row.uuid, **numbers))
    return rows[-1].id if rows else None


def _number(text: str | None) -> str | None:
    """Return a number; None: it stands for none (domain.pci)."""
    if text is None or text.upper() in _PLACEHOLDERS:
        return None
    return (text[:_LONGEST] if text.strip('0-. ') and text.strip('fF-. ')
            else None)
