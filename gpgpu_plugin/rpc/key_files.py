# SPDX-License-Identifier: Apache-2.0
"""Files with keys, in ``[gpgpu] keys_path``.

``host.key``, ``scheduler.key`` and ``operator.key`` have one key of that kind.
``master.key``, for conductors alone, has one master key in each line; the
first one is for new keys. Nobody but their owner may read them.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Callable

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.rpc import signature

_Kind = gpgpu_context.CallerKind

_OPTION = '[gpgpu] keys_path'

IN_PROCESS = ('fake', 'kombu+memory')
"""Transports whose messages do not leave the process."""


def is_required(conf: cfg.ConfigOpts) -> bool:
    """Return whether calls to gpgpu-conductor are signed.

    By default they are, unless no message can come from another process.
    """
    required: bool | None = conf.gpgpu.sign_calls
    if required is not None:
        return required
    url = oslo_messaging.TransportURL.parse(conf, conf.gpgpu.transport_url)
    return str(url.transport) not in IN_PROCESS


def master_path(conf: cfg.ConfigOpts) -> pathlib.Path:
    """Return the path of the file with the master keys."""
    return pathlib.Path(conf.gpgpu.keys_path, 'master.key')


def caller_path(conf: cfg.ConfigOpts, kind: _Kind) -> pathlib.Path:
    """Return the path of the file with the key of a caller."""
    return pathlib.Path(conf.gpgpu.keys_path, f'{kind}.key')


def masters(conf: cfg.ConfigOpts) -> tuple[signature.MasterKey, ...]:
    """Return the master keys of a conductor; the first is for new keys.

    :raises ConfigInvalid: there is none, or others may read the file
    """
    path = master_path(conf)
    text = _read(path, 'make one with "gpgpu-manage key init", or copy that '
                       'of another gpgpu-conductor')
    try:
        found = tuple(signature.parse_master(line)
                      for line in text.splitlines() if line.strip())
    except exception.Invalid as exc:
        raise _invalid(path, str(exc)) from None
    if not found:
        raise _invalid(path, 'it has no key')
    return found


def of_caller(conf: cfg.ConfigOpts, kind: _Kind,
              name: str | None = None) -> signature.CallerKey:
    """Return the key with which this process signs its calls.

    :param name: whose it must be; None: anybody's
    :raises ConfigInvalid: there is none, others may read the file, or it is
        another caller's
    """
    path = caller_path(conf, kind)
    text = _read(path, f'make it with "gpgpu-manage key create {kind} '
                       f'{name or "NAME"}" where gpgpu-conductor runs')
    try:
        key = signature.parse_caller(text)
    except exception.Invalid as exc:
        raise _invalid(path, str(exc)) from None
    if key.kind is not kind or name not in (None, key.name):
        raise _invalid(
            path, f'it has the key of {key.kind} {key.name}, not that of '
                  f'{kind} {name or ""}'.rstrip())
    return key


def write(path: pathlib.Path, make: Callable[[], str]) -> None:
    """Write a new key file that only its owner can read.

    :param make: returns the text; called when the file is there, so that no
        key is made that cannot be written
    :raises FileExistsError: a key is never overwritten
    :raises OSError: the file cannot be written
    """
    _make_folder(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), 'w', encoding='ascii') as file:
        try:
            file.write(f'{make()}\n')
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def rotate(conf: cfg.ConfigOpts, *, keep: bool) -> signature.MasterKey:
    """Put a new master key before the others, or keep only the first one.

    The owner of the file stays.

    :param keep: keep the older keys, and make a new one
    :returns: the first key
    :raises ConfigInvalid: there is no master key, or others may read the file
    :raises OSError: the file cannot be written
    """
    known = masters(conf)
    new = (signature.new_master(), *known) if keep else known[:1]
    durable.replace(master_path(conf), ''.join(
        f'{master.to_text()}\n' for master in new))
    return new[0]


def _make_folder(path: pathlib.Path) -> None:
    """Make a folder through which each service reaches its own file.

    The umask of root may say that only root does.
    """
    missing = [folder for folder in (path, *path.parents)
               if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        folder.chmod(0o755)


def _read(path: pathlib.Path, remedy: str) -> str:
    try:
        with path.open(encoding='ascii') as file:
            folder, status = path.parent.stat(), os.fstat(file.fileno())
            text = file.read()
    except (OSError, UnicodeDecodeError) as exc:
        reason = (exc.strerror if isinstance(exc, OSError)
                  else 'it is not a text file') or exc
        if isinstance(exc, PermissionError):
            remedy = ('let the user of this service enter its folder and own '
                      'the file')
        raise exception.ConfigInvalid(
            option=_OPTION,
            reason=f'cannot read {path}: {reason}; {remedy}') from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise _invalid(
            path, f'users other than its owner can access it (mode '
                  f'{stat.S_IMODE(status.st_mode):04o}); run "chmod 600 '
                  f'{path}"')
    _check_owner(path, status)
    _check_owner(path.parent, folder)
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        raise _invalid(
            path.parent, f'users other than its owner can replace keys in it; '
                         f'run "chmod go-w {path.parent}"')
    return text


def _check_owner(path: pathlib.Path, status: os.stat_result) -> None:
    """Refuse what a stranger owns, who could write another key into it.

    Root reads the files of all services.
    """
    if os.geteuid() and status.st_uid not in (0, os.geteuid()):
        raise _invalid(
            path, f'its owner is user {status.st_uid}, and must be root or '
                  f'the user of this service, {os.geteuid()}')


def _invalid(path: pathlib.Path, reason: str) -> exception.ConfigInvalid:
    return exception.ConfigInvalid(option=_OPTION, reason=f'{path}: {reason}')
