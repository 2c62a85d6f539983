# SPDX-License-Identifier: Apache-2.0
"""Rules for what in the cloud needs somebody now, and the next command.

Capacity or calls that are lost without any operator's decision are critical.
What an operator decided, such as to drain a host or to quarantine a GPU, is
information, and so is everything that its decision explains.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import host
from gpgpu_plugin.domain import variant

_MAX_NAMED = 3
"""Number of names in a line."""


class AttentionSeverity(enum.StrEnum):
    """Urgency of what is found.

    ``critical``: capacity or service is lost now, and no operator decided so.
    ``warning``: nothing is lost yet, but somebody should look. ``info``:
    nobody needs to do anything.
    """

    INFO = 'info'
    WARNING = 'warning'
    CRITICAL = 'critical'


class Cause(enum.StrEnum):
    """Finding, in words; the most urgent first."""

    NO_CONDUCTOR_FIT = 'conductors that take no calls, and no other'
    HOST_SILENT = 'hosts that are silent'
    HOST_RESTORED = 'hosts that have not reported since a restore'
    HOLD_FAILED = 'devices held as failed'
    HOLD_IDENTITY_CHANGED = 'devices held as identity_changed'
    DEVICE_MISSING = 'devices that are missing'
    HEALTH_FAILED = 'GPUs whose health is failed'
    HEALTH_DEGRADED = 'GPUs whose health is degraded'
    CONDUCTOR_UNFIT = 'conductors that take no calls, beside others'
    NO_PING_ANSWERED = 'conductors that did not answer a ping'
    VARIANT_DOUBTFUL = 'variants with a problem'
    VARIANT_PENDING = 'variants whose change is not on all hosts yet'
    VARIANT_EXHAUSTED = 'variants without remaining capacity'
    HOST_DISABLED = 'hosts that are disabled in Nova'
    HOST_DRAINING = 'hosts that are draining'
    HOLD_QUARANTINED = 'devices held as quarantined'
    HOLD_DISABLED = 'devices held as disabled'
    HOLD_RETIRED = 'devices held as retired'


_CRITICAL, _WARNING, _INFO = reversed(AttentionSeverity)

RULES: Mapping[Cause, tuple[AttentionSeverity, str]] = types.MappingProxyType({
    Cause.NO_CONDUCTOR_FIT: (_CRITICAL, 'conductor ping'),
    Cause.HOST_SILENT: (_CRITICAL, 'host show {first}'),
    Cause.HOST_RESTORED: (_CRITICAL, 'host list'),
    Cause.HOLD_FAILED: (_CRITICAL, 'hold list --kind failed'),
    Cause.HOLD_IDENTITY_CHANGED: (
        _CRITICAL, 'hold list --kind identity_changed'),
    Cause.DEVICE_MISSING: (_CRITICAL, 'device list --faulty'),
    Cause.HEALTH_FAILED: (_CRITICAL, 'device list --health failed'),
    Cause.HEALTH_DEGRADED: (_WARNING, 'device list --health degraded'),
    Cause.CONDUCTOR_UNFIT: (_WARNING, 'conductor ping'),
    Cause.NO_PING_ANSWERED: (_WARNING, 'conductor ping --wait 10'),
    Cause.VARIANT_DOUBTFUL: (_WARNING, 'variant show {first}'),
    Cause.VARIANT_PENDING: (_INFO, 'variant show {first}'),
    Cause.VARIANT_EXHAUSTED: (_INFO, 'group list --variant {first}'),
    Cause.HOST_DISABLED: (_INFO, 'host show {first}'),
    Cause.HOST_DRAINING: (_INFO, 'host show {first}'),
    Cause.HOLD_QUARANTINED: (_INFO, 'hold list --kind quarantined'),
    Cause.HOLD_DISABLED: (_INFO, 'hold list --kind disabled'),
    Cause.HOLD_RETIRED: (_INFO, 'hold list --kind retired')})
"""Severity of each cause, and the next command of gpgpu-manage."""

_HOSTS = {
    host.HostState.SILENT: Cause.HOST_SILENT,
    host.HostState.RESTORED: Cause.HOST_RESTORED,
    host.HostState.DISABLED: Cause.HOST_DISABLED}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """Everything that one cause was found for.

    :ivar where: the first names
    """

    severity: AttentionSeverity
    what: str
    count: int
    where: str
    next_command: str


def of_host(state: str | None, *, draining: bool) -> Iterator[Cause]:
    """Yield the cause that a host is listed for, if there is one.

    A host that is drained may be silent, since it is emptied for a repair.

    :param state: a domain.host.HostState; None: not known
    """
    if draining:
        yield Cause.HOST_DRAINING
    elif state in _HOSTS:
        yield _HOSTS[host.HostState(state)]


def of_holds(kinds: Collection[str]) -> Iterator[Cause]:
    """Yield the causes that a device is listed for.

    :param kinds: of its own holds
    """
    for kind in device.HoldKind:
        if kind in kinds and (kind in device.BY_OPERATORS
                              or not is_decided(kinds)):
            yield Cause[f'HOLD_{kind.name}']


def of_device(gpu_health: str | None, kinds: Collection[str], *,
              present: bool) -> Iterator[Cause]:
    """Yield the cause that a faulty device is listed for, if there is one.

    :param kinds: of its own holds
    :param present: whether the last scan found it
    """
    if is_decided(kinds):
        return
    if not present:
        yield Cause.DEVICE_MISSING
    elif gpu_health in health.FAULTY:
        yield Cause[f'HEALTH_{gpu_health.upper()}']


def is_decided(kinds: Collection[str]) -> bool:
    """Return whether an operator has withdrawn a device, and so knows it."""
    return not device.DECIDED.isdisjoint(kinds)


def of_variant(status: str, reason: str | None) -> Iterator[Cause]:
    """Yield the cause that a variant is listed for, if there is one."""
    if reason:
        yield Cause.VARIANT_DOUBTFUL
    elif status != variant.VariantStatus.READY:
        yield Cause.VARIANT_PENDING


def of_conductors(unfit: Sequence[bool]) -> Cause:
    """Return the cause that conductors are listed for that are unfit.

    :param unfit: whether each conductor that answered is unfit
    """
    if not unfit:
        return Cause.NO_PING_ANSWERED
    return Cause.NO_CONDUCTOR_FIT if all(unfit) else Cause.CONDUCTOR_UNFIT


def lines(found: Iterable[tuple[Cause, str]]) -> list[Line]:
    """Return a line for each cause, the most urgent first.

    :param found: causes, each with the name of what it was found for
    """
    names: dict[Cause, list[str]] = {cause: [] for cause in Cause}
    for cause, name in found:
        names[cause].append(name)
    return [_line(cause, of_cause) for cause, of_cause in names.items()
            if of_cause]


def _line(cause: Cause, names: Sequence[str]) -> Line:
    severity, command = RULES[cause]
    more = len(names) - _MAX_NAMED
    return Line(
        severity=severity, what=cause, count=len(names),
        where=', '.join(names[:_MAX_NAMED]) + (
            f' and {more} more' if more > 0 else ''),
        next_command=f'gpgpu-manage {command.format(first=names[0])}')


def exit_code(found: Iterable[Line]) -> int:
    """Return 2 if a line is critical, 1 if one is a warning, else 0."""
    order = list(AttentionSeverity)
    return max((order.index(line.severity) for line in found), default=0)
