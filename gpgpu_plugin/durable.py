# SPDX-License-Identifier: Apache-2.0
"""Files that survive a power failure."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import typing
import uuid
from collections.abc import Iterator

PRIVATE = 0o600
"""Mode of a file that only its owner can read."""

_CANNOT_SYNC = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})
"""Errors of fsync for what has no disk, such as a pipe."""


def replace(path: pathlib.Path, text: str, mode: int = PRIVATE) -> None:
    """Replace the whole file, and create its directory if needed.

    The new text is on disk when the function returns. If the power fails
    before, the file has either the complete old text or the complete new one.

    :param mode: of the file
    :raises OSError: the file cannot be written
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not with_suffix: a file of the operator may lie beside this one.
    new = path.with_name(f'{path.name}.new')
    # Made anew: somebody who may write to the folder could have made a link.
    new.unlink(missing_ok=True)
    with _created(new, mode) as file:
        _keep_owner(file, path)
        file.write(text)
        file.flush()
        # Otherwise the new name may reach the disk before the text.
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync_folder(path.parent)


@contextlib.contextmanager
def new(path: pathlib.Path) -> Iterator[typing.IO[str]]:
    """Return the context in which a new file is written.

    It gets its name when it is complete and on disk. If the block fails,
    there is no file. Nobody but its owner can read it.

    :raises FileExistsError: a file has this name, and stays as it is
    :raises OSError: the file cannot be written
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    unfinished = path.with_name(f'.{path.name}.{uuid.uuid4().hex}')
    try:
        with _created(unfinished, PRIVATE, newline='') as file:
            yield file
            sync(file)
        # Unlike a rename, it replaces no file that was made meanwhile.
        path.hardlink_to(unfinished)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _created(path: pathlib.Path, mode: int,
             newline: str | None = None) -> typing.IO[str]:
    """Return a new file, which is open for writing.

    The mode does not depend on the umask of whoever runs the program.
    """
    number = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    os.fchmod(number, mode)
    return open(number, 'w', encoding='utf-8', newline=newline)


def _keep_owner(file: typing.IO[str], path: pathlib.Path) -> None:
    """Give a new file to the owner of the file that it will replace.

    Only root can; whoever else may replace the file becomes its owner.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        known = path.stat()
        os.fchown(file.fileno(), known.st_uid, known.st_gid)


def sync(file: typing.IO[str]) -> bool:
    """Flush a file, and sync it to disk if it is on one.

    :returns: whether it is on disk
    :raises OSError: it cannot be written
    """
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as exc:
        # io.UnsupportedOperation has no number: a file in memory.
        if exc.errno is not None and exc.errno not in _CANNOT_SYNC:
            raise
        return False
    return True


def _sync_folder(path: pathlib.Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
