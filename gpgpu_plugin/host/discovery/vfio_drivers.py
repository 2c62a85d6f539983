# SPDX-License-Identifier: Apache-2.0
"""VFIO drivers: the one that a PCI function needs, and whether it exists.

vfio-pci supports any device. Some devices need a driver of their own, which a
kernel module offers by ``vfio_pci:`` aliases in modules.alias. As in libvirt
(virPCIDeviceFindBestVFIOVariant in src/util/virpci.c), the alias with the
fewest wildcards decides. A VFIO driver that is built into the kernel has no
alias, so vfio-pci is used instead of it, unless the table below names it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
import typing

from gpgpu_plugin import vfio
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

ALIASES = 'lib/modules/modules.alias'
"""Path of modules.alias below the root of a fake or recorded sysfs."""

# Devices that do not work with vfio-pci, and the module that they need:
# nvgrace_gpu_vfio_pci_table in Linux, drivers/vfio/pci/nvgrace-gpu/main.c. It
# presents the GPU's memory, which is no BAR of the device, to the guest. That
# table lacks 31c3, the second id of GB300, and 31a1, GB300 MaxQ: a
# driver_override binds them as well.
# Intel's VFs are not listed: xe-vfio-pci (drivers/vfio/pci/xe/main.c) adds
# migration of running guests, and synchronizes a reset with the PF's driver.
# Guests also run on vfio-pci, as they did before xe-vfio-pci existed, so a
# kernel without it is no reason against them.
_NEEDED = {('10de', device): 'nvgrace_gpu_vfio_pci' for device in (
    '2342', '2345', '2348', '2941', '31a1', '31c2', '31c3')}


class Version(typing.NamedTuple):
    """Version of a modules.alias; depmod(8) replaces the file."""

    inode: int
    mtime_ns: int
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class VFIODriver:
    """A VFIO driver that is loaded.

    :ivar module: name of the kernel module, for modprobe
    :ivar name: name of the driver below ``/sys/bus/pci/drivers``; it may have
        "-" where the module's name has "_"
    """

    module: str
    name: str


def module_for(sysfs: sysfs_mod.Sysfs,
               function: pci.PCIFunction | config_space.PCIIds) -> str:
    """Return the module with the VFIO driver for a function.

    :raises OSError: modules.alias cannot be read
    """
    module = _aliased(sysfs, function)
    return needed_module(function) if module == vfio.PLAIN else module


def needed_module(function: pci.PCIFunction | config_space.PCIIds) -> str:
    """Return the module without which a function does not work in a guest."""
    return _NEEDED.get((function.vendor or '', function.device or ''),
                       vfio.PLAIN)


def loaded(sysfs: sysfs_mod.Sysfs, module: str) -> str | None:
    """Return the name of a module's PCI driver; None: it is not loaded.

    :param module: with "-" or "_"
    """
    kernel_name = module.replace('-', '_')
    links = sysfs.names(f'{sysfs.root}/module/{kernel_name}/drivers')
    found = [link.removeprefix('pci:') for link in sorted(links)
             if link.startswith('pci:')]
    # A module that is built into the kernel may have no such folder.
    for name in (*found, kernel_name, module.replace('_', '-')):
        if vfio.is_vfio(name) and sysfs.names(
                f'{sysfs.root}/bus/pci/drivers/{name}'):
            return name
    return None


def refusal(sysfs: sysfs_mod.Sysfs,
            function: pci.PCIFunction | config_space.PCIIds) -> str | None:
    """Return why this kernel has no VFIO driver for a function, if so.

    Only devices that are known not to work with vfio-pci are refused.
    """
    module = needed_module(function)
    if module == vfio.PLAIN or loaded(sysfs, module) is not None:
        return None
    try:
        if _aliased(sysfs, function) != vfio.PLAIN:
            return None
        cause = 'modules.alias has no vfio_pci alias for it'
    except OSError as exc:
        cause = f'modules.alias cannot be read ({exc.strerror})'
    name = module.replace('_', '-')
    return (f'{function.vendor}:{function.device} needs VFIO driver {name}, '
            f'which {_kernel(sysfs)} lacks: {cause}, and the driver is not '
            f'loaded; install the module for this kernel, or another kernel '
            f'that has it, and run depmod')


def aliases(sysfs: sysfs_mod.Sysfs) -> list[tuple[str, str]]:
    """Return the kernel's ``vfio_pci:`` aliases.

    :returns: patterns of modaliases, each with the name of its module; empty
        if there is no modules.alias
    :raises OSError: the file cannot be read
    """
    try:
        return vfio.aliases(_alias_file(sysfs))
    except FileNotFoundError:
        return []


def aliases_version(sysfs: sysfs_mod.Sysfs) -> Version | None:
    """Return the version of modules.alias, which depmod replaces.

    :returns: None: no file

    :raises OSError: that cannot be read
    """
    try:
        found = os.stat(_alias_file(sysfs))
    except FileNotFoundError:
        return None
    return Version(found.st_ino, found.st_mtime_ns, found.st_size)


def _is_this_kernel(sysfs: sysfs_mod.Sysfs) -> bool:
    return sysfs.root == sysfs_mod.ROOT


def _alias_file(sysfs: sysfs_mod.Sysfs) -> str:
    return (vfio.alias_file() if _is_this_kernel(sysfs)
            else f'{sysfs.root}/{ALIASES}')


def _kernel(sysfs: sysfs_mod.Sysfs) -> str:
    return (f'kernel {os.uname().release}' if _is_this_kernel(sysfs)
            else 'its kernel')


def _aliased(sysfs: sysfs_mod.Sysfs,
             function: pci.PCIFunction | config_space.PCIIds) -> str:
    """Return the module that modules.alias names for a function.

    :raises OSError: the file cannot be read
    """
    version = aliases_version(sysfs)
    if version is None:
        return vfio.PLAIN
    return _best_match(_alias_file(sysfs), version, _modalias(function))


# Functions of the same kind have the same modalias, and a file is parsed again
# only if it was replaced.
@functools.lru_cache(maxsize=1024)
def _best_match(path: str, version: Version, modalias: str) -> str:
    found = [(pattern.count('*'), module)
             for pattern, module in _parsed(path, version)
             if fnmatch.fnmatchcase(modalias, pattern)]
    best = min(found, key=lambda match: match[0], default=(0, vfio.PLAIN))[1]
    return vfio.PLAIN if best == vfio.PLAIN.replace('-', '_') else best


@functools.lru_cache(maxsize=8)
def _parsed(path: str, version: Version) -> list[tuple[str, str]]:
    return vfio.aliases(path)


def _modalias(function: pci.PCIFunction | config_space.PCIIds) -> str:
    """Return a function's modalias with ``vfio_pci:`` instead of ``pci:``.

    It is made of the ids, since recordings lack the attribute of sysfs
    (modalias_show in Linux, drivers/pci/pci-sysfs.c). An unknown id is zero,
    which no device has as its vendor.
    """
    vendor, device, subsystem_vendor, subsystem, code = (
        (value or '').upper() for value in (
            function.vendor, function.device, function.subsystem_vendor,
            function.subsystem, function.class_code))
    return (f'vfio_pci:v{vendor:0>8}d{device:0>8}'
            f'sv{subsystem_vendor:0>8}sd{subsystem:0>8}'
            f'bc{code[:2]}sc{code[2:4]}i{code[4:]}')
