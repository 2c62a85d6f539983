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
"""Times of the exchanges that were found before, and their index."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0036'
down_revision = '0035'
branch_labels = None
depends_on = None

_DEVICES = sa.table('devices', *(sa.column(name) for name in (
    'id', 'uuid', 'before_swap', 'swapped_at')))
_EVENTS = sa.table('events', sa.column('device_uuid'), sa.column('kind'),
                   sa.column('at', sa.DateTime()))
_CARDS = sa.table('card_numbers', *(sa.column(name) for name in (
    'id', 'device_uuid', 'waits_for', 'whole_unclean')))


def upgrade() -> None:
    # The rows are found first: an update that searches for them would lock
    # all that it reads on MariaDB. There are few.
    with ddl.batch() as connection:
        _set_times(connection)
    with ddl.batch() as connection:
        _set_whole_unclean(connection)
    ddl.create_index_online(
        'ix_devices_swapped_at', 'devices', ['swapped_at'])


def _set_times(connection: sa.Connection) -> None:
    columns = _DEVICES.c
    # Certainly not later, where the event was purged.
    now = datetime.datetime.now(datetime.UTC).replace(
        tzinfo=None, microsecond=0)
    for row in connection.execute(
            sa.select(columns.id, columns.uuid).where(
                columns.before_swap.is_not(None),
                columns.swapped_at.is_(None))).all():
        found = connection.scalar(
            sa.select(sa.func.max(_EVENTS.c.at)).where(
                _EVENTS.c.device_uuid == row.uuid,
                _EVENTS.c.kind == 'swapped'))
        connection.execute(
            _DEVICES.update().where(columns.id == row.id)
            .values(swapped_at=found or now))


def _set_whole_unclean(connection: sa.Connection) -> None:
    columns = _CARDS.c
    for card_id in connection.scalars(
            sa.select(columns.id).where(
                columns.waits_for == columns.device_uuid)).all():
        connection.execute(
            _CARDS.update().where(columns.id == card_id)
            .values(whole_unclean=True, waits_for=None))
