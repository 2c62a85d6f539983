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
"""The schema's version: which it is, and bringing it to the newest."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import command
from alembic import config
from alembic import migration
from alembic import script

_FOLDER = pathlib.Path(__file__).parent / 'migrations'


def _config(connection: sa.Connection | None = None) -> config.Config:
    result = config.Config()
    result.set_main_option('script_location', str(_FOLDER))
    result.attributes['connection'] = connection
    return result


def revisions() -> list[str]:
    """All revisions, oldest first."""
    walk = script.ScriptDirectory.from_config(_config()).walk_revisions()
    return [each.revision for each in walk][::-1]


def version(engine: sa.Engine) -> str | None:
    """The database's revision; None for an empty one."""
    with engine.connect() as connection:
        return migration.MigrationContext.configure(
            connection).get_current_revision()


def is_current(engine: sa.Engine) -> bool:
    """Whether the schema is the one that this code was written for."""
    return version(engine) == revisions()[-1]


def sync(engine: sa.Engine, revision: str = 'head') -> None:
    """Bring the schema to a revision; nothing happens when it is there."""
    with engine.connect() as connection, _tables_may_be_remade(connection):
        with connection.begin():
            command.upgrade(_config(connection), revision)


@contextlib.contextmanager
def _tables_may_be_remade(connection: sa.Connection) -> Iterator[None]:
    """SQLite changes a column by making the table anew, which rows that
    refer to it must not hinder; within a transaction it cannot be told so."""
    if connection.dialect.name != 'sqlite':
        yield
        return
    # Below SQLAlchemy, which would begin a transaction.
    cursor = connection.connection.cursor()
    cursor.execute('PRAGMA foreign_keys = OFF')
    try:
        yield
    finally:
        cursor.execute('PRAGMA foreign_keys = ON')
