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
"""Ids of devices that were reported before, and their index."""

import collections
import json

import sqlalchemy as sa

from gpgpu_plugin.db import ddl

revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None

_BATCH = 1000
_DEVICES = sa.table('devices', *(sa.column(name) for name in (
    'id', 'pci_function', 'vendor_id', 'product_id')))


def upgrade() -> None:
    last: int | None = 0
    while last is not None:
        with ddl.batch() as connection:
            last = _fill(connection, last)
    ddl.create_index('ix_devices_vendor_id_product_id_host_id', 'devices',
                     ['vendor_id', 'product_id', 'host_id'])


def _fill(connection: sa.Connection, after: int) -> int | None:
    """Copy the ids of some rows from their JSON.

    :param after: id of the last row of the batch before
    :returns: id of the last row; None if there was none
    """
    columns = _DEVICES.c
    rows = connection.execute(
        sa.select(columns.id, columns.pci_function)
        .where(columns.id > after, columns.vendor_id.is_(None))
        .order_by(columns.id).limit(_BATCH)).all()
    of_ids = collections.defaultdict(list)
    for row in rows:
        function = json.loads(row.pci_function)
        of_ids[tuple((function.get(name) or '')[:4] for name in (
            'vendor', 'device'))].append(row.id)
    for (vendor, product), found in of_ids.items():
        connection.execute(
            _DEVICES.update()
            .where(columns.id.in_(found), columns.vendor_id.is_(None))
            .values(vendor_id=vendor, product_id=product))
    return rows[-1].id if rows else None
