# SPDX-License-Identifier: Apache-2.0
"""The engine, and the two kinds of transaction.

Rules for every writer: its first statement locks the row that orders it (the
row of its host, or a row of ``locks``). It then reads what the previous writer
committed, even if a transaction reads from one snapshot (MariaDB). Hosts are
locked in the order of their ids.

A transaction that took longer than ``limits.TRANSACTION`` is rolled back, so
that a reader of changes knows how late one may become visible
(conductor.scheduler_feed).
"""

from __future__ import annotations

import contextlib
import copy
import enum
import os
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import api as oslo_db_api
from oslo_db import exception as oslo_db_exception
from oslo_db import options
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import author
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import event
from gpgpu_plugin.db import journal
from gpgpu_plugin.db import limits
from gpgpu_plugin.db import notification

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
                 limit: limits.Limits | None = None,
                 observer: Callable[[Failure], None] = lambda failure: None,
                 first: limits.Limits | None = None) -> None:
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
        self._author = author.CONDUCTOR
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

    def by(self, caller: author.Author) -> Database:
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
                author.note(session, self._author)
                notification.enable(session, self._publisher_id)
                began = time.monotonic()
                yield session
                event.write(session)
                caller_key.use(session)
                _check_duration(time.monotonic() - began)
        caller_key.serve(None)
        journal.write(session)

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
    if limits.is_exceeded(exc):
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
    if seconds > limits.TRANSACTION:
        raise exception.DatabaseBusy(
            reason=f'the transaction took {seconds:.0f} s, and may take '
                   f'{limits.TRANSACTION:.0f} s')


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
