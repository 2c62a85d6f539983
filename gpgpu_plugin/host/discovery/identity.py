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
