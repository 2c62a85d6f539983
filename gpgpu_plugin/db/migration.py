# SPDX-License-Identifier: Apache-2.0
"""Migrations of the schema, and its revision."""

from __future__ import annotations

import functools
import pathlib
import re

import sqlalchemy as sa
from alembic import command
from alembic import config
from alembic import migration
from alembic import script

from gpgpu_plugin import exception
from gpgpu_plugin.db import sync_lock

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
         timeout: float = sync_lock.TIMEOUT) -> bool:
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
        with sync_lock.held(connection, timeout):
            before = version(engine)
            reason = refusal(before)
            if reason is not None:
                raise exception.Conflict(
                    kind='database', name=engine.url.database, reason=reason)
            command.upgrade(_config(connection), revision)
    return before != target
