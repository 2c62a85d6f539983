# SPDX-License-Identifier: Apache-2.0
"""File of a host's book, which may be on a full disk.

A change that cannot be written stays in memory, and is written with the next
change or in the next iteration of the resource tracker.
"""

from __future__ import annotations

import itertools
import pathlib
import typing
from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import versioned_file

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOG = logging.getLogger(__name__)

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
            versioned_file.write(self.path, content, self._version)
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
