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
"""Lock of one process on the book of a host.

Two processes with one book would each write over what the other has stored,
and would speak for the host in turns: a second nova-compute that was started
by mistake with the same ``state_path`` does not start.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import typing

from oslo_log import log as logging

from gpgpu_plugin import exception

LOG = logging.getLogger(__name__)


def acquire(book: str) -> typing.TextIO | None:
    """Lock the book of a host until this process ends, however it ends.

    :param book: its path
    :returns: a file that must stay open; None: it cannot be written, and
        nothing is locked
    :raises ConfigInvalid: another process has locked the book
    """
    path = pathlib.Path(book).with_suffix('.lock')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open('a+', encoding='utf-8')
    except OSError as exc:
        # The host stays usable without GPUs; each change of the book fails.
        LOG.error('Cannot lock the assignments of this host: %s', exc)
        return None
    try:
        # POSIX's lock, not flock's: a child of this process, such as the
        # privileged helper, does not keep it when this process is killed.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        with file:
            raise exception.ConfigInvalid(
                option='[gpgpu] state_path',
                reason=_refusal(book, file)) from None
    _write_pid(file)
    return file


def _refusal(book: str, file: typing.TextIO) -> str:
    file.seek(0)
    owner = file.read().strip() or 'unknown'
    return (f'{book} is in use by process {owner}. Only one nova-compute may '
            f'run with it: stop the other one, or give this one another host '
            f'name or state_path')


def _write_pid(file: typing.TextIO) -> None:
    try:
        file.truncate(0)
        file.write(f'{os.getpid()}\n')
        file.flush()
    except OSError as exc:
        LOG.warning('Cannot write the number of this process to %s: %s',
                    file.name, exc)
