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
"""A part of /sys as plain data, and back on a disk.

A tree is ``{folder: {name: entry}}``, folders relative to the root. An entry
is a file's text, a file's bytes, a link or a file that cannot be read; the
functions below make them, and ``write`` alone takes them apart. A tree may
come from a stranger: nothing in it leads out of the folder it is written to.
"""

from __future__ import annotations

import errno
import os
import pathlib
import typing
from collections.abc import Mapping

from gpgpu_plugin import exception

Entry = str | dict[str, typing.Any]
Tree = Mapping[str, Mapping[str, Entry]]

# Configuration space is the largest there is.
_MAX = 4096
_ROW = 16
_EXPECTED = ('a text in quotes, {link: TARGET}, {unreadable: ERRNO} or '
             '{size: BYTES, hex: "OFFSET: BYTES"}')


def link(target: str) -> Entry:
    """A link, as it is written in its folder."""
    return {'link': target}


def unreadable(error: OSError) -> Entry:
    """A file that is there and cannot be read."""
    number = error.errno or errno.EIO
    return {'unreadable': errno.errorcode.get(number, str(number))}


def binary(data: bytes) -> Entry:
    """A file of bytes: rows as ``lspci -x`` prints them, without those that
    are all zeroes."""
    rows = ((at, data[at:at + _ROW]) for at in range(0, len(data), _ROW))
    return {'size': len(data), 'hex': '\n'.join(
        f'{at:03x}: {row.hex(" ")}' for at, row in rows if any(row))}


def target(folder: str, entry: Entry) -> str | None:
    """Where an entry of a folder leads, below the root, by its name alone.

    :returns: None: it is no link
    """
    if isinstance(entry, str) or 'link' not in entry:
        return None
    return os.path.normpath(f'{folder}/{entry["link"]}')


def is_name(name: str) -> bool:
    """Whether it stays in the folder it is in.

    None begins with a dot: that is kept for what the fake kernel believes
    (gpgpu_plugin.host.fake.vgpu_driver), and nothing that is recorded does.
    """
    return (name != '' and not name.startswith('.')
            and not set('/\0') & set(name))


def write(tree: Tree, root: str | os.PathLike[str]) -> None:
    """Make what a tree says in an empty or missing folder.

    :raises Invalid: it is not a tree, or leads out of the folder; nothing
        was made then
    :raises HostError: it cannot be made
    """
    made = _check(tree)
    top = pathlib.Path(root)
    try:
        for folder in made:
            (top / folder).mkdir(parents=True, exist_ok=True)
        # Links last, so that nothing is made through one.
        for links in (False, True):
            for folder, entries in made.items():
                for name, (kind, value) in entries.items():
                    if links is (kind in ('link', 'unreadable')):
                        _make(top / folder / name, kind, value)
    except OSError as exc:
        raise exception.HostError(
            path=str(exc.filename2 or exc.filename),
            reason=f'cannot be made: {exc.strerror}') from None


def make_unreadable(path: pathlib.Path) -> None:
    """A link to itself: whoever reads it gets ELOOP, root as well."""
    path.symlink_to(path.name)


def _make(path: pathlib.Path, kind: str, value: typing.Any) -> None:
    if kind == 'unreadable':
        make_unreadable(path)
    elif kind == 'link':
        path.symlink_to(value)
    else:
        path.write_bytes(value)


def _check(tree: object) -> dict[str, dict[str, tuple[str, typing.Any]]]:
    """What is to be made, by folder and name.

    :raises Invalid: see write
    """
    if not isinstance(tree, Mapping):
        raise _invalid('tree', tree, 'a mapping of folders')
    checked: dict[str, dict[str, tuple[str, typing.Any]]] = {}
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


def _parse(folder: str, name: str, entry: object) -> tuple[str, typing.Any]:
    field = f'{folder}/{name}'
    if isinstance(entry, str):
        # The line's end was taken off.
        return 'data', f'{entry}\n'.encode() if entry else b''
    if not isinstance(entry, Mapping):
        raise _invalid(field, entry, _EXPECTED)
    keys = set(entry)
    if keys == {'unreadable'}:
        return 'unreadable', None
    if keys == {'link'}:
        return 'link', _inside(folder, field, entry['link'])
    if keys == {'size', 'hex'}:
        return 'data', _bytes(field, entry['size'], entry['hex'])
    raise _invalid(field, entry, _EXPECTED)


def _inside(folder: str, field: str, value: object) -> str:
    """A link's target, once it is sure that it leads to a place below the
    root.

    Any number of ".." and then names: with ".." behind a name, which may be
    a link itself, its text would not tell where it leads.
    """
    parts = value.split('/') if isinstance(value, str) else ['']
    up = next((at for at, part in enumerate(parts) if part != '..'),
              len(parts))
    if up > len(folder.split('/')) or not all(map(is_name, parts[up:])):
        raise _invalid(field, value,
                       'a relative link to a place below the root')
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
