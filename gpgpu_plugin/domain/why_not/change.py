# SPDX-License-Identifier: Apache-2.0
"""Changes that free GPUs of a host, and the host after them.

They are made on values: what the host would be, not what it is.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_mod
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain.why_not import host as host_mod

_State = device_rules.DeviceState


class ChangeKind(enum.StrEnum):
    """Kind of a change, in the order of what it costs.

    ``wait``: a device is being cleaned, or waits for it. ``undrain``: the
    host is drained. ``enable_type``: a type of a group is disabled.
    ``enable``: a device is disabled. ``repair``: a device is quarantined.
    ``move``: an instance leaves the host, and its devices are cleaned.
    ``topology`` and ``fewer`` change the request instead of the host.
    """

    WAIT = 'wait'
    UNDRAIN = 'undrain'
    ENABLE_TYPE = 'enable_type'
    ENABLE = 'enable'
    REPAIR = 'repair'
    MOVE = 'move'
    TOPOLOGY = 'topology'
    FEWER = 'fewer'


OF_HOST = (ChangeKind.WAIT, ChangeKind.UNDRAIN, ChangeKind.ENABLE_TYPE,
           ChangeKind.ENABLE, ChangeKind.REPAIR, ChangeKind.MOVE)
"""Kinds that change a host, the cheapest first."""


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Change:
    """One change.

    :ivar subject: stable id of a device, UUID of an instance, VARIANT/TYPE,
        the name of a host, a topology or a count, as its kind says
    """

    kind: ChangeKind
    subject: str


def possible(host: host_mod.Host, kind: ChangeKind) -> list[Change]:
    """Return all changes of a kind that a host allows.

    Instances come in the order of how many devices they have, the fewest
    first. What is missing on the host, or whose nova-compute does not call,
    cannot be changed from here.
    """
    return [Change(kind=kind, subject=subject)
            for subject in _SUBJECTS[kind](host)]


def _devices(host: host_mod.Host,
             matches: Callable[[group_mod.Device], bool]) -> list[str]:
    return [device.id for group in host.groups for device in group.devices
            if device.present and device.is_managed and matches(device)]


def _waiting(host: host_mod.Host) -> list[str]:
    # Only a nova-compute that calls cleans anything.
    if host.state is host_state.HostState.SILENT:
        return []
    return _devices(host, lambda device: (
        device.state in device_rules.UNCLEAN_STATES
        and not hold.is_withdrawn(device.holds)))


def _quarantined(host: host_mod.Host) -> list[str]:
    return _held(host, hold.WITHDRAWING)


def _disabled(host: host_mod.Host) -> list[str]:
    return _held(host, frozenset({hold.HoldKind.DISABLED}))


def _held(host: host_mod.Host, kinds: frozenset[str]) -> list[str]:
    """Return the devices whose holds of some kinds can be removed.

    A GPU is named for its vGPUs, which it holds.
    """
    held = {device.id: device for group in host.groups
            for device in group.devices if device.holds & kinds}
    found = _devices(host, lambda device: device.id in held)
    return list(dict.fromkeys(
        parent if (parent := held[name].parent_id) in held else name
        for name in found))


def _disabled_types(host: host_mod.Host) -> list[str]:
    return [_type_name(group, offered) for group in host.groups
            for offered in group.types if not offered.enabled]


def _type_name(group: group_mod.GroupCapacity,
               offered: group_mod.OfferedType) -> str:
    return f'{group.variant.name}/{offered.vgpu_type}'


def _draining(host: host_mod.Host) -> list[str]:
    return [host.name] if any(
        group.draining for group in host.groups) else []


def _guests(host: host_mod.Host) -> list[str]:
    guests = list(host.users.values())
    return sorted(set(guests), key=lambda guest: (guests.count(guest), guest))


_SUBJECTS: dict[ChangeKind, Callable[[host_mod.Host], list[str]]] = {
    ChangeKind.WAIT: _waiting, ChangeKind.UNDRAIN: _draining,
    ChangeKind.ENABLE_TYPE: _disabled_types, ChangeKind.ENABLE: _disabled,
    ChangeKind.REPAIR: _quarantined, ChangeKind.MOVE: _guests}


_Subjects = dict[ChangeKind, set[str]]


def after(host: host_mod.Host, changes: Iterable[Change]) -> host_mod.Host:
    """Return the host after changes of it, when all cleaning has passed."""
    subjects: _Subjects = {kind: set() for kind in OF_HOST}
    for change in changes:
        subjects[change.kind].add(change.subject)
    moved = {device for device, guest in host.users.items()
             if guest in subjects[ChangeKind.MOVE]}
    return dataclasses.replace(
        host, groups=tuple(
            _group_after(group, subjects, moved) for group in host.groups),
        users={device: guest for device, guest in host.users.items()
               if device not in moved})


def _group_after(group: group_mod.GroupCapacity, subjects: _Subjects,
                 moved: Collection[str]) -> group_mod.GroupCapacity:
    enabled = subjects[ChangeKind.ENABLE_TYPE]
    return dataclasses.replace(
        group,
        draining=group.draining and not subjects[ChangeKind.UNDRAIN],
        types=tuple(
            dataclasses.replace(offered, enabled=True)
            if _type_name(group, offered) in enabled else offered
            for offered in group.types),
        devices=tuple(
            _device_after(device, subjects, moved)
            for device in group.devices),
        foreign_vgpus=tuple(
            _device_after(device, subjects, moved)
            for device in group.foreign_vgpus))


def _device_after(device: group_mod.Device, subjects: _Subjects,
                  moved: Collection[str]) -> group_mod.Device:
    state, holds = device.state, set(device.holds)
    names = {device.id, device.parent_id}
    is_repaired = not names.isdisjoint(subjects[ChangeKind.REPAIR])
    if is_repaired:
        holds -= hold.WITHDRAWING
    if not names.isdisjoint(subjects[ChangeKind.ENABLE]):
        holds -= {hold.HoldKind.DISABLED}
    # What was withdrawn is cleaned with its repair.
    if device.id in moved or (state in device_rules.UNCLEAN_STATES and (
            is_repaired or device.id in subjects[ChangeKind.WAIT])):
        state = _State.AVAILABLE
    is_free = state is _State.AVAILABLE and state is not device.state
    return dataclasses.replace(
        device, state=state, holds=frozenset(holds),
        vgpu_type=None if is_free else device.vgpu_type,
        placement_id=None if is_free else device.placement_id)
