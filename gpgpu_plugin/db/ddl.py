# SPDX-License-Identifier: Apache-2.0
"""Steps of a migration that compare before they act.

MariaDB commits each statement of DDL at once. A migration that was interrupted
is run again from its beginning, and finds the changes of its first run. Each
step here carries out its change, skips it if it was made before, or refuses if
the database has something that this migration did not create.
"""

from __future__ import annotations

import typing

import sqlalchemy as sa
from alembic import autogenerate
from alembic import op
from alembic.operations import ops
from alembic.runtime import migration
from sqlalchemy.engine import interfaces

from gpgpu_plugin import exception

_Column = sa.Column[typing.Any]


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
        raise _conflict('table', name, '; '.join(found))


def add_column(table: str, column: _Column) -> None:
    """Add a column to a table.

    :raises Conflict: there is a column of that name with another type
    """
    for found in sa.inspect(op.get_bind()).get_columns(table):
        if found['name'] == column.name:
            _check_column(table, column, found)
            return
    op.add_column(table, column)


def _check_column(table: str, column: _Column,
                  found: interfaces.ReflectedColumn) -> None:
    impl = op.get_context().impl
    reflected: _Column = sa.Column(
        column.name, found['type'], nullable=found['nullable'])
    if (impl.compare_type(reflected, column)
            or bool(found['nullable']) != bool(column.nullable)):
        raise _conflict(
            'column', f'{table}.{column.name}',
            f'it is {found["type"]}, nullable={found["nullable"]}')


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index of a new or small table, whose writers wait.

    :raises Conflict: the index exists on other columns
    """
    if not _has_index(op.get_bind(), name, table, columns):
        op.create_index(name, table, columns)


def create_index_online(name: str, table: str, columns: list[str]) -> None:
    """Create an index of a table while claims write to it.

    PostgreSQL builds it outside of a transaction, so in a session of its own,
    which sees the schema of the previous migration. A build that was cut
    leaves an index that is not valid, and that is dropped first. On SQLite
    writers wait.

    :raises Conflict: the index exists on other columns
    """
    bind = op.get_bind()
    on = f'{name} ON {table} ({", ".join(columns)})'
    match bind.dialect.name:
        case 'postgresql':
            with bind.engine.connect() as connection:
                connection = connection.execution_options(
                    isolation_level='AUTOCOMMIT')
                if _is_invalid(connection, name):
                    connection.exec_driver_sql(
                        f'DROP INDEX CONCURRENTLY {name}')
                if not _has_index(connection, name, table, columns):
                    connection.exec_driver_sql(
                        f'CREATE INDEX CONCURRENTLY {on}')
        case 'mysql' | 'mariadb':
            if not _has_index(bind, name, table, columns):
                # Refused, rather than with a lock, if it is impossible.
                op.execute(f'CREATE INDEX {on} ALGORITHM=INPLACE LOCK=NONE')
        case _:
            create_index(name, table, columns)


def _is_invalid(connection: sa.Connection, name: str) -> bool:
    return connection.scalar(
        sa.text('SELECT indisvalid FROM pg_index '
                'WHERE indexrelid = to_regclass(:name)'),
        {'name': name}) is False


def _has_index(connection: sa.Connection, name: str, table: str,
               columns: list[str]) -> bool:
    """Return whether an index exists.

    :raises Conflict: it is on other columns
    """
    for index in sa.inspect(connection).get_indexes(table):
        if index['name'] == name:
            if index['column_names'] != columns or index['unique']:
                raise _conflict(
                    'index', name,
                    f'it should be on {columns} of {table}, but is on '
                    f'{index["column_names"]}, unique={index["unique"]}')
            return True
    return False


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


def _conflict(kind: str, name: str, difference: str) -> exception.Conflict:
    return exception.Conflict(
        kind=kind, name=name,
        reason=f'it is in the database, but not as gpgpu_plugin makes it '
               f'({difference}): [database] connection must name a database '
               f'that holds nothing else; correct it, or drop the {kind} if '
               f'nobody needs it, and run "gpgpu-manage db sync" again')
