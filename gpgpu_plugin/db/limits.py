# SPDX-License-Identifier: Apache-2.0
"""Limits of how long one call may wait in the database.

The server ends what takes longer. So a transaction that hangs, even one of a
conductor that was stopped, keeps its locks for a few seconds only, and no call
waits for a lock longer than its caller waits for an answer. MySQL limits only
the wait for a lock. SQLite has no limits; its writers are threads of one
conductor.

The drivers close a connection on which no answer comes, so that one that is
lost on its way costs one call. A connection to a server that has become
read-only is closed as well, together with all others: after a failover they
lead to the old primary.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator

import sqlalchemy as sa

from gpgpu_plugin.db import silence

_READ_ONLY = (
    # SQLSTATE of PostgreSQL: read_only_sql_transaction.
    '25006',
    # MariaDB and MySQL: --read-only, a read-only transaction, a read-only
    # InnoDB, and a node of Galera that is not in the cluster.
    1290, 1792, 1836, 1047)

TRANSACTION = 30.0
"""Seconds after which a transaction that wrote is not committed any more.

It does not depend on the configuration, which differs between conductors while
it is being changed.
"""

COMMIT = 30.0
"""Seconds that a commit may take; the server ends a connection that is idle
for longer."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one connection.

    :ivar caller: seconds that callers of a conductor wait for an answer
    """

    caller: float

    @property
    def lock(self) -> float:
        """Return the seconds that a statement may wait for a lock."""
        return self.caller * 0.4

    @property
    def connect(self) -> float:
        """Return the seconds that opening a connection may take.

        It follows a check of another connection, which found that one silent.
        """
        return self.caller * 0.4

    @property
    def statement(self) -> float:
        """Return the seconds that a statement may take."""
        return self.caller * 0.8

    @property
    def idle(self) -> float:
        """Return the seconds that may pass between two statements."""
        return min(self.caller, COMMIT)

    @property
    def answer(self) -> float:
        """Return the seconds that a connection may be silent.

        The server's own limit for a statement comes first.
        """
        return self.caller * 0.9

    def url(self, url: sa.URL) -> sa.URL:
        """Return a URL with the limits of its driver that it lacks."""
        connect = str(max(1, round(self.connect)))
        # PyMySQL takes whole seconds; the server's limit must come first.
        answer = str(math.ceil(self.answer))
        of_driver = {
            'psycopg2': {
                'connect_timeout': connect,
                'tcp_user_timeout': f'{max(1, round(self.caller))}000'},
            'pymysql': {'connect_timeout': connect, 'read_timeout': answer,
                        'write_timeout': answer},
        }.get(url.get_driver_name(), {})
        return url.update_query_dict({
            name: value for name, value in of_driver.items()
            if name not in url.query})

    def apply(self, engine: sa.Engine) -> None:
        """Set the limits in each new connection of an engine."""
        statements = {
            'postgresql': self._postgresql, 'mysql': self._mysql,
            'mariadb': self._mysql}.get(engine.dialect.name)
        if statements is not None:
            @sa.event.listens_for(engine, 'connect')
            def connect(connection: silence.Connection,
                        _record: object) -> None:
                with connection.cursor() as cursor:
                    for statement in statements(connection):
                        cursor.execute(statement)
                connection.commit()
            _count_read_only_as_disconnect(engine.dialect)
            if engine.dialect.driver == 'psycopg2':
                silence.limit(engine, self._patience(engine.url))
            # oslo.db has opened a connection already, to check that the server
            # answers; it has no limits.
            engine.dispose()

    def _patience(self, url: sa.URL) -> silence.Patience:
        # The driver itself heeds connect_timeout only while it blocks.
        return silence.Patience(
            connect=float(str(url.query['connect_timeout'])),
            idle=self.lock, statement=self.answer)

    def _postgresql(self, _connection: object) -> list[str]:
        return [f"SET {name} = '{round(1000 * seconds)}ms'"
                for name, seconds in (
                    ('lock_timeout', self.lock),
                    ('statement_timeout', self.statement),
                    ('idle_in_transaction_session_timeout', self.idle))]

    def _mysql(self, connection: silence.Connection) -> list[str]:
        found = [
            f'SET SESSION innodb_lock_wait_timeout = '
            f'{max(1, round(self.lock))}']
        if 'mariadb' in connection.get_server_info().lower():
            found += [
                f'SET SESSION max_statement_time = {self.statement}',
                f'SET SESSION idle_transaction_timeout = '
                f'{max(1, round(self.idle))}']
        return found


def is_exceeded(exc: BaseException) -> bool:
    """Return whether a server ended a statement because of a limit.

    :param exc: an error of oslo.db or SQLAlchemy
    """
    # SQLSTATE of PostgreSQL; error number of MariaDB and MySQL.
    return any(code in ('55P03', '57014', '25P03', 1205, 1969)
               for code in _codes(exc))


def is_read_only(exc: BaseException) -> bool:
    """Return whether a server refused a change because it is read-only."""
    return any(code in _READ_ONLY for code in _codes(exc))


def _count_read_only_as_disconnect(dialect: sa.Dialect) -> None:
    # Not an event: oslo.db's own comes first, whatever the order, and may be
    # the last one.
    is_disconnect = dialect.is_disconnect

    def is_lost(error: sa.engine.interfaces.DBAPIModule.Error,
                connection: silence.Connection, cursor: typing.Any) -> bool:
        return is_read_only(error) or is_disconnect(error, connection, cursor)
    dialect.is_disconnect = is_lost  # type: ignore[assignment,method-assign]


def _codes(exc: BaseException) -> Iterator[object]:
    """Return the server's codes in an error and in what it wraps."""
    cause: BaseException | None = exc
    while cause is not None:
        yield getattr(cause, 'pgcode', None)
        yield from cause.args[:1]
        cause = getattr(cause, 'orig', None) or getattr(
            cause, 'inner_exception', None) or cause.__cause__
