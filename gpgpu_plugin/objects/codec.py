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
"""Conversion between frozen dataclasses and JSON primitives.

msgspec checks types by annotation, ignores unknown fields, so that a newer
peer can add some, and fills in defaults, so that an older peer can leave some
out.
"""

from __future__ import annotations

import threading
import typing

import msgspec

from gpgpu_plugin import exception

T = typing.TypeVar('T')

_lock = threading.Lock()
_prepared: set[object] = set()


def to_primitive(value: object) -> object:
    """Return a value as dicts, lists, strings, numbers, booleans and None."""
    primitive: object = msgspec.to_builtins(value)
    return primitive


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return msgspec.json.encode(value)


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


def from_primitive(kind: type[T], primitive: object) -> T:
    """Return a primitive as a value of a type.

    :raises Invalid: the primitive does not fit the type's annotations
    """
    _prepare(kind)
    try:
        return msgspec.convert(primitive, kind)
    except msgspec.ValidationError as exc:
        raise exception.Invalid(
            field=getattr(kind, '__name__', str(kind)), value=primitive,
            expected=str(exc)) from None


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
