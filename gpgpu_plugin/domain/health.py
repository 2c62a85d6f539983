# SPDX-License-Identifier: Apache-2.0
"""Health of a GPU as its host reads it, and resets that do not help.

A GPU is degraded by a PCIe link with fewer lanes than both of its ends have,
or by uncorrectable errors since its last cleaning. The speed of a link is not
judged: GPUs lower it when they are idle.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import pci


class Health(enum.StrEnum):
    """Health of a GPU, beside its state and whether it is present.

    ``degraded``: it works, but not as it should. ``failed``: it does not
    answer. ``unknown``: its host cannot read it.
    """

    OK = 'ok'
    DEGRADED = 'degraded'
    FAILED = 'failed'
    UNKNOWN = 'unknown'


FAULTY = (Health.DEGRADED, Health.FAILED)
"""Health of a GPU that somebody should look at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """A PCIe link on the way from a root port to a GPU.

    :ivar address: of the function at its lower end
    :ivar width: lanes in use; 0: unknown
    :ivar maximum: lanes that both ends have; 0: unknown
    """

    address: str
    width: int
    maximum: int

    @property
    def is_narrow(self) -> bool:
        """Return whether the link uses fewer lanes than it could."""
        return 0 < self.width < self.maximum


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorCounts:
    """Numbers of errors that the kernel has counted, by kind of error.

    They begin at 0 when the host boots, or when a driver is loaded.
    """

    uncorrected: Mapping[str, int] = dataclasses.field(default_factory=dict)
    corrected: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorHistory:
    """Uncorrected errors of a GPU since its last cleaning, by kind.

    :ivar last: counts of the kernel at the last reading
    :ivar new: errors since the last cleaning, or since the first reading
    """

    last: Mapping[str, int] = dataclasses.field(default_factory=dict)
    new: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def after(self, counts: Mapping[str, int]) -> ErrorHistory:
        """Return the history after another reading.

        A count that fell began again at 0. One that is read for the first
        time says nothing about when its errors happened. One that cannot be
        read now, for example since its driver is not loaded, is kept.
        """
        new = dict(self.new)
        for kind, count in counts.items():
            last = self.last.get(kind, count)
            rise = count - last if count >= last else count
            if rise:
                new[kind] = new.get(kind, 0) + rise
        return ErrorHistory(last={**self.last, **counts}, new=new)

    def cleaned(self) -> ErrorHistory:
        """Return the history after the GPU has passed its cleaning."""
        return ErrorHistory(last=self.last)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """Health of a GPU as its host reports it.

    :ivar reason: why it is not ok, with numbers
    :ivar errors: all that the kernel has counted, by kind of error
    """

    health: Health
    reason: str | None = None
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)


def judge(*, fault: str | None, links: Sequence[Link] = (),
          counts: ErrorCounts | None = None,
          history: ErrorHistory | None = None) -> Condition:
    """Return the health of a GPU.

    :param fault: why it cannot be trusted (domain.pci.PCIFunction)
    """
    counts = counts or ErrorCounts()
    errors = {**counts.uncorrected, **counts.corrected}
    if fault is not None:
        return Condition(health=Health.FAILED, reason=fault, errors=errors)
    reasons = [f'the PCIe link of {link.address} has width x{link.width}, '
               f'and both of its ends have x{link.maximum}'
               for link in links if link.is_narrow]
    if history is not None and history.new:
        reasons.append(
            f'{sum(history.new.values())} uncorrectable errors since its '
            f'last cleaning: ' + ', '.join(
                f'{kind} {count}'
                for kind, count in sorted(history.new.items())))
    if reasons:
        return Condition(health=Health.DEGRADED, reason='; '.join(reasons),
                         errors=errors)
    return Condition(health=Health.OK, errors=errors)


def unreadable() -> Condition:
    """Return the health of a GPU whose configuration space is unreadable."""
    return Condition(health=Health.UNKNOWN,
                     reason='its configuration space cannot be read')


# -- Hardware that a reset leaves as it was, or kills.
#
# The kernel offers these resets all the same, so nobody else says so. Sources:
# NVIDIA/open-gpu-kernel-modules #1353, tinygrad #18199 and
# drivers/pci/quirks.c (FLR of GB202 GPUs); Dstack-TEE/dstack #1048 (session
# state of Hopper GPUs); amd/MxGPU-Virtualization #25 (MI300X).


_HANGS = 'an FLR can hang this GPU until the next power cycle'
_KEEPS = ('an FLR keeps state of the session with the firmware of this GPU, '
          'which a reset of the bus clears')
_KILLS = ('this GPU does not answer after a reset until its host is booted '
          'again')

# By vendor and the begin of the device id: GH100, GB100 to GB110; GB202.
_FLR = {
    ('10de', '23'): _KEEPS, ('10de', '29'): _KEEPS, ('10de', '31'): _KEEPS,
    ('10de', '2b85'): _HANGS, ('10de', '2b87'): _HANGS,
    ('10de', '2b8c'): _HANGS, ('10de', '2bb'): _HANGS}
_ANY = {('1002', '74a'): _KILLS, ('1002', '75a'): _KILLS}


def broken_reset_reason(function: pci.PCIFunction, *,
                        alone: bool) -> str | None:
    """Return why a function must not be reset, or why that proves nothing.

    VFs have ids of their own, and are reset well.

    :returns: None: no problem is known
    :param alone: whether the function is reset on its own (FLR) instead of
        its whole card
    """
    broken = {**_FLR, **_ANY} if alone else _ANY
    return next(
        (why for (vendor, device), why in broken.items()
         if function.pf is None and function.vendor == vendor
         and (function.device or '').startswith(device)), None)
