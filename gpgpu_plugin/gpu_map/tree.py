# SPDX-License-Identifier: Apache-2.0
"""GPUs of a cloud as a tree: host, NUMA node, bridge, GPU, vGPU."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import itertools
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import history
from gpgpu_plugin.objects import inventory

# -- How many GPUs of each host were in use in the last hours, from usage.


HOURS = 24
"""Number of samples, one an hour; the last one is now."""


def history_since(now: datetime.datetime) -> datetime.datetime:
    """Return the time of the first sample."""
    return now - datetime.timedelta(hours=HOURS - 1)


def in_use(usages: Iterable[history.UsageInfo],
           devices: Iterable[admin.DeviceInfo], now: datetime.datetime,
           ) -> dict[str, tuple[int, ...]]:
    """Return the number of GPUs in use at each sample, by host.

    A GPU whose vGPUs are in use counts once. A usage between two samples does
    not count.

    :param devices: which vGPU is on which GPU; a device that is not among
        them counts as a GPU
    :param now: UTC, with its zone
    """
    gpus = _gpus(devices)
    samples = [history_since(now) + datetime.timedelta(hours=number)
               for number in range(HOURS)]
    found: dict[str, list[set[str]]] = collections.defaultdict(
        lambda: [set() for _ in samples])
    for usage in usages:
        device = usage.device_uuid or usage.uuid
        began, ended = _time(usage.began_at), _time(usage.ended_at)
        for sample, used in zip(samples, found[usage.host], strict=True):
            if (began is None or began <= sample) and (
                    ended is None or sample < ended):
                used.add(gpus.get(device, device))
    return {host: tuple(map(len, used)) for host, used in found.items()}


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)


def _gpus(devices: Iterable[admin.DeviceInfo]) -> Mapping[str, str]:
    """Return the UUID of the GPU that each device is or is on."""
    parents = {device.uuid: device.parent for device in devices}
    found = {}
    for uuid in parents:
        gpu = uuid
        while (parent := parents.get(gpu)) in parents and parent is not None:
            gpu = parent
        found[uuid] = gpu
    return found


# -- GPUs of a cloud as a tree: host, NUMA node, bridge, GPU, vGPU.


NOT_PCI = 'not on a PCI bus'
NO_VARIANT = 'no variant'
NO_TYPE = 'unknown type'
ILL = (health_rules.Health.FAILED, health_rules.Health.DEGRADED)
"""Values of health that a map marks, the worst one first."""
UNUSED = (0,) * HOURS
"""History of a host of which no GPU was in use."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Device that is drawn as one coloured block.

    :ivar state: a domain.device.SHOWN_STATES
    :ivar kind: the variant of a whole GPU, the type of a vGPU
    :ivar instance: UUID of the instance that has it
    :ivar project: project of that instance
    :ivar reason: why it is in its state
    :ivar health: a domain.health.Health; None: it has none of its own
    :ivar health_reason: why it is not ok
    """

    state: str
    kind: str
    instance: str | None = None
    project: str | None = None
    reason: str | None = None
    health: str | None = None
    health_reason: str | None = None

    @property
    def is_ill(self) -> bool:
        """Return whether its host found something wrong with it."""
        return self.health in ILL


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPUBlock(Block):
    """A vGPU that exists or is not clean.

    :ivar share: as many of its type fit on the GPU
    """

    share: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUBlock(Block):
    """A GPU with its vGPUs.

    :ivar partitions: names of the link partitions that it is in
    """

    address: str
    vgpus: tuple[VGPUBlock, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bridge:
    """A PCIe switch or a root port with the GPUs below it."""

    name: str
    gpus: tuple[GPUBlock, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NUMANode:
    """A NUMA node of a host; its number may be unknown."""

    number: int | None
    bridges: tuple[Bridge, ...]

    @property
    def name(self) -> str:
        """Return the name that people read."""
        return ('NUMA node unknown' if self.number is None
                else f'NUMA node {self.number}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionMap:
    """Link partitions of one size on one host.

    :ivar names: of the partitions, by state
    """

    variant: str
    size: int
    names: Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostMap:
    """A host with its GPUs.

    :ivar heard_at: when its nova-compute last called, ISO 8601, UTC
    :ivar problems: what its last scan could not read
    :ivar is_silent: its nova-compute has not called for long
    :ivar is_disabled: its nova-compute is disabled in Nova
    :ivar is_draining: no instance gets a device of it
    :ivar in_use: number of GPUs in use, the oldest first and now last; empty:
        not asked for
    :ivar partitions: its link partitions by variant and size, if there are
        some
    """

    name: str
    heard_at: str | None
    is_silent: bool
    is_disabled: bool
    is_draining: bool
    problems: tuple[str, ...]
    numa_nodes: tuple[NUMANode, ...]
    in_use: tuple[int, ...] = ()
    partitions: tuple[PartitionMap, ...] = ()

    @property
    def gpus(self) -> list[GPUBlock]:
        """Return all GPUs of the host."""
        return [gpu for node in self.numa_nodes for bridge in node.bridges
                for gpu in bridge.gpus]

    @property
    def most(self) -> int:
        """Return how many GPUs can be in use, or were, if they were more."""
        managed = [gpu for gpu in self.gpus
                   if gpu.state != device_rules.UNMANAGED]
        return max(len(managed), *self.in_use, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUMap:
    """Everything that one map shows.

    :ivar drawn_at: when its lists were read, ISO 8601, UTC
    :ivar scope: which part of the cloud it shows, in words
    """

    drawn_at: str
    scope: str
    hosts: tuple[HostMap, ...]
    capacities: tuple[inventory.CloudCapacity, ...]

    @property
    def gpus(self) -> list[GPUBlock]:
        """Return all GPUs of all hosts."""
        return [gpu for host in self.hosts for gpu in host.gpus]


_Shares = Mapping[tuple[str, str | None, str | None], int]


def build(*, hosts: Iterable[admin.HostInfo],
          devices: Iterable[admin.DeviceInfo],
          types: Sequence[admin.VGPUTypeInfo], drawn_at: str,
          scope: str, empty_hosts: bool,
          in_use: Mapping[str, tuple[int, ...]] | None = None,
          groups: Iterable[admin.GroupInfo] = ()) -> GPUMap:
    """Return the map of what the conductor listed.

    :param empty_hosts: draw hosts without a GPU, too
    :param in_use: as ``in_use`` returns; None: without history
    :param groups: of which link partitions are drawn
    """
    linked = _partitions(groups)
    by_host: dict[str, list[admin.DeviceInfo]] = {}
    for device in devices:
        by_host.setdefault(device.host, []).append(device)
    shares: _Shares = {
        (info.host, info.variant, info.vgpu_type): info.max_vgpu_per_pgpu
        for info in types}
    return GPUMap(
        drawn_at=drawn_at, scope=scope,
        hosts=tuple(
            _host(info, by_host.get(info.host, ()), shares,
                  () if in_use is None else in_use.get(info.host, UNUSED),
                  linked.get(info.host, ()))
            for info in hosts if empty_hosts or info.host in by_host),
        # A type that is enabled nowhere, and that nobody has, offers nothing.
        capacities=tuple(
            capacity for capacity in inventory.summed_capacity(types)
            if capacity.hosts or capacity.assigned))


def _partitions(groups: Iterable[admin.GroupInfo],
                ) -> dict[str, tuple[PartitionMap, ...]]:
    """Return the link partitions of hosts, the smallest of a variant first."""
    found: dict[str, tuple[PartitionMap, ...]] = {}
    for group in groups:
        sizes: dict[int, dict[str, tuple[str, ...]]] = {}
        for name, addresses in group.link_partitions.items():
            of_size = sizes.setdefault(len(addresses.split()), {})
            state = group.partition_states[name]
            of_size[state] = (*of_size.get(state, ()), name)
        found[group.host] = found.get(group.host, ()) + tuple(
            PartitionMap(variant=group.variant, size=size, names={
                state: names[state]
                for state in sorted(names, key=_order_of_state)})
            for size, names in sorted(sizes.items()))
    return found


def _order_of_state(state: str) -> tuple[int, str]:
    known = [str(found) for found in fabric.PartitionState]
    return known.index(state) if state in known else len(known), state


def _host(info: admin.HostInfo, devices: Sequence[admin.DeviceInfo],
          shares: _Shares, in_use: tuple[int, ...],
          partitions: tuple[PartitionMap, ...]) -> HostMap:
    children = _by_gpu(devices)
    inside = {child.uuid for its in children.values() for child in its}
    roots = sorted((device for device in devices
                    if device.uuid not in inside), key=_place)
    return HostMap(
        name=info.host, heard_at=info.heard_at,
        is_silent=info.host_state == host_rules.HostState.SILENT,
        is_disabled=info.host_state == host_rules.HostState.DISABLED,
        is_draining=info.draining,
        problems=info.problems, in_use=in_use, partitions=partitions,
        numa_nodes=tuple(
            NUMANode(number=None if number < 0 else number, bridges=tuple(
                Bridge(name=name, gpus=tuple(
                    _gpu(root, children.get(root.uuid, ()), shares)
                    for root in below))
                for name, below in itertools.groupby(of_node, _bridge)))
            for number, of_node in itertools.groupby(roots, _numa_node)))


def _numa_node(device: admin.DeviceInfo) -> int:
    return -1 if device.numa_node is None else device.numa_node


def _bridge(device: admin.DeviceInfo) -> str:
    return pci.bridge_of(device.stable_id) or NOT_PCI


def _place(device: admin.DeviceInfo) -> tuple[int, str, str]:
    return _numa_node(device), _bridge(device), device.stable_id


def _by_gpu(devices: Iterable[admin.DeviceInfo],
            ) -> dict[str, list[admin.DeviceInfo]]:
    """Return the VFs and mdev rows of each GPU, by its UUID.

    An mdev row may be on a VF. A device whose parent is not listed, for
    example since it is of another variant, is drawn as a GPU.
    """
    by_uuid = {device.uuid: device for device in devices}
    found: dict[str, list[admin.DeviceInfo]] = {}
    for device in by_uuid.values():
        gpu = device
        while gpu.parent in by_uuid:
            gpu = by_uuid[gpu.parent]
        if gpu is not device:
            found.setdefault(gpu.uuid, []).append(device)
    return found


def _gpu(device: admin.DeviceInfo, children: Iterable[admin.DeviceInfo],
         shares: _Shares) -> GPUBlock:
    # What is available may become a vGPU of any type, and is the GPU's rest.
    vgpus = sorted((child for child in children if child.shown_state
                    != device_rules.DeviceState.AVAILABLE
                    and child.variant is not None),
                   key=lambda child: child.stable_id)
    return GPUBlock(
        address=device.address, state=device.shown_state,
        kind=device.variant or NO_VARIANT, instance=device.used_by,
        project=device.project_id, reason=device.reason,
        health=device.health, health_reason=device.health_reason,
        partitions=device.link_partitions,
        vgpus=tuple(VGPUBlock(
            state=child.shown_state, kind=child.vgpu_type or NO_TYPE,
            instance=child.used_by, project=child.project_id,
            reason=child.reason, share=shares.get(
                (child.host, child.variant, child.vgpu_type)) or len(vgpus))
            for child in vgpus))
