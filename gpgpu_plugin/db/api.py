# SPDX-License-Identifier: Apache-2.0
"""The engine, the two kinds of transaction, and their limits.

Rules for every writer: its first statement locks the row that orders it (the
row of its host, or a row of ``locks``). It then reads what the previous writer
committed, even if a transaction reads from one snapshot (MariaDB). Hosts are
locked in the order of their ids.

A transaction that took longer than ``TRANSACTION_LIMIT`` is rolled back, so
that a reader of changes knows how late one may become visible
(conductor.scheduler_feed).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import math
import os
import select
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import fasteners
import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import api as oslo_db_api
from oslo_db import exception as oslo_db_exception
from oslo_db import options
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import event
from gpgpu_plugin.db import notification
from gpgpu_plugin.db import transaction

T = typing.TypeVar('T')

DEFAULT_CONNECTION = 'sqlite:///gpgpu.sqlite'


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[database]``."""
    options.set_defaults(conf, connection=DEFAULT_CONNECTION)


def is_missing_file(conf: cfg.ConfigOpts) -> bool:
    """Return whether ``[database]`` names a SQLite file that does not exist.

    Opening a connection would create it.
    """
    url = _url(conf.database.connection)
    return (url.get_backend_name() == 'sqlite' and bool(url.database)
            and not os.path.exists(str(url.database)))


@enginefacade.transaction_context_provider
class _Scope:
    """The context in which enginefacade keeps one transaction."""


class Failure(enum.StrEnum):
    """Kind of failure of a transaction.

    ``busy``: a limit was exceeded, mostly of waiting for a lock.
    ``unavailable``: there is no connection, or the server is read-only.
    ``deadlock``: it lost against another one, and is mostly run again.
    ``other``: any other error of the database or its driver.
    """

    BUSY = 'busy'
    UNAVAILABLE = 'unavailable'
    DEADLOCK = 'deadlock'
    OTHER = 'other'


class Database:
    """Transactions on the configured database.

    :param url: SQLAlchemy URL; default ``[database] connection``
    :param limit: how long its transactions may wait; default no limits
    :param first: limits of a first connection, for a command: it fails at
        once. By default, a server that is away is tried for minutes, and one
        that is silent for ever
    :param observer: called with the failure of each transaction
    :raises ConfigInvalid: the database cannot be used, or the URL names a
        server of MariaDB, but no database
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str | None = None,
                 limit: Limits | None = None,
                 observer: Callable[[Failure], None] = lambda failure: None,
                 first: Limits | None = None) -> None:
        register_opts(conf)
        self._observer = observer
        settings = {
            name: conf.database[name] for name in (
                'connection', 'max_pool_size', 'max_overflow',
                'pool_timeout', 'connection_recycle_time', 'max_retries',
                'retry_interval', 'sqlite_synchronous')}
        if url:
            settings['connection'] = url
        given = settings['connection']
        _check_names_database(given)
        if limit is not None:
            with _explained(given):
                settings['connection'] = limit.url(_url(
                    given)).render_as_string(hide_password=False)
        self._author = transaction.CONDUCTOR
        self._publisher_id: str | None = None
        self._context = enginefacade.transaction_context()
        self._context.configure(sqlite_fk=True, **settings)
        with _explained(given):
            if first is not None:
                _probe(first.url(_url(settings['connection'])))
            _turn_off_jit(self.engine)
        if limit is not None:
            limit.apply(self.engine)
        # SQLite has one writer at a time anyway. Waiting here, in order,
        # avoids 'database is locked', which a transaction that has read
        # before it writes gets however long it waits.
        self._sqlite_writer = (
            threading.Lock() if self.engine.dialect.name == 'sqlite'
            else contextlib.nullcontext())

    @property
    def engine(self) -> sa.Engine:
        """Return the engine, for migrations and tests."""
        engine: sa.Engine = self._context.writer.get_engine()
        return engine

    def by(self, caller: transaction.Author) -> Database:
        """Return this database for the transactions of one caller.

        Their events name the caller.
        """
        found = copy.copy(self)
        found._author = caller
        return found

    def publish_as(self, publisher_id: str | None) -> None:
        """Have transactions write notifications from now on.

        :param publisher_id: whom they name, such as ``gpgpu-conductor:host``;
            None: they write none
        """
        self._publisher_id = publisher_id

    @contextlib.contextmanager
    def reader(self) -> Iterator[orm.Session]:
        """Return the context of a transaction that only reads.

        :raises DatabaseBusy: a limit was exceeded
        :raises DatabaseUnavailable: the connection failed
        """
        with (self._translated(),
              self._context.reader.using(_Scope()) as session):
            yield session

    @contextlib.contextmanager
    def writer(self) -> Iterator[orm.Session]:
        """Return the context of a transaction that may write.

        :raises DatabaseBusy: a limit was exceeded; nothing was changed
        :raises DatabaseUnavailable: the connection failed
        """
        with self._sqlite_writer, self._translated():
            with self._context.writer.using(_Scope()) as session:
                transaction.note_author(session, self._author)
                notification.enable(session, self._publisher_id)
                began = time.monotonic()
                yield session
                event.write(session)
                caller_key.use(session)
                _check_duration(time.monotonic() - began)
        caller_key.serve(None)
        transaction.write_lines(session)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise our own error if the server or the connection gave up."""
        try:
            yield
        except exception.DatabaseBusy:
            self._observer(Failure.BUSY)
            raise
        except (oslo_db_exception.DBError, sa.exc.SQLAlchemyError) as exc:
            failure = _failure(exc)
            if failure is None:
                raise
            self._observer(failure)
            if failure not in _TRANSLATIONS:
                raise
            raise _TRANSLATIONS[failure](reason=exc) from exc

    def write(self, work: Callable[[orm.Session], T]) -> T:
        """Run work in a writing transaction.

        It runs again after a deadlock, and if another transaction inserted the
        same row first.

        :raises DatabaseBusy: a limit was exceeded; nothing was changed
        :raises DatabaseUnavailable: the connection failed
        """
        def attempt() -> T:
            with self.writer() as session:
                return work(session)
        result: T = oslo_db_api.wrap_db_retry(
            max_retries=8, retry_interval=0.05, inc_retry_interval=True,
            max_retry_interval=1, retry_on_deadlock=True,
            exception_checker=_lost_insertion)(attempt)()
        return result


def _turn_off_jit(engine: sa.Engine) -> None:
    """Have PostgreSQL compile no expressions.

    It compiles those of a statement that it believes to be long. A page of a
    list takes 10 ms, and compiling its expressions took 600 ms.
    """
    if engine.dialect.name != 'postgresql':
        return

    @sa.event.listens_for(engine, 'connect')
    def connect(connection: typing.Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute('SET jit = off')
        connection.commit()
    # oslo.db has opened a connection already.
    engine.dispose()


_TRANSLATIONS: Mapping[Failure, type[exception.GPUPluginException]] = {
    Failure.BUSY: exception.DatabaseBusy,
    Failure.UNAVAILABLE: exception.DatabaseUnavailable}


def _failure(exc: Exception) -> Failure | None:
    """Return how a transaction failed.

    :returns: None: an insertion that another transaction was faster with, or
        a constraint, which the caller may expect
    """
    if is_limit_exceeded(exc):
        return Failure.BUSY
    if (isinstance(exc, oslo_db_exception.DBConnectionError)
            or _is_refused(exc)):
        return Failure.UNAVAILABLE
    if isinstance(exc, oslo_db_exception.DBDeadlock):
        return Failure.DEADLOCK
    if isinstance(exc, (oslo_db_exception.DBDuplicateEntry,
                        oslo_db_exception.DBReferenceError)):
        return None
    return Failure.OTHER


def _check_duration(seconds: float) -> None:
    if seconds > TRANSACTION_LIMIT:
        raise exception.DatabaseBusy(
            reason=f'the transaction took {seconds:.0f} s, and may take '
                   f'{TRANSACTION_LIMIT:.0f} s')


def _is_refused(exc: Exception) -> bool:
    """Return whether no connection could be opened.

    oslo.db recognises the messages of old drivers only.
    """
    return isinstance(exc, sa.exc.OperationalError) and exc.statement is None


def _lost_insertion(exc: Exception) -> bool:
    return type(exc).__name__ == 'DBDuplicateEntry'


def _url(connection: str) -> sa.URL:
    """Return the URL of a database.

    :raises ConfigInvalid: it is none
    """
    try:
        return sa.make_url(connection)
    except (sa.exc.ArgumentError, ValueError):
        # The text may have a password.
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason='it is not the URL of a database, such as '
                   'postgresql+psycopg2://user:password@host/gpgpu') from None


@contextlib.contextmanager
def _explained(connection: str) -> Iterator[None]:
    """Raise an error that names the database if it cannot be used.

    :raises ConfigInvalid: it is away, or there is no such driver
    """
    try:
        yield
    except (oslo_db_exception.DBError, sa.exc.SQLAlchemyError,
            ImportError) as exc:
        cause = str(exc).strip().partition('\n')[0]
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason=f'{_url(connection).render_as_string()} cannot be used: '
                   f'{type(exc).__name__}: {cause}; correct the option, or '
                   f'{_remedy(exc)}') from exc


def _remedy(exc: Exception) -> str:
    return ('install the driver' if isinstance(
        exc, (ImportError, sa.exc.NoSuchModuleError))
        else 'start the database')


def _probe(url: sa.URL) -> None:
    """Open a connection, and close it; SQLite would make a file."""
    if url.get_backend_name() != 'sqlite':
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.connect():
            pass


def _check_names_database(connection: str) -> None:
    url = _url(connection)
    if url.get_backend_name() in ('mysql', 'mariadb') and not url.database:
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason=f'it names no database on {url.host}; add one, such as '
                   f'mysql+pymysql://user:password@{url.host}/gpgpu')


# -- Limits of how long one call may wait in the database.
#
# The server ends what takes longer. So a transaction that hangs, even one of a
# conductor that was stopped, keeps its locks for a few seconds only, and no
# call waits for a lock longer than its caller waits for an answer. MySQL
# limits only the wait for a lock. SQLite has no limits; its writers are
# threads of one conductor.
#
# The drivers close a connection on which no answer comes, so that one that is
# lost on its way costs one call. A connection to a server that has become
# read-only is closed as well, together with all others: after a failover they
# lead to the old primary.


_READ_ONLY = (
    # SQLSTATE of PostgreSQL: read_only_sql_transaction.
    '25006',
    # MariaDB and MySQL: --read-only, a read-only transaction, a read-only
    # InnoDB, and a node of Galera that is not in the cluster.
    1290, 1792, 1836, 1047)

TRANSACTION_LIMIT = 30.0
"""Seconds after which a transaction that wrote is not committed any more.

It does not depend on the configuration, which differs between conductors while
it is being changed.
"""

COMMIT_LIMIT = 30.0
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
        return min(self.caller, COMMIT_LIMIT)

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
            def connect(connection: TCPConnection,
                        _record: object) -> None:
                with connection.cursor() as cursor:
                    for statement in statements(connection):
                        cursor.execute(statement)
                connection.commit()
            _count_read_only_as_disconnect(engine.dialect)
            if engine.dialect.driver == 'psycopg2':
                limit_silence(engine, self._patience(engine.url))
            # oslo.db has opened a connection already, to check that the server
            # answers; it has no limits.
            engine.dispose()

    def _patience(self, url: sa.URL) -> TCPTimeouts:
        # The driver itself heeds connect_timeout only while it blocks.
        return TCPTimeouts(
            connect=float(str(url.query['connect_timeout'])),
            idle=self.lock, statement=self.answer)

    def _postgresql(self, _connection: object) -> list[str]:
        return [f"SET {name} = '{round(1000 * seconds)}ms'"
                for name, seconds in (
                    ('lock_timeout', self.lock),
                    ('statement_timeout', self.statement),
                    ('idle_in_transaction_session_timeout', self.idle))]

    def _mysql(self, connection: TCPConnection) -> list[str]:
        found = [
            f'SET SESSION innodb_lock_wait_timeout = '
            f'{max(1, round(self.lock))}']
        if 'mariadb' in connection.get_server_info().lower():
            found += [
                f'SET SESSION max_statement_time = {self.statement}',
                f'SET SESSION idle_transaction_timeout = '
                f'{max(1, round(self.idle))}']
        return found


def is_limit_exceeded(exc: BaseException) -> bool:
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
                connection: TCPConnection, cursor: typing.Any) -> bool:
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


# -- Limit of how long a connection of PostgreSQL may be silent.
#
# The limits of the server end nothing if its answers are lost on the way, for
# example in a firewall or a load balancer that forgot the connection but goes
# on to acknowledge what it gets. psycopg2 waits for ever then, and so does the
# thread. PyMySQL has a limit of its own, ``read_timeout``.
#
# psycopg2 calls the function below whenever it waits for the server, for each
# statement once, also for BEGIN, COMMIT and a new connection. There is one
# such function in a process. It lets connections of others wait for ever, as
# before.


TCPDriver = typing.Any
"""A driver of a database server (PEP 249), or a part of it."""

TCPConnection = typing.Any
"""A connection of such a driver."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TCPTimeouts:
    """Seconds to wait for an answer of the server.

    :ivar connect: to a new connection
    :ivar idle: to the first statement of a transaction, which is BEGIN, and
        to the pool's check of a connection; nothing was sent before
    :ivar statement: to any other statement
    """

    connect: float
    idle: float
    statement: float


def limit_silence(engine: sa.Engine, patience: TCPTimeouts) -> None:
    """Close new connections of an engine that are silent for too long.

    The statement fails with psycopg2.OperationalError. The pool then replaces
    all its connections.
    """
    driver: TCPDriver = engine.dialect.loaded_dbapi

    class Limited(driver.extensions.connection):
        """A connection that knows how long to wait."""

    Limited.patience = patience

    @sa.event.listens_for(engine, 'do_connect')
    def use(_dialect: object, _record: object, _arguments: object,
            parameters: dict[str, object]) -> None:
        parameters['connection_factory'] = Limited

    def wait(connection: TCPConnection) -> None:
        _wait(driver, connection)
    driver.extensions.set_wait_callback(wait)


def _wait(driver: TCPDriver, connection: TCPConnection) -> None:
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


def _seconds(extensions: TCPDriver,
             connection: TCPConnection) -> float | None:
    patience: TCPTimeouts | None = getattr(connection, 'patience', None)
    if patience is None:
        return None
    return {
        extensions.STATUS_SETUP: patience.connect,
        extensions.STATUS_READY: patience.idle,
    }.get(connection.status, patience.statement)


# -- Lock that lets one gpgpu-conductor at a time use an SQLite file.
#
# SQLite has one writer at a time. Within a conductor the writers wait for each
# other in order; between two processes SQLite refuses some of them at once.


class SQLiteLock:
    """Lock of a conductor on its SQLite file; not used for a server."""

    def __init__(self, url: sa.URL) -> None:
        self._database = url.database
        self._lock = None
        if url.get_backend_name() == 'sqlite' and url.database not in (
                None, '', ':memory:'):
            self._lock = fasteners.InterProcessLock(f'{url.database}.lock')

    def acquire(self) -> None:
        """Take the lock until it is released or this process ends.

        :raises ConfigInvalid: another process has it
        """
        if self._lock is not None and not self._lock.acquire(blocking=False):
            raise exception.ConfigInvalid(
                option='[database] connection',
                reason=f'another gpgpu-conductor uses {self._database}, and '
                       f'only one at a time may use an SQLite file. Stop the '
                       f'other one, or use PostgreSQL or MariaDB')

    def release(self) -> None:
        """Give the lock back, if it was taken."""
        if self._lock is not None and self._lock.acquired:
            self._lock.release()
