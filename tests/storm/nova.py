# SPDX-License-Identifier: Apache-2.0
"""Model of Nova's database: where instances are, and their next steps.

All hosts share it. It outlives kills, as Nova's database does. Each instance
has at most one next step, which one host takes; a step that was taken by a
process that was killed is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator

from nova.compute import task_states

from gpgpu_plugin.compute import assignment_use

_SCHEMA = """
CREATE TABLE IF NOT EXISTS instances (
    uuid TEXT PRIMARY KEY, host TEXT, task TEXT, gpus INTEGER,
    step TEXT, step_host TEXT, migration TEXT, due REAL, taken INTEGER);
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY, uuid TEXT, instance TEXT, source_compute TEXT,
    dest_compute TEXT, old_gpus INTEGER, new_gpus INTEGER, status TEXT);
"""

_RESTING = ('delete', 'resize')
"""Steps before which an instance rests on its host."""
DELETE_ERROR = 'delete_error'
"""The step in which a user deletes an instance that is in ERROR. Such an
instance is not at rest: it may have assignments without a guest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Migration:
    """A resize, with the attributes of Nova's object that the plugin reads."""

    uuid: str
    source_compute: str
    dest_compute: str
    old_gpus: int
    new_gpus: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A step of an instance.

    :ivar name: name of the method of Nova's compute manager
    :ivar gpus: number of GPUs in the instance's flavor
    :ivar migration: the migration that the step belongs to, if any
    """

    uuid: str
    name: str
    host: str
    gpus: int
    migration: Migration | None


class Nova:
    """Nova's database, in a file; thread-safe.

    :param folder: folder of the run
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            folder / 'nova.sqlite', timeout=60, isolation_level=None,
            check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        # Processes are killed, not the machine.
        self._connection.execute('PRAGMA synchronous=OFF')
        self._connection.executescript(_SCHEMA)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute('BEGIN IMMEDIATE')
            try:
                yield self._connection
            except BaseException:
                self._connection.execute('ROLLBACK')
                raise
            self._connection.execute('COMMIT')

    # -- changes ------------------------------------------------------------

    def begin_build(self, host: str, gpus: int, *, again: bool) -> str:
        """Begin to build an instance on a host; return its UUID.

        The host has taken a step of it until ``set_step``.

        :param again: whether an instance is built that is on no host, as by
            unshelve, if there is one
        """
        with self._transaction() as connection:
            row = again and connection.execute(
                'SELECT uuid FROM instances WHERE step IS NULL '
                'ORDER BY random() LIMIT 1').fetchone()
            instance = row['uuid'] if row else str(uuid.uuid4())
            connection.execute(
                'INSERT OR REPLACE INTO instances VALUES '
                '(?, ?, ?, ?, ?, ?, NULL, 0, 1)',
                (instance, host, task_states.SPAWNING, gpus, 'delete', host))
            return instance

    def begin_migration(self, step: Step, dest: str, gpus: int) -> None:
        """Begin a resize; the next step is prep_resize on the destination."""
        migration = str(uuid.uuid4())
        with self._transaction() as connection:
            connection.execute(
                'INSERT INTO migrations VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)',
                (migration, step.uuid, step.host, dest, step.gpus, gpus,
                 'pre-migrating'))
            connection.execute(
                'UPDATE instances SET task = ?, migration = ?, '
                "step = 'prep_resize', step_host = ?, due = 0, taken = 0 "
                'WHERE uuid = ?',
                (task_states.RESIZE_PREP, migration, dest, step.uuid))

    def update(self, step: Step, *, status: str | None = None,
               **values: object) -> None:
        """Change an instance, and the status of the step's migration.

        :param values: host, task, gpus
        """
        with self._transaction() as connection:
            if status is not None and step.migration is not None:
                connection.execute(
                    'UPDATE migrations SET status = ? WHERE uuid = ?',
                    (status, step.migration.uuid))
            for name, value in values.items():
                connection.execute(
                    f'UPDATE instances SET {name} = ? WHERE uuid = ?',
                    (value, step.uuid))

    def set_step(self, instance: str, name: str, host: str | None = None,
                 delay: float = 0) -> None:
        """Set the next step of an instance.

        :param host: host that takes it; default the instance's
        :param delay: seconds until it can be taken
        """
        with self._transaction() as connection:
            connection.execute(
                'UPDATE instances SET step = ?, step_host = ifnull(?, host), '
                'due = ?, taken = 0 WHERE uuid = ?',
                (name, host, time.time() + delay, instance))

    def finish_build(self, instance: str, step: str, delay: float) -> None:
        """Note that an instance runs, and set its next step."""
        with self._transaction() as connection:
            connection.execute(
                'UPDATE instances SET task = NULL, step = ?, due = ?, '
                'taken = 0 WHERE uuid = ?',
                (step, time.time() + delay, instance))

    def delete(self, instance: str) -> None:
        """Take an instance from its host, as delete and shelve do."""
        with self._transaction() as connection:
            connection.execute(
                'UPDATE instances SET host = NULL, task = NULL, step = NULL, '
                'migration = NULL WHERE uuid = ?', (instance,))

    def take_step(self, host: str) -> Step | None:
        """Take a step that is due on a host; None: there is none."""
        return self._take(host, f'due <= {time.time()}')

    def take_move(self, host: str) -> Step | None:
        """Take a step of an instance that does not rest, due or not."""
        return self._take(host, f'step NOT IN {_RESTING}')

    def take_resting(self, host: str) -> Step | None:
        """Take the step of an instance that rests, due or not."""
        return self._take(host, f'step IN {_RESTING}')

    def _take(self, host: str, condition: str) -> Step | None:
        with self._transaction() as connection:
            row = connection.execute(
                'SELECT * FROM instances WHERE step_host = ? AND NOT taken '
                f'AND step IS NOT NULL AND {condition} ORDER BY due LIMIT 1',
                (host,)).fetchone()
            if row is None:
                return None
            connection.execute('UPDATE instances SET taken = 1 '
                               'WHERE uuid = ?', (row['uuid'],))
            found = connection.execute(
                'SELECT uuid, source_compute, dest_compute, old_gpus, '
                'new_gpus FROM migrations WHERE uuid = ?',
                (row['migration'],)).fetchone()
            return Step(
                uuid=row['uuid'], name=row['step'], host=row['host'],
                gpus=row['gpus'],
                migration=Migration(**dict(found)) if found else None)

    def replace_lost_steps(self, host: str) -> None:
        """Let users delete the instances whose steps a killed process took."""
        with self._transaction() as connection:
            connection.execute(
                'UPDATE instances SET step = ?, step_host = host, '
                'due = 0, taken = 0, task = NULL '
                'WHERE step_host = ? AND taken AND step IS NOT NULL',
                (DELETE_ERROR, host))

    # -- queries ------------------------------------------------------------

    def is_at_rest(self) -> bool:
        """Return whether all instances rest and no step is taken."""
        with self._transaction() as connection:
            return not connection.execute(
                'SELECT count(*) FROM instances WHERE step IS NOT NULL '
                f'AND (taken OR step NOT IN {_RESTING})').fetchone()[0]

    def location(self, instance: str) -> assignment_use.Location | None:
        """Return where an instance is; None: it never existed."""
        with self._transaction() as connection:
            row = connection.execute(
                'SELECT * FROM instances WHERE uuid = ?',
                (instance,)).fetchone()
            migrations = connection.execute(
                'SELECT * FROM migrations WHERE instance = ? '
                'ORDER BY number DESC', (instance,)).fetchall()
        if row is None:
            return None
        return assignment_use.Location(
            host=row['host'], task=row['task'], flavor=row['gpus'],
            migrations=tuple(assignment_use.Migration(
                uuid=migration['uuid'], status=migration['status'],
                source=migration['source_compute'],
                dest=migration['dest_compute'],
                new_flavor=migration['new_gpus']) for migration in migrations))

    def allocations(self, host: str) -> dict[str, int]:
        """Return the GPUs that Placement has for a host, by consumer.

        During a migration the migration has the source's allocation.
        """
        with self._transaction() as connection:
            return dict(connection.execute(
                'SELECT i.uuid, i.gpus FROM instances i '
                'LEFT JOIN migrations m ON i.migration = m.uuid '
                'WHERE i.host = :host AND (m.uuid IS NULL OR m.status IN '
                f'{assignment_use.OVER}) UNION '
                'SELECT m.uuid, m.old_gpus FROM instances i '
                'JOIN migrations m ON i.migration = m.uuid WHERE '
                f'm.source_compute = :host AND m.status NOT IN '
                f'{assignment_use.OVER} UNION '
                'SELECT i.uuid, m.new_gpus FROM instances i '
                'JOIN migrations m ON i.migration = m.uuid WHERE '
                f'm.dest_compute = :host AND m.status NOT IN '
                f'{assignment_use.OVER}',
                {'host': host}).fetchall())
