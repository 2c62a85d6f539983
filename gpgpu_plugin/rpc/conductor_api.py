# SPDX-License-Identifier: Apache-2.0
"""Client side of gpgpu-conductor's RPC API.

Arguments, meaning, results and errors of each method are in
rpc.conductor_contract, and in the contracts that it names.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import doctor_contract

_Context = gpgpu_context.RequestContext
_Conductor = conductor_contract.Conductor
_HOSTS_AT_ONCE = doctor_contract.HOSTS_AT_ONCE


@conductor_client.calls(_Conductor)
class ConductorAPI(conductor_client.ConductorClient, _Conductor):
    """Calls to any live conductor.

    Every method raises ConductorUnavailable if no conductor answers in time.
    See conductor_client.ConductorClient for the parameters.
    """

    def chosen(self, ctxt: _Context,
               choices: Sequence[scheduling_obj.Choice]) -> None:
        """Send the choices to every conductor, and wait for none."""
        self._cast_to_all(_Conductor.chosen, ctxt, choices=choices)

    def answer(self, ctxt: _Context, host: str, question: str,
               usages: Sequence[claim_obj.Usage] = (),
               drifts: Sequence[drift.Drift] = ()) -> None:
        """Send an answer to every conductor: one of them asked."""
        self._cast_to_all(
            _Conductor.answer, ctxt, host=host, question=question,
            usages=usages, drifts=drifts)

    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      repairs: Sequence[drift.Repair] = (),
                      ) -> tuple[drift.Drift, ...]:
        """Examine some hosts at once, one batch after the other."""
        return tuple(
            found for first in range(0, len(hosts), _HOSTS_AT_ONCE)
            for found in self._call_within(
                self._timeout + compute_api.REPAIR_TIMEOUT,
                _Conductor.examine_hosts, ctxt,
                hosts=hosts[first:first + _HOSTS_AT_ONCE], repairs=repairs))
