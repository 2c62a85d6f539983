# SPDX-License-Identifier: Apache-2.0
"""Ids of a PCI function.

``modalias`` has all but the revision in one attribute, which the kernel writes
from what it keeps in memory (pci_uevent in drivers/pci/pci-driver.c and
modalias_show in drivers/pci/pci-sysfs.c, format of file2alias.c). ``uevent``
has them too, but some kernels read it under the lock of the device, which a
driver holds while it waits for a guest to close the device.
"""

from __future__ import annotations

import functools
import re
import typing

from gpgpu_plugin.host.discovery import attempt as attempt_mod
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

_MODALIAS = re.compile(
    'pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})'
    'sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})'
    'bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})')


class Ids(typing.NamedTuple):
    """Ids in lower-case hexadecimal digits; None: unknown."""

    vendor: str | None
    device: str | None
    subsystem_vendor: str | None
    subsystem: str | None
    revision: str | None
    class_code: str | None


def read(folder: sysfs_mod.Folder, attempt: attempt_mod.Attempt) -> Ids:
    """Return the ids of a function.

    :param folder: the function's
    """
    revision = attempt('revision', _read, folder, 'revision')
    try:
        found = _parsed(folder.read('modalias') or '', revision)
    except OSError:
        found = None
    if found is not None:
        return found
    # A recording of a host does not have it.
    vendor, device, subsystem_vendor, subsystem, class_code = (
        attempt(name, _read, folder, name)
        for name in ('vendor', 'device', 'subsystem_vendor',
                     'subsystem_device', 'class'))
    return Ids(vendor, device, subsystem_vendor, subsystem, revision,
               class_code)


@functools.lru_cache(maxsize=1024)
def _parsed(modalias: str, revision: str | None) -> Ids | None:
    match = _MODALIAS.fullmatch(modalias)
    if match is None:
        return None
    vendor, device, subsystem_vendor, subsystem, *code = (
        part.lower() for part in match.groups())
    return Ids(vendor, device, subsystem_vendor, subsystem, revision,
               ''.join(code))


def _read(folder: sysfs_mod.Folder, name: str) -> str | None:
    text = folder.read(name)
    return None if text is None else _digits(text)


@functools.lru_cache(maxsize=1024)
def _digits(text: str) -> str:
    return f'{int(text, 16):0{len(text.removeprefix("0x"))}x}'
