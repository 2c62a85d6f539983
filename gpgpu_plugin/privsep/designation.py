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
"""What makes a designation last, and the module that it needs."""

from __future__ import annotations

import os
import pathlib

from gpgpu_plugin import privsep

UDEV_RULES = '/etc/udev/rules.d/71-gpgpu-plugin.rules'
DRIVERCTL = '/usr/sbin/driverctl'
_VFIO = 'vfio-pci'


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def load_vfio() -> None:
    """Load vfio-pci. :raises OSError: it cannot be loaded"""
    privsep.run('modprobe', _VFIO)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def driverctl(action: str, address: str) -> None:
    """Let driverctl write down, or forget, that a function is vfio-pci's.

    It binds nothing: driverctl 0.111 forgets nothing of a device for which
    there is no other driver.

    :param action: ``set-override`` or ``unset-override``
    :raises OSError: it refused
    """
    driver = {'set-override': [_VFIO], 'unset-override': []}[action]
    privsep.run(DRIVERCTL, '--noprobe', action, address, *driver)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def write_rules(text: str) -> None:
    """Replace our file of udev rules as a whole; empty: there is none.

    :raises OSError: it cannot be written
    """
    path = pathlib.Path(UDEV_RULES)
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix('.new')
        with new.open('w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    else:
        path.unlink(missing_ok=True)
