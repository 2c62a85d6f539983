# SPDX-License-Identifier: Apache-2.0
"""Scanner of all PCI functions of a host, and of other parents of mdevs.

It reads sysfs (Documentation/ABI/testing/sysfs-bus-pci). A parent of mdevs
that is no PCI function is reported as a function whose address is its name.

Attributes that cannot be read are unknown and reported as problems; the scan
continues. Costly attributes (extended configuration space, vGPU types) are
read only of functions that can be a GPU or whose class is unknown. VPD is not
read: see host.vfio.serial_numbers.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import vfio
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import machine
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import topology
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.objects import codec


class _SampleIds(typing.TypedDict):
    vendor: str
    device: str
    class_code: str


class _GPUFields(typing.TypedDict, total=False):
    """Fields of a PCIFunction that are read only of GPUs."""

    switch_path: tuple[str, ...]
    slot: str | None
    dsn: str | None
    sriov_totalvfs: int | None
    sriov_numvfs: int | None
    used_by: device_rules.DeviceUser | None
    fault: str | None
    hive: str | None


_LINKS = ('physfn', 'driver', 'iommu_group')

# Ids that mdevs of the kernel's sample drivers show to a guest, by the name
# of their parent (samples/vfio-mdev). sysfs does not have them.
_SAMPLES: Mapping[str, _SampleIds] = {
    'mbochs': {'vendor': '1234', 'device': '1111', 'class_code': '038000'},
    'mtty': {'vendor': '4348', 'device': '3253', 'class_code': '070002'}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """Result of one scan of a host.

    :ivar functions: by address
    :ivar vgpu_capabilities: capabilities of functions whose driver has vGPUs,
        by stable id
    :ivar driver_capacities: capacities of GPUs whose driver reports them, by
        stable id
    :ivar health: of GPUs that are no VFs, by stable id (host.health)
    :ivar problems: sentences about what could not be read
    """

    functions: tuple[pci.PCIFunction, ...]
    vgpu_capabilities: Mapping[str, vgpu.VGPUCapability] = (
        dataclasses.field(default_factory=dict))
    driver_capacities: Mapping[str, vgpu.DriverCapacity] = (
        dataclasses.field(default_factory=dict))
    health: Mapping[str, health_rules.Condition] = dataclasses.field(
        default_factory=dict)
    problems: tuple[str, ...] = ()


def scan(sysfs: sysfs_mod.Sysfs,
         slot_labels: machine.SlotLabels | None = None) -> Scan:
    """Scan all functions.

    :param slot_labels: labels of slots that sysfs does not have; None: those
        are unknown
    :raises HostError: the root has no PCI bus
    """
    return codec.printable(Scan, _Scanner(sysfs, slot_labels).scan())


def reporting(scan: Scan) -> Scan:
    """Return the scan with only the GPUs whose drivers report vGPUs.

    The driver of a VF may begin to, unless it has none or that of a guest:
    another one must be bound first.
    """
    capable = scan.vgpu_capabilities
    pfs = {function.pf for function in scan.functions}
    gpus = {
        function.pf or function.id for function in scan.functions
        if pci.VGPU_TYPES in function.unreadable
        or (function.id in capable and function.id not in pfs)
        or (function.pf in capable and function.driver is not None
            and not vfio.is_vfio(function.driver))}
    return dataclasses.replace(scan, functions=tuple(
        function for function in scan.functions
        if (function.pf or function.id) in gpus))


def have_vgpus_changed(sysfs: sysfs_mod.Sysfs, scan: Scan,
                       in_cleaning: Collection[str] = ()) -> bool:
    """Return whether drivers report other vGPUs than when they were scanned.

    :param scan: as ``reporting`` returned it
    :param in_cleaning: stable ids of functions that are not compared, nor
        others of their GPUs
    """
    left_out = {pci.pf_of(stable_id) or stable_id for stable_id in in_cleaning}
    functions = [
        function for function in scan.functions
        if (function.pf or function.id) not in left_out]
    if not functions:
        return False
    now = codec.printable(Scan, dataclasses.replace(
        _Scanner(sysfs).with_vgpus(functions), functions=()))
    return any(
        now.vgpu_capabilities.get(function.id)
        != scan.vgpu_capabilities.get(function.id)
        or now.driver_capacities.get(function.id)
        != scan.driver_capacities.get(function.id) for function in functions)


def scan_function(
    sysfs: sysfs_mod.Sysfs, address: str
) -> pci.PCIFunction | None:
    """Scan one function, without its relations to others.

    :returns: None: it is not there, or its path cannot be read
    """
    scanner = _Scanner(sysfs)
    if sysfs.link(f'{sysfs.devices}/{address}') is None:
        found = scanner.virtual_parent(address)
    else:
        found = scanner.function(address)
    return codec.printable(pci.PCIFunction, found) if found else None


def scan_card(sysfs: sysfs_mod.Sysfs, address: str,
              ) -> tuple[pci.PCIFunction, ...]:
    """Scan one function and its companions.

    :returns: the function, with its relations, then its companions; empty if
        it is not there or its path cannot be read
    """
    scanner = _Scanner(sysfs)
    slot = address.rpartition('.')[0]
    found = {name: scanner.function(name)
             for name in sysfs.names(sysfs.devices)
             if name.rpartition('.')[0] == slot}
    groups = {function.iommu_group for function in found.values()
              if function is not None and function.iommu_group is not None}
    for group in groups:
        for name in sysfs.names(
                f'{sysfs.root}/kernel/iommu_groups/{group}/devices'):
            if name not in found:
                found[name] = scanner.function(name)
    related = {function.address: function for function in gpu.relate(
        found[name] for name in sorted(found))}
    wanted = related.get(address)
    if wanted is None:
        return ()
    return codec.printable(tuple[pci.PCIFunction, ...], (
        wanted, *(related[name] for name in wanted.companions)))


class _Scanner:
    """One scan; it caches what several functions share."""

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 slot_labels: machine.SlotLabels | None = None,
                 ) -> None:
        self._sysfs = sysfs
        self._problems: list[str] = []
        self._vgpus: dict[str, vgpu_sysfs.ObservedVGPUs] = {}
        self._topology = topology.PCITopology(
            sysfs, self._problems, slot_labels)
        self._numa_nodes = machine.NUMANodes(sysfs, self._problems)

    def scan(self) -> Scan:
        addresses = self._sysfs.addresses()
        found = gpu.observed_nvswitches(gpu.relate(
            self.function(address) for address in addresses))
        # Virtual parents are in no slot and in no IOMMU group.
        virtual = (self.virtual_parent(name) for name in sorted(
            set(self._sysfs.names(
                f'{self._sysfs.root}/{vgpu_sysfs.PARENTS}')) - set(addresses)))
        return self._gathered((
            *found, *(parent for parent in virtual if parent)))

    def with_vgpus(self, functions: Sequence[pci.PCIFunction]) -> Scan:
        """Return some functions with the vGPUs that they have now."""
        for function in functions:
            attempt = sysfs_mod.Attempt(function.address, self._problems)
            # Parents of mdevs that are no PCI functions are in one of them.
            for parents in (self._sysfs.devices,
                            f'{self._sysfs.root}/{vgpu_sysfs.PARENTS}'):
                folder = f'{parents}/{function.address}'
                if names := self._sysfs.names(folder):
                    self._read_vgpus(function.id, folder, names, attempt)
                    break
        return self._gathered(tuple(functions))

    def _gathered(self, functions: tuple[pci.PCIFunction, ...]) -> Scan:
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

    def virtual_parent(self, name: str) -> pci.PCIFunction | None:
        """Return a parent of mdevs that is no PCI function.

        :returns: None: it is not there, or its path cannot be read
        """
        attempt = sysfs_mod.Attempt(name, self._problems)
        folder = f'{self._sysfs.root}/{vgpu_sysfs.PARENTS}/{name}'
        stable_id = attempt('path', self._virtual_id, folder)
        if stable_id is None:
            return None
        vgpus = self._read_vgpus(
            stable_id, folder, self._sysfs.names(folder), attempt)
        has_mdevs = vgpus is not None and vgpus.capability.existing_vgpus
        ids = _SAMPLES.get(name)
        function = pci.PCIFunction(
            id=stable_id, address=name,
            used_by=device_rules.DeviceUser.MDEV if has_mdevs else None,
            unreadable=tuple(attempt.unreadable))
        return function if ids is None else dataclasses.replace(
            function, **ids)

    def function(self, address: str) -> pci.PCIFunction | None:
        """Return one function, without its relations to others.

        :returns: None: its path cannot be read
        """
        attempt = sysfs_mod.Attempt(address, self._problems)
        hops = attempt('path', self._topology.hops, address)
        if hops is None:
            return None
        folder = attempt('path', sysfs_mod.Folder,
                         f'{self._sysfs.devices}/{address}')
        if folder is None:
            return None
        with folder:
            return self._read(address, hops, folder, attempt)

    def _read(self, address: str, hops: list[str], folder: sysfs_mod.Folder,
              attempt: sysfs_mod.Attempt) -> pci.PCIFunction | None:
        ids = config_space.read_ids(folder, attempt)
        is_gpu = pci.can_be_gpu(ids.class_code)
        names = set(folder.names()) if is_gpu else _LINKS
        pf_id, vf_index, pf_hops = None, None, None
        pf, driver, group = (
            attempt(link, folder.link, link) if link in names else None
            for link in _LINKS)
        if pf is None:
            stable_id = self._topology.stable_id(hops)
        else:
            vf_index = attempt(
                'virtfn', self._topology.vf_index, pf, address)
            if vf_index is None:
                attempt.unreadable.append('vf_index')
            pf_hops = attempt('path of physfn', self._topology.hops, pf)
            if pf_hops is None:
                return None
            pf_id = self._topology.stable_id(pf_hops)
            # Without its number, the address tells a VF from others.
            number = f'@{hops[-1]}' if vf_index is None else vf_index
            stable_id = f'{pf_id}{pci.VF}{number}'
        numa_node = self._numa_nodes.with_cpus(
            attempt('numa_node', _number, folder, 'numa_node'))
        fields: _GPUFields = {}
        if is_gpu:
            fields = self._gpu(folder, names, address, stable_id,
                               pf_hops or hops, driver, attempt)
        refusal = gpu.NO_IOMMU if group is None else None
        if is_gpu and refusal is None and not (
                pf_id and stable_id in self._vgpus):
            refusal = vfio_drivers.refusal(self._sysfs, ids)
        return pci.PCIFunction(
            id=stable_id, address=address, **ids._asdict(), pf=pf_id,
            vf_index=vf_index, numa_node=numa_node, driver=driver,
            iommu_group=int(group) if group else None, vfio_refusal=refusal,
            unreadable=tuple(attempt.unreadable), **fields)

    # -- identity -----------------------------------------------------------

    def _virtual_id(self, link: str) -> str:
        _, found, path = self._sysfs.target(link).partition('/devices/')
        if not found:
            raise ValueError('it does not lead to a device')
        return f'/devices/{path}'

    # -- what is read only of GPUs ------------------------------------------

    # A VF is in the slot of its PF, whatever its own address: hops are those
    # of the PF.
    def _gpu(self, folder: sysfs_mod.Folder, names: Collection[str],
             address: str, stable_id: str, hops: list[str],
             driver: str | None, attempt: sysfs_mod.Attempt) -> _GPUFields:
        config = attempt('config', folder.read_bytes, 'config') or b''
        fields: _GPUFields = {
            'switch_path': self._topology.switch_path(hops, attempt),
            'slot': self._topology.slot(folder, hops, names, attempt),
            'dsn': config_space.serial_number(config),
            'fault': ('config space reads all ones: the device does not '
                      'answer' if config_space.is_dead(config) else None)}
        if 'xgmi_hive_info' in names:
            fields['hive'] = attempt(
                'hive', folder.read, 'xgmi_hive_info/xgmi_hive_id')
        if 'sriov_totalvfs' in names:
            fields['sriov_totalvfs'] = attempt(
                'sriov_totalvfs', _number, folder, 'sriov_totalvfs')
            fields['sriov_numvfs'] = sysfs_mod.count_vfs(names)
        vgpus = self._read_vgpus(
            stable_id, f'{self._sysfs.devices}/{address}', names, attempt)
        boot_vga = 'boot_vga' in names and attempt(
            'boot_vga', folder.read, 'boot_vga') == '1'
        is_vfio = 'vfio-dev' in names or vfio.is_vfio(driver)
        fields['used_by'] = _user(
            boot_vga=boot_vga, vgpus=vgpus, numvfs=fields.get('sriov_numvfs'),
            is_open=is_vfio and _is_enabled(folder, attempt))
        return fields

    def _read_vgpus(self, stable_id: str, folder: str,
                    names: Collection[str], attempt: sysfs_mod.Attempt,
                    ) -> vgpu_sysfs.ObservedVGPUs | None:
        """Return the vGPUs of a function, and keep them for the scan."""
        found = attempt(pci.VGPU_TYPES, vgpu_sysfs.read_vgpus,
                        self._sysfs, folder, names)
        if found is not None:
            self._vgpus[stable_id] = found
        return found


def _number(folder: sysfs_mod.Folder, name: str) -> int | None:
    text = folder.read(name)
    number = int(text) if text else -1
    return number if number >= 0 else None


def _is_enabled(folder: sysfs_mod.Folder,
                attempt: sysfs_mod.Attempt) -> bool:
    """Return whether a driver has enabled the device.

    vfio-pci and its variants enable a device only while a process has it open
    (vfio_pci_core_enable).
    """
    return bool(attempt('enable', _number, folder, 'enable'))


def _user(*, boot_vga: bool, vgpus: vgpu_sysfs.ObservedVGPUs | None,
          numvfs: int | None, is_open: bool) -> device_rules.DeviceUser | None:
    """Return the user of a function, as far as the host can see."""
    if boot_vga:
        return device_rules.DeviceUser.BOOT_VGA
    if (vgpus is not None and vgpus.capability.existing_vgpus
            and vgpus.capability.mechanism == vgpu.VGPUMechanism.MDEV):
        return device_rules.DeviceUser.MDEV
    if numvfs:
        return device_rules.DeviceUser.VF
    return device_rules.DeviceUser.VFIO if is_open else None
