# SPDX-License-Identifier: Apache-2.0
"""Migrations of the schema, their steps and their locks."""

from __future__ import annotations

import abc
import contextlib
import functools
import pathlib
import re
import sqlite3
import time
import typing
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import autogenerate
from alembic import command
from alembic import config
from alembic import op
from alembic import script
from alembic.operations import ops
from alembic.runtime import migration
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import event
from gpgpu_plugin.db import host
from gpgpu_plugin.db import ledger
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import request_kind
from gpgpu_plugin.db import sighting
from gpgpu_plugin.db import tables as tables_db
from gpgpu_plugin.db import usage

LOG = logging.getLogger(__name__)

# -- All tables of the database: importing this module defines each of them.


METADATA = tables_db.METADATA

_DEFINED_BY = (
    caller_key, event, host, ledger, outbox, request_kind, sighting, usage)
"""Modules beside ``tables`` that define tables when they are imported."""


# -- Steps of a migration that compare before they act.
#
# MariaDB commits each statement of DDL at once. A migration that was
# interrupted is run again from its beginning, and finds the changes of its
# first run. Each step here carries out its change, skips it if it was made
# before, or refuses if the database has something that this migration did not
# create.


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
    context = migration.MigrationContext.configure(op.get_bind(),
                                                           opts={
        'include_name': lambda name, kind, _: (
            kind != 'table' or name == table.name),
        'include_object': lambda _, name, kind, reflected, __: (
            kind != 'index' and (kind != 'table' or name == table.name)),
    })
    return [str(found) for found in autogenerate.compare_metadata(
        context, table.metadata)]


# -- Locks of a database: one ``db sync`` at a time, one conductor at a time.
#
# On servers the lock belongs to a session and ends with it, even if the
# process was killed, so nobody has to remove it by hand. SQLite has no such
# lock. There, a transaction that may write (BEGIN IMMEDIATE) keeps all other
# writers out. A lock file would have to be beside the database, where the
# process may not be able to write, and would not keep out a conductor.
#
# Processes poll the lock instead of waiting in the server: a waiting statement
# would have a snapshot, and CREATE INDEX CONCURRENTLY of PostgreSQL waits
# until no snapshot is left.


LOCK_TIMEOUT = 600.0
"""Seconds: longer than a migration of a large table should take."""

_INTERVAL = 0.2

SYNC_LOCK = 1
ISOLATION_LOCK = 2
"""Numbers of the locks: of ``db sync``, and of conductor.isolation."""


class _Lock(abc.ABC):
    """One kind of database's lock.

    :ivar name: what the database calls it
    """

    name: str

    def __init__(self, connection: sa.Connection,
                 number: int = SYNC_LOCK) -> None:
        self._connection = connection
        self._number = number

    @abc.abstractmethod
    def acquire(self) -> bool:
        """Take the lock. :returns: False if another session has it"""

    @abc.abstractmethod
    def release(self) -> None:
        """Release the lock before its session ends."""

    @abc.abstractmethod
    def lock_holder(self) -> str:
        """Return which session has the lock, and how to end that session."""

    def section(self) -> contextlib.AbstractContextManager[object]:
        """Return the context during which the lock is held."""
        return contextlib.nullcontext()

    def _row(self, statement: str, **values: object) -> list[typing.Any]:
        """Read one row, or nothing, in a transaction of its own."""
        with self._connection.begin():
            row = self._connection.execute(
                sa.text(statement), values).one_or_none()
            return list(row or ())


class _PostgreSQL(_Lock):
    """An advisory lock of the session; its number spells "gpgp"."""

    KEY = int.from_bytes(b'gpgp', 'big')

    def __init__(self, connection: sa.Connection,
                 number: int = SYNC_LOCK) -> None:
        super().__init__(connection, number)
        self.name = f'advisory lock ({self.KEY}, {number})'

    def acquire(self) -> bool:
        return self._row(
            'SELECT pg_try_advisory_lock(:key, :number)', key=self.KEY,
            number=self._number) == [True]

    def release(self) -> None:
        self._row('SELECT pg_advisory_unlock(:key, :number)', key=self.KEY,
                  number=self._number)

    def lock_holder(self) -> str:
        row = self._row(
            'SELECT pid, usename, client_addr FROM pg_locks '
            'JOIN pg_stat_activity USING (pid) '
            "WHERE locktype = 'advisory' AND granted AND classid = :key "
            'AND objid = :number AND objsubid = 2 AND database = '
            '(SELECT oid FROM pg_database WHERE datname = '
            'current_database())', key=self.KEY, number=self._number)
        return (f'backend {row[0]} of user {row[1]} from '
                f'{row[2] or "localhost"}, which '
                f'"SELECT pg_terminate_backend({row[0]})" ends'
                if row else _GONE)


class _MariaDB(_Lock):
    """A lock by name, which all databases of a server share."""

    def __init__(self, connection: sa.Connection,
                 number: int = SYNC_LOCK) -> None:
        super().__init__(connection, number)
        kind = '' if number == SYNC_LOCK else str(number)
        # MySQL takes 64 characters.
        self._key = f'gpgpu_plugin{kind}.{connection.engine.url.database}'[:64]
        self.name = f'lock "{self._key}" (GET_LOCK)'

    def acquire(self) -> bool:
        return self._row(
            'SELECT GET_LOCK(:name, 0)', name=self._key) == [1]

    def release(self) -> None:
        self._row('SELECT RELEASE_LOCK(:name)', name=self._key)

    def lock_holder(self) -> str:
        row = self._row(
            'SELECT id, user, host FROM information_schema.processlist '
            'WHERE id = IS_USED_LOCK(:name)', name=self._key)
        return (f'connection {row[0]} of user {row[1]} from {row[2]}, which '
                f'"KILL {row[0]}" ends' if row else _GONE)


class _SQLite(_Lock):
    """The write transaction, of which SQLite allows one at a time."""

    name = 'write lock (BEGIN IMMEDIATE)'

    def acquire(self) -> bool:
        transaction = self._connection.begin()
        # Below SQLAlchemy, whose BEGIN locks nothing until the first write.
        cursor = self._connection.connection.cursor()
        cursor.execute('ROLLBACK')
        cursor.execute('PRAGMA busy_timeout = 0')
        try:
            cursor.execute('BEGIN IMMEDIATE')
        except sqlite3.OperationalError as exc:
            transaction.rollback()
            # The low byte, without the variety of being busy.
            if exc.sqlite_errorcode & 0xff != sqlite3.SQLITE_BUSY:
                raise
            return False
        # The commit waits for readers.
        cursor.execute(f'PRAGMA busy_timeout = {int(LOCK_TIMEOUT * 1000)}')
        return True

    def release(self) -> None:
        """Leave it to the end of the transaction, which is the section."""

    def lock_holder(self) -> str:
        return ('another process, which "fuser '
                f'{self._connection.engine.url.database}" names')

    def section(self) -> contextlib.AbstractContextManager[object]:
        transaction = self._connection.get_transaction()
        assert transaction is not None
        return transaction


_GONE = 'a session that has just ended or that this user may not see'
_LOCKS: dict[str, type[_Lock]] = {
    'postgresql': _PostgreSQL, 'mysql': _MariaDB, 'mariadb': _MariaDB,
    'sqlite': _SQLite}


@contextlib.contextmanager
def hold_lock(connection: sa.Connection,
              timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the lock for a block.

    :param connection: not in a transaction; the lock of a server ends with
        its session. With SQLite the block is one transaction.
    :param timeout: seconds to wait for another session
    :raises Conflict: another session still had it then
    """
    lock = _LOCKS[connection.dialect.name](connection)
    deadline = time.monotonic() + timeout
    waiting = False
    while not lock.acquire():
        if time.monotonic() >= deadline:
            raise exception.Conflict(
                kind='database', name=connection.engine.url.database,
                reason=f'its {lock.name} has been held for {timeout:.0f} s '
                       f'by {lock.lock_holder()}; if another "gpgpu-manage db '
                       f'sync" is running, wait for it, otherwise end that '
                       f'session, then run the command again')
        if not waiting:
            LOG.warning('Waiting up to %.0f s for the %s, held by %s',
                        timeout, lock.name, lock.lock_holder())
            waiting = True
        time.sleep(_INTERVAL)
    with lock.section():
        yield


@contextlib.contextmanager
def hold_lock_if_free(engine: sa.Engine, number: int) -> Iterator[bool]:
    """Hold a lock for a block, if no other session has it.

    SQLite needs none: one conductor at a time uses a file (db.api),
    and the lock would keep out its writers.

    :returns: whether it is held
    """
    if engine.dialect.name == 'sqlite':
        yield True
        return
    with engine.connect() as connection:
        lock = _LOCKS[engine.dialect.name](connection, number)
        is_held = lock.acquire()
        try:
            yield is_held
        finally:
            if is_held:
                _release(connection, lock)


def _release(connection: sa.Connection, lock: _Lock) -> None:
    """Release a lock, if need be with its session, which a pool would keep.
    """
    try:
        lock.release()
    except sa.exc.SQLAlchemyError:
        connection.invalidate()


# -- Migrations of the schema, and its revision.


_FOLDER = pathlib.Path(__file__).parent / 'migrations'
_REVISION = re.compile(r'\d{4}(_\w+)?')
"""Name of a revision of gpgpu_plugin; a number alone was never released."""


def _config(connection: sa.Connection | None = None) -> config.Config:
    result = config.Config()
    result.set_main_option('script_location', str(_FOLDER))
    result.attributes['connection'] = connection
    return result


@functools.cache
def revisions() -> tuple[str, ...]:
    """Return all revisions, oldest first.

    Alembic imports each migration anew to find them, so it is done once.
    """
    walk = script.ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(script.revision for script in walk)[::-1]


def version(engine: sa.Engine) -> str | None:
    """Return the revision of the database; None for an empty one.

    The database of another service may have several.
    """
    with engine.connect() as connection:
        return ', '.join(sorted(migration.MigrationContext.configure(
            connection).get_current_heads())) or None


def tables(engine: sa.Engine) -> list[str]:
    """Return the names of all tables, whoever created them."""
    return sorted(sa.inspect(engine).get_table_names())


def refusal(found: str | None) -> str | None:
    """Return why a schema can be neither used nor upgraded, if it cannot.

    :param found: its revision
    """
    known = revisions()
    if found is None or found in known:
        return None
    revision = _REVISION.fullmatch(found)
    if revision is None:
        return (f'the schema is at revision {found}, which is not one of '
                f'gpgpu_plugin: [database] connection names the database of '
                f'another service. Correct the option')
    if revision[1] and found > known[-1]:
        return (f'the schema is at revision {found}, and this gpgpu_plugin '
                f'knows none after {known[-1]}: a newer one has upgraded it. '
                f'Upgrade gpgpu_plugin here; there is no downgrade')
    return (f'the schema is at revision {found}, made before the first '
            f'release; create it anew: let [database] connection name an '
            f'empty database, and run "gpgpu-manage db sync"')


def check_current(engine: sa.Engine) -> None:
    """Refuse a database with another schema than this code needs.

    :raises ConfigInvalid: it has one
    """
    found, newest = version(engine), revisions()[-1]
    if found != newest:
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason=refusal(found) or
            f'the schema is at revision {found} instead of {newest}; run '
            f'"gpgpu-manage db sync"')


def sync(engine: sa.Engine, revision: str = 'head',
         timeout: float = LOCK_TIMEOUT) -> bool:
    """Migrate the schema to a revision, one process at a time.

    It may be interrupted anywhere; the next run continues from there.

    :param timeout: seconds to wait for another process that does the same
    :returns: whether the schema was changed
    :raises Conflict: another process takes longer, or the database contains
        something else
    """
    target = revisions()[-1] if revision == 'head' else revision
    with engine.connect() as connection:
        # The session ends with this block instead of returning to the pool,
        # and the lock of the session ends with it.
        connection.detach()
        with hold_lock(connection, timeout):
            before = version(engine)
            reason = refusal(before)
            if reason is not None:
                raise exception.Conflict(
                    kind='database', name=engine.url.database, reason=reason)
            command.upgrade(_config(connection), revision)
    return before != target
