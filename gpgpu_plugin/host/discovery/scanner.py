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
"""Every PCI function of a host, from sysfs (Documentation/ABI/testing/
sysfs-bus-pci), and what mdevs are made on without being one: such a parent is
a function whose address is its name.

What cannot be read is unknown, is said, and does not stop the rest. Costly
attributes (extended config space, VPD, vGPU types) are read only of
functions that can be a GPU or whose class is unknown.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vgpu_sysfs

T = typing.TypeVar('T')

_ATTRIBUTES = (
    ('vendor', 'vendor'), ('device', 'device'),
    ('subsystem_vendor', 'subsystem_vendor'),
    ('subsystem_device', 'subsystem'), ('revision', 'revision'),
    ('class', 'class_code'))
# What the mdevs of the kernel's samples are to a guest, by the name of their
# parent (samples/vfio-mdev): sysfs does not say it.
_SAMPLES: Mapping[str, Mapping[str, typing.Any]] = {
    'mbochs': {'vendor': '1234', 'device': '1111', 'class_code': '038000'},
    'mtty': {'vendor': '4348', 'device': '3253', 'class_code': '070002'}}
_VFIO = 'vfio-pci'
_HOP = re.compile(r'[0-9a-f]{4,16}:[0-9a-f]{2}:([0-9a-f]{2}\.[0-7])')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """What one scan of a host found.

    :ivar functions: by address
    :ivar vgpu_capabilities: of functions whose driver has vGPUs, by stable id
    :ivar driver_capacities: of GPUs whose driver says what it can create, by
        stable id
    :ivar problems: what could not be read, one sentence each
    """

    functions: tuple[pci.PCIFunction, ...]
    vgpu_capabilities: Mapping[str, capability.VGPUCapability] = (
        dataclasses.field(default_factory=dict))
    driver_capacities: Mapping[str, driver_capacity.DriverCapacity] = (
        dataclasses.field(default_factory=dict))
    problems: tuple[str, ...] = ()


def scan(sysfs: sysfs_mod.Sysfs) -> Scan:
    """Look at all functions.

    :raises HostError: the root has no PCI bus at all
    """
    return _Scanner(sysfs).scan()


def scan_function(
    sysfs: sysfs_mod.Sysfs, address: str
) -> pci.PCIFunction | None:
    """Look at one function, without its relation to others.

    :returns: None if it is not there or its path cannot be read
    """
    reader = _Scanner(sysfs)
    if sysfs.link(f'{sysfs.devices}/{address}') is None:
        return reader.virtual_parent(address)
    return reader.function(address)


def scan_card(sysfs: sysfs_mod.Sysfs, address: str,
                 ) -> tuple[pci.PCIFunction, ...]:
    """Look at one function and its companions.

    :returns: the function, with its relations, then its companions; empty if
        it is not there or its path cannot be read
    """
    reader = _Scanner(sysfs)
    slot = address.rpartition('.')[0]
    near = {each for each in sysfs.names(sysfs.devices)
            if each.rpartition('.')[0] == slot}
    found = {each: reader.function(each) for each in near}
    for group in {each.iommu_group for each in found.values()
                  if each is not None and each.iommu_group is not None}:
        for each in sysfs.names(
                f'{sysfs.root}/kernel/iommu_groups/{group}/devices'):
            if each not in found:
                found[each] = reader.function(each)
    related = {each.address: each for each in gpu.relate(
        found[each] for each in sorted(found))}
    function = related.get(address)
    if function is None:
        return ()
    return (function, *(related[each] for each in function.companions))


class _Scanner:
    """One look: caches what several functions share."""

    def __init__(self, sysfs: sysfs_mod.Sysfs) -> None:
        self._sysfs = sysfs
        self._problems: list[str] = []
        self._paths: dict[str, list[str]] = {}
        self._vf_index: dict[str, dict[str, int]] = {}
        self._upstream: dict[str, bool] = {}
        self._vgpus: dict[str, vgpu_sysfs.ObservedVGPUs] = {}
        self._slots = self._read_slots()

    def scan(self) -> Scan:
        addresses = self._sysfs.addresses()
        found = gpu.relate(self.function(each) for each in addresses)
        # They are in no slot and in no IOMMU group.
        virtual = (self.virtual_parent(each) for each in sorted(
            set(self._sysfs.names(
                f'{self._sysfs.root}/{vgpu_sysfs.PARENTS}')) - set(addresses)))
        functions = (*found, *(each for each in virtual if each))
        vgpus = vgpu_sysfs.gather(functions, self._vgpus)
        return Scan(
            functions=functions,
            vgpu_capabilities={
                stable_id: observed.capability
                for stable_id, observed in vgpus.items()},
            driver_capacities={
                stable_id: observed.driver_capacity
                for stable_id, observed in vgpus.items()
                if observed.driver_capacity is not None},
            problems=tuple(self._problems))

    def _asking(self, address: str, unreadable: list[str],
                ) -> Callable[..., typing.Any]:
        """Reads what is asked for; what cannot be read is noted."""
        def attempt(name: str, read: Callable[[], T | None]) -> T | None:
            try:
                return read()
            except (OSError, ValueError) as exc:
                unreadable.append(name)
                self._problems.append(
                    f'{address}: {name} cannot be read '
                    f'({getattr(exc, "strerror", None) or exc}): unknown')
                return None
        return attempt

    def virtual_parent(self, name: str) -> pci.PCIFunction | None:
        """A parent of mdevs that is no PCI function.

        :returns: None if it is not there or its path cannot be read
        """
        unreadable: list[str] = []
        attempt = self._asking(name, unreadable)
        folder = f'{self._sysfs.root}/{vgpu_sysfs.PARENTS}/{name}'
        place = attempt('path', lambda: self._place(folder))
        if place is None:
            return None
        vgpus = self._read_vgpus(
            place, folder, self._sysfs.names(folder), attempt)
        return pci.PCIFunction(
            id=place, address=name,
            used_by=device_rules.DeviceUser.MDEV
            if vgpus is not None and vgpus.capability.existing_vgpus
            else None,
            unreadable=tuple(unreadable), **_SAMPLES.get(name, {}))

    def _read_vgpus(self, stable_id: str, folder: str,
                    names: Collection[str],
                    attempt: Callable[..., typing.Any],
                    ) -> vgpu_sysfs.ObservedVGPUs | None:
        """Return the vGPUs of a function, and keep them for the scan."""
        found: vgpu_sysfs.ObservedVGPUs | None = attempt(
            pci.VGPU_TYPES, lambda: vgpu_sysfs.read_vgpus(
                self._sysfs, folder, names))
        if found is not None:
            self._vgpus[stable_id] = found
        return found

    def _place(self, link: str) -> str:
        """Where a link leads, below the root."""
        _, found, path = self._sysfs.target(link).partition('/devices/')
        if not found:
            raise ValueError('it does not lead to a device')
        return f'/devices/{path}'

    def function(self, address: str) -> pci.PCIFunction | None:
        folder = f'{self._sysfs.devices}/{address}'
        unreadable: list[str] = []
        attempt = self._asking(address, unreadable)
        hops = attempt('path', lambda: self._hops(address))
        if hops is None:
            return None
        values: dict[str, typing.Any] = {
            field: attempt(name, lambda name=name: self._id(folder, name))
            for name, field in _ATTRIBUTES}
        pf = attempt('physfn', lambda: self._sysfs.link(f'{folder}/physfn'))
        if pf is not None:
            values['vf_index'] = attempt(
                'virtfn', lambda: self._index(pf, address))
            if values['vf_index'] is None:
                unreadable.append('vf_index')
            pf_hops = attempt('path of physfn', lambda: self._hops(pf))
            if pf_hops is None:
                return None
            values['pf'] = self._stable(pf_hops)
        values['numa_node'] = attempt(
            'numa_node', lambda: self._number(folder, 'numa_node'))
        values['driver'] = attempt(
            'driver', lambda: self._sysfs.link(f'{folder}/driver'))
        group = attempt('iommu_group',
                        lambda: self._sysfs.link(f'{folder}/iommu_group'))
        values['iommu_group'] = int(group) if group else None
        if pci.can_be_gpu(values['class_code']):
            values.update(self._gpu(folder, hops, values, attempt))
        return pci.PCIFunction(
            id=self._id_of(hops, values), address=address,
            unreadable=tuple(unreadable), **values)

    def _id(self, folder: str, name: str) -> str | None:
        text = self._sysfs.read(f'{folder}/{name}')
        if text is None:
            return None
        return f'{int(text, 16):0{len(text.removeprefix("0x"))}x}'

    def _number(self, folder: str, name: str) -> int | None:
        text = self._sysfs.read(f'{folder}/{name}')
        number = int(text) if text else -1
        return number if number >= 0 else None

    # -- identity -----------------------------------------------------------

    def _hops(self, address: str) -> list[str]:
        """``pci0000:7b`` and the address of each hop below it."""
        if address not in self._paths:
            target = self._sysfs.target(f'{self._sysfs.devices}/{address}')
            parts = target.split('/')
            start = next((index for index, part in enumerate(parts)
                          if part.startswith('pci')), None)
            if start is None:
                raise ValueError(f'{target} is not below a host bridge')
            self._paths[address] = parts[start:]
        return self._paths[address]

    @staticmethod
    def _stable(hops: list[str]) -> str:
        """Bus numbers below the root bus change from boot to boot."""
        return '/devices/' + '/'.join(
            match.group(1) if (match := _HOP.fullmatch(hop)) else hop
            for hop in hops)

    def _id_of(self, hops: list[str],
               values: dict[str, typing.Any]) -> str:
        if values.get('pf') is None:
            return self._stable(hops)
        if values['vf_index'] is None:
            # Its number is unknown; its place keeps it apart from others.
            return f'{values["pf"]}{pci.VF}@{hops[-1]}'
        return f'{values["pf"]}{pci.VF}{values["vf_index"]}'

    def _index(self, pf: str, address: str) -> int | None:
        if pf not in self._vf_index:
            folder = f'{self._sysfs.devices}/{pf}'
            self._vf_index[pf] = {
                self._sysfs.link(f'{folder}/{name}') or '': int(name[6:])
                for name in self._sysfs.names(folder)
                if name.startswith('virtfn')}
        return self._vf_index[pf].get(address)

    # -- what only GPUs are asked -------------------------------------------

    def _gpu(self, folder: str, hops: list[str],
             known: dict[str, typing.Any],
             attempt: Callable[..., typing.Any]) -> dict[str, typing.Any]:
        names = set(self._sysfs.names(folder))
        config = attempt('config', lambda: self._sysfs.read_bytes(
            f'{folder}/config')) or b''
        values: dict[str, typing.Any] = {
            'switch_path': self._switches(hops, attempt),
            'slot': self._slot(folder, hops, names, attempt),
            'dsn': config_space.serial_number(config),
            'fault': ('config space reads all ones: the device does not '
                      'answer' if config_space.is_dead(config) else None)}
        if 'vpd' in names:
            values['serial'] = attempt('vpd', lambda: config_space.vpd_serial(
                self._sysfs.read_bytes(
                    f'{folder}/vpd', config_space.VPD_READ) or b''))
        if 'sriov_totalvfs' in names:
            for name in ('sriov_totalvfs', 'sriov_numvfs'):
                values[name] = attempt(
                    name, lambda name=name: self._number(folder, name))
        vgpus = self._read_vgpus(
            self._id_of(hops, known), folder, names, attempt)
        boot_vga = 'boot_vga' in names and attempt(
            'boot_vga', lambda: self._sysfs.read(f'{folder}/boot_vga')) == '1'
        is_vfio = 'vfio-dev' in names or known['driver'] == _VFIO
        values['used_by'] = _user(
            boot_vga=boot_vga, vgpus=vgpus, numvfs=values.get('sriov_numvfs'),
            is_open=is_vfio and self._is_enabled(folder, attempt))
        return values

    def _is_enabled(self, folder: str,
                    attempt: Callable[..., typing.Any]) -> bool:
        """Of vfio-pci and its variants: they enable a device only while
        somebody has it open (vfio_pci_core_enable)."""
        return bool(attempt(
            'enable', lambda: self._number(folder, 'enable')))

    def _switches(self, hops: list[str],
                  attempt: Callable[..., typing.Any]) -> tuple[str, ...]:
        # hops: root bus, root port, upstream, downstream, ..., function.
        return tuple(
            self._stable(hops[:index + 1])
            for index in range(2, len(hops) - 1)
            if self._is_upstream_port(hops[index], index, attempt))

    def _is_upstream_port(self, address: str, depth: int,
                          attempt: Callable[..., typing.Any]) -> bool:
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
        """Slot names by ``domain:bus:device``."""
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

    def _slot(self, folder: str, hops: list[str], names: set[str],
              attempt: Callable[..., typing.Any]) -> str | None:
        """The firmware's label of the device, else the nearest slot's name:
        a card with a switch of its own sits in the slot of its upstream
        port."""
        if 'label' in names:
            label: str | None = attempt(
                'label', lambda: self._sysfs.read(f'{folder}/label'))
            if label:
                return label
        for hop in reversed(hops[1:]):
            name = self._slots.get(hop.rpartition('.')[0])
            if name is not None:
                return name
        return None


def _user(*, boot_vga: bool, vgpus: vgpu_sysfs.ObservedVGPUs | None,
          numvfs: int | None, is_open: bool) -> device_rules.DeviceUser | None:
    if boot_vga:
        return device_rules.DeviceUser.BOOT_VGA
    if (vgpus is not None and vgpus.capability.existing_vgpus
            and vgpus.capability.mechanism == capability.VGPUMechanism.MDEV):
        return device_rules.DeviceUser.MDEV
    if numvfs:
        return device_rules.DeviceUser.VF
    return device_rules.DeviceUser.VFIO if is_open else None
