# SPDX-License-Identifier: Apache-2.0
"""JSON files that carry the version of their format.

A file of another version is refused: the fields that it has and this release
does not know would be lost by the next write.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import typing

from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.objects import codec

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = typing.TypeVar('_T', bound='DataclassInstance')


def read_versioned(path: pathlib.Path, kind: type[_T],
                   version: int) -> _T | None:
    """Return the content of a file; None if there is no file.

    :param version: of the format that ``kind`` describes
    :raises OSError: the file cannot be read
    :raises Invalid: it is not JSON, or has another version or content
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise exception.Invalid(
            field='content', value=text, expected=str(exc)) from None
    found = data.get('version') if isinstance(data, dict) else None
    if found != version:
        raise exception.Invalid(
            field='version', value=found,
            expected=f'this release of gpgpu_plugin reads {version}')
    return codec.from_primitive(kind, data)


def write_versioned(path: pathlib.Path, content: DataclassInstance,
                    version: int) -> None:
    """Replace a file; the new content survives a power failure.

    :param version: of the format that the content's class describes
    :raises OSError: the file cannot be written
    """
    fields = {field.name: getattr(content, field.name)
              for field in dataclasses.fields(content)}
    durable.replace(path, json.dumps(
        codec.to_primitive({'version': version, **fields})))
