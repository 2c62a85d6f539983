# SPDX-License-Identifier: Apache-2.0
"""Drifts of one host: conductor, book, Nova, domains and sysfs compared.

What belongs to an instance that is being built is left out: it differs for a
moment.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin import vfio
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim

_State = device_rules.DeviceState
_CLEANED = (_State.DIRTY, _State.CLEANING, device_rules.QUARANTINED)
"""States in which a vGPU of the last assignment may still exist."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuestDevices:
    """A libvirt domain, and the devices that it has.

    :ivar uuid: of the domain, which is that of the instance
    :ivar functions: PCI addresses
    :ivar mdevs: UUIDs
    """

    uuid: str
    name: str
    functions: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceUse:
    """Use of an instance's devices here, by Nova and the hypervisor.

    :ivar unused: UUIDs of assignments that Nova does not need any more
    :ivar is_deleted: whether Nova deleted it
    :ivar is_active: whether its guest runs
    :ivar may_run_with_unused: whether its guest may run with the unused ones
    :ivar text: where it is, in one sentence
    """

    unused: frozenset[str]
    is_deleted: bool
    is_active: bool
    may_run_with_unused: bool
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """Devices of the host, by its sysfs and its files for boot.

    :ivar functions: all of the host
    :ivar vgpus: of functions whose driver has vGPUs, by stable id
    :ivar designated: addresses of functions that are kept for guests at boot
    """

    functions: tuple[pci.PCIFunction, ...] = ()
    vgpus: Mapping[str, vgpu.VGPUCapability] = dataclasses.field(
        default_factory=dict)
    designated: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BookRecords:
    """Content of the host's book.

    :ivar pending: UUIDs of assignments whose release is to be sent
    """

    assigned: tuple[claim.Assignment, ...] = ()
    pending: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostSnapshot:
    """Statements of all authorities about one host, as the host sees them.

    :ivar listed: active assignments, by the conductor
    :ivar devices: of the host, by the conductor
    :ivar building: UUIDs of instances that are being built here: they differ
        for a moment
    :ivar instances: by UUID; an instance of which nothing is known is absent
    :ivar guests: None: there is no hypervisor to ask
    """

    host: str
    listed: tuple[claim.Assignment, ...]
    devices: tuple[admin.DeviceInfo, ...]
    book: BookRecords
    hardware: Hardware
    building: frozenset[str] = frozenset()
    instances: Mapping[str, InstanceUse] = dataclasses.field(
        default_factory=dict)
    guests: tuple[GuestDevices, ...] | None = None

    @functools.cached_property
    def functions(self) -> Mapping[str, pci.PCIFunction]:
        """Return the functions of the host by stable id."""
        return {function.id: function for function in self.hardware.functions}

    @functools.cached_property
    def companions(self) -> Mapping[str, tuple[str, ...]]:
        """Return the addresses of each function's companions, by address."""
        return {function.address: function.companions
                for function in self.hardware.functions}


def compare(seen: HostSnapshot) -> tuple[drift.Drift, ...]:
    """Return the drifts of a host."""
    return (*_unused(seen), *_book(seen), *_guests(seen), *_lacking(seen),
            *_assigned_devices(seen), *_unassigned_vgpus(seen),
            *_devices(seen))


def _text(assignment: claim.Assignment) -> str:
    return (f'device {assignment.address} is assigned to instance '
            f'{assignment.instance_uuid} as {assignment.role}')


def _settled(seen: HostSnapshot) -> list[claim.Assignment]:
    """Return the conductor's assignments that do not change right now."""
    return [assignment for assignment in seen.listed
            if assignment.instance_uuid not in seen.building]


def _is_active(seen: HostSnapshot, instance_uuid: str) -> bool:
    """Return whether a guest runs; in doubt it does."""
    use = seen.instances.get(instance_uuid)
    return use is None or use.is_active


# -- assignments that nobody needs ------------------------------------------


def _unused(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield assignments that Nova does not need."""
    for assignment in _settled(seen):
        use = seen.instances.get(assignment.instance_uuid)
        if (use is None or assignment.uuid not in use.unused
                or assignment.uuid in seen.book.pending):
            continue
        yield drift.of(
            _unused_name(assignment, use), seen.host, assignment.uuid,
            refused=(
                'The guest runs, and a device is never taken from it. Stop '
                'the guest; the host then releases the device itself'
                if use.may_run_with_unused else None),
            conductor=_text(assignment), nova=use.text)


def _unused_name(assignment: claim.Assignment,
                 use: InstanceUse) -> str:
    if use.is_deleted:
        return 'instance_deleted'
    return ('destination_without_migration'
            if assignment.role is claim.ClaimRole.DESTINATION
            else 'instance_elsewhere')


# -- the book ---------------------------------------------------------------


def _book(seen: HostSnapshot) -> Iterator[drift.Drift]:
    listed = {assignment.uuid for assignment in seen.listed}
    book = {assignment.uuid for assignment in seen.book.assigned}
    for assignment in seen.book.assigned:
        if (assignment.uuid not in listed
                and assignment.instance_uuid not in seen.building):
            yield _ended_in_conductor(seen, assignment)
    for assignment in _settled(seen):
        if assignment.uuid not in book and (
                assignment.uuid not in seen.book.pending):
            yield drift.of(
                'book_assignment_lacking', seen.host, assignment.uuid,
                conductor=_text(assignment), book='it is not assigned')
    for uuid in seen.book.pending:
        yield drift.of(
            'release_pending', seen.host, uuid, book='it is to be released',
            conductor='it is active' if uuid in listed else
            'it does not exist or has ended')


def _ended_in_conductor(seen: HostSnapshot,
                        assignment: claim.Assignment) -> drift.Drift:
    """Return the drift of an assignment that only the book has.

    The comparison takes it from the book, and the device is cleaned.
    """
    return drift.of(
        'book_assignment_ended', seen.host, assignment.uuid,
        refused=(
            'The guest may run with the device. Delete, shelve or hard '
            'reboot the instance; the host compares its book by itself'
            if _is_active(seen, assignment.instance_uuid) else None),
        book=_text(assignment), conductor='it is not active')


# -- guests -----------------------------------------------------------------


def _guests(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield devices of guests that are not assigned to their instances."""
    ours = _managed_functions(seen)
    own_mdevs = {
        uuid for function in seen.hardware.functions
        if function.address in ours
        and (vgpus := seen.hardware.vgpus.get(function.id)) is not None
        and vgpus.mechanism is vgpu.VGPUMechanism.MDEV
        for uuid in vgpus.existing_vgpus}
    for guest in seen.guests or ():
        if guest.uuid in seen.building:
            continue
        covered = _covered_names(seen, guest.uuid)
        for name in (*guest.functions, *guest.mdevs):
            if name in covered or name not in (ours.keys() | own_mdevs):
                continue
            yield drift.of(
                'guest_device_unassigned', seen.host, f'{guest.uuid} {name}',
                libvirt=f'domain {guest.name} has {name}',
                conductor=ours.get(name, 'the mdev has no assignment'))


def _lacking(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield assigned devices that guests run without.

    During a resize on its host, a guest has the devices of one role alone.
    """
    if seen.guests is None:
        return
    devices = {guest.uuid: {*guest.functions, *guest.mdevs}
               for guest in seen.guests}
    roles = collections.defaultdict(set)
    for assignment in seen.listed:
        roles[assignment.instance_uuid].add(assignment.role)
    for assignment in _settled(seen):
        use = seen.instances.get(assignment.instance_uuid)
        if (assignment.state != _State.ASSIGNED or use is None
                or not use.is_active or assignment.uuid in use.unused
                or len(roles[assignment.instance_uuid]) > 1):
            continue
        names = {assignment.uuid}
        if not _is_mdev_row(assignment):
            names.add(assignment.address)
        if names.isdisjoint(devices.get(assignment.instance_uuid, ())):
            yield drift.of(
                'guest_device_missing', seen.host, assignment.uuid,
                conductor=_text(assignment),
                libvirt='the domain of the instance does not have it')


def _managed_functions(seen: HostSnapshot) -> dict[str, str]:
    """Return who has each function of a managed GPU, by address."""
    found = {}
    for device in seen.devices:
        if device.kind != device_rules.DeviceKind.PCI or not device.variant:
            continue
        text = (f'device {device.address} is assigned to '
                f'{device.used_by or "nobody"}')
        for address in (device.address,
                        *seen.companions.get(device.address, ())):
            found[address] = text
    return found


def _covered_names(seen: HostSnapshot, instance_uuid: str) -> set[str]:
    """Return the names under which a guest has its assigned devices.

    The address of an mdev is that of its GPU, which the guest must not have.
    """
    return {
        name for assignment in (*seen.listed, *seen.book.assigned)
        if assignment.instance_uuid == instance_uuid
        for name in ((assignment.uuid,) if _is_mdev_row(assignment) else (
            assignment.uuid, assignment.address,
            *seen.companions.get(assignment.address, ())))}


def _is_mdev_row(assignment: claim.Assignment) -> bool:
    return (pci.function_id_of(assignment.stable_id)
            != assignment.stable_id)


# -- hardware ---------------------------------------------------------------


def _assigned_devices(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield assigned devices that are not there, or not ready."""
    for assignment in _settled(seen):
        if assignment.state != _State.ASSIGNED:
            continue
        function = seen.functions.get(pci.function_id_of(assignment.stable_id))
        if function is None:
            yield drift.of(
                'assigned_device_missing', seen.host, assignment.uuid,
                conductor=_text(assignment), sysfs='it is not there')
            continue
        wrong = _not_ready(
            assignment, function, seen.hardware.vgpus.get(function.id))
        if wrong is not None:
            name, text = wrong
            yield drift.of(
                name, seen.host, assignment.uuid,
                refused=_not_prepared(seen, assignment),
                conductor=_text(assignment), sysfs=text)


def _not_ready(assignment: claim.Assignment, function: pci.PCIFunction,
               vgpus: vgpu.VGPUCapability | None,
               ) -> tuple[str, str] | None:
    """Return the name of a drift, and what sysfs says; None: it is ready."""
    if assignment.vgpu_type == naming.PASSTHROUGH:
        if vfio.is_vfio(function.driver):
            return None
        return ('assigned_device_not_on_vfio',
                f'{function.address} is bound to {function.driver or "none"}')
    if (not _is_mdev_row(assignment) or vgpus is None
            or assignment.uuid in vgpus.existing_vgpus):
        return None
    return ('assigned_mdev_missing',
            f'{function.address} has no mdev {assignment.uuid}')


def _not_prepared(seen: HostSnapshot,
                  assignment: claim.Assignment) -> str | None:
    """Return why a device is not prepared again; None: it is."""
    use = seen.instances.get(assignment.instance_uuid)
    if use is None:
        return 'It is unknown where the instance is; see its host\'s log'
    if assignment.uuid in use.unused:
        return 'Nobody uses the assignment, and its device is to be cleaned'
    if use.is_active:
        return ('The guest runs, and has lost the device. A hard reboot of '
                'the instance prepares the device')
    if all(assignment.uuid != known.uuid for known in seen.book.assigned):
        return 'The book of the host must have the assignment first'
    return None


def _unassigned_vgpus(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield vGPUs on GPUs of variants that no assignment explains."""
    known = {assignment.uuid
             for assignment in (*seen.listed, *seen.book.assigned)}
    places = {assignment.stable_id for assignment in seen.listed}
    explained = _explained_functions(seen)
    managed = {pci.function_id_of(device.stable_id)
               for device in seen.devices if device.variant}
    for function in seen.hardware.functions:
        vgpus = seen.hardware.vgpus.get(function.id)
        if (vgpus is None or function.id in explained
                or not managed.intersection((function.id, function.pf))):
            continue
        if vgpus.mechanism is vgpu.VGPUMechanism.MDEV:
            for uuid in set(vgpus.existing_vgpus) - known:
                yield drift.of(
                    'mdev_unassigned', seen.host, uuid,
                    sysfs=f'{function.address} has it',
                    conductor='it has no assignment of this UUID')
        elif (function.pf is not None and vgpus.existing_vgpus
                and function.id not in places):
            yield drift.of(
                'vf_type_unassigned', seen.host, function.address,
                sysfs=f'its type is {vgpus.existing_vgpus[0]}',
                conductor='it is not assigned')


def _explained_functions(seen: HostSnapshot) -> set[str]:
    """Return functions whose vGPU may be that of a claim or a cleaning."""
    return {
        pci.function_id_of(device.stable_id) for device in seen.devices
        if device.state in (_State.PROVISIONING, *_CLEANED)
        or (device.used_by is not None and device.used_by in seen.building)}


def _devices(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield what is wrong with devices that nobody has."""
    for device in seen.devices:
        function = seen.functions.get(device.stable_id)
        if (function is not None and function.driver is None
                and device.state == device_rules.QUARANTINED):
            yield drift.of(
                'quarantined_device_unbound', seen.host, device.uuid,
                conductor=f'{device.address} is quarantined: {device.reason}',
                sysfs='it has no driver')
        if (function is not None and function.pf is None and device.variant
                and device.state == _State.AVAILABLE
                and vfio.is_vfio(function.driver)
                and function.address not in seen.hardware.designated):
            yield drift.of(
                'free_device_on_vfio', seen.host, device.uuid,
                conductor=f'{device.address} is available',
                sysfs=f'it is bound to {function.driver}')
    yield from _designated(seen)


def _designated(seen: HostSnapshot) -> Iterator[drift.Drift]:
    """Yield GPUs that are kept for guests, and that no variant has."""
    devices = {device.address: device for device in seen.devices}
    companions = set(itertools.chain(*seen.companions.values()))
    for function in seen.hardware.functions:
        device = devices.get(function.address)
        if (function.address in seen.hardware.designated
                and function.address not in companions
                and pci.can_be_gpu(function.class_code)
                and (device is None or device.variant is None)):
            yield drift.of(
                'designated_device_unmanaged', seen.host, function.address,
                host='it is kept for guests at boot',
                conductor='it is unknown' if device is None else
                f'it is unmanaged: {device.reason or "no variant matches"}')
