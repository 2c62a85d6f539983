# SPDX-License-Identifier: Apache-2.0
"""A large cloud on PostgreSQL, made of one host."""

from __future__ import annotations

import sqlalchemy as sa

from gpgpu_plugin.db import api
from gpgpu_plugin.db import tables

# Above the ids of all rows of the first host.
_FIRST = 1000


def grow(db: api.Database, hosts: int) -> None:
    """Copy the only host, its group, types and devices.

    :param hosts: how many there are afterwards
    """
    new = ('SELECT n AS id '
           f'FROM generate_series({_FIRST}, {_FIRST + hosts - 2}) n')

    def insert(table: sa.Table, **replaced: str) -> None:
        columns = [column.name for column in table.columns
                   if column.name != 'id' or 'id' in replaced]
        values = [replaced.get(name, f'old."{name}"') for name in columns]
        names = ', '.join(f'"{name}"' for name in columns)
        connection.execute(sa.text(
            f'INSERT INTO {table.name} ({names}) '
            f'SELECT {", ".join(values)} FROM {table.name} old, '
            f'({new}) new WHERE old.id < {_FIRST}'))

    def made(text: str) -> str:
        return f"CAST(md5({text} || new.id) AS uuid)::text"

    with db.engine.begin() as connection:
        insert(tables.HOSTS, id='new.id', name="'c' || new.id",
               node="'c' || new.id", node_uuid=made("'node'"))
        insert(tables.GROUPS, id='new.id', host_id='new.id',
               provider_uuid=made('old.provider_uuid'))
        insert(tables.TYPES, gpu_group_id='new.id')
        insert(tables.DEVICES, host_id='new.id', group_id='new.id',
               uuid=made('old.uuid'))
    with db.engine.connect() as connection:
        connection.execution_options(
            isolation_level='AUTOCOMMIT').execute(sa.text('ANALYZE'))
