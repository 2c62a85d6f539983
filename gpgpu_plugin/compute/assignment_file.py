# SPDX-License-Identifier: Apache-2.0
"""Assignments of one host, and unsent releases, in a file.

Each host has one small JSON file, which is replaced as a whole. With it,
guests can be destroyed and created again while no gpgpu-conductor answers. A
release, or the confirmation of a migration, that could not be sent survives a
restart of nova-compute. The conductor's database is authoritative; the
resource tracker brings the file in line with it.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import itertools
import os
import pathlib
import threading
import time
import typing
import weakref
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import versioned_file
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOG = logging.getLogger(__name__)


VERSION = 1
"""Version of the file's format."""

ByInstance = dict[str, tuple[claim.Assignment, ...]]
"""Assignments by the UUID of their instance."""


def path_of(conf: cfg.ConfigOpts, host: str) -> str:
    """Return the path of a host's file."""
    return os.path.join(conf.gpgpu_compute.state_path, f'{host}.json')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Book:
    """Content of the file.

    :ivar pending: releases that are still to be sent: when they were made, in
        seconds since the epoch by the host's clock, by the UUID of the
        assignment
    :ivar confirmations: confirmations of migrations that are still to be sent
    :ivar began_at: likewise when a guest began to use what is assigned
    :ivar unclean: stable ids of devices that left the book and have not been
        cleaned since
    :ivar prepared: stable ids of devices that were prepared for a guest, so
        that they had a baseline, and have not been cleaned since
    :ivar session: number of the newest session that a conductor gave
    :ivar generation: highest generation that a conductor acknowledged when
        the file was written
    :ivar cloud: UUID of the cloud whose conductors gave sessions; empty: none
    """

    assigned: ByInstance = dataclasses.field(default_factory=dict)
    pending: dict[str, codec.StoredTime] = dataclasses.field(
        default_factory=dict)
    confirmations: tuple[claim.MigrationConfirmation, ...] = ()
    began_at: dict[str, codec.StoredTime] = dataclasses.field(
        default_factory=dict)
    unclean: frozenset[str] = frozenset()
    prepared: frozenset[str] = frozenset()
    session: codec.StoredCounter = 0
    generation: codec.StoredCounter = 0
    cloud: str = ''


def not_free(path: pathlib.Path) -> dict[str, str]:
    """Return why devices are not free, by stable id, as a book has it.

    The file stays as it is: another process may use it.

    :raises OSError: it cannot be read
    :raises Invalid: it is not a book, or of another release
    """
    return {
        **dict.fromkeys(
            _peek(path).unclean,
            'it was not cleaned after its last guest, or its cleaning failed'),
        **{stable_id: f'it is assigned to instance {instance}'
           for stable_id, instance in instances(path).items()}}


def instances(path: pathlib.Path) -> dict[str, str]:
    """Return the UUIDs of instances by the stable id of what they have.

    :raises OSError: the file cannot be read
    :raises Invalid: see not_free
    """
    return {assignment.stable_id: assignment.instance_uuid
            for assignments in _peek(path).assigned.values()
            for assignment in assignments}


def _peek(path: pathlib.Path) -> _Book:
    return _read(path) or _Book()


def _read(path: pathlib.Path) -> _Book | None:
    """Return the content of the file of the host that it is named after.

    :raises OSError: it cannot be read
    :raises Invalid: it is no book, or has assignments of another host
    """
    book = versioned_file.read_versioned(path, _Book, VERSION)
    if book is not None:
        claim.check_host(
            path.name.removesuffix('.json'),
            itertools.chain.from_iterable(book.assigned.values()))
    return book


class AssignmentFile:
    """Assignments of one host, and pending releases and confirmations.

    Thread-safe. A change is on disk when the method returns. If the file
    cannot be written, the change is in memory only, and ``error`` returns the
    reason. It does no harm if a restart loses such a change: the comparison
    with the conductor ends assignments that were released, a release is sent
    once more, and a session whose number is not on disk is replaced by the
    next one. New assignments are refused instead: a guest must not run with
    devices that the book does not have.

    :param path: path of the file, which the first change creates
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._file = BookFile(path, _read, VERSION)
        self._book = self._file.read() or _Book()
        self._changes = 0
        self._changed: dict[str, int] = {}

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return str(self._file.path)

    def error(self) -> OSError | None:
        """Return why a change is in memory only; None if all are on disk."""
        with self._lock:
            return self._file.error

    def write_again(self) -> None:
        """Write what could not be written before."""
        with self._lock:
            if self._file.error is not None:
                self._save(self._book)

    def _save(self, book: _Book) -> None:
        self._book = book
        self._file.try_write(book)

    def _with_assigned(self, assigned: ByInstance,
                       untouched: Collection[str] = ()) -> _Book:
        """Return the book with other assignments.

        :param untouched: UUIDs of assignments whose devices were not used
        """
        before, after = (
            {assignment.stable_id for assignments in by_instance.values()
             for assignment in assignments
             if assignment.uuid not in untouched}
            for by_instance in (self._book.assigned, assigned))
        now = time.time()
        return dataclasses.replace(
            self._book, assigned=assigned,
            began_at={
                assignment.uuid: self._book.began_at.get(assignment.uuid, now)
                for assignments in assigned.values()
                for assignment in assignments if claim.is_used(
                    assignment.role, assignment.lease_expires_at)},
            unclean=(self._book.unclean | before) - after)

    def _save_assigned(
            self, instance_uuid: str,
            assignments: tuple[claim.Assignment, ...],
            untouched: Collection[str] = ()) -> None:
        """Replace the assignments of one instance."""
        self._save(self._with_instance(instance_uuid, assignments, untouched))
        self._count_change(instance_uuid)

    def _with_instance(
            self, instance_uuid: str,
            assignments: tuple[claim.Assignment, ...],
            untouched: Collection[str] = ()) -> _Book:
        assigned = dict(self._book.assigned)
        assigned.pop(instance_uuid, None)
        if assignments:
            assigned[instance_uuid] = assignments
        return self._with_assigned(assigned, untouched)

    def _count_change(self, instance_uuid: str) -> None:
        self._changes += 1
        self._changed[instance_uuid] = self._changes

    def _save_confirmations(
            self, confirmations: Iterable[claim.MigrationConfirmation],
    ) -> None:
        self._save(dataclasses.replace(
            self._book, confirmations=tuple(confirmations)))

    def all(self) -> list[claim.Assignment]:
        """Return the assignments of all instances."""
        with self._lock:
            return [assignment for assignments in self._book.assigned.values()
                    for assignment in assignments]

    def with_use(self) -> tuple[claim.Assignment, ...]:
        """Return all assignments, and how long guests have used them."""
        now = time.time()
        with self._lock:
            began_at = self._book.began_at
        return tuple(
            dataclasses.replace(assignment, used_seconds=max(
                0, int(now - began_at[assignment.uuid])))
            if assignment.uuid in began_at else assignment
            for assignment in self.all())

    def of_instance(self, instance_uuid: str) -> tuple[claim.Assignment, ...]:
        """Return the assignments of an instance, in all its roles."""
        with self._lock:
            return self._book.assigned.get(instance_uuid, ())

    def changes(self) -> int:
        """Return how often assignments of an instance were changed here."""
        with self._lock:
            return self._changes

    def changed_since(self, changes: int) -> set[str]:
        """Return the UUIDs of instances that changed since ``changes()``."""
        with self._lock:
            return {uuid for uuid, number in self._changed.items()
                    if number > changes}

    def replace(self, listed: ByInstance, changes: int,
                building: Collection[str] = ()) -> None:
        """Replace all assignments by the conductor's list of the whole host.

        Pending releases and confirmations are applied to the list first: the
        conductor does not know them yet.

        :param changes: ``changes()`` from before the list was requested; an
            instance that changed since keeps what it has here
        :param building: UUIDs of more instances that keep it
        """
        with self._lock:
            later = {uuid: number for uuid, number in self._changed.items()
                     if number > changes}
            own = later.keys() | set(building)
            assigned = {
                uuid: assignments for uuid, assignments
                in self._book.assigned.items() if uuid in own}
            for uuid, assignments in listed.items():
                if uuid not in own and (
                        left := self._after_pending(assignments)):
                    assigned[uuid] = left
            if assigned != self._book.assigned:
                self._save(self._with_assigned(assigned))
            self._changed = later

    def _after_pending(self, listed: Iterable[claim.Assignment],
                       ) -> tuple[claim.Assignment, ...]:
        """Return assignments as they are when all that is pending is sent."""
        ended = {*self._book.pending, *itertools.chain.from_iterable(
            confirmation.source_assignments
            for confirmation in self._book.confirmations)}
        confirmed = {confirmation.migration_uuid
                     for confirmation in self._book.confirmations}
        return tuple(
            _confirmed(assignment)
            if assignment.migration_uuid in confirmed else assignment
            for assignment in listed if assignment.uuid not in ended)

    def add(self, instance_uuid: str,
            assignments: Iterable[claim.Assignment]) -> None:
        """Add assignments of an instance; newer ones replace older ones.

        :raises HostNotReady: the file cannot be written; nothing was added
        """
        with self._lock:
            by_uuid = {assignment.uuid: assignment for assignment in (
                *self._book.assigned.get(instance_uuid, ()), *assignments)}
            self._write_instance(instance_uuid, tuple(by_uuid.values()))

    def activated(self, instance_uuid: str, uuids: Collection[str]) -> None:
        """Note that the conductor knows assignments as those of a guest."""
        with self._lock:
            self._save_assigned(instance_uuid, tuple(
                dataclasses.replace(
                    assignment, state=str(device_rules.DeviceState.ASSIGNED),
                    lease_expires_at=None)
                if assignment.uuid in uuids else assignment for assignment
                in self._book.assigned.get(instance_uuid, ())))

    def _write_instance(self, instance_uuid: str,
                        assignments: tuple[claim.Assignment, ...]) -> None:
        # After a restore the conductor continues from the book's generation. A
        # lower one would order later claims before these.
        book = dataclasses.replace(
            self._with_instance(instance_uuid, assignments),
            generation=max(self._book.generation, *(
                assignment.host_generation for assignment in assignments)))
        self._file.write(book)
        self._book = book
        self._count_change(instance_uuid)

    def contradictions(self, granted: Iterable[claim.Assignment],
                       ) -> list[str]:
        """Return why granted devices cannot be free, one sentence each.

        The book knows better than a database that was restored from a
        backup.
        """
        with self._lock:
            users = {
                assignment.stable_id: assignment
                for assignments in self._book.assigned.values()
                for assignment in assignments}
            found = []
            for assignment in granted:
                user = users.get(assignment.stable_id)
                if user is not None and user.uuid != assignment.uuid:
                    found.append(
                        f'{assignment.address} is assigned to instance '
                        f'{user.instance_uuid}')
                elif user is None and (
                        assignment.stable_id in self._book.unclean):
                    found.append(f'{assignment.address} was not cleaned '
                                 f'after its last assignment')
            return found

    def unclean(self) -> frozenset[str]:
        """Return the stable ids of devices that wait to be cleaned."""
        with self._lock:
            return self._book.unclean

    def cleaning(self, stable_id: str) -> None:
        """Note that a device is being cleaned, whatever made it dirty."""
        with self._lock:
            if stable_id not in self._book.unclean:
                self._save(dataclasses.replace(
                    self._book, unclean=self._book.unclean | {stable_id}))

    def prepare(self, assignments: Iterable[claim.Assignment]) -> None:
        """Note that guests may have had devices, which were prepared."""
        with self._lock:
            prepared = self._book.prepared | {
                assignment.stable_id for assignment in assignments}
            if prepared != self._book.prepared:
                self._save(dataclasses.replace(self._book, prepared=prepared))

    def is_prepared(self, stable_id: str) -> bool:
        """Return whether a device was prepared and not cleaned since."""
        with self._lock:
            return stable_id in self._book.prepared

    def cleaned(self, stable_id: str) -> None:
        """Note that a device was cleaned and is free."""
        with self._lock:
            if stable_id in self._book.unclean | self._book.prepared:
                self._save(dataclasses.replace(
                    self._book, unclean=self._book.unclean - {stable_id},
                    prepared=self._book.prepared - {stable_id}))

    def session(self) -> int:
        """Return the number of the newest session that a conductor gave."""
        with self._lock:
            return self._book.session

    def generation(self) -> int:
        """Return the highest generation that a conductor acknowledged."""
        with self._lock:
            return self._book.generation

    def cloud(self) -> str:
        """Return the UUID of the cloud that gave sessions; empty: none."""
        with self._lock:
            return self._book.cloud

    def begin(self, session: int, generation: int, cloud: str = '') -> None:
        """Store a session that has begun."""
        with self._lock:
            self._save(dataclasses.replace(
                self._book, session=session, cloud=cloud or self._book.cloud,
                generation=max(self._book.generation, generation)))

    def acknowledge(self, generation: int) -> None:
        """Keep a generation; it is on disk with the next other change."""
        with self._lock:
            self._book = dataclasses.replace(
                self._book,
                generation=max(self._book.generation, generation))

    def remove(self, instance_uuid: str, uuids: Iterable[str],
               untouched: Collection[str] = ()) -> None:
        """Remove assignments of an instance by their UUIDs.

        :param untouched: those of them whose devices were not used
        """
        removed = set(uuids)
        with self._lock:
            self._save_assigned(instance_uuid, tuple(
                assignment for assignment
                in self._book.assigned.get(instance_uuid, ())
                if assignment.uuid not in removed), untouched)

    def confirm(self, confirmation: claim.MigrationConfirmation) -> None:
        """Apply a confirmed migration to the instance's assignments here."""
        with self._lock:
            self._save_assigned(confirmation.instance_uuid, tuple(
                _confirmed(assignment) if assignment.migration_uuid
                == confirmation.migration_uuid else assignment for assignment
                in self._book.assigned.get(confirmation.instance_uuid, ())
                if assignment.uuid not in confirmation.source_assignments))

    def pending(self) -> list[str]:
        """Return the UUIDs of assignments with a pending release."""
        with self._lock:
            return list(self._book.pending)

    def ages(self, uuids: Iterable[str]) -> dict[str, int]:
        """Return how many seconds ago pending releases were made, by UUID.

        The clock goes on while the host is off, but it may be set back: no age
        is negative.
        """
        now = time.time()
        with self._lock:
            return {uuid: max(0, int(now - self._book.pending[uuid]))
                    for uuid in uuids if uuid in self._book.pending}

    def add_pending(self, uuids: Iterable[str]) -> bool:
        """Store releases before they are sent; return whether on disk."""
        with self._lock:
            pending, now = self._book.pending, time.time()
            self._save(dataclasses.replace(self._book, pending=pending | {
                uuid: now for uuid in uuids if uuid not in pending}))
            return self._file.error is None

    def remove_pending(self, uuids: Iterable[str]) -> None:
        """Remove releases that the conductor has accepted."""
        sent = set(uuids)
        with self._lock:
            self._save(dataclasses.replace(self._book, pending={
                uuid: at for uuid, at in self._book.pending.items()
                if uuid not in sent}))

    def confirmations(self) -> list[claim.MigrationConfirmation]:
        """Return the confirmations that are still to be sent."""
        with self._lock:
            return list(self._book.confirmations)

    def add_confirmation(
            self, confirmation: claim.MigrationConfirmation) -> bool:
        """Store a confirmation before it is sent; return whether on disk."""
        with self._lock:
            self._save_confirmations(dict.fromkeys(
                (*self._book.confirmations, confirmation)))
            return self._file.error is None

    def remove_confirmation(
            self, confirmation: claim.MigrationConfirmation) -> None:
        """Remove a confirmation that the conductor has accepted."""
        with self._lock:
            self._save_confirmations(
                stored for stored in self._book.confirmations
                if stored != confirmation)


def _confirmed(assignment: claim.Assignment) -> claim.Assignment:
    return dataclasses.replace(
        assignment, migration_uuid=None, role=claim.ClaimRole.INSTANCE)


# -- File of a host's book, which may be on a full disk.
#
# A change that cannot be written stays in memory, and is written with the next
# change or in the next iteration of the resource tracker.


_T = typing.TypeVar('_T', bound='DataclassInstance')


class BookFile(typing.Generic[_T]):
    """One file that is replaced as a whole. Not thread-safe.

    :param read: returns the content; None: there is no file
    :param version: version of the file's format
    :ivar error: why the newest content is not on disk; None: it is
    """

    def __init__(self, path: str,
                 read: Callable[[pathlib.Path], _T | None],
                 version: int) -> None:
        self.path = pathlib.Path(path)
        self.error: OSError | None = None
        self._read = read
        self._version = version

    def read(self) -> _T | None:
        """Return the content; None if there is none that can be read."""
        try:
            return self._read(self.path)
        except (OSError, exception.Invalid) as exc:
            LOG.error(
                'Cannot read the assignments of this host from %(path)s: '
                '%(reason)s. %(kept)s. The assignments will be fetched from '
                'gpgpu-conductor. Releases that were only in this file are '
                'lost; the next comparison with Nova releases the devices of '
                'instances that are no longer on this host', {
                    'path': self.path, 'reason': exc,
                    'kept': self._set_aside()})
            return None

    def _set_aside(self) -> str:
        """Rename the file, so that the next change does not replace it.

        :returns: a sentence for the log
        """
        kept = self.path.with_name(f'{self.path.name}.unreadable-1')
        try:
            kept = next(
                path for number in itertools.count(1)
                if not (path := self.path.with_name(
                    f'{self.path.name}.unreadable-{number}')).exists())
            self.path.rename(kept)
        except OSError as exc:
            return f'It cannot be renamed to {kept}: {exc.strerror}'
        return f'It was renamed to {kept}'

    def write(self, content: _T) -> None:
        """Replace the content.

        :raises HostNotReady: the file cannot be written
        """
        try:
            versioned_file.write_versioned(self.path, content, self._version)
        except OSError as exc:
            raise exception.HostNotReady(
                path=str(self.path),
                reason=f'cannot be written: {exc.strerror or exc}. Free space '
                       f'on its file system, or correct its permissions',
            ) from exc
        if self.error is not None:
            LOG.warning('The assignments of this host are on disk in %s '
                        'again', self.path)
        self.error = None

    def try_write(self, content: _T) -> None:
        """Replace the content, or set ``error``."""
        try:
            self.write(content)
        except exception.HostNotReady as exc:
            if self.error is None:
                LOG.error(
                    '%s. The assignments of this host are kept in memory and '
                    'written as soon as possible. Until then releases need a '
                    'gpgpu-conductor that answers, and no instance with GPUs '
                    'can be built on this host or moved to it', exc)
            assert isinstance(exc.__cause__, OSError)
            self.error = exc.__cause__


# -- Lock on the book of a host.
#
# Two nova-compute services with one book would overwrite each other's changes
# and both act for the host. The lock keeps the second one from starting.


_files: weakref.WeakValueDictionary[pathlib.Path, typing.TextIO] = (
    weakref.WeakValueDictionary())
"""Files that this process has locked, by path, while anyone uses them.

A process loses its POSIX lock of a file when it closes any descriptor of that
file, so a file must not be opened twice.
"""


def acquire_lock(book: str) -> typing.TextIO | None:
    """Lock the book of a host until this process ends, however it ends.

    All callers in one process that lock the same book get the same file.

    :param book: path of the book
    :returns: a file that must stay open; None: it cannot be written, and
        nothing is locked
    :raises ConfigInvalid: another process has locked the book
    """
    path = pathlib.Path(book).with_suffix('.lock')
    locked = _files.get(path)
    if locked is not None and not locked.closed:
        return locked
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open('a+', encoding='utf-8')
    except OSError as exc:
        # Guests without GPUs must not be affected. New assignments are
        # refused while the directory cannot be written.
        LOG.error('Cannot open the lock file %s: %s. A second nova-compute '
                  'with the same state_path would not be noticed. Correct '
                  'the permissions of [gpgpu_compute] state_path, then '
                  'restart nova-compute', path, exc.strerror or exc)
        return None
    try:
        # POSIX's lock, not flock's: a child of this process, such as the
        # privileged helper, does not keep it when this process is killed.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        with file:
            raise exception.ConfigInvalid(
                option='[gpgpu_compute] state_path',
                reason=_refusal(book, file, exc)) from None
    _files[path] = file
    _write_pid(file)
    return file


def _refusal(book: str, file: typing.TextIO, exc: OSError) -> str:
    if exc.errno not in (errno.EAGAIN, errno.EACCES):
        return (f'{file.name} cannot be locked ({exc.strerror}). state_path '
                f'must be on a file system with POSIX locks')
    file.seek(0)
    owner = file.read().strip() or 'unknown'
    return (f'{book} is in use by process {owner}. Only one nova-compute may '
            f'use it: stop the other one, or configure another [DEFAULT] host '
            f'or [gpgpu_compute] state_path for this one')


def _write_pid(file: typing.TextIO) -> None:
    try:
        file.truncate(0)
        file.write(f'{os.getpid()}\n')
        file.flush()
    except OSError as exc:
        LOG.warning('Cannot write the process ID to %s: %s',
                    file.name, exc)
