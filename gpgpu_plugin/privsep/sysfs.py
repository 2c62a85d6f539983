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
"""Privileged access to attributes of sysfs that the plugin reads or writes.

Paths are checked here, in the daemon, against a list.
"""

from __future__ import annotations

import errno
import os
import re

from gpgpu_plugin import privsep

# Fixed: in a directory of the caller's choice, links could lead to any file.
SYSFS_ROOT = '/sys'
ADDRESS = r'[0-9a-f]{4,16}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]'
_ALLOWED = re.compile(
    rf'bus/pci/devices/{ADDRESS}/(driver_override|reset|sriov_numvfs)'
    r'|bus/pci/drivers/[A-Za-z0-9_.-]+/(bind|unbind)'
    rf'|bus/pci/devices/{ADDRESS}/nvidia/(current_vgpu_type|placement_id)'
    r'|bus/pci/drivers_probe'
    r'|class/mdev_bus/[A-Za-z0-9:._-]+/mdev_supported_types/'
    r'[A-Za-z0-9_.-]+/create'
    r'|bus/mdev/devices/[0-9a-f-]{36}/(remove|nvidia/placement_id)')

_CONFIG = re.compile(rf'bus/pci/devices/{ADDRESS}/config')


def check(path: str) -> None:
    """Refuse a path that the plugin does not write.

    :raises PermissionError: the path is not on the list
    """
    if '..' in path.split('/') or not _ALLOWED.fullmatch(path):
        raise PermissionError(
            1, f'{path} is not an attribute that gpgpu_plugin writes', path)


def check_address(address: str) -> None:
    """Refuse a malformed address of a function.

    :raises PermissionError: the address is malformed
    """
    if not re.fullmatch(ADDRESS, address):
        raise PermissionError(1, f'{address} is not a PCI address', address)


def _resolved(root: str, path: str) -> str:
    """Return a path in sysfs with all links resolved.

    :raises HelperUnavailable: the caller reads another sysfs, which must not
        decide what is written in this one
    :raises PermissionError: the path leads out of sysfs
    """
    if root != SYSFS_ROOT:
        raise privsep.HelperUnavailable(
            errno.EPERM, f'the privileged helper works in {SYSFS_ROOT} only, '
            f'not in {root}')
    resolved = os.path.realpath(os.path.join(SYSFS_ROOT, path))
    if not resolved.startswith(f'{os.path.realpath(SYSFS_ROOT)}/'):
        raise PermissionError(1, f'{path} leads out of {SYSFS_ROOT}', path)
    return resolved


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def read_config(root: str, path: str) -> bytes:
    """Return the configuration space of a function.

    Without root's rights the kernel shows only its header.

    :param root: root of the caller's sysfs
    :param path: relative to it, ``bus/pci/devices/ADDRESS/config``
    :raises OSError: the file does not exist, or the path or root is refused
    """
    if not _CONFIG.fullmatch(path):
        raise PermissionError(1, f'{path} is not a configuration space', path)
    with open(_resolved(root, path), 'rb', buffering=0) as file:
        return file.read(4096)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def write(root: str, path: str, value: str) -> None:
    """Write a value in one system call, as sysfs requires.

    :param root: root of the caller's sysfs
    :param path: relative to it
    :raises OSError: the kernel refused, or the path or root is refused
    """
    check(path)
    fd = os.open(_resolved(root, path), os.O_WRONLY | os.O_CLOEXEC)
    try:
        # Writing an empty string does nothing; a newline clears.
        os.write(fd, (value or '\n').encode())
    finally:
        os.close(fd)
