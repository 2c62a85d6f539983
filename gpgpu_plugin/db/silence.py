# SPDX-License-Identifier: Apache-2.0
"""Limit of how long a connection of PostgreSQL may be silent.

The limits of the server end nothing if its answers are lost on the way, for
example in a firewall or a load balancer that forgot the connection but goes on
to acknowledge what it gets. psycopg2 waits for ever then, and so does the
thread. PyMySQL has a limit of its own, ``read_timeout``.

psycopg2 calls the function below whenever it waits for the server, for each
statement once, also for BEGIN, COMMIT and a new connection. There is one such
function in a process. It lets connections of others wait for ever, as before.
"""

from __future__ import annotations

import dataclasses
import select
import time
import typing

import sqlalchemy as sa

Driver = typing.Any
"""A driver of a database server (PEP 249), or a part of it."""

Connection = typing.Any
"""A connection of such a driver."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds to wait for an answer of the server.

    :ivar connect: to a new connection
    :ivar idle: to the first statement of a transaction, which is BEGIN, and
        to the pool's check of a connection; nothing was sent before
    :ivar statement: to any other statement
    """

    connect: float
    idle: float
    statement: float


def limit(engine: sa.Engine, patience: Patience) -> None:
    """Close new connections of an engine that are silent for too long.

    The statement fails with psycopg2.OperationalError. The pool then replaces
    all its connections.
    """
    driver: Driver = engine.dialect.loaded_dbapi

    class Limited(driver.extensions.connection):
        """A connection that knows how long to wait."""

    Limited.patience = patience

    @sa.event.listens_for(engine, 'do_connect')
    def use(_dialect: object, _record: object, _arguments: object,
            parameters: dict[str, object]) -> None:
        parameters['connection_factory'] = Limited

    def wait(connection: Connection) -> None:
        _wait(driver, connection)
    driver.extensions.set_wait_callback(wait)


def _wait(driver: Driver, connection: Connection) -> None:
    """Wait until a connection has the answer that it waits for."""
    extensions = driver.extensions
    seconds = _seconds(extensions, connection)
    deadline = None if seconds is None else time.monotonic() + seconds
    while (state := connection.poll()) != extensions.POLL_OK:
        # Not select(), which takes no file descriptor above 1023. Another one
        # each time: with several hosts in the URL it changes.
        ready = select.poll()
        ready.register(
            connection.fileno(), select.POLLIN
            if state == extensions.POLL_READ else select.POLLOUT)
        left = None if deadline is None else max(
            0, deadline - time.monotonic()) * 1000
        if not ready.poll(left):
            raise driver.OperationalError(
                f'the server did not answer within {seconds} s; the '
                f'connection is closed')


def _seconds(extensions: Driver,
             connection: Connection) -> float | None:
    patience: Patience | None = getattr(connection, 'patience', None)
    if patience is None:
        return None
    return {
        extensions.STATUS_SETUP: patience.connect,
        extensions.STATUS_READY: patience.idle,
    }.get(connection.status, patience.statement)
