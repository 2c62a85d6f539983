# SPDX-License-Identifier: Apache-2.0
"""Life cycle of a device: states, events, holds.

                        claim                activate
      +----------> available -----> provisioning -----> assigned
      |             |  ^   ^           |   |               |
      |    distrust |  |   +-----------+   | release       | release
      |             |  |  abort_untouched  |               |
      |             v  | accept            v               |
      |             dirty <----------------+---------------+
      |             |  ^
      |       clean |  | clean_interrupted
      |             v  |
      +------------ cleaning
       clean_passed

Not drawn: after a restore of the database from a backup, ``adopt`` takes a
device that nobody has to assigned, since its host knows who uses it.
``distrust`` is for a device that its host must clean before it is offered: it
is new, may have been used or elsewhere, has not passed what is required now,
or an operator has it cleaned. ``accept`` is for a new GPU that got VFs, which
are cleaned in its place, and for an operator who takes a new device as clean.

Holds (``HoldKind``), ``present`` (seen by the last scan) and ``health``
(``domain.health``) are separate facts, not states: none of them changes the
state of an assigned device, or its assignment.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
import types
from collections.abc import Collection
from collections.abc import Mapping

from gpgpu_plugin import exception


class DeviceKind(enum.StrEnum):
    """Kind of a device.

    ``pci``: a PCI function, or a parent of mdevs that is no PCI function.
    ``mdev``: a row for one mediated device of a GPU, reused by the next one.
    """

    PCI = 'pci'
    MDEV = 'mdev'


class DeviceUser(enum.StrEnum):
    """User of a PCI function that the host itself can see.

    ``vfio``: a process has its VFIO device open. ``mdev``: it has mediated
    devices. ``vf``: it has virtual functions. ``boot_vga``: the host booted
    with it as its display.
    """

    VFIO = 'vfio'
    MDEV = 'mdev'
    VF = 'vf'
    BOOT_VGA = 'boot_vga'


class DeviceState(enum.StrEnum):
    """State of a device in its life cycle."""

    AVAILABLE = 'available'
    PROVISIONING = 'provisioning'
    ASSIGNED = 'assigned'
    DIRTY = 'dirty'
    CLEANING = 'cleaning'


class DeviceEvent(enum.StrEnum):
    """Event that takes a device from one state to another."""

    CLAIM = 'claim'
    ACTIVATE = 'activate'
    ABORT_UNTOUCHED = 'abort_untouched'
    RELEASE = 'release'
    CLEAN = 'clean'
    CLEAN_PASSED = 'clean_passed'
    CLEAN_INTERRUPTED = 'clean_interrupted'
    ACCEPT = 'accept'
    ADOPT = 'adopt'
    DISTRUST = 'distrust'


_S, _E = DeviceState, DeviceEvent

TRANSITIONS: Mapping[tuple[DeviceState, DeviceEvent], DeviceState] = (
    types.MappingProxyType({
        (_S.AVAILABLE, _E.CLAIM): _S.PROVISIONING,
        (_S.AVAILABLE, _E.DISTRUST): _S.DIRTY,
        (_S.PROVISIONING, _E.ACTIVATE): _S.ASSIGNED,
        (_S.PROVISIONING, _E.ABORT_UNTOUCHED): _S.AVAILABLE,
        (_S.PROVISIONING, _E.RELEASE): _S.DIRTY,
        (_S.ASSIGNED, _E.RELEASE): _S.DIRTY,
        (_S.DIRTY, _E.CLEAN): _S.CLEANING,
        (_S.DIRTY, _E.ACCEPT): _S.AVAILABLE,
        (_S.CLEANING, _E.CLEAN_PASSED): _S.AVAILABLE,
        (_S.CLEANING, _E.CLEAN_INTERRUPTED): _S.DIRTY,
        **{(state, _E.ADOPT): _S.ASSIGNED
           for state in (_S.AVAILABLE, _S.DIRTY, _S.CLEANING)},
    }))


QUARANTINED, RETIRED = 'quarantined', 'retired'
UNMANAGED, MISSING, DISABLED = 'unmanaged', 'missing', 'disabled'
UNKNOWN = 'unknown'

SHOWN_STATES = (UNMANAGED, MISSING, DISABLED, UNKNOWN, *DeviceState,
                QUARANTINED, RETIRED)

ASSIGNED_STATES = frozenset({_S.PROVISIONING, _S.ASSIGNED})
"""States in which an active assignment has the device."""

UNCLEAN_STATES = frozenset({_S.DIRTY, _S.CLEANING})
"""States in which nothing proves that a device is clean."""

SHOWN_OF_CHILDREN = (_S.ASSIGNED, _S.PROVISIONING, _S.CLEANING, _S.DIRTY,
                     QUARANTINED)
"""States of its vGPUs that a GPU shows, the most important one first."""


ASKED: Mapping[DeviceEvent, str] = types.MappingProxyType({
    _E.CLAIM: 'assigned to an instance',
    _E.ACTIVATE: 'activated',
    _E.ABORT_UNTOUCHED: 'given back',
    _E.RELEASE: 'given back',
    _E.CLEAN: 'cleaned',
    _E.CLEAN_PASSED: 'offered again',
    _E.CLEAN_INTERRUPTED: 'cleaned anew',
    _E.ACCEPT: 'accepted',
    _E.ADOPT: 'adopted',
    _E.DISTRUST: 'cleaned'})
"""Participle of each event, for messages: "it cannot be cleaned"."""

_COMMAND = '"gpgpu-manage device'
_HOLD = '"gpgpu-manage hold add'

ADVICE: Mapping[str, str] = types.MappingProxyType({
    _S.AVAILABLE: f'{_HOLD}" holds it, {_COMMAND} release" has it cleaned',
    _S.PROVISIONING: 'an instance is getting it: wait, or delete its server',
    _S.ASSIGNED: 'migrate or delete the server that has it first',
    _S.DIRTY: f'its host cleans it: wait, or see {_COMMAND} show"',
    _S.CLEANING: f'its host cleans it: wait, or see {_COMMAND} show"',
    QUARANTINED: f'{_COMMAND} release" has it cleaned and offered, '
                 f'{_HOLD} --kind retired" takes it out of the cloud',
    RETIRED: f'{_COMMAND} release" brings it back after a cleaning, '
             f'{_COMMAND} replace" accepts another card in its place'})
"""Advice to an operator whose command a device in a state refuses."""


def refusal(state: str, asked: str) -> str:
    """Return why something cannot be done to a device in a state.

    :param state: also that of a device that is withdrawn (``own_state``)
    :param asked: what cannot be done, such as ``released``
    """
    already = ' already' if asked == state else ''
    return (f'it cannot be {asked}, since it is {state}{already}; '
            f'{ADVICE[state]}')


def next_state(state: DeviceState, event: DeviceEvent,
               name: str = '') -> DeviceState:
    """Return the state after an event.

    :param name: of the device, for the error: host and address
    :raises InvalidTransition: the table has no such pair
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise exception.InvalidTransition(
            kind='device', name=name, reason=refusal(state, ASKED[event]),
            state=state, event=event) from None


def is_claimable(state: str, *, holds: Collection[str], present: bool,
                 managed: bool) -> bool:
    """Return whether a claim may take the device."""
    return (state == DeviceState.AVAILABLE and not holds and present
            and managed)


def own_state(state: str, holds: Collection[str]) -> str:
    """Return the state of a device, or the word for what withdraws it.

    An assigned device is assigned, whatever else is wrong with it: the
    assignment lasts until Nova ends it.

    :param holds: kinds of its holds, and of those of its GPU
    """
    return str(state) if state in ASSIGNED_STATES else (
        shown_as(holds) or str(state))


def shown_state(state: str, *, holds: Collection[str], present: bool,
                managed: bool, children: Collection[str] = (),
                restored: bool = False) -> str:
    """Return the state that operators see, as one word.

    :param holds: kinds of its holds, and of those of its GPU
    :param children: states of its vGPUs (``own_state``)
    :param restored: whether its host has not reported since a restore of the
        database: one that was available then may be assigned
    """
    own = own_state(state, holds)
    if own in ASSIGNED_STATES or own == RETIRED:
        return own
    is_available = own == DeviceState.AVAILABLE
    if is_available:
        derived = next(
            (shown for shown in SHOWN_OF_CHILDREN if shown in children),
            None)
        if derived in ASSIGNED_STATES or (derived and managed and present):
            return str(derived)
    if not managed:
        return UNMANAGED
    if not present:
        return MISSING
    if is_available and HoldKind.DISABLED in holds:
        return DISABLED
    return UNKNOWN if is_available and restored else own


# -- Holds: reasons for which a device is not offered, whatever its state is.
#
# A hold of a host holds all its devices. One of a GPU holds its VFs and the
# vGPUs on it, too. On an assigned device it waits: the assignment goes on, and
# nothing needs to be remembered for its end.


class HoldKind(enum.StrEnum):
    """Kind of a hold; a device has each at most once.

    ``retired``: an operator takes it out of the cloud for good.
    ``quarantined``: an operator withdraws it. ``failed``: its cleaning failed,
    it failed while a guest was to get it, or its state contradicted its
    assignments. ``identity_changed``: a scan found it in the place of another
    device. ``disabled``: an operator does not offer it for now.
    """

    RETIRED = 'retired'
    QUARANTINED = 'quarantined'
    FAILED = 'failed'
    IDENTITY_CHANGED = 'identity_changed'
    DISABLED = 'disabled'


class HostHoldKind(enum.StrEnum):
    """Kind of a hold of a host; a host has each at most once.

    ``restored``: the database was restored from a backup, and the host has not
    reported what it has since. ``draining``: an operator lets no instance get
    a device of it. ``service_disabled``: nova-compute is disabled in Nova,
    which then selects the host for nothing; what it offers stays the same.
    """

    RESTORED = 'restored'
    DRAINING = 'draining'
    SERVICE_DISABLED = 'service_disabled'


HOLD_KINDS = (*HoldKind, *HostHoldKind)
"""Kinds of all holds."""

QUARANTINE = frozenset({
    HoldKind.QUARANTINED, HoldKind.FAILED, HoldKind.IDENTITY_CHANGED})
"""Kinds for which a device is shown as quarantined."""

WITHDRAWING = QUARANTINE | {HoldKind.RETIRED}
"""Kinds that keep a device from being cleaned, and after which it is cleaned.

``device release`` removes them.
"""

DECIDED = frozenset({HoldKind.QUARANTINED, HoldKind.RETIRED})
"""Kinds with which an operator withdraws a device.

They follow the number of its card.
"""

BY_OPERATORS = (HoldKind.QUARANTINED, HoldKind.DISABLED, HoldKind.RETIRED)
"""Kinds that operators set."""


def is_withdrawn(kinds: Collection[str]) -> bool:
    """Return whether one of the kinds withdraws a device."""
    return not WITHDRAWING.isdisjoint(kinds)


def shown_as(holds: Collection[str]) -> str | None:
    """Return the word for holds that withdraw a device; None: none does."""
    if HoldKind.RETIRED in holds:
        return str(HoldKind.RETIRED)
    return (None if QUARANTINE.isdisjoint(holds)
            else str(HoldKind.QUARANTINED))


# -- Progress of a host with the cleaning of its new devices.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstCleanings:
    """The devices that a host offers once it has cleaned them.

    :ivar devices: all of them
    :ivar cleaned: those that are clean
    :ivar waiting: new ones that its host has yet to clean
    :ivar cleaning: those of ``waiting`` that it is cleaning now
    :ivar stuck: new ones that cannot pass their cleaning policy
    """

    devices: int
    cleaned: int
    waiting: int
    cleaning: int
    stuck: int

    def text(self, seconds: Collection[float]) -> str:
        """Return the progress as one phrase.

        :param seconds: how long cleanings of such devices took
        """
        parts = [f'{self.cleaned} of {self.devices} cleaned']
        if self.stuck:
            parts.append(f'{self.stuck} need another cleaning policy')
        if self.waiting and seconds:
            rounds = math.ceil(self.waiting / max(self.cleaning, 1))
            minutes = math.ceil(rounds * statistics.median(seconds) / 60)
            parts.append(f'about {max(minutes, 1)} min')
        return ', '.join(parts)
