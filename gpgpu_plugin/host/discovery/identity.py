# SPDX-License-Identifier: Apache-2.0
"""Identity of the machine that nova-compute runs on, as any user reads it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from gpgpu_plugin.domain import machine
from gpgpu_plugin.domain import pci

_BOOT_ID = 'proc/sys/kernel/random/boot_id'
_MACHINE_ID = 'etc/machine-id'


def read(functions: Iterable[pci.PCIFunction],
         root: str = '/') -> machine.MachineIdentity:
    """Return the identity; what cannot be read is left empty.

    :param functions: as a scan found them; VFs are no identity
    :param root: folder of ``proc`` and ``etc``
    """
    return machine.MachineIdentity(
        boot_id=_read(root, _BOOT_ID), machine_id=_read(root, _MACHINE_ID),
        # VPD is not read while a guest has the GPU.
        gpus={function.id: function.dsn or function.serial or ''
              for function in functions if function.pf is None})


def _read(root: str, path: str) -> str:
    try:
        return pathlib.Path(root, path).read_text().strip()
    except (OSError, ValueError):
        return ''
