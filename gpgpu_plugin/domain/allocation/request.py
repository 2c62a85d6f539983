#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""What an instance asks for, and the names of the reasons to refuse it."""

from __future__ import annotations

import dataclasses
import enum
import re
import typing
from collections.abc import Mapping

from gpgpu_plugin import exception


class Reason(enum.StrEnum):
    """Why a host or a claim is refused; names are logged and documented."""

    HOST_UNKNOWN = 'host_unknown'
    NO_SUCH_GROUP = 'no_such_group'
    NOT_ENOUGH_AVAILABLE = 'not_enough_available'
    TYPE_DISABLED = 'type_disabled'
    TYPE_CONFLICT = 'type_conflict'
    DRIVER_HAS_NO_ROOM = 'driver_has_no_room'
    TOPOLOGY_SAME_NUMA = 'topology_same_numa'
    TOPOLOGY_SAME_SWITCH = 'topology_same_switch'
    NUMA_POLICY_REQUIRED = 'numa_policy_required'
    EXTRA_SPEC_INVALID = 'extra_spec_invalid'
    REQUEST_CHANGED = 'request_changed'
    CONDUCTOR_UNAVAILABLE = 'conductor_unavailable'


class AllocationPolicy(enum.StrEnum):
    """Order in which a group's cards are used."""

    DEPTH_FIRST = 'depth_first'
    BREADTH_FIRST = 'breadth_first'


class Topology(enum.StrEnum):
    """How the cards of one instance must sit to each other."""

    ANY = 'any'
    SAME_NUMA = 'same_numa'
    SAME_SWITCH = 'same_switch'


class NumaPolicy(enum.StrEnum):
    """Whether cards and the guest's memory share NUMA nodes."""

    NONE = 'none'
    PREFERRED = 'preferred'
    REQUIRED = 'required'


class Display(enum.StrEnum):
    """Whether the guest's first mdev is its display, too."""

    OFF = 'off'
    ON = 'on'


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Demand:
    """So many units of one resource class."""

    resource_class: str
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """All that an instance asks of the plugin.

    :ivar demands: sorted by resource class, no class twice, counts > 0.
        Every class of the flavor that could be ours; which of them are is
        the conductor's knowledge
    :ivar allocation_policy: None = the group's own
    """

    demands: tuple[Demand, ...] = ()
    topology: Topology = Topology.ANY
    allocation_policy: AllocationPolicy | None = None
    numa_policy: NumaPolicy = NumaPolicy.PREFERRED
    display: Display = Display.OFF

    def __bool__(self) -> bool:
        return bool(self.demands)


EXTRA_SPECS: Mapping[str, type[enum.StrEnum]] = {
    'gpgpu:allocation_policy': AllocationPolicy,
    'gpgpu:display': Display,
    'gpgpu:numa_policy': NumaPolicy,
    'gpgpu:topology': Topology,
}
"""The keys that are enforced, each with its values. A key or value comes
here only together with the code that enforces it."""

# Suffixed groups (resources1:...) are spread over providers by Placement and
# a group of cards is one provider, so only unsuffixed keys can be ours.
_RESOURCE_KEY = re.compile(r'resources:(CUSTOM_[A-Z0-9_]+|PGPU|VGPU)')


def check_extra_spec(key: str, value: str) -> enum.StrEnum:
    """The typed value of one ``gpgpu:`` key.

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


def from_extra_specs(extra_specs: Mapping[str, str]) -> Request:
    """Read a flavor's extra specs.

    :raises Invalid: a ``gpgpu:`` key or value that is not enforced, or a
        count that is not a positive integer
    """
    demands: list[Demand] = []
    typed: dict[str, typing.Any] = {}
    for key, value in extra_specs.items():
        if key.startswith('gpgpu:'):
            typed[key.partition(':')[2]] = check_extra_spec(key, value)
            continue
        match = _RESOURCE_KEY.fullmatch(key)
        if match is None:
            continue
        if not str(value).isdecimal():
            raise exception.Invalid(
                field=f'extra spec {key}', value=value,
                expected='a number of units')
        if int(value):
            demands.append(
                Demand(resource_class=match.group(1), count=int(value)))
    return Request(demands=tuple(sorted(demands)), **typed)
