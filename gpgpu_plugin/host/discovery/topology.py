# SPDX-License-Identifier: Apache-2.0
"""Topology of PCI functions: stable ids, VF numbers, slots and switches."""

from __future__ import annotations

import re
from collections.abc import Collection

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import machine
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

_HOP = re.compile(r'[0-9a-f]{4,16}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')
FIRMWARE_NAME = 'firmware_node/path'
"""File of a root bus with its ACPI path, such as ``\\_SB_.PC08``."""
_ACPI_PATH = re.compile(rf'\\({pci.ACPI_NAME})')


class PCITopology:
    """The topology of one scan; it caches what several functions share.

    :param problems: gets sentences about slots that cannot be read
    :param slot_labels: labels of slots that sysfs does not have; None: those
        are unknown
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, problems: list[str],
                 slot_labels: machine.SlotLabels | None = None,
                 ) -> None:
        self._sysfs = sysfs
        self._slot_labels = slot_labels
        self._problems = problems
        self._paths: dict[str, list[str]] = {}
        self._ids: dict[str, str] = {}
        self._switch_paths: dict[str, tuple[str, ...]] = {}
        self._slots_of: dict[str, str | None] = {}
        self._vf_index: dict[str, dict[str, int]] = {}
        self._upstream: dict[str, bool] = {}
        self._slots = self._read_slots()

    def hops(self, address: str) -> list[str]:
        """Return the path below ``/devices``: root bus, then addresses.

        :raises OSError: the link, or the name of a root bus, cannot be read
        """
        if address not in self._paths:
            target = self._sysfs.target(f'{self._sysfs.devices}/{address}')
            _, found, path = target.partition('/pci')
            if not found:
                raise ValueError(f'{target} is not below a host bridge')
            hops = f'pci{path}'.split('/')
            self.stable_id(hops[:-1] or hops)
            self._paths[address] = hops
        return self._paths[address]

    def stable_id(self, hops: list[str]) -> str:
        """Return a stable id.

        Bus numbers below the root bus are left out: they may change at boot.

        :param hops: as ``hops`` returned them, or the first ones of these
        """
        last = hops[-1]
        if last not in self._ids:
            above = self.stable_id(hops[:-1]) if hops[1:] else '/devices'
            name = (self._root_name(hops) if last.startswith('pci')
                    else last[-4:] if _HOP.fullmatch(last) else last)
            self._ids[last] = f'{above}/{name}'
        return self._ids[last]

    def _root_name(self, hops: list[str]) -> str:
        """Return the name of a root bus that its stable ids have.

        An update of the firmware may renumber root buses, but its own names
        for them stay.
        """
        name = self._sysfs.read('/'.join(
            (self._sysfs.root, 'devices', *hops, FIRMWARE_NAME)))
        found = _ACPI_PATH.fullmatch(name or '')
        return f'pci{found.group(1)}' if found else hops[-1]

    def vf_index(self, pf: str, address: str) -> int | None:
        """Return the number of a VF; None: its PF does not link to it.

        :param pf: address of the PF
        """
        if pf not in self._vf_index:
            folder = f'{self._sysfs.devices}/{pf}'
            self._vf_index[pf] = {
                self._sysfs.link(f'{folder}/{name}') or '': int(name[6:])
                for name in self._sysfs.names(folder)
                if name.startswith('virtfn')}
        return self._vf_index[pf].get(address)

    def switch_path(self, hops: list[str],
                    attempt: sysfs_mod.Attempt) -> tuple[str, ...]:
        """Return the stable ids of upstream ports of switches on a path."""
        if hops[-1] not in self._switch_paths:
            # Root bus, root port, upstream, downstream, ..., function.
            self._switch_paths[hops[-1]] = tuple(
                self.stable_id(hops[:index + 1])
                for index in range(2, len(hops) - 1)
                if self._is_upstream_port(hops[index], index, attempt))
        return self._switch_paths[hops[-1]]

    def _is_upstream_port(self, address: str, depth: int,
                          attempt: sysfs_mod.Attempt) -> bool:
        if address not in self._upstream:
            config = attempt(
                f'config of bridge {address}',
                lambda: self._sysfs.read_bytes(
                    f'{self._sysfs.devices}/{address}/config',
                    config_space.CONVENTIONAL)) or b''
            self._upstream[address] = (
                config_space.port_type(config) == config_space.UPSTREAM_PORT
                if len(config) > config_space.HEADER
                # Without CAP_SYS_ADMIN the kernel shows the header alone.
                # Below a root port come pairs of upstream and downstream
                # ports.
                else depth % 2 == 0)
        return self._upstream[address]

    def _read_slots(self) -> dict[str, str]:
        """Return the names of slots by ``domain:bus:device``."""
        folder = f'{self._sysfs.root}/bus/pci/slots'
        slots = {}
        for name in self._sysfs.names(folder):
            try:
                address = self._sysfs.read(f'{folder}/{name}/address')
            except OSError as exc:
                self._problems.append(
                    f'slot {name} cannot be read ({exc.strerror})')
                continue
            if address:
                slots[address] = name
        return slots

    def slot(self, folder: sysfs_mod.Folder, hops: list[str],
             names: Collection[str], attempt: sysfs_mod.Attempt,
             ) -> str | None:
        """Return the firmware's label of the device, else the nearest slot.

        A card with a switch of its own sits in the slot of its upstream port.

        :param hops: those of the PF, if the function is a VF
        """
        if 'label' in names:
            label = attempt('label', folder.read, 'label')
            if label:
                return label
        if hops[-1] not in self._slots_of:
            self._slots_of[hops[-1]] = self._nearest_slot(hops[1:])
        return self._slots_of[hops[-1]]

    def _nearest_slot(self, path: list[str]) -> str | None:
        for hop in reversed(path):
            name = self._slots.get(hop.rpartition('.')[0])
            if name is not None:
                return name
        return self._label_in_smbios(path)

    def _label_in_smbios(self, path: list[str]) -> str | None:
        if self._slot_labels is None:
            return None
        try:
            return self._slot_labels.get().find(path)
        except exception.HostError as exc:
            problem = f'labels of slots in SMBIOS are unknown ({exc})'
            if problem not in self._problems:
                self._problems.append(problem)
            return None
