# SPDX-License-Identifier: Apache-2.0
"""Questions and answers of why-not and what-if."""

from __future__ import annotations

import dataclasses

from gpgpu_plugin.domain import what_if
from gpgpu_plugin.domain import why_not


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """Answer of one host to a request.

    :ivar findings: all reasons of the plugin to refuse it; none: it fits
    :ivar advice: changes that remove some of the reasons
    """

    host: str
    node_uuid: str
    findings: tuple[why_not.Finding, ...] = ()
    advice: tuple[why_not.Advice, ...] = ()

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.host


# -- Questions and answers of ``gpgpu-manage what-if``.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaving:
    """An instance that has devices on a host that is to be drained.

    :ivar resources: number of its devices there, by resource class
    :ivar exact: whether it named them in a scheduler hint
    :ivar cleaning_seconds: how long the last cleaning of its devices took
        that passed, the longest; None: not known
    """

    instance_uuid: str
    host: str
    resources: dict[str, int]
    exact: bool = False
    cleaning_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainQuestion:
    """Instances for which hosts are searched.

    :ivar hosts: those that are to be drained
    :ivar kinds: what the instances request
    :ivar leaving: number of the kind of each instance, by its UUID
    :ivar free: what Placement can still allocate
    """

    hosts: tuple[str, ...]
    kinds: tuple[what_if.InstanceKind, ...] = ()
    leaving: dict[str, int] = dataclasses.field(default_factory=dict)
    free: what_if.Amounts = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """Move of an instance to another host.

    :ivar target: name of the host; None: it fits nowhere
    """

    instance_uuid: str
    target: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapacityChange:
    """Units of a type that all hosts have left for new instances.

    :ivar before: now
    :ivar after: when the hosts are drained and the instances have moved
    """

    variant: str
    vgpu_type: str
    resource_class: str
    before: int
    after: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainAnswer:
    """Answer to a DrainQuestion.

    :ivar moves: in the order in which they are possible; those that fit
        nowhere come last
    :ivar examined: how many hosts were examined
    """

    moves: tuple[Move, ...]
    capacities: tuple[CapacityChange, ...]
    examined: int
