# SPDX-License-Identifier: Apache-2.0
"""RPC contracts of gpgpu-manage doctor: of the conductor, and of a host.

See rpc.conductor_contract and rpc.compute_api, which have the other methods.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import pages

_Context = gpgpu_context.RequestContext

HOSTS_AT_ONCE = 100
"""Number of hosts that one call examines at most."""

EXAMINE_TIMEOUT = 20
"""Seconds within which a nova-compute must say what it found."""

REPAIR_TIMEOUT = 60
"""Seconds within which a nova-compute must say what it repaired."""


class Doctor:
    """Methods of gpgpu-conductor that find and repair drifts."""

    @pages.sized(HOSTS_AT_ONCE)
    @caller.operators()
    def examine_database(self, ctxt: _Context, host: str | None = None,
                         limit: int = pages.ALL, marker: str | None = None,
                         ) -> tuple[view.HostRecord, ...]:
        """Return a page of hosts, each with its drifts in the database.

        :param host: only this one
        :param limit: number of hosts at most; a page has 100 at most
        :param marker: name of the host before the first one
        :raises NotFound: no such host
        """

    @caller.operators()
    def examine_cloud(self, ctxt: _Context) -> view.CloudRecord:
        """Return what is known that belongs to no host."""

    @caller.operators()
    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      ) -> tuple[view.HostAnswer, ...]:
        """Ask hosts for their drifts, all at the same time.

        :param hosts: names, 100 at most
        :returns: for each host, also for those that did not answer
        :raises Invalid: too many hosts
        :raises BrokerUnavailable: no host can be asked
        """

    @contract.longer(REPAIR_TIMEOUT)
    @caller.operators(once=True)
    def repair_hosts(self, ctxt: _Context, hosts: Sequence[str],
                     repairs: Sequence[drift.Repair],
                     ) -> tuple[view.HostAnswer, ...]:
        """Have hosts repair drifts; return those that are left.

        :param hosts: names, 100 at most
        :param repairs: what each of them repairs
        :returns: as for examine_hosts
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

    @caller.hosts('host')
    def examined(self, ctxt: _Context, host: str, question: str,
                 drifts: Sequence[drift.Drift]) -> None:
        """Answer a question of a conductor (Examined.examine).

        An answer for which nobody waits is dropped.

        :raises Invalid: a drift is not one that the host itself can find
        """


class Examined(typing.Protocol):
    """Method that one host's nova-compute serves beside those of Compute."""

    def examine(self, ctxt: _Context, *, question: str, asked_at: float,
                repairs: Sequence[drift.Repair]) -> None:
        """Examine this host, and answer by a call to a conductor.

        A question that has waited while nova-compute was down is dropped.

        :param question: UUID of this question
        :param asked_at: seconds since the epoch
        :param repairs: what is repaired first
        """


def batches(hosts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield as many hosts as one call may name."""
    return (hosts[first:first + HOSTS_AT_ONCE]
            for first in range(0, len(hosts), HOSTS_AT_ONCE))
