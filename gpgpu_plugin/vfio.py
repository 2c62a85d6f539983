# SPDX-License-Identifier: Apache-2.0
"""Names of VFIO drivers and of their kernel modules.

A module with a VFIO driver for some devices has ``vfio_pci:`` aliases in
modules.alias (PCI_DRIVER_OVERRIDE_DEVICE_VFIO in include/linux/pci.h, handled
by scripts/mod/file2alias.c; depmod(8)). The privileged helper trusts this
module, which therefore imports nothing of the plugin.
"""

from __future__ import annotations

import os
import re

PLAIN = 'vfio-pci'
"""The driver that supports any device, and its module; modprobe(8) takes "-"
and "_" as the same."""

DRIVER = r'(?:[a-z0-9]+[-_])*vfio[-_]pci'
"""Regular expression of vfio-pci and its variants for some devices."""

_ALIAS = 'alias vfio_pci:'


def is_vfio(driver: str | None) -> bool:
    """Return whether a driver is vfio-pci or a VFIO driver of some devices.

    :param driver: its name; None: no driver is bound
    """
    return driver is not None and bool(re.fullmatch(DRIVER, driver))


def alias_file() -> str:
    """Return the path of the running kernel's modules.alias."""
    return f'/lib/modules/{os.uname().release}/modules.alias'


def aliases(path: str) -> list[tuple[str, str]]:
    """Return the ``vfio_pci:`` aliases of a file, in its order.

    :param path: a modules.alias
    :returns: patterns of modaliases, each with the name of its module
    :raises OSError: the file cannot be read
    """
    with open(path, encoding='utf-8', errors='replace') as file:
        found = [line.split() for line in file if line.startswith(_ALIAS)]
    return [(words[1], words[2]) for words in found if len(words) == 3]
