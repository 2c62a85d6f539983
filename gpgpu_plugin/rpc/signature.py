# SPDX-License-Identifier: Apache-2.0
"""Keys of callers, their files, and signatures of calls.

All keys are derived from a master key, which only conductors have::

    key = HMAC-SHA256(master key, kind, name and number of the caller's key)

so that a conductor stores no caller's key, and a database that somebody read
signs nothing. The signature is the HMAC-SHA256 of one text under the caller's
key: the topic, the method, its arguments, the fields of the context, the time
and a nonce. An answer has a MAC under the same key, of itself and of the
call's signature. The receiver makes the text of what it received, and two
values never have the same. A compute host can therefore speak for itself
alone, and nobody can answer its calls, whatever can be sent to the message
broker.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import json
import os
import pathlib
import re
import secrets
import stat
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping

import msgspec
import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.objects import codec

_Kind = gpgpu_context.CallerKind

KEY_BYTES = 32
"""Length of all keys."""

_NONCE_BYTES = 16

_SCHEME = 'gpgpu-call-2'
_CALLER_PREFIX = 'gpgpu-caller-1'
_MASTER_PREFIX = 'gpgpu-master-1'

_NONCE = re.compile(rf'[0-9a-f]{{{2 * _NONCE_BYTES}}}')

_NAME = re.compile(r'[!-.0-9;-~]{1,255}')
"""Printable ASCII without space, slash and colon: a key's file may have the
name of its caller, and colons separate the fields of a key's text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MasterKey:
    """Key from which those of all callers are derived.

    :ivar secret: KEY_BYTES random bytes
    """

    secret: bytes = dataclasses.field(repr=False)

    @property
    def id(self) -> str:
        """Return the ID of this master key."""
        return hashlib.sha256(self.secret).hexdigest()[:16]

    def derive(self, kind: _Kind, name: str, number: int) -> CallerKey:
        """Return a key of a caller.

        :raises Invalid: the name cannot be written into a key file
        """
        check_name(name)
        return CallerKey(
            kind=kind, name=name, number=number, master_id=self.id,
            secret=hmac.digest(self.secret, msgspec.json.encode(
                [_CALLER_PREFIX, kind, name, number]), 'sha256'))

    def to_text(self) -> str:
        """Return the line of a master key file."""
        return f'{_MASTER_PREFIX}:{_base64(self.secret)}'


def check_name(name: str) -> None:
    """Refuse a name of a caller that a key cannot have.

    :raises Invalid: it cannot be written into a key file, or be its name
    """
    if not _NAME.fullmatch(name):
        raise exception.Invalid(
            field='name', value=name,
            expected='1 to 255 printable ASCII characters without space, '
                     'slash and colon')


def new_master() -> MasterKey:
    """Return a new master key."""
    return MasterKey(secret=secrets.token_bytes(KEY_BYTES))


def parse_master(text: str) -> MasterKey:
    """Return the key of a line of a master key file.

    :raises Invalid: the text is no master key; the message does not contain
        it
    """
    prefix, _, secret = text.strip().partition(':')
    if prefix != _MASTER_PREFIX:
        raise _not_a_key('master')
    return MasterKey(secret=_secret(secret, 'master'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallerKey:
    """Key of one caller.

    :ivar number: tells it from other keys of the same caller
    :ivar master_id: of the master key that it was derived from
    """

    kind: _Kind
    name: str
    number: int
    master_id: str
    secret: bytes = dataclasses.field(repr=False)

    def to_text(self) -> str:
        """Return the line of a key file."""
        return ':'.join((_CALLER_PREFIX, self.kind, self.name,
                         str(self.number), self.master_id,
                         _base64(self.secret)))

    @property
    def id(self) -> str:
        """Return the ID of the master key."""
        return self.master_id

    def derive(self, kind: _Kind, name: str, number: int) -> CallerKey:
        """Return this key.

        :raises Invalid: another one is asked for
        """
        if (kind, name, number) != (self.kind, self.name, self.number):
            raise exception.Invalid(
                field='key', value=number,
                expected=f'{self.number} of {self.kind} {self.name}')
        return self

    def sign(self, topic: str, method: str, arguments: Mapping[str, object],
             context: Mapping[str, object]) -> Signature:
        """Return the signature of a call that is sent now.

        :param arguments: primitives
        :param context: fields of the context, context.SENT
        :raises Invalid: they have a number that is not finite
        """
        unsigned = Signature(
            kind=self.kind, name=self.name, number=self.number,
            master_id=self.master_id, sent_at=time.time(),
            nonce=secrets.token_hex(_NONCE_BYTES))
        return dataclasses.replace(unsigned, mac=self.mac(
            unsigned, topic, method, arguments, context))

    def mac(self, signature: Signature, topic: str, method: str,
            arguments: Mapping[str, object],
            context: Mapping[str, object]) -> str:
        """Return the ``mac`` that a signature must have.

        :raises Invalid: no JSON has such a value
        """
        return hmac.digest(self.secret, _text([
            _SCHEME, topic, method, arguments, context, signature.kind,
            signature.name, signature.number, signature.master_id,
            signature.sent_at, signature.nonce]), 'sha256').hex()

    def mac_of_answer(self, signature: Signature, topic: str, method: str,
                      text: str) -> str:
        """Return the MAC that the answer to a signed call must have.

        No call has it: the topic is none to which calls are sent.
        """
        return self.mac(signature, f'{topic}-answer', method,
                        {'call': signature.mac, 'text': text}, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """Signature of a call, which its context carries.

    :ivar sent_at: seconds since the epoch, by the caller's clock
    :ivar nonce: 128 random bits, so that no two calls are equal
    :ivar mac: HMAC in hex
    """

    kind: str
    name: str
    number: int
    master_id: str
    sent_at: float
    nonce: str
    mac: str = ''


def _text(call: object) -> bytes:
    """Return the one text of a call.

    msgspec writes null for NaN and infinity.

    :raises Invalid: no JSON has such a value
    """
    try:
        return json.dumps(call, allow_nan=False, sort_keys=True,
                          separators=(',', ':')).encode()
    except (ValueError, RecursionError) as exc:
        raise exception.Invalid(
            field='call', value='(not shown)', expected=str(exc)) from None


def is_nonce(text: str) -> bool:
    """Return whether a text has the form of a nonce.

    Nonces are stored, so they must not be longer.
    """
    return _NONCE.fullmatch(text) is not None


def parse_caller(text: str) -> CallerKey:
    """Return the key of a key file.

    :raises Invalid: the text is no caller's key; the message does not
        contain it
    """
    try:
        prefix, kind, name, number, master_id, secret = (
            text.strip().split(':'))
        if prefix != _CALLER_PREFIX or not _NAME.fullmatch(name):
            raise ValueError
        return CallerKey(
            kind=_Kind(kind), name=name, number=int(number),
            master_id=master_id, secret=_secret(secret, 'caller'))
    except ValueError:
        raise _not_a_key('caller') from None


def _base64(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).decode('ascii')


def _secret(text: str, kind: str) -> bytes:
    try:
        secret = base64.b64decode(text, altchars=b'-_', validate=True)
    except (binascii.Error, ValueError):
        raise _not_a_key(kind) from None
    if len(secret) != KEY_BYTES:
        raise _not_a_key(kind)
    return secret


def _not_a_key(kind: str) -> exception.Invalid:
    # Never the text: half of a key is a secret as well.
    return exception.Invalid(
        field='content', value='(not shown)',
        expected=f'a {kind} key as "gpgpu-manage key" writes it')


def same(first: str, second: object) -> bool:
    """Compare a MAC with what a caller sent, in constant time."""
    return isinstance(second, str) and hmac.compare_digest(
        first.encode(), second.encode('utf-8', 'replace'))


class Signer(typing.Protocol):
    """Signer of the calls of a client."""

    def sign(self, topic: str, method: str, arguments: Mapping[str, object],
             context: Mapping[str, object]) -> Signature:
        """Return the signature of a call (CallerKey.sign)."""

    def mac_of_answer(self, signature: Signature, topic: str, method: str,
                      text: str) -> str:
        """Return the MAC of its answer (CallerKey.mac_of_answer)."""


# -- Files with keys, in ``[gpgpu] keys_path``.
#
# ``host.key``, ``scheduler.key`` and ``operator.key`` have one key of that
# kind. ``master.key``, for conductors alone, has one master key in each line;
# the first one is for new keys. Nobody but their owner may read them.


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


def read_masters(conf: cfg.ConfigOpts) -> tuple[MasterKey, ...]:
    """Return the master keys of a conductor; the first is for new keys.

    :raises ConfigInvalid: there is none, or others may read the file
    """
    path = master_path(conf)
    text = _read(path, 'make one with "gpgpu-manage key init", or copy that '
                       'of another gpgpu-conductor')
    try:
        found = tuple(parse_master(line)
                      for line in text.splitlines() if line.strip())
    except exception.Invalid as exc:
        raise _invalid(path, str(exc)) from None
    if not found:
        raise _invalid(path, 'it has no key')
    return found


def read_caller_key(conf: cfg.ConfigOpts, kind: _Kind,
                    name: str | None = None) -> CallerKey:
    """Return the key with which this process signs its calls.

    :param name: whose it must be; None: anybody's
    :raises ConfigInvalid: there is none, others may read the file, or it is
        another caller's
    """
    path = caller_path(conf, kind)
    text = _read(path, f'make it with "gpgpu-manage key create {kind} '
                       f'{name or "NAME"}" where gpgpu-conductor runs')
    try:
        key = parse_caller(text)
    except exception.Invalid as exc:
        raise _invalid(path, str(exc)) from None
    if key.kind is not kind or name not in (None, key.name):
        raise _invalid(
            path, f'it has the key of {key.kind} {key.name}, not that of '
                  f'{kind} {name or ""}'.rstrip())
    return key


def write_key(path: pathlib.Path, make: Callable[[], str]) -> None:
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


def rotate_master(conf: cfg.ConfigOpts, *, keep: bool) -> MasterKey:
    """Put a new master key before the others, or keep only the first one.

    The owner of the file stays.

    :param keep: keep the older keys, and make a new one
    :returns: the first key
    :raises ConfigInvalid: there is no master key, or others may read the file
    :raises OSError: the file cannot be written
    """
    known = read_masters(conf)
    new = (new_master(), *known) if keep else known[:1]
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


# -- Signed answers of gpgpu-conductor: the result of a call, or its error.
#
# A reply of oslo.messaging says nothing about who sent it, and the errors of
# Python that it carries could be anybody's. An answer is therefore one text,
# and the MAC of this text and of the call under the key with which the call
# was signed. A caller takes what has another MAC, or none, for no answer.


_MAC = Callable[[str], str]
"""Function that returns the MAC of the answer to one call."""


def result_answer(mac: _MAC, primitive: object) -> dict[str, str]:
    """Return the answer that has the result of a method."""
    return _sealed(mac, {'result': primitive})


def error_answer(mac: _MAC, error: BaseException) -> dict[str, str]:
    """Return the answer that has an error of the plugin, or another one."""
    if not isinstance(error, exception.GPUPluginException):
        return _sealed(mac, {'failure': [type(error).__name__, str(error)]})
    name = next(cls.__name__ for cls in type(error).__mro__
                if cls.__module__ == exception.__name__)
    return _sealed(mac, {'error': [name, {
        key: value if isinstance(value, str | int | float | None)
        else str(value) for key, value in error.kwargs.items()}]})


def open_answer(mac: _MAC, method: str, sealed: object) -> object:
    """Return the result that an answer has.

    :raises AnswerRefused: the caller's key did not sign it for this call
    :raises GPUPluginException: the error that it has
    :raises oslo_messaging.RemoteError: the method failed
    """
    found = sealed if isinstance(sealed, dict) else {}
    text = found.get('text')
    if not isinstance(text, str) or not same(
            mac(text), found.get('mac')):
        raise exception.AnswerRefused(
            method=method, reason='the key of this caller did not sign it '
                                  'for this call')
    content = codec.decode(dict[str, typing.Any], text)
    if 'failure' in content:
        raise oslo_messaging.RemoteError(*content['failure'])
    if 'error' in content:
        name, fields = content['error']
        try:
            error = getattr(exception, name)(**fields)
        except (AttributeError, KeyError, TypeError):
            # Of another version of the plugin.
            error = oslo_messaging.RemoteError(name, str(fields))
        raise error
    return content['result']


def _sealed(mac: _MAC, content: dict[str, object]) -> dict[str, str]:
    text = codec.encode(codec.sendable(content)).decode()
    return {'text': text, 'mac': mac(text)}
