# SPDX-License-Identifier: Apache-2.0
"""A GPU group with its devices, and what can be claimed of it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import variant as variant_mod
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import offer
from gpgpu_plugin.domain.allocation import request

_AVAILABLE = device_rules.DeviceState.AVAILABLE

# Whether its host is drained; mix policy and unsupported_ok of its variant.
_Circumstances = tuple[bool, str, bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device with what the conductor knows about it.

    :ivar id: stable id
    :ivar parent_id: stable id of a VF's PF or of an mdev row's GPU
    :ivar is_managed: whether it is in a group
    :ivar holds: kinds of its holds, and of those of its GPU (domain.device)
    :ivar vgpu_type: type of the vGPU that exists or may exist; None: none
        exists
    :ivar function: None for an mdev row
    :ivar vgpus: vGPUs that the function's driver offers and has
    :ivar driver: what the GPU's driver reported
    """

    id: str
    parent_id: str | None = None
    kind: device_rules.DeviceKind = device_rules.DeviceKind.PCI
    state: device_rules.DeviceState = _AVAILABLE
    holds: frozenset[str] = frozenset()
    present: bool = True
    is_managed: bool = True
    vgpu_type: str | None = None
    placement_id: int | None = None
    function: pci.PCIFunction | None = None
    vgpus: vgpu.VGPUCapability | None = None
    driver: vgpu.DriverCapacity | None = None

    @property
    def is_claimable(self) -> bool:
        """Return whether the device's own state allows claims."""
        return device_rules.is_claimable(
            self.state, holds=self.holds, present=self.present,
            managed=self.is_managed)

    @property
    def may_have_vgpu(self) -> bool:
        """Return whether a vGPU exists or may exist.

        A VF that is gone has none, unless a guest is to have it again.
        """
        if not self.present and (
                self.state not in device_rules.ASSIGNED_STATES):
            return False
        return self.state != _AVAILABLE or self.vgpu_type is not None

    @property
    def foreign_vgpus(self) -> tuple[str, ...]:
        """Return the vGPUs that were not created for an assignment."""
        return self.vgpus.existing_vgpus if self.vgpus is not None else ()

    @functools.cached_property
    def types(self) -> Mapping[str, vgpu.VGPUType]:
        """Return the types that the GPU can be partitioned into, by name."""
        return vgpu.reported_types(self.vgpus, self.driver)

    @functools.cached_property
    def capacities(self) -> dict[_Circumstances, vgpu.GPUCapacity]:
        """Return what is known of the GPU's capacity without vGPUs.

        Most GPUs of a group stay as they are when one of them changes, and
        keep what was computed for them (GroupCapacity).
        """
        return {}

    @property
    def has_vf_vgpus(self) -> bool:
        """Return whether each vGPU is one of the GPU's VFs."""
        return (self.vgpus is not None
                and self.vgpus.mechanism == vgpu.VGPUMechanism.VF)

    def shown_state(self, children: Collection[Device] = ()) -> str:
        """Return the state that operators see, as one word.

        :param children: the device's vGPUs
        """
        return device_rules.shown_state(
            self.state, holds=self.holds, present=self.present,
            managed=self.is_managed, children=[
                device_rules.own_state(child.state, child.holds)
                for child in children])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfferedType:
    """A type of a group; ``passthrough`` is the whole GPU.

    :ivar enabled: whether operators allow claims of it
    :ivar listed: whether Placement may know its resource class
    """

    vgpu_type: str
    enabled: bool = True
    listed: bool = True

    @property
    def is_passthrough(self) -> bool:
        """Return whether the type is the whole GPU."""
        return self.vgpu_type == naming.PASSTHROUGH


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignedDevice:
    """An active assignment of a device of a group.

    :ivar allocated: whether an allocation in Placement covers it
    """

    uuid: str
    instance_uuid: str
    vgpu_type: str
    resource_class: str
    allocated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupCapacity:
    """A GPU group: one variant on one host.

    :ivar draining: no instance gets a device of the host
    :ivar is_deleting: the variant is being deleted
    :ivar devices: its GPUs, and their VFs and mdev rows
    :ivar foreign_vgpus: VFs of its GPUs that are not in the group, such as
        those that Nova assigns, and that may have a vGPU
    :ivar assignments: active ones, in the order of their claims
    :ivar own_links: its table of link partitions (domain.fabric); None:
        that of its variant
    """

    variant: variant_mod.Variant
    provider_uuid: str
    allocation_policy: request.AllocationPolicy
    types: tuple[OfferedType, ...]
    draining: bool = False
    is_deleting: bool = False
    devices: tuple[Device, ...] = ()
    foreign_vgpus: tuple[Device, ...] = ()
    assignments: tuple[AssignedDevice, ...] = ()
    own_links: str | None = None

    @functools.cached_property
    def gpus(self) -> tuple[Device, ...]:
        """Return the GPUs, including VFs whose PF is not in the group."""
        ids = {device.id for device in self.devices}
        return tuple(device for device in self.devices
                     if device.parent_id not in ids)

    @functools.cached_property
    def children(self) -> Mapping[str, Sequence[Device]]:
        """Return VFs and mdev rows by the id of their GPU.

        VFs that are not in the group use a part of the GPU, too.
        """
        gpus = {gpu.id for gpu in self.gpus}
        found: dict[str, list[Device]] = {gpu: [] for gpu in gpus}
        for device in (*self.devices, *self.foreign_vgpus):
            if device.id not in gpus and device.parent_id in found:
                found[device.parent_id].append(device)
        return found

    @functools.cached_property
    def by_name(self) -> Mapping[str, OfferedType]:
        """Return the types by name."""
        return {offered.vgpu_type: offered for offered in self.types}

    def resource_class(self, vgpu_type: str) -> str:
        """Return the resource class of one of the types."""
        return self.variant.class_of(vgpu_type)

    # -- what a claim may take ----------------------------------------------

    def refusals(self, offered: OfferedType) -> Iterator[request.Refusal]:
        """Yield why nobody can claim a type of the group; none if they can.

        While its host is drained, or its variant is being deleted, nothing
        of it is claimed.
        """
        if self.draining:
            yield request.Refusal(
                reason=request.Reason.HOST_DRAINING,
                detail='the host is being drained; "gpgpu-manage host '
                       'undrain" offers its GPUs again')
        name = self.resource_class(offered.vgpu_type)
        if self.is_deleting:
            yield request.Refusal(
                reason=request.Reason.VARIANT_DELETING,
                detail=f'{name} has variant {self.variant.name}, which is '
                       f'being deleted; see "gpgpu-manage variant show '
                       f'{self.variant.name}"')
        if not offered.enabled:
            yield request.Refusal(
                reason=request.Reason.TYPE_DISABLED,
                detail=f'{name} ({offered.vgpu_type}) is disabled on this '
                       f'host; see "gpgpu-manage vgpu-type enable"')

    @functools.cached_property
    def links(self) -> fabric.Links | None:
        """Return how the GPUs are linked; None: nobody said.

        What an operator stated comes before what drivers report.
        """
        functions = {gpu.id: gpu.function for gpu in self.gpus
                     if gpu.function is not None}
        table = self.own_links or self.variant.link_partitions
        if table is None:
            return fabric.links_of_hives({
                gpu_id: function.hive
                for gpu_id, function in functions.items()})
        return fabric.parse_link_table(table).links([
            fabric.TableGPU(id=gpu_id, address=function.address,
                            slot=function.slot)
            for gpu_id, function in functions.items()])

    def partitions_of(self, gpu_id: str) -> tuple[str, ...]:
        """Return the names of the link partitions that a GPU is in."""
        if self.links is None:
            return ()
        return tuple(name for name, part in zip(
            self.links.names, self.links.partitions, strict=True)
            if gpu_id in part)

    @property
    def links_source(self) -> str | None:
        """Return who said how the GPUs are linked.

        It is ``group`` or ``variant``, of which the operator stated it, or
        ``host``, whose drivers report it.
        """
        if self.links is None:
            return None
        if self.own_links:
            return 'group'
        return 'variant' if self.variant.link_partitions else 'host'

    def _is_claimable(self, device: Device) -> bool:
        return device.is_claimable and not self.draining

    def _is_whole(self, gpu: Device) -> bool:
        if not self._is_claimable(gpu) or gpu.function is None:
            return False
        # A VF that is gone and clean is no part of the card any more.
        if any((child.kind == device_rules.DeviceKind.PCI and child.present)
               or child.state != _AVAILABLE
               for child in self.children[gpu.id]):
            return False
        # A GPU that may have vGPUs is somebody else's.
        return not (gpu.function.sriov_numvfs
                    or pci.VGPU_TYPES in gpu.function.unreadable
                    or gpu_rules.passthrough_refusal(gpu.function)
                    or (not self.variant.unsupported_ok
                        and gpu_rules.unsupported_reason(gpu.function)))

    @functools.cached_property
    def gpu_capacities(self) -> tuple[vgpu.GPUCapacity, ...]:
        """Return the capacity of each GPU, in the order of ``gpus``."""
        return tuple(self._gpu_capacity(gpu) if self.children[gpu.id]
                     else self._kept_capacity(gpu) for gpu in self.gpus)

    def _kept_capacity(self, gpu: Device) -> vgpu.GPUCapacity:
        """Return the capacity of a GPU without VFs and mdev rows."""
        on = (self.draining, self.variant.mix_policy,
              self.variant.unsupported_ok)
        if on not in gpu.capacities:
            gpu.capacities[on] = self._gpu_capacity(gpu)
        return gpu.capacities[on]

    def _gpu_capacity(self, gpu: Device) -> vgpu.GPUCapacity:
        used = [child for child in self.children[gpu.id]
                if child.may_have_vgpu]
        vgpus = [vgpu.VGPU(vgpu_type=child.vgpu_type or vgpu.UNKNOWN_TYPE,
                           placement_id=child.placement_id)
                 for child in used]
        vgpus += [vgpu.VGPU(vgpu_type=vgpu.UNKNOWN_TYPE)] * len(
            gpu.foreign_vgpus)
        function = gpu.function
        return vgpu.GPUCapacity(
            id=gpu.id, offered=self._is_claimable(gpu),
            passthrough=self._is_whole(gpu), types=gpu.types,
            mix_policy=vgpu.VGPUMixPolicy(self.variant.mix_policy),
            vgpus=tuple(vgpus),
            driver_available=vgpu.reported_available(
                gpu.driver, {child.id: child.vgpu_type for child in used}),
            numa_node=function.numa_node if function is not None else None,
            switch=(function.switch_path[-1]
                    if function is not None and function.switch_path
                    else None),
            free_vfs=len(self.free_vfs(gpu)) if gpu.has_vf_vgpus else None)

    @property
    def numa_nodes(self) -> Mapping[str, int | None]:
        """Return the NUMA node of each device by id; None: unknown."""
        gpus = {gpu.id: gpu.numa_node for gpu in self.gpu_capacities}
        return {device.id: gpus.get(device.id, gpus.get(
            device.parent_id or '')) for device in self.devices}

    def free_vfs(self, gpu: Device) -> list[Device]:
        """Return the VFs of a GPU that a claim may take, by number."""
        has_plain_vfs = any(map(vgpu.is_of_plain_vfs, gpu.types))
        return sorted(
            (child for child in self.children[gpu.id]
             if child.function is not None and self._is_claimable(child)
             and child.vgpu_type is None
             # Else the vendor's driver, which makes vGPUs, is not there.
             and (has_plain_vfs or child.vgpus is not None)),
            key=_vf_index)

    def free_mdev_rows(self, gpu: Device) -> list[Device]:
        """Return the mdev rows of a GPU that no vGPU uses, by id."""
        return sorted(
            (child for child in self.children[gpu.id]
             if child.kind == device_rules.DeviceKind.MDEV
             and child.state == _AVAILABLE), key=lambda row: row.id)

    def offer(self, offered: OfferedType) -> offer.TypeOffer:
        """Return what the group offers of one of its types."""
        return offer.TypeOffer(
            vgpu_type=offered.vgpu_type, gpus=self.gpu_capacities,
            enabled=offered.enabled,
            links=self.links if offered.is_passthrough else None)

    # -- how much of it -----------------------------------------------------

    def available(self, offered: OfferedType) -> int:
        """Return how many of a type the GPUs can take now."""
        return self.offer(offered).available()

    def max_instances(self, offered: OfferedType) -> list[int]:
        """Return how many of a type fit on each GPU without other vGPUs."""
        return [gpu.max_instances(offered.vgpu_type)
                for gpu in self.gpu_capacities]

    def desired(self, offered: OfferedType) -> naming.DesiredInventory | None:
        """Return the inventory of one of the types in Placement."""
        allocated = collections.Counter(
            assigned.instance_uuid for assigned in self.assignments
            if assigned.allocated
            and assigned.vgpu_type == offered.vgpu_type)
        return naming.desired_inventory(
            max_instances=sum(self.max_instances(offered)),
            available=self.available(offered),
            allocated=allocated.total(),
            largest_allocation=max(allocated.values(), default=0))

    def assigned(self, offered: OfferedType) -> int:
        """Return how many of a type are assigned."""
        return sum(assigned.vgpu_type == offered.vgpu_type
                   for assigned in self.assignments)

    def shown_states(self) -> dict[str, int]:
        """Return the number of GPUs by shown state."""
        return dict(sorted(collections.Counter(
            gpu.shown_state(self.children[gpu.id])
            for gpu in self.gpus).items()))

    def found_types(self) -> dict[str, vgpu.VGPUType]:
        """Return the types that the GPUs can be partitioned into, by name."""
        found: dict[str, vgpu.VGPUType] = {}
        for gpu in self.gpus:
            for name, known in gpu.types.items():
                found.setdefault(name, known)
        return found


def _vf_index(vf: Device) -> int:
    return vf.function.vf_index or 0 if vf.function is not None else 0


# -- Which device a unit of a claim gets: the GPU, a VF or an mdev row.
#
# The claim and the plan of a drain (domain.what_if) select units of GPUs; this
# is the rule of both for what comes next.


def device_of_unit(group: GroupCapacity, unit: offer.Selection,
                   taken: Collection[str]) -> Device:
    """Return the device of a unit; an mdev row may be new.

    :param taken: ids of devices that other units of the claim got
    """
    gpu = next(gpu for gpu in group.gpus if gpu.id == unit.gpu_id)
    if unit.vgpu_type == naming.PASSTHROUGH:
        return gpu
    free = (group.free_vfs(gpu) if gpu.has_vf_vgpus
            else group.free_mdev_rows(gpu))
    found = next((device for device in free if device.id not in taken), None)
    return found or Device(
        id=free_mdev_id(gpu.id, {
            *taken, *(child.id for child in group.children[gpu.id])}),
        parent_id=gpu.id, kind=device_rules.DeviceKind.MDEV)


def free_mdev_id(gpu_id: str, existing: Collection[str]) -> str:
    """Return the stable id of a new mdev row of a GPU.

    :param existing: stable ids of the rows that exist
    """
    ids = (pci.mdev_row_id(gpu_id, number) for number in itertools.count())
    return next(mdev_id for mdev_id in ids if mdev_id not in existing)
