# SPDX-License-Identifier: Apache-2.0
"""Devices that the privileged helper may change.

The user of nova-compute may ask for anything, so the helper itself looks at
the device: it must be of a GPU's card, and the host must not use it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re

from gpgpu_plugin import privsep
from gpgpu_plugin import vfio
from gpgpu_plugin.privsep import host_use

ADDRESS = r'[0-9a-f]{4,16}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]'

GPU_CLASSES: tuple[str, ...] = ('0x03', '0x12', '0x0b40')
"""Classes of functions that can be a GPU: display controllers, processing
accelerators and co-processors."""

# Guests that get all GPUs of a board get its NVSwitches, too.
_NVSWITCH = ('0x10de', '0x0680')


def check_card(root: str, address: str) -> None:
    """Refuse a function that is not on the card of a GPU.

    :param root: root of sysfs
    :raises PermissionError: it is not, or that cannot be read
    """
    if not re.fullmatch(ADDRESS, address):
        raise refused(address, 'it is not a PCI address')
    devices = pathlib.Path(root, 'bus/pci/devices')
    if not (devices / address).exists():
        raise FileNotFoundError(2, 'No such device', address)
    slot = address.rpartition('.')[0]
    if not any(_is_gpu(devices / name) for name in os.listdir(devices)
               if name.startswith(f'{slot}.')):
        raise refused(address, 'it is neither a GPU nor on the card of one')


def check_unused(root: str, address: str) -> None:
    """Refuse a function that is not on a GPU's card, or that the host uses.

    :param root: root of sysfs
    :raises UsedByHost: the host uses it
    :raises OSError: it is refused, or that cannot be read
    """
    check_card(root, address)
    # A boot display that is already bound to a VFIO driver is no longer in
    # use by the host.
    reason = (None if _has_vfio_driver(root, address)
              else host_use.HostUse(root).of(address))
    if reason is not None:
        raise privsep.UsedByHost(1, reason, address)


def check_closed(root: str, address: str) -> None:
    """Refuse what check_unused refuses, and what a guest has.

    Otherwise the kernel would block the unbind until the guest ends, or reset
    the device under the guest.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_unused(root, address)
    check_no_guest(root, address)


def check_no_guest(root: str, address: str) -> None:
    """Refuse a function that is not on a GPU's card, or that a guest has.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_card(root, address)
    device = _device(root, address)
    for vf in device.glob('virtfn*'):
        name = os.path.basename(os.readlink(vf))
        if _is_open(root, name):
            raise refused(address, f'a process has its VF {name} open')
    if next(device.glob('*/mdev_type'), None) is not None:
        raise refused(address, 'it has mdevs')
    if _is_open(root, address):
        raise refused(address, host_use.OPEN)


def check_gpu(root: str, address: str) -> None:
    """Refuse a function that is no GPU itself, but may be on a GPU's card.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_card(root, address)
    code = (_device(root, address) / 'class').read_text().strip()
    if not code.startswith(GPU_CLASSES):
        raise refused(address, 'it is not a GPU')


def check_idle_vfio(root: str, address: str) -> None:
    """Refuse what check_closed refuses, and what no VFIO driver has.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_closed(root, address)
    if not has_vfio(root, address):
        raise refused(address, 'it is not bound to a VFIO driver')


def _is_open(root: str, address: str) -> bool:
    """Return whether a process has the VFIO device of a function open.

    vfio-pci, its variants and vendors' VFIO drivers, which may have any name,
    enable a device only while a process has it open (vfio_pci_core_enable).
    """
    enable = _device(root, address) / 'enable'
    return has_vfio(root, address) and enable.read_text().strip() != '0'


def has_vfio(root: str, address: str) -> bool:
    """Return whether a driver that offers VFIO has a function.

    :param root: root of sysfs
    """
    return (_has_vfio_driver(root, address)
            or (_device(root, address) / 'vfio-dev').exists())


def _device(root: str, address: str) -> pathlib.Path:
    return pathlib.Path(root, 'bus/pci/devices', address)


def _has_vfio_driver(root: str, address: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        link = os.readlink(_device(root, address) / 'driver')
        return vfio.is_vfio(os.path.basename(link))
    return False


def check_parent(root: str, name: str) -> None:
    """Refuse a parent of mdevs that is a PCI function, but not a GPU.

    :param root: root of sysfs
    :param name: address, or the name of a parent that is no PCI function
    :raises OSError: it is refused, or that cannot be read
    """
    parent = os.path.realpath(os.path.join(root, 'class/mdev_bus', name))
    if not parent.startswith(
            os.path.realpath(os.path.join(root, 'devices/virtual')) + '/'):
        check_card(root, name)


def check_mdev(root: str, uuid: str) -> None:
    """Refuse an mdev whose parent check_parent refuses.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    path = os.path.realpath(os.path.join(root, 'bus/mdev/devices', uuid))
    check_parent(root, os.path.basename(os.path.dirname(path)))


def _is_gpu(device: pathlib.Path) -> bool:
    with contextlib.suppress(OSError):
        code = (device / 'class').read_text().strip()
        return code.startswith(GPU_CLASSES) or (
            code.startswith(_NVSWITCH[1])
            and (device / 'vendor').read_text().strip() == _NVSWITCH[0])
    return False


def refused(address: str, reason: str) -> PermissionError:
    """Return the error that refuses a function.

    :param reason: why, in words
    """
    return PermissionError(1, reason, address)
