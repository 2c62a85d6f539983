# SPDX-License-Identifier: Apache-2.0
"""Client side of gpgpu-conductor's RPC API.

Arguments, meaning, results and errors of each method are in
rpc.conductor_contract, and in the contracts that it names.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import view
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import doctor_contract

_Context = gpgpu_context.RequestContext
_Conductor = conductor_contract.Conductor


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

    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      ) -> tuple[view.HostAnswer, ...]:
        """Examine some hosts at once, one batch after the other."""
        return tuple(
            answer for some in doctor_contract.batches(hosts)
            for answer in self._call_within(
                self._timeout + doctor_contract.EXAMINE_TIMEOUT,
                _Conductor.examine_hosts, ctxt, hosts=some))
