# SPDX-License-Identifier: Apache-2.0
"""Contract of gpgpu-manage doctor with the conductor.

See rpc.conductor_contract, which has the other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import cloud
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import pages

_Context = gpgpu_context.RequestContext

HOSTS_AT_ONCE = 100
"""Number of hosts that one call examines at most."""


class Doctor:
    """Methods of gpgpu-conductor that find and repair drifts."""

    @pages.sized(HOSTS_AT_ONCE)
    @caller.operators()
    def examine_database(self, ctxt: _Context, host: str | None = None,
                         limit: int = pages.ALL, marker: str | None = None,
                         ) -> tuple[cloud.HostRecord, ...]:
        """Return a page of hosts, each with its drifts in the database.

        :param host: only this one
        :param limit: number of hosts at most; a page has 100 at most
        :param marker: name of the host before the first one
        :raises NotFound: no such host
        """

    @caller.operators()
    def examine_cloud(self, ctxt: _Context) -> cloud.CloudRecord:
        """Return what is known that belongs to no host."""

    # A copy that another conductor executes has hosts compare once more.
    @contract.longer(compute_api.REPAIR_TIMEOUT)
    @caller.operators()
    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      repairs: Sequence[drift.Repair] = (),
                      ) -> tuple[drift.Drift, ...]:
        """Ask hosts for their drifts, all at the same time.

        A host that does not answer is a drift as well.

        :param hosts: names, 100 at most
        :param repairs: what each of them repairs first
        :raises Invalid: too many hosts, or a repair is none of drift.OF_HOST
        :raises BrokerUnavailable: no host can be asked
        """

    @caller.operators(once=True)
    def repair_database(self, ctxt: _Context, found: drift.Drift, actor: str,
                        ) -> bool:
        """Repair a drift in the database, if it still exists.

        :param actor: who has it repaired, for the events
        :returns: whether it existed
        :raises Invalid: its repair is none of drift.OF_CONDUCTOR
        """
