# SPDX-License-Identifier: Apache-2.0
"""The part of the conductor's RPC contract that explains refusals.

See rpc.conductor_contract, which has the other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import what_if as what_if_obj
from gpgpu_plugin.objects import why_not as why_not_obj
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import pages

_Context = gpgpu_context.RequestContext

HOSTS_AT_ONCE = 50
"""Number of hosts that one call explains at most."""

LEAVING_AT_ONCE = 256
"""Number of instances that one plan has at most."""

OPTIONS_AT_ONCE = 1000
"""Number of candidates that one plan has at most, those of all kinds together.
1,000 hosts that all refuse take 5 s; the default ``[gpgpu] rpc_timeout`` is
10."""


class WhyNot:
    """Methods for operators: where a request fits, and why not elsewhere."""

    @pages.sized(HOSTS_AT_ONCE)
    @caller.operators()
    def why_not(self, ctxt: _Context, request: request_mod.Request,
                guest_nodes: int | None = None, host: str | None = None,
                limit: int = pages.ALL, marker: str | None = None,
                ) -> tuple[why_not_obj.HostAnswer, ...]:
        """Return what each host says to a request, page by page.

        Nothing is claimed or locked.

        :param guest_nodes: number of NUMA nodes of the guest; None: it has no
            NUMA topology
        :param host: only this one
        :param limit: number of hosts at most; a page has 50 at most
        :param marker: name of the host before the first one
        :raises Invalid: the request is for no GPU
        :raises NotFound: no such host
        """

    @caller.operators()
    def scheduler_view(self, ctxt: _Context, marker: int | None = None,
                       ) -> scheduling_obj.Changes:
        """Return one page of all hosts as schedulers see them, and the mix.

        :param marker: None: the first page; otherwise that of the page before
        """

    @caller.operators()
    def what_if_leaving(self, ctxt: _Context, hosts: Sequence[str],
                        ) -> tuple[what_if_obj.Leaving, ...]:
        """Return the instances that have devices on hosts.

        :raises NotFound: no such host
        """

    @caller.operators()
    def what_if_drain(self, ctxt: _Context,
                      question: what_if_obj.DrainQuestion,
                      ) -> what_if_obj.DrainAnswer:
        """Return where instances would go if hosts were drained.

        Nothing is claimed, drained or locked. One order is tried, the largest
        instance first; as many hosts are examined as can matter.

        :raises Invalid: there are too many instances or candidates, or one
            requests no GPU
        :raises NotFound: no such host
        """
