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
"""The attributes of sysfs that the plugin writes, and the one that only root
reads as a whole; no others."""

from __future__ import annotations

import errno
import os
import re

from gpgpu_plugin import privsep

# Not the caller's to choose: it could make a folder of links to any file.
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
    """Refuse to write what the plugin has no business with.

    :raises PermissionError: a path that is not on the list
    """
    if '..' in path.split('/') or not _ALLOWED.fullmatch(path):
        raise PermissionError(
            1, f'{path} is no attribute that gpgpu_plugin writes', path)


def check_address(address: str) -> None:
    """Refuse what is no address of a function.

    :raises PermissionError: it is none
    """
    if not re.fullmatch(ADDRESS, address):
        raise PermissionError(1, f'{address} is no PCI address', address)


def _place(root: str, path: str) -> str:
    """Where a path leads, by the kernel's own links alone.

    :raises HelperUnavailable: the caller looks at another sysfs, which must
        not decide what is done in this one
    :raises PermissionError: it leads out of sysfs
    """
    if root != SYSFS_ROOT:
        raise privsep.HelperUnavailable(
            errno.EPERM, f'the privileged helper has no business with {root}, '
            f'but with {SYSFS_ROOT} alone')
    place = os.path.realpath(os.path.join(SYSFS_ROOT, path))
    if not place.startswith(f'{os.path.realpath(SYSFS_ROOT)}/'):
        raise PermissionError(1, f'{path} leads out of {SYSFS_ROOT}', path)
    return place


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def read_config(root: str, path: str) -> bytes:
    """A function's configuration space, of which the kernel shows others
    than root the header only.

    :param root: of the sysfs that the caller looks at
    :param path: relative to it, ``bus/pci/devices/ADDRESS/config``
    :raises OSError: it is not there, or the path or the root is another one
    """
    if not _CONFIG.fullmatch(path):
        raise PermissionError(1, f'{path} is no configuration space', path)
    with open(_place(root, path), 'rb', buffering=0) as file:
        return file.read(4096)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def write(root: str, path: str, value: str) -> None:
    """Write a value in one system call, as sysfs wants it.

    :param root: of the sysfs that the caller looks at
    :param path: relative to it
    :raises OSError: the kernel refused, the path is not on the list, or the
        root is another one
    """
    check(path)
    fd = os.open(_place(root, path), os.O_WRONLY | os.O_CLOEXEC)
    try:
        # An empty string is no write at all; a line's end clears.
        os.write(fd, (value or '\n').encode())
    finally:
        os.close(fd)
