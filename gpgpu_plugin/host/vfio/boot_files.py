# SPDX-License-Identifier: Apache-2.0
"""Files below /etc that bind designated functions at boot.

No privileged helper writes them, only commands that root runs, so that nobody
who took over nova-compute decides what is bound at boot. Rules of udev run
programs as root, so they are composed here, from checked ids.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import re
from collections.abc import Mapping

from gpgpu_plugin import durable
from gpgpu_plugin import privsep
from gpgpu_plugin import vfio
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import topology
from gpgpu_plugin.host.discovery import vfio_drivers

ETC = '/etc'
RULES = 'udev/rules.d/71-gpgpu-plugin.rules'
DRIVERCTL = '/usr/sbin/driverctl'
_HEADER = '# Written by gpgpu-host designate.\n'
_MARK = '# designated: '
_STABLE_ID = re.compile(
    rf'/devices(/pci([0-9a-f]{{4,16}}:[0-9a-f]{{2}}|{pci.ACPI_NAME})'
    r'(/[0-9a-f]{2}\.[0-7])+)+')
_NUMBER = re.compile(r'[0-9a-f]{4}')
# A driver of the initramfs may bind the device before udev, when the VFIO
# driver is not loaded yet. In a rule, %k is the address and %p the path below
# /sys.
_BIND = ('modprobe MODULE; cd /sys%p && '
         '{ grep -qx DRIVER=NAME uevent || '
         '{ [ ! -e driver ] || echo %k >driver/unbind; '
         'echo %k >/sys/bus/pci/drivers_probe; }; }')


def unset_override(address: str) -> None:
    """Remove a function's override through driverctl.

    ``--noprobe``: driverctl does not bind the device, since driverctl 0.111
    does not remove the override of a device that has no other driver.

    :raises OSError: driverctl failed
    :raises Invalid: the address is malformed
    """
    pci.PCIAddress.parse(address)
    privsep.run(DRIVERCTL, '--noprobe', 'unset-override', address)


def read_rules(etc: str) -> dict[str, str]:
    """Return the plugin's udev rules by stable id; anybody may read them."""
    with contextlib.suppress(FileNotFoundError):
        lines = pathlib.Path(etc, RULES).read_text().splitlines()
        return {line.removeprefix(_MARK): rule
                for line, rule in itertools.pairwise(lines)
                if line.startswith(_MARK)}
    return {}


def add_rule(stable_id: str, vendor: str, device: str,
             driver: vfio_drivers.VFIODriver) -> None:
    """Add a udev rule that binds a function to a VFIO driver when it appears.

    :raises OSError: the rule cannot be written, or an argument is malformed
    """
    _check_vfio(driver.module)
    _check_vfio(driver.name)
    if not (_STABLE_ID.fullmatch(stable_id) and _NUMBER.fullmatch(vendor)
            and _NUMBER.fullmatch(device)):
        raise PermissionError(
            1, f'no udev rule can be made for {stable_id} '
            f'({vendor}:{device}): malformed stable id or PCI id')
    _replace(read_rules(ETC) | {
        stable_id: _rule(stable_id, vendor, device, driver)})


def remove_rule(stable_id: str) -> None:
    """Remove the rule of a function, if there is one.

    :raises OSError: the file cannot be written
    """
    rules = read_rules(ETC)
    if rules.pop(stable_id, None) is not None:
        _replace(rules)


def _check_vfio(name: str) -> None:
    """Refuse a name that is not that of a VFIO driver or its module.

    :raises PermissionError: it is not
    """
    if not vfio.is_vfio(name):
        raise PermissionError(1, f'{name} is not a VFIO driver')


def _rule(stable_id: str, vendor: str, device: str,
          driver: vfio_drivers.VFIODriver) -> str:
    """Return the rule that binds a function whenever it appears (udev(7))."""
    path, domain, root = [], '', []
    for hop in stable_id.removeprefix('/devices/').split('/'):
        if not hop.startswith('pci'):
            path.append(f'{domain}:??:{hop}')
            continue
        # Below a function may be another host bridge (Intel VMD).
        domain, numbered, _ = hop.removeprefix('pci').partition(':')
        if not numbered:
            # ACPI has domains of four digits. "?" stands for the backslash,
            # which versions of udev may take for an escape.
            root = ['KERNELS=="pci????:??"',
                    f'ATTRS{{{topology.FIRMWARE_NAME}}}=="?{domain}"']
            domain, hop = '????', 'pci????:??'
        path.append(hop)
    bind = _BIND.replace('MODULE', driver.module).replace('NAME', driver.name)
    return ', '.join([
        'ACTION=="add"', 'SUBSYSTEM=="pci"',
        f'DEVPATH=="/devices/*{"/".join(path)}"', *root,
        f'ATTR{{vendor}}=="0x{vendor}"', f'ATTR{{device}}=="0x{device}"',
        f'ATTR{{driver_override}}="{driver.name}"',
        f'RUN+="/bin/sh -c \'{bind}\'"'])


def _replace(rules: Mapping[str, str]) -> None:
    """Replace the file of udev rules, or delete it if there are no rules."""
    path = pathlib.Path(ETC, RULES)
    if rules:
        durable.replace(path, _HEADER + ''.join(
            f'{_MARK}{id_}\n{rule}\n'
            for id_, rule in sorted(rules.items())), mode=0o644)
    else:
        path.unlink(missing_ok=True)
