# SPDX-License-Identifier: Apache-2.0
"""Locks of a database: one ``db sync`` at a time, one conductor at a time.

On servers the lock belongs to a session and ends with it, even if the process
was killed, so nobody has to remove it by hand. SQLite has no such lock. There,
a transaction that may write (BEGIN IMMEDIATE) keeps all other writers out. A
lock file would have to be beside the database, where the process may not be
able to write, and would not keep out a conductor.

Processes poll the lock instead of waiting in the server: a waiting statement
would have a snapshot, and CREATE INDEX CONCURRENTLY of PostgreSQL waits until
no snapshot is left.
"""

from __future__ import annotations

import abc
import contextlib
import sqlite3
import time
import typing
from collections.abc import Iterator

import sqlalchemy as sa
from oslo_log import log as logging

from gpgpu_plugin import exception

LOG = logging.getLogger(__name__)

TIMEOUT = 600.0
"""Seconds: longer than a migration of a large table should take."""

_INTERVAL = 0.2

SYNC = 1
ISOLATION = 2
"""Numbers of the locks: of ``db sync``, and of conductor.isolation."""


class _Lock(abc.ABC):
    """One kind of database's lock.

    :ivar name: what the database calls it
    """

    name: str

    def __init__(self, connection: sa.Connection, number: int = SYNC) -> None:
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

    def __init__(self, connection: sa.Connection, number: int = SYNC) -> None:
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

    def __init__(self, connection: sa.Connection, number: int = SYNC) -> None:
        super().__init__(connection, number)
        kind = '' if number == SYNC else str(number)
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
        cursor.execute(f'PRAGMA busy_timeout = {int(TIMEOUT * 1000)}')
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
def held(connection: sa.Connection,
         timeout: float = TIMEOUT) -> Iterator[None]:
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
def held_if_free(engine: sa.Engine, number: int) -> Iterator[bool]:
    """Hold a lock for a block, if no other session has it.

    SQLite needs none: one conductor at a time uses a file (db.sqlite_lock),
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
