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
"""The RPC endpoint that nova-compute serves for its host."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

import oslo_messaging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract


@contract.serve(compute_api.Compute)
class ComputeManager(compute_api.Compute):
    """Version 1.0 of the per-host API.

    :param usage: see Compute.assignment_usage
    """

    target = oslo_messaging.Target(version=compute_api.VERSION)

    def __init__(self, refresh: Callable[[], None],
                 assignments_changed: Callable[[], None],
                 usage: Callable[[Sequence[claim_obj.Assignment]],
                                 tuple[claim_obj.Usage, ...]]) -> None:
        self._usage = usage
        self._refresh = refresh
        self._assignments_changed = assignments_changed

    def refresh(self, ctxt: gpgpu_context.RequestContext) -> None:
        """Fetch the host's inventory: the conductor changed it."""
        self._refresh()

    def assignments_changed(self, ctxt: gpgpu_context.RequestContext) -> None:
        """Fetch the host's assignments: the conductor changed them."""
        self._assignments_changed()

    def assignment_usage(
        self, ctxt: gpgpu_context.RequestContext, *,
        assignments: Sequence[claim_obj.Assignment],
    ) -> tuple[claim_obj.Usage, ...]:
        """Return whether the host's instances use their assignments."""
        return self._usage(assignments)

    def ping(self, ctxt: gpgpu_context.RequestContext) -> None:
        """Answer, which shows that this host is served."""
