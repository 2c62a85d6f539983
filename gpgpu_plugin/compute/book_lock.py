# SPDX-License-Identifier: Apache-2.0
"""Lock on the book of a host.

Two nova-compute services with one book would overwrite each other's changes
and both act for the host. The lock keeps the second one from starting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import typing
import weakref

from oslo_log import log as logging

from gpgpu_plugin import exception

LOG = logging.getLogger(__name__)

_files: weakref.WeakValueDictionary[pathlib.Path, typing.TextIO] = (
    weakref.WeakValueDictionary())
"""Files that this process has locked, by path, while anyone uses them.

A process loses its POSIX lock of a file when it closes any descriptor of that
file, so a file must not be opened twice.
"""


def acquire(book: str) -> typing.TextIO | None:
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
