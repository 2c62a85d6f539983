# SPDX-License-Identifier: Apache-2.0
"""Steps of a migration that compare before they act.

MariaDB commits each statement of DDL at once. A migration that was interrupted
is run again from its beginning, and finds the changes of its first run. Each
step here carries out its change, skips it if it was made before, or refuses if
the database has something that this migration did not create.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import autogenerate
from alembic import op
from alembic.operations import ops
from alembic.runtime import migration

from gpgpu_plugin import exception


def create_table(name: str, *items: sa.schema.SchemaItem,
                 sqlite_autoincrement: bool = False) -> None:
    """Create a table with columns and constraints, but without indexes.

    MariaDB and MySQL compare its texts exactly, as the other databases do: by
    default they ignore case, and most collations blanks at the end.

    :param sqlite_autoincrement: whether SQLite, too, uses no id again
    :raises Conflict: the table exists with another shape
    """
    dialect = op.get_context().dialect
    collation = ('utf8mb4_nopad_bin' if getattr(dialect, 'is_mariadb', False)
                 else 'utf8mb4_0900_bin')
    step = ops.CreateTableOp(
        name, items, mysql_collate=collation, mariadb_collate=collation,
        sqlite_autoincrement=sqlite_autoincrement)
    if not sa.inspect(op.get_bind()).has_table(name):
        op.invoke(step)
        return
    found = _differences(step.to_table(op.get_context()))
    if found:
        raise exception.Conflict(
            kind='table', name=name,
            reason=f'it is in the database, but not as gpgpu_plugin makes it '
                   f'({"; ".join(found)}): [database] connection must name a '
                   f'database that holds nothing else; correct it, or drop '
                   f'the table if nobody needs it, and run "gpgpu-manage db '
                   f'sync" again')


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index of a table that this migration has created."""
    if not sa.inspect(op.get_bind()).has_index(table, name):
        op.create_index(name, table, columns)


def insert_row(table: str, **values: str | int) -> None:
    """Insert a row with these values, unless it exists."""
    rows = sa.table(table, *(sa.column(name) for name in values))
    same = [rows.c[name] == value for name, value in values.items()]
    if op.get_bind().scalar(
            sa.select(sa.func.count()).select_from(rows).where(*same)) == 0:
        op.execute(rows.insert().values(**values))


def _differences(table: sa.Table) -> list[str]:
    """Return how the database's table differs from the intended one.

    Server defaults are not compared: each server writes them in its own way,
    and the columns suffice to recognise another service's table. Indexes are
    not compared either, since later steps add them.
    """
    context = migration.MigrationContext.configure(op.get_bind(), opts={
        'include_name': lambda name, kind, _: (
            kind != 'table' or name == table.name),
        'include_object': lambda _, name, kind, reflected, __: (
            kind != 'index' and (kind != 'table' or name == table.name)),
    })
    return [str(found) for found in autogenerate.compare_metadata(
        context, table.metadata)]
