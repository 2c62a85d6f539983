# SPDX-License-Identifier: Apache-2.0
"""Requests of instances for GPUs, and reasons to refuse them."""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci


class Reason(enum.StrEnum):
    """Reason for refusing a host or claim; names are logged and documented."""

    HOST_UNKNOWN = 'host_unknown'
    NO_SUCH_GROUP = 'no_such_group'
    NOT_ENOUGH_AVAILABLE = 'not_enough_available'
    TYPE_DISABLED = 'type_disabled'
    VARIANT_DELETING = 'variant_deleting'
    HOST_DRAINING = 'host_draining'
    TYPE_CONFLICT = 'type_conflict'
    DRIVER_HAS_NO_ROOM = 'driver_has_no_room'
    TOPOLOGY_SAME_NUMA = 'topology_same_numa'
    TOPOLOGY_SAME_SWITCH = 'topology_same_switch'
    TOPOLOGY_LINKED = 'topology_linked'
    LINK_PARTITION = 'link_partition'
    NUMA_POLICY_REQUIRED = 'numa_policy_required'
    EXTRA_SPEC_INVALID = 'extra_spec_invalid'
    REQUEST_CHANGED = 'request_changed'
    ALLOCATION_NOT_REQUESTED = 'allocation_not_requested'
    EXACT_DEVICES_INVALID = 'exact_devices_invalid'
    EXACT_DEVICES_NOT_ALLOWED = 'exact_devices_not_allowed'
    EXACT_DEVICES_AND_FLAVOR = 'exact_devices_and_flavor'
    EXACT_DEVICE_UNKNOWN = 'exact_device_unknown'
    EXACT_DEVICE_ELSEWHERE = 'exact_device_elsewhere'
    EXACT_DEVICE_UNAVAILABLE = 'exact_device_unavailable'
    GPU_REQUIRED = 'gpu_required'
    CONDUCTOR_UNAVAILABLE = 'conductor_unavailable'


class AllocationPolicy(enum.StrEnum):
    """Order in which the GPUs of a group are used."""

    DEPTH_FIRST = 'depth_first'
    BREADTH_FIRST = 'breadth_first'


class GPUTopology(enum.StrEnum):
    """Property that the GPUs of one instance must have in common.

    ``linked``: they are exactly one link partition (``fabric``).
    """

    ANY = 'any'
    SAME_NUMA = 'same_numa'
    SAME_SWITCH = 'same_switch'
    LINKED = 'linked'


def check_allocation_policy(policy: str) -> None:
    """Refuse what is no allocation policy.

    :raises Invalid: the message names the policies
    """
    if policy not in list(AllocationPolicy):
        raise exception.Invalid(
            field='allocation policy', value=policy,
            expected='one of ' + ', '.join(AllocationPolicy))


class NUMAPolicy(enum.StrEnum):
    """Policy for sharing NUMA nodes between GPUs and the guest's memory."""

    NONE = 'none'
    PREFERRED = 'preferred'
    REQUIRED = 'required'


class PCINUMAPolicy(enum.StrEnum):
    """Nova's policy for sharing NUMA nodes between PCI devices and a guest.

    Nova enforces it for its own PCI devices, the plugin for GPUs. It says
    nothing about guests without a NUMA topology.
    """

    PREFERRED = 'preferred'
    LEGACY = 'legacy'
    SOCKET = 'socket'
    REQUIRED = 'required'


class Display(enum.StrEnum):
    """Use of the guest's first mdev as its display."""

    OFF = 'off'
    ON = 'on'


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Demand:
    """A number of units of one resource class."""

    resource_class: str
    count: int

    def __str__(self) -> str:
        return f'{self.count} of {self.resource_class}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that an instance requests from the plugin.

    :ivar demands: sorted by resource class, no class twice, counts > 0.
        They contain each class of the flavor that could be the plugin's; the
        conductor knows which of them are
    :ivar allocation_policy: None = the group's own
    :ivar pci_numa_policy: None = neither flavor nor image has one
    """

    demands: tuple[Demand, ...] = ()
    topology: GPUTopology = GPUTopology.ANY
    allocation_policy: AllocationPolicy | None = None
    numa_policy: NUMAPolicy = NUMAPolicy.PREFERRED
    pci_numa_policy: PCINUMAPolicy | None = None

    def __bool__(self) -> bool:
        return bool(self.demands)

    def own(self, known: Container[str]) -> Request:
        """Return the part that is for the plugin's classes.

        :param known: see naming.is_own_class
        """
        return dataclasses.replace(self, demands=tuple(
            demand for demand in self.demands
            if naming.is_own_class(demand.resource_class, known)))

    @property
    def is_single(self) -> bool:
        """Return whether one unit is requested, which meets every topology."""
        return sum(demand.count for demand in self.demands) <= 1

    @property
    def restricts_topology(self) -> bool:
        """Return whether the topology restricts what can be selected."""
        return self.topology is not GPUTopology.ANY and not self.is_single

    @property
    def is_linked(self) -> bool:
        """Return whether the GPUs must be linked to each other."""
        return self.topology is GPUTopology.LINKED and not self.is_single

    @property
    def numa_affinity(self) -> PCINUMAPolicy | None:
        """Return the stricter of both NUMA policies, in Nova's words.

        None: the guest's memory does not matter.
        """
        if self.numa_policy is NUMAPolicy.REQUIRED:
            return PCINUMAPolicy.REQUIRED
        if self.pci_numa_policy is None and (
                self.numa_policy is NUMAPolicy.PREFERRED):
            return PCINUMAPolicy.PREFERRED
        return self.pci_numa_policy

    @property
    def restricts_numa(self) -> bool:
        """Return whether the guest's memory restricts what can be selected."""
        return self.numa_affinity not in (None, PCINUMAPolicy.PREFERRED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """Reason why a request cannot be met, with its numbers."""

    reason: Reason
    detail: str


GPU_REQUIRED = Refusal(
    reason=Reason.GPU_REQUIRED,
    detail=f'its image requires {naming.TRAIT_GPU_HOST}, and neither its '
           f'flavor nor a scheduler hint requests a GPU')
"""Placement finds that trait on hosts with GPUs, whether the instance gets
one or not: it cannot know of GPUs that a hint names."""


class Unsatisfiable(Exception):
    """No selection among the offered GPUs meets the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f'{refusal.reason}: {refusal.detail}')
        self.reason = refusal.reason
        self.detail = refusal.detail


NO_GUEST_NODES = Refusal(
    reason=Reason.NUMA_POLICY_REQUIRED,
    detail="the guest's memory is on no NUMA node of its own; "
           "hw:numa_nodes in the flavor gives it some")


def count_refusal(demand: Demand, available: int) -> Refusal:
    """Return the refusal of a demand for more than is available."""
    return Refusal(
        reason=Reason.NOT_ENOUGH_AVAILABLE,
        detail=f'{demand} requested, {available} available')


def far_refusal(request: Request) -> Refusal:
    """Return the refusal if too few units are near the guest's memory."""
    where = 'sockets' if request.numa_affinity is PCINUMAPolicy.SOCKET else (
        'NUMA nodes')
    return Refusal(
        reason=Reason.NUMA_POLICY_REQUIRED,
        detail=f"no {describe(request)} available on the {where} of the "
               f"guest's memory")


def topology_refusal(request: Request) -> Refusal:
    """Return the refusal if no node or switch alone has enough units."""
    if request.topology is GPUTopology.SAME_SWITCH:
        return Refusal(
            reason=Reason.TOPOLOGY_SAME_SWITCH,
            detail=f'no PCIe switch has {describe(request)} available')
    return Refusal(
        reason=Reason.TOPOLOGY_SAME_NUMA,
        detail=f'no NUMA node has {describe(request)} available')


def describe(request: Request) -> str:
    """Return the demands in words."""
    return ', '.join(map(str, request.demands))


DISPLAY = 'gpgpu:display'
"""Extra spec that concerns no claim, only the guest (virt.libvirt)."""

EXTRA_SPECS: Mapping[str, type[enum.StrEnum]] = {
    'gpgpu:allocation_policy': AllocationPolicy,
    DISPLAY: Display,
    'gpgpu:numa_policy': NUMAPolicy,
    'gpgpu:topology': GPUTopology,
}
"""Enforced extra specs, each with its values. A key or value is added
together with the code that enforces it, never before."""

PCI_NUMA_POLICY = 'hw:pci_numa_affinity_policy'
"""Nova's extra spec, which the plugin obeys, too."""
PCI_NUMA_POLICY_PROPERTY = 'hw_pci_numa_affinity_policy'
"""The same as a property of images."""

_RESOURCE_CLASS = re.compile(r'CUSTOM_[A-Z0-9_]+|PGPU|VGPU')
# Suffixed groups (resources1:...) are spread over providers by Placement and
# a group of GPUs is one provider, so only unsuffixed keys can be ours.
_RESOURCE_KEY = re.compile(rf'resources:({_RESOURCE_CLASS.pattern})')
_SUFFIXED_KEY = re.compile(rf'resources[^:]+:({_RESOURCE_CLASS.pattern})')


def check_extra_spec(key: str, value: str) -> enum.StrEnum:
    """Return the typed value of one ``gpgpu:`` key.

    :raises Invalid: no such key, or no such value of it
    """
    values = EXTRA_SPECS.get(key)
    if values is None:
        raise exception.Invalid(
            field='extra spec', value=key,
            expected='one of ' + ', '.join(sorted(EXTRA_SPECS)))
    try:
        return values(value)
    except ValueError:
        raise exception.Invalid(
            field=f'extra spec {key}', value=value,
            expected='one of ' + ', '.join(values)) from None


def from_extra_specs(extra_specs: Mapping[str, str],
                     image_policy: str | None = None) -> Request:
    """Read a flavor's extra specs.

    :param image_policy: the image's value of PCI_NUMA_POLICY_PROPERTY
    :raises Invalid: a ``gpgpu:`` key or value that is not enforced, a count
        that is not a non-negative integer, or another PCI NUMA policy in the
        image than in the flavor
    """
    demands: list[Demand] = []
    for key, value in extra_specs.items():
        if key.startswith('gpgpu:'):
            check_extra_spec(key, value)
        elif (match := _RESOURCE_KEY.fullmatch(key)) is not None and (
                count := _count(key, value)):
            demands.append(Demand(resource_class=match[1], count=count))
    policy = extra_specs.get('gpgpu:allocation_policy')
    return Request(
        demands=tuple(sorted(demands)),
        topology=GPUTopology(extra_specs.get('gpgpu:topology',
                                             GPUTopology.ANY)),
        allocation_policy=None if policy is None else AllocationPolicy(policy),
        numa_policy=NUMAPolicy(
            extra_specs.get('gpgpu:numa_policy', NUMAPolicy.PREFERRED)),
        pci_numa_policy=_pci_numa_policy(
            extra_specs.get(PCI_NUMA_POLICY), image_policy))


def _pci_numa_policy(flavors: str | None,
                     images: str | None) -> PCINUMAPolicy | None:
    if flavors and images and flavors != images:
        raise exception.Invalid(
            field=f'image property {PCI_NUMA_POLICY_PROPERTY}', value=images,
            expected=f'{flavors}, as in the flavor')
    value = flavors or images
    if not value:
        return None
    try:
        return PCINUMAPolicy(value)
    except ValueError:
        raise exception.Invalid(
            field=f'extra spec {PCI_NUMA_POLICY}', value=value,
            expected='one of ' + ', '.join(PCINUMAPolicy)) from None


def may_be_gpu(resource_class: str) -> bool:
    """Return whether a resource class could be the plugin's."""
    return _RESOURCE_CLASS.fullmatch(resource_class) is not None


def has_suffixed_groups(extra_specs: Mapping[str, str]) -> bool:
    """Return whether a suffixed group names a class that could be ours.

    No GPU can be requested that way: a claim is denied if Placement allocated
    some.
    """
    return any(map(_SUFFIXED_KEY.fullmatch, extra_specs))


def unrequested(request: Request, allocated: Mapping[str, int],
                ) -> Refusal | None:
    """Return the refusal if more is allocated than the request accounts for.

    :param allocated: units of one provider of the plugin, by resource class
    """
    requested = {demand.resource_class: demand.count
                 for demand in request.demands}
    for name, units in sorted(allocated.items()):
        if units > requested.get(name, 0):
            return Refusal(
                reason=Reason.ALLOCATION_NOT_REQUESTED,
                detail=f'Placement allocated {units} of {name}, but '
                       f'"resources:{name}" requests '
                       f'{requested.get(name, 0)}; a suffixed group such as '
                       f'"resources1:" requests no GPU')
    return None


def _count(key: str, value: str) -> int:
    if not str(value).isdecimal():
        raise exception.Invalid(
            field=f'extra spec {key}', value=value,
            expected='a number of units')
    return int(value)


# -- Exact devices, which a scheduler hint names instead of a flavor.


HINT = 'gpgpu_device'
"""The scheduler hint; each of its values names one device."""

MAX_EXACT_DEVICES = 64
"""Devices that one instance can name."""

_MAX_NAME = 255
"""Characters of a host's name, as in Nova."""

_SHORT_ADDRESS = re.compile(r'[0-9a-f]{2}:[01][0-9a-f]\.[0-7]', re.IGNORECASE)
_PLACE = re.compile(
    rf'(?P<host>\S+?)(?::|\s+)(?P<address>(?:[0-9a-f]{{4,16}}:)?'
    rf'{_SHORT_ADDRESS.pattern})', re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class DeviceName:
    """Name of one device: its UUID, or its host and PCI address there.

    :ivar uuid: empty: the device is named by its place
    """

    uuid: str = ''
    host: str = ''
    address: str = ''

    def __str__(self) -> str:
        return self.uuid or f'{self.host} {self.address}'


def parse_hint(values: Sequence[str]) -> tuple[DeviceName, ...]:
    """Read the values of the hint, or names that it returned.

    :raises Invalid: there are none or too many, one has another form, or two
        of them are equal
    """
    if not 0 < len(values) <= MAX_EXACT_DEVICES:
        raise exception.Invalid(
            field=f'number of devices in scheduler hint {HINT}',
            value=len(values), expected=f'1 to {MAX_EXACT_DEVICES}')
    names = tuple(map(_parse, values))
    for number, name in enumerate(names):
        if name in names[:number]:
            raise exception.Invalid(
                field=f'scheduler hint {HINT}', value=str(name),
                expected='each device once')
    return names


def _parse(value: str) -> DeviceName:
    try:
        return DeviceName(uuid=str(uuid.UUID(value.strip())))
    except ValueError:
        pass
    place = _PLACE.fullmatch(value.strip())
    if (place is None or pci.find_addresses(value.strip()) == [value.strip()]
            or len(place['host']) > _MAX_NAME or not value.isprintable()):
        raise exception.Invalid(
            field=f'scheduler hint {HINT}', value=repr(value[:_MAX_NAME]),
            expected='the UUID of a device, or its host and PCI address, such '
                     'as "compute1 0000:3b:00.0" or compute1:0000:3b:00.0')
    address = place['address']
    if _SHORT_ADDRESS.fullmatch(address):
        # As lspci prints it.
        address = f'0000:{address}'
    return DeviceName(host=place['host'],
                      address=str(pci.PCIAddress.parse(address)))


def devices_of_hint(value: str | Sequence[str] | None) -> tuple[DeviceName,
                                                                ...]:
    """Return the devices that the scheduler hint names.

    :param value: None: there is no such hint
    :raises Invalid: as ``parse_hint``
    """
    if value is None:
        return ()
    return parse_hint([value] if isinstance(value, str) else value)


def exact_refusal(names: Iterable[DeviceName], reason: Reason,
                  why: str) -> Unsatisfiable:
    """Return the refusal of devices, with their names before the reason."""
    return Unsatisfiable(Refusal(
        reason=reason, detail=f'{", ".join(map(str, names))}: {why}'))


def exact_not_allowed(project_id: str | None) -> Unsatisfiable:
    """Return the refusal of a project that may not name devices."""
    return Unsatisfiable(Refusal(
        reason=Reason.EXACT_DEVICES_NOT_ALLOWED,
        detail=f'project {project_id} is not in [gpgpu_conductor] '
               f'exact_device_projects of gpgpu-conductor, so that scheduler '
               f'hint {HINT} is refused; request GPUs by a flavor'))


def exact_mixed(request: Request) -> Unsatisfiable:
    """Return the refusal of a hint together with a flavor for GPUs."""
    return Unsatisfiable(Refusal(
        reason=Reason.EXACT_DEVICES_AND_FLAVOR,
        detail=f'the flavor requests {describe(request)} and '
               f'scheduler hint {HINT} names devices; use either of them'))


def exact_elsewhere(names: Iterable[object]) -> Unsatisfiable:
    """Return the refusal of a move away from named devices."""
    return Unsatisfiable(Refusal(
        reason=Reason.EXACT_DEVICE_ELSEWHERE,
        detail=f'{", ".join(map(str, names))}: the instance names devices of '
               f'another host and cannot leave it'))
