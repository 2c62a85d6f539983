# SPDX-License-Identifier: Apache-2.0
"""Trees: parts of /sys as plain data, which can be written to disk again.

A tree is ``{folder: {name: entry}}``, folders relative to the root. An entry
is the text of a file, the bytes of a file, a link or a file that cannot be
read; the functions below make entries, and only ``write`` parses them. A tree
may come from a stranger: none of its files is written outside the folder that
``write`` is given, and none of its links leads out of it.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib
from collections.abc import Mapping

from gpgpu_plugin import exception

Entry = str | dict[str, str | int]
Tree = Mapping[str, Mapping[str, Entry]]

# The largest file is a configuration space.
_MAX = 4096
_ROW = 16
_EXPECTED = ('a text in quotes, {link: TARGET}, {unreadable: ERRNO} or '
             '{size: BYTES, hex: "OFFSET: BYTES"}')


@dataclasses.dataclass(frozen=True)
class _Link:
    """A link to create; without a target, an unreadable file."""

    target: str | None


def link(target: str) -> Entry:
    """Return an entry for a link, whose target is relative to its folder."""
    return {'link': target}


def unreadable(error: OSError) -> Entry:
    """Return an entry for a file that exists and cannot be read."""
    number = error.errno or errno.EIO
    return {'unreadable': errno.errorcode.get(number, str(number))}


def binary(data: bytes) -> Entry:
    """Return an entry for a file of bytes.

    It has rows as ``lspci -x`` prints them, without those of zeroes.
    """
    rows = ((at, data[at:at + _ROW]) for at in range(0, len(data), _ROW))
    return {'size': len(data), 'hex': '\n'.join(
        f'{at:03x}: {row.hex(" ")}' for at, row in rows if any(row))}


def target(folder: str, entry: Entry) -> str | None:
    """Return the target of a link relative to the root, by its text alone.

    :returns: None: the entry is no link
    """
    if isinstance(entry, str) or 'link' not in entry:
        return None
    return os.path.normpath(f'{folder}/{entry["link"]}')


def is_name(name: str) -> bool:
    """Return whether a name is that of a file in its folder.

    Names that begin with a dot are refused: no attribute of sysfs has one,
    and the fake driver's own files do (gpgpu_plugin.host.fake.vgpu_driver).
    """
    return (name != '' and not name.startswith('.')
            and not set('/\0') & set(name))


def write(tree: Tree, root: str | os.PathLike[str]) -> None:
    """Write a tree into an empty or missing folder.

    :raises Invalid: it is not a tree, or leads out of the folder; nothing was
        written
    :raises HostError: it cannot be written
    """
    checked = _check(tree)
    top = pathlib.Path(root)
    try:
        for folder in checked:
            (top / folder).mkdir(parents=True, exist_ok=True)
        # Links come last, so that no file is written through one.
        for is_link in (False, True):
            for folder, entries in checked.items():
                for name, content in entries.items():
                    if isinstance(content, _Link) is is_link:
                        _write(top / folder / name, content)
    except OSError as exc:
        raise exception.HostError(
            path=str(exc.filename2 or exc.filename),
            reason=f'cannot be written: {exc.strerror}') from None


def make_unreadable(path: pathlib.Path) -> None:
    """Make a link to itself: every reader gets ELOOP, root as well."""
    path.symlink_to(path.name)


def _write(path: pathlib.Path, content: bytes | _Link) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content.target is None:
        make_unreadable(path)
    else:
        path.symlink_to(content.target)


def _check(tree: object) -> dict[str, dict[str, bytes | _Link]]:
    """Return the contents to write by folder and name.

    :raises Invalid: see write
    """
    if not isinstance(tree, Mapping):
        raise _invalid('tree', tree, 'a mapping of folders')
    checked: dict[str, dict[str, bytes | _Link]] = {}
    for folder, entries in tree.items():
        if not (isinstance(folder, str)
                and all(map(is_name, folder.split('/')))):
            raise _invalid('tree', folder,
                           'a folder relative to the root, none of whose '
                           'names begins with a dot')
        if not isinstance(entries, Mapping):
            raise _invalid(folder, entries, 'a mapping of names')
        checked[folder] = {}
        for name, entry in entries.items():
            if not (isinstance(name, str) and is_name(name)):
                raise _invalid(folder, name,
                               'names without "/" that begin with no dot')
            checked[folder][name] = _parse(folder, name, entry)
    return checked


def _parse(folder: str, name: str, entry: object) -> bytes | _Link:
    field = f'{folder}/{name}'
    if isinstance(entry, str):
        # The recording has texts without their final newline.
        return f'{entry}\n'.encode() if entry else b''
    if not isinstance(entry, Mapping):
        raise _invalid(field, entry, _EXPECTED)
    keys = set(entry)
    if keys == {'unreadable'}:
        return _Link(None)
    if keys == {'link'}:
        return _Link(_inside(folder, field, entry['link']))
    if keys == {'size', 'hex'}:
        return _bytes(field, entry['size'], entry['hex'])
    raise _invalid(field, entry, _EXPECTED)


def _inside(folder: str, field: str, value: object) -> str:
    """Return the target of a link, which must be below the root.

    The target is any number of ".." and then names: with ".." behind a name,
    which may be a link itself, the text alone would not tell the target.

    :raises Invalid: the link leads out of the root
    """
    parts = value.split('/') if isinstance(value, str) else ['']
    up = next((at for at, part in enumerate(parts) if part != '..'),
              len(parts))
    if up > len(folder.split('/')) or not all(map(is_name, parts[up:])):
        raise _invalid(field, value,
                       'a relative link to a file below the root')
    return '/'.join(parts)


def _bytes(field: str, size: object, text: object) -> bytes:
    try:
        if not (isinstance(size, int) and isinstance(text, str)
                and 0 <= size <= _MAX):
            raise ValueError
        data = bytearray(size)
        for line in text.splitlines():
            offset, _, row = line.partition(':')
            start, some = int(offset, 16), bytes.fromhex(row)
            if not 0 <= start <= start + len(some) <= size:
                raise ValueError
            data[start:start + len(some)] = some
    except ValueError:
        raise _invalid(field, text, f'rows "OFFSET: BYTES" in hex, within '
                                    f'a size of {_MAX} at most') from None
    return bytes(data)


def _invalid(field: str, value: object, expected: str) -> exception.Invalid:
    return exception.Invalid(field=field, value=value, expected=expected)
