# SPDX-License-Identifier: Apache-2.0
"""Privileged access to sysfs, modules and NVIDIA's program.

The daemon checks paths and values against RULES, and the device in sysfs.
"""

from __future__ import annotations

import errno
import io
import os
import re
import typing
from collections.abc import Callable

from gpgpu_plugin import privsep
from gpgpu_plugin import smbios
from gpgpu_plugin import vfio
from gpgpu_plugin.privsep import guard

# Fixed: in a directory of the caller's choice, links could lead to any file.
SYSFS_ROOT = '/sys'

_UUID = r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}'
_NUMBER = '[0-9]+'
# What stands in the paths of RULES.
_NAMES = {
    'ADDRESS': guard.ADDRESS, 'DRIVER': '[A-Za-z0-9_.-]+',
    'PARENT': '[A-Za-z0-9:._-]+', 'TYPE': '[A-Za-z0-9_.-]+', 'UUID': _UUID}


class AttributeRule(typing.NamedTuple):
    """An attribute that the helper writes.

    :ivar path: below the root of sysfs, with names such as ADDRESS
    :ivar values: regular expression of what it writes
    :ivar check: function of the root of sysfs and a device's name that raises
        OSError to refuse the device. The name comes from the path if the path
        has one, else it is the value
    """

    path: str
    values: str
    check: Callable[[str, str], None]


_DEVICE = 'bus/pci/devices/ADDRESS'
RULES = (
    AttributeRule(f'{_DEVICE}/driver_override', '', guard.check_card),
    AttributeRule(f'{_DEVICE}/driver_override', vfio.DRIVER,
                  guard.check_unused),
    AttributeRule(f'{_DEVICE}/reset', '1', guard.check_closed),
    AttributeRule(f'{_DEVICE}/sriov_numvfs', '[1-9][0-9]*', guard.check_card),
    AttributeRule(f'{_DEVICE}/nvidia/current_vgpu_type', _NUMBER,
                  guard.check_card),
    AttributeRule(f'{_DEVICE}/nvidia/placement_id', _NUMBER, guard.check_card),
    AttributeRule('bus/pci/drivers/DRIVER/bind', guard.ADDRESS,
                  guard.check_unused),
    AttributeRule('bus/pci/drivers/DRIVER/unbind', guard.ADDRESS,
                  guard.check_closed),
    AttributeRule('bus/pci/drivers_probe', guard.ADDRESS, guard.check_card),
    AttributeRule('class/mdev_bus/PARENT/mdev_supported_types/TYPE/create',
                  _UUID, guard.check_parent),
    AttributeRule('bus/mdev/devices/UUID/remove', '1', guard.check_mdev),
    AttributeRule('bus/mdev/devices/UUID/nvidia/placement_id', _NUMBER,
                  guard.check_mdev))
"""All that the helper writes below sysfs; doc/source/admin has the same."""


class Read(typing.NamedTuple):
    """An attribute that the helper reads.

    :ivar path: below the root of sysfs
    :ivar size: bytes that it reads at most
    :ivar check: as of AttributeRule; None: the attribute is of no device
    :ivar select: returns the part of the content that the caller gets; None:
        the caller gets what one system call reads
    """

    path: str
    size: int
    check: Callable[[str, str], None] | None
    select: Callable[[bytes], bytes] | None = None


READS = (
    Read(f'{_DEVICE}/config', 4096, guard.check_card),
    # The device itself has to answer, and it is slow.
    Read(f'{_DEVICE}/vpd', 1024, guard.check_no_guest),
    # Other structures have serial numbers of the host.
    Read(smbios.TABLE, smbios.LARGEST, None, smbios.selected))
"""All that the helper reads below sysfs; doc/source/admin has the same."""


def _pattern(path: str) -> re.Pattern[str]:
    """Return a pattern of a rule's path, with a group for the device."""
    pattern = re.escape(path)
    for name, expression in _NAMES.items():
        group = '(?:{})' if name in ('DRIVER', 'TYPE') else '({})'
        pattern = pattern.replace(name, group.format(expression))
    return re.compile(pattern)


_PATTERNS = tuple((_pattern(rule.path), rule) for rule in RULES)
_READ_PATTERNS = tuple((_pattern(rule.path), rule) for rule in READS)


def check(root: str, path: str, value: str) -> None:
    """Refuse a path, a value or a device that the plugin does not write.

    :param root: root of sysfs
    :raises OSError: it is refused, or the device cannot be read
    """
    found = [(rule, match) for pattern, rule in _PATTERNS
             if (match := pattern.fullmatch(path))]
    if not found or '..' in path.split('/'):
        raise PermissionError(
            1, f'{path} is not an attribute that gpgpu_plugin writes', path)
    for rule, match in found:
        if re.fullmatch(rule.values, value):
            rule.check(root, match[1] if match.groups() else value)
            return
    raise PermissionError(
        1, f'{value!r} is not what gpgpu_plugin writes there', path)


def check_root(root: str) -> None:
    """Refuse any root of sysfs but the kernel's own.

    :raises HelperUnavailable: the caller reads another sysfs, which must not
        decide what is done to devices of this one
    """
    if root != SYSFS_ROOT:
        raise privsep.HelperUnavailable(
            errno.EPERM, f'the privileged helper works in {SYSFS_ROOT} only, '
            f'not in {root}')


def _resolved(root: str, path: str) -> str:
    """Return a path in sysfs with all links resolved.

    :raises HelperUnavailable: the caller reads another sysfs
    :raises PermissionError: the path leads out of sysfs
    """
    check_root(root)
    resolved = os.path.realpath(os.path.join(SYSFS_ROOT, path))
    if not resolved.startswith(f'{os.path.realpath(SYSFS_ROOT)}/'):
        raise PermissionError(1, f'{path} leads out of {SYSFS_ROOT}', path)
    return resolved


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def read(root: str, path: str) -> bytes:
    """Return the content of an attribute that only root can read.

    Without root's rights the kernel shows only the header of configuration
    space, and nothing of VPD and SMBIOS.

    :param root: root of the caller's sysfs
    :param path: relative to it, that of one of READS
    :raises OSError: the file does not exist, or the path, the device or the
        root is refused
    """
    for pattern, rule in _READ_PATTERNS:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        resolved = _resolved(root, path)
        if rule.check is not None:
            rule.check(SYSFS_ROOT, match[1])
        with open(resolved, 'rb', buffering=0) as file:
            if rule.select is None:
                return file.read(rule.size)
            # The kernel returns a page at a time.
            return rule.select(io.BufferedReader(file).read(rule.size))
    raise PermissionError(
        1, f'{path} is not an attribute that gpgpu_plugin reads', path)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def write(root: str, path: str, value: str) -> None:
    """Write a value in one system call, as sysfs requires.

    :param root: root of the caller's sysfs
    :param path: relative to it
    :raises OSError: the kernel refused, or the path, the value, the device or
        the root is refused
    """
    resolved = _resolved(root, path)
    check(SYSFS_ROOT, path, value)
    fd = os.open(resolved, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # Writing an empty string does nothing; a newline clears.
        os.write(fd, (value or '\n').encode())
    finally:
        os.close(fd)


# -- Kernel modules that the privileged helper loads.


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def load_vfio(module: str) -> None:
    """Load a module with a VFIO driver.

    :param module: ``vfio-pci``, or a module that has a ``vfio_pci:`` alias
        in this kernel's modules.alias
    :raises OSError: it is another module, or cannot be loaded
    """
    # Loading any other module may harm the host, so the helper itself reads
    # which ones have a VFIO driver.
    if module != vfio.PLAIN and not (
            vfio.is_vfio(module) and module in {
                name for _, name in vfio.aliases(vfio.alias_file())}):
        raise PermissionError(
            1, f'{module} is not a module with a VFIO driver', module)
    privsep.run('modprobe', module)


# -- NVIDIA's program that creates VFs, which its driver refuses to others.


SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def make_vfs(address: str) -> None:
    """Create all VFs that a GPU can have.

    Source: NVIDIA vGPU software user guide, "Preparing the Virtual Function
    for an NVIDIA vGPU": only this program creates them.

    :raises OSError: the program failed or is not installed, or the function
        is not on a GPU's card
    """
    guard.check_card(SYSFS_ROOT, address)
    privsep.run(SRIOV_MANAGE, '-e', address)
