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
"""Files that make a designation permanent, and the module vfio-pci.

Rules of udev run programs as root, so the daemon itself composes them, from
stable ids and PCI ids that it has checked.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import re
from collections.abc import Mapping

from gpgpu_plugin import durable
from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import sysfs

ETC = '/etc'
RULES = 'udev/rules.d/71-gpgpu-plugin.rules'
DRIVERCTL = '/usr/sbin/driverctl'
_VFIO = 'vfio-pci'
_HEADER = '# Written by gpgpu-manage host designate.\n'
_MARK = '# designated: '
_STABLE_ID = re.compile(
    r'/devices(/pci[0-9a-f]{4,16}:[0-9a-f]{2}(/[0-9a-f]{2}\.[0-7])+)+')
_NUMBER = re.compile(r'[0-9a-f]{4}')
# A driver of the initramfs may bind the device before udev, when vfio-pci is
# not loaded yet. In a rule, %k is the address and %p the path below /sys.
_BIND = ('modprobe vfio-pci; cd /sys%p && '
         '{ grep -qx DRIVER=vfio-pci uevent || '
         '{ [ ! -e driver ] || echo %k >driver/unbind; '
         'echo %k >/sys/bus/pci/drivers_probe; }; }')


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def load_vfio() -> None:
    """Load vfio-pci.

    :raises OSError: it cannot be loaded
    """
    privsep.run('modprobe', _VFIO)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def driverctl(action: str, address: str) -> None:
    """Store or remove a function's override to vfio-pci through driverctl.

    ``--noprobe``: driverctl does not bind the device, since driverctl 0.111
    does not remove the override of a device that has no other driver.

    :param action: ``set-override`` or ``unset-override``
    :raises OSError: driverctl failed, or the address is malformed
    """
    sysfs.check_address(address)
    driver = {'set-override': [_VFIO], 'unset-override': []}[action]
    privsep.run(DRIVERCTL, '--noprobe', action, address, *driver)


def read_rules(etc: str) -> dict[str, str]:
    """Return the plugin's udev rules by stable id; this needs no privilege."""
    with contextlib.suppress(FileNotFoundError):
        lines = pathlib.Path(etc, RULES).read_text().splitlines()
        return {line.removeprefix(_MARK): rule
                for line, rule in itertools.pairwise(lines)
                if line.startswith(_MARK)}
    return {}


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def add_rule(stable_id: str, vendor: str, device: str) -> None:
    """Add a udev rule that binds a function to vfio-pci whenever it appears.

    :raises OSError: the rule cannot be written, or an argument is malformed
    """
    if not (_STABLE_ID.fullmatch(stable_id) and _NUMBER.fullmatch(vendor)
            and _NUMBER.fullmatch(device)):
        raise PermissionError(
            1, f'no udev rule can be made for {stable_id} '
            f'({vendor}:{device}): malformed stable id or PCI id')
    _replace(read_rules(ETC) | {
        stable_id: _rule(stable_id, vendor, device)})


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def remove_rule(stable_id: str) -> None:
    """Remove the rule of a function, if there is one.

    :raises OSError: the file cannot be written
    """
    rules = read_rules(ETC)
    if rules.pop(stable_id, None) is not None:
        _replace(rules)


def _rule(stable_id: str, vendor: str, device: str) -> str:
    """Return the rule that binds a function whenever it appears (udev(7))."""
    path, domain = [], ''
    for hop in stable_id.removeprefix('/devices/').split('/'):
        if hop.startswith('pci'):
            # Below a function may be another host bridge (Intel VMD).
            domain = hop.removeprefix('pci').partition(':')[0]
            path.append(hop)
        else:
            path.append(f'{domain}:??:{hop}')
    return ', '.join([
        'ACTION=="add"', 'SUBSYSTEM=="pci"',
        f'DEVPATH=="/devices/*{"/".join(path)}"',
        f'ATTR{{vendor}}=="0x{vendor}"', f'ATTR{{device}}=="0x{device}"',
        f'ATTR{{driver_override}}="{_VFIO}"',
        f'RUN+="/bin/sh -c \'{_BIND}\'"'])


def _replace(rules: Mapping[str, str]) -> None:
    """Replace the file of udev rules, or delete it if there are no rules."""
    path = pathlib.Path(ETC, RULES)
    if rules:
        durable.replace(path, _HEADER + ''.join(
            f'{_MARK}{id_}\n{rule}\n'
            for id_, rule in sorted(rules.items())))
    else:
        path.unlink(missing_ok=True)
