# SPDX-License-Identifier: Apache-2.0
"""Conversion between frozen dataclasses and JSON primitives.

msgspec checks types by annotation, ignores unknown fields, so that a newer
peer can add some, and fills in defaults, so that an older peer can leave some
out.
"""

from __future__ import annotations

import hashlib
import re
import reprlib
import threading
import typing

import msgspec

from gpgpu_plugin import exception

T = typing.TypeVar('T')

Counter: typing.TypeAlias = typing.Annotated[
    int, msgspec.Meta(ge=0, le=2 ** 62)]
"""Number that only grows, by one at a time, in a column of 63 bits.

After the last number every change of a host would fail, also in transactions
that concern other hosts.
"""

StoredCounter: typing.TypeAlias = typing.Annotated[
    int, msgspec.Meta(ge=0, le=2 ** 61)]
"""Counter in a file, which may be damaged: what it grows to can be sent."""

StoredUUID: typing.TypeAlias = typing.Annotated[
    str, msgspec.Meta(max_length=36)]
"""UUID in a file, as the database stores it."""

StoredTime: typing.TypeAlias = typing.Annotated[
    float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since the epoch in a file; neither NaN nor infinite."""

_lock = threading.Lock()
_prepared: set[object] = set()

# In JSON: an escape of anything but a quote, a backslash or a slash, or a byte
# that is not ASCII or not printable.
_SUSPICIOUS = re.compile(rb'\\[^"\\/]|[^\x20-\x7e]')


MAX_LENGTH = 16000
"""Characters of a text that devices, programs or other processes have given.

In UTF-8 it fits into a TEXT of MariaDB; what is longer is cut off."""

_PIECE = MAX_LENGTH // 2


def to_primitive(value: object) -> object:
    """Return a value as dicts, lists, strings, numbers, booleans and None."""
    primitive: object = msgspec.to_builtins(value)
    return primitive


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return msgspec.json.encode(value)


def digest(value: object) -> str:
    """Return the SHA-256 of a value, whatever the order of its dicts."""
    return hashlib.sha256(
        msgspec.json.encode(value, order='deterministic')).hexdigest()


def _prepare(kind: type[object]) -> None:
    """Make msgspec inspect a type once, in one thread.

    msgspec caches what it finds in the dataclass, and other threads see the
    cache before it is complete: two first calls at the same time crash the
    process (msgspec 0.22, segmentation fault).
    """
    if kind in _prepared:
        return
    with _lock:
        msgspec.json.Decoder(kind)
        _prepared.add(kind)


def printable(kind: type[T], value: T) -> T:
    """Return a value without characters that control a terminal or a log.

    They are escaped in all its texts, as Python does it: ``\\x1b``, and no
    text is longer than ``LONGEST``. All scans (host.discovery.scanner) pass
    through here.

    :param kind: type of the value
    """
    if not _is_suspicious(value, MAX_LENGTH):
        return value
    return from_primitive(kind, _escaped(to_primitive(value), MAX_LENGTH))


def sendable(primitive: object) -> object:
    """Return a primitive that JSON can encode.

    Text from devices and programs may have characters that no encoding has.
    """
    try:
        msgspec.json.encode(primitive)
    except UnicodeEncodeError:
        return _escaped(primitive)
    return primitive


def received(kind: type[T], primitive: object,
             longest: int | None = None) -> T:
    """Return what another process sent as a printable value of a type.

    :param longest: characters after which texts are cut off; None: they are
        whole
    :raises Invalid: the primitive does not fit the type's annotations
    """
    try:
        if _is_suspicious(primitive, longest):
            primitive = _escaped(primitive, longest)
    except RecursionError:
        primitive = reprlib.repr(primitive)
    return from_primitive(kind, primitive)


def _is_suspicious(value: object, longest: int | None) -> bool:
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Half of a surrogate pair.
        return True
    # JSON quotes each text, so one that is too long fills at least one of
    # these pieces, which has no quote then, unless the text has quotes.
    if longest is not None and len(text) > longest and (
            b'\\"' in text or any(
                b'"' not in text[start:start + _PIECE]
                for start in range(0, len(text) - _PIECE + 1, _PIECE))):
        return True
    # JSON escapes each control character but DEL. For most scans this is
    # enough, and much faster than the pattern.
    if text.isascii() and b'\\' not in text and b'\x7f' not in text:
        return False
    return _SUSPICIOUS.search(text) is not None


def _escaped(primitive: object, longest: int | None = None) -> object:
    if isinstance(primitive, str):
        primitive = primitive[:longest]
        return primitive if primitive.isprintable() else ''.join(
            char if char.isprintable()
            else char.encode('unicode_escape').decode('ascii')
            for char in primitive)
    if isinstance(primitive, dict):
        return {_escaped(key, longest): _escaped(value, longest)
                for key, value in primitive.items()}
    if isinstance(primitive, (list, tuple)):
        return [_escaped(value, longest) for value in primitive]
    return primitive


def from_primitive(kind: type[T], primitive: object) -> T:
    """Return a primitive as a value of a type.

    :raises Invalid: the primitive does not fit the type's annotations
    """
    _prepare(kind)
    try:
        return msgspec.convert(primitive, kind)
    except (msgspec.ValidationError, RecursionError) as exc:
        # Whatever was received may be nested deeper than Python can print.
        raise exception.Invalid(
            field=getattr(kind, '__name__', str(kind)),
            value=reprlib.repr(primitive), expected=str(exc)) from None


def decode(kind: type[T], text: bytes | str) -> T:
    """Return the value of a type that some JSON describes.

    :raises Invalid: the JSON does not fit the type's annotations
    """
    _prepare(kind)
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as exc:
        raise exception.Invalid(
            field=getattr(kind, '__name__', str(kind)), value=text[:100],
            expected=str(exc)) from None
