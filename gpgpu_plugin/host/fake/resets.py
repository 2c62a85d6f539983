# SPDX-License-Identifier: Apache-2.0
"""Resets of the functions of a fake machine: which work, and which kill.

As __pci_reset_function_locked does (Linux, drivers/pci/pci.c), the kernel
tries the methods of ``reset_method`` in order. That list is made when the
function is found, so it may name a method that the kernel refuses later.
"""

from __future__ import annotations

import os
import pathlib

# No attribute of sysfs begins with a dot; a recording cannot have one.
_KILLED = '.dies_on_reset'
_BUS = 'bus'


def kill_by_reset(folder: pathlib.Path) -> None:
    """Make a function one that does not answer after its next reset."""
    (folder / _KILLED).touch()


def works(folder: pathlib.Path) -> bool:
    """Return whether the kernel has a method that resets the function alone.

    :param folder: the function's own folder, not a link to it
    """
    file = folder / 'reset_method'
    methods = file.read_text().split() if file.exists() else []
    return any(method != _BUS or _is_alone(folder) for method in methods)


def _is_alone(folder: pathlib.Path) -> bool:
    """Return whether no other function is on the bus of a function.

    A reset of the bus would reset it, too (pci_parent_bus_reset).
    """
    bus = folder.name.rpartition(':')[0]
    return not any(name.startswith(f'{bus}:') and name != folder.name
                   for name in os.listdir(folder.parent))


def apply(folder: pathlib.Path) -> None:
    """Reset a function: it may not answer until its host is booted again."""
    if (folder / _KILLED).exists():
        config = folder / 'config'
        config.write_bytes(b'\xff' * config.stat().st_size)
