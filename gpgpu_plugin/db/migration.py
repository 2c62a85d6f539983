#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Migrations of the schema, and its revision."""

from __future__ import annotations

import functools
import pathlib

import sqlalchemy as sa
from alembic import command
from alembic import config
from alembic import migration
from alembic import script

from gpgpu_plugin import exception
from gpgpu_plugin.db import sync_lock

_FOLDER = pathlib.Path(__file__).parent / 'migrations'


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
    """Return the revision of the database; None for an empty one."""
    with engine.connect() as connection:
        return migration.MigrationContext.configure(
            connection).get_current_revision()


def tables(engine: sa.Engine) -> list[str]:
    """Return the names of all tables, whoever created them."""
    return sorted(sa.inspect(engine).get_table_names())


def is_current(engine: sa.Engine) -> bool:
    """Return whether the schema is the one that this code needs."""
    return version(engine) == revisions()[-1]


def check_current(engine: sa.Engine) -> None:
    """Refuse a database with another schema than this code needs.

    :raises ConfigInvalid: it has one
    """
    if not is_current(engine):
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason=f'the schema is at revision {version(engine)} instead of '
                   f'{revisions()[-1]}; run "gpgpu-manage db sync"')


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
            _check_known(engine, before)
            command.upgrade(_config(connection), revision)
    return before != target


def _check_known(engine: sa.Engine, revision: str | None) -> None:
    known = revisions()
    if revision is not None and revision not in known:
        raise exception.Conflict(
            kind='database', name=engine.url.database,
            reason=f'its schema is at revision {revision}, and this version '
                   f'of gpgpu_plugin knows {known[0]} to {known[-1]}: '
                   f'[database] connection names the database of another '
                   f'service, or a newer gpgpu_plugin has upgraded it; '
                   f'correct the option, or upgrade gpgpu_plugin here')
