# SPDX-License-Identifier: Apache-2.0
"""The clock of the database, which all conductors share, and stored times.

The clock is the time at which a statement begins, or a later one within the
same statement. SQLite has milliseconds, the servers microseconds.

Whatever is stored in a row, or compared with one, is a time by this clock:
that of a conductor may be wrong. A transaction has one time: that of the
statement with which it locked hosts, or else of the first question. If it
waited for the lock, its time may be before that of a transaction that it
waited for.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import compiler
from sqlalchemy.sql import compiler as sql_compiler
from sqlalchemy.sql import functions


class now(functions.FunctionElement[float]):
    """The seconds since the epoch."""

    type = sa.Double()
    inherit_cache = True


class seconds(functions.FunctionElement[int]):
    """The whole seconds from the epoch to a stored time, which is in UTC."""

    type = sa.BigInteger()
    inherit_cache = True


_TIME = 'gpgpu_time'
_NOW = sa.select(now())


def note(session: orm.Session, time: float) -> None:
    """Set the time of a transaction, which a statement of it has read."""
    session.info[_TIME] = time


def epoch(session: orm.Session) -> float:
    """Return the time of a transaction in seconds since the epoch."""
    if _TIME not in session.info:
        note(session, session.scalars(_NOW).one())
    found: float = session.info[_TIME]
    return found


def utc(session: orm.Session, ago: float = 0) -> datetime.datetime:
    """Return the time of a transaction in UTC without a zone.

    :param ago: seconds before it
    """
    return datetime.datetime.fromtimestamp(
        epoch(session) - ago, datetime.UTC).replace(tzinfo=None)


@compiler.compiles(now, 'postgresql')
def _postgresql(*_arguments: object, **_options: object) -> str:
    return 'CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)'


@compiler.compiles(now, 'mysql')
@compiler.compiles(now, 'mariadb')
def _mysql(*_arguments: object, **_options: object) -> str:
    # UNIX_TIMESTAMP would go through the local time, which jumps. Replicas
    # compute the same value, unlike with SYSDATE.
    return ("(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
            ' / 1000000e0)')


@compiler.compiles(now, 'sqlite')
def _sqlite(*_arguments: object, **_options: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiler.compiles(seconds, 'postgresql')
def _postgresql_seconds(element: seconds, compiled: sql_compiler.SQLCompiler,
                        **options: object) -> str:
    time = compiled.process(element.clauses, **options)
    return f'CAST(floor(extract(epoch FROM {time})) AS BIGINT)'


@compiler.compiles(seconds, 'mysql')
@compiler.compiles(seconds, 'mariadb')
def _mysql_seconds(element: seconds, compiled: sql_compiler.SQLCompiler,
                   **options: object) -> str:
    time = compiled.process(element.clauses, **options)
    return f"TIMESTAMPDIFF(SECOND, '1970-01-01', {time})"


@compiler.compiles(seconds, 'sqlite')
def _sqlite_seconds(element: seconds, compiled: sql_compiler.SQLCompiler,
                    **options: object) -> str:
    time = compiled.process(element.clauses, **options)
    return f"CAST(strftime('%s', {time}) AS INTEGER)"
