# SPDX-License-Identifier: Apache-2.0
"""Results of one decision of GpuFilter, for GpuWeigher.

It is kept with Nova's request, so that a weigher sees what the filter saw,
without another call.
"""

from __future__ import annotations

import dataclasses
import functools

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.scheduler_filters import scheduler_view

_ATTRIBUTE = 'gpgpu_decision'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """A request, and the view against which it was checked.

    :ivar request: what it demands of the plugin's classes; may be empty
    :ivar view: None: it was never read, and the request has no GPUs
    :ivar guest_nodes: number of NUMA nodes of the guest; None: it has no NUMA
        topology
    """

    request: request_mod.Request
    view: scheduler_view.SchedulerView | None
    guest_nodes: int | None = None


def remember(spec_obj: nova_types.RequestSpec, decision: Decision) -> None:
    """Keep the decision about a request."""
    setattr(spec_obj, _ATTRIBUTE, decision)


def forget(spec_obj: nova_types.RequestSpec) -> None:
    """Forget an earlier decision about a request, if there was one."""
    spec_obj.__dict__.pop(_ATTRIBUTE, None)


def of(spec_obj: nova_types.RequestSpec) -> Decision | None:
    """Return the last decision about a request."""
    found: Decision | None = getattr(spec_obj, _ATTRIBUTE, None)
    return found


def watch(host: nova_types.HostState) -> None:
    """Have it noted if Nova chooses a host.

    Nova tells neither filters nor weighers. It calls consume_from_request of
    the one HostState that it chose and has an allocation for.
    """
    # An attribute would be one more object for each host of each decision.
    kind = type(host)
    if not issubclass(kind, _Watched):
        host.__class__ = _watched(kind)


class _Watched:
    """Mixin of a HostState that notes that it was chosen."""

    uuid: str

    def consume_from_request(self, spec_obj: nova_types.RequestSpec) -> None:
        """Do what Nova does, and note the choice."""
        super().consume_from_request(spec_obj)  # type: ignore[misc]
        decision = of(spec_obj)
        if decision is not None and decision.view is not None:
            decision.view.pending.add(
                self.uuid, spec_obj.instance_uuid, decision.request)


@functools.cache
def _watched(kind: type) -> type:
    """Return the class of hosts of a class of Nova that are watched."""
    return type(kind.__name__, (_Watched, kind), {})
