# SPDX-License-Identifier: Apache-2.0
"""Client side of gpgpu-conductor's RPC API.

Meaning, results and errors of each method are in rpc.conductor_contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import session as session_obj
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import operator_api

_Context = gpgpu_context.RequestContext
_Conductor = conductor_contract.Conductor


class ConductorAPI(operator_api.OperatorAPI, _Conductor):
    """Calls to any live conductor.

    Every method raises ConductorUnavailable if no conductor answers in time.
    See conductor_client.ConductorClient for the parameters.
    """

    # -- compute hosts ------------------------------------------------------

    def begin_session(self, ctxt: _Context,
                      request: session_obj.SessionRequest,
                      ) -> session_obj.Session:
        return self._call(_Conductor.begin_session, ctxt, request=request)

    def digest(self, ctxt: _Context, origin: session_obj.Origin) -> int:
        return self._call(_Conductor.digest, ctxt, origin=origin)

    def report(self, ctxt: _Context, origin: session_obj.Origin,
               report: report_obj.HostReport,
               ) -> inventory_obj.HostInventory:
        return self._call(
            _Conductor.report, ctxt, origin=origin, report=report)

    def host_inventory(self, ctxt: _Context, host: str,
                       ) -> inventory_obj.HostInventory:
        return self._call(_Conductor.host_inventory, ctxt, host=host)

    def claim(self, ctxt: _Context, origin: session_obj.Origin,
              request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        return self._call(
            _Conductor.claim, ctxt, origin=origin, request=request)

    def activate(
        self, ctxt: _Context, origin: session_obj.Origin,
        assignments: Sequence[str],
        driver_capacities: report_obj.DriverCapacities | None = None,
        guest_addresses: claim_obj.GuestAddresses | None = None,
    ) -> inventory_obj.HostInventory:
        return self._call(
            _Conductor.activate, ctxt, origin=origin,
            assignments=assignments, driver_capacities=driver_capacities,
            guest_addresses=guest_addresses)

    def abort(
        self, ctxt: _Context, origin: session_obj.Origin,
        assignments: Sequence[str], *, touched: bool,
        fault: str | None = None,
        driver_capacities: report_obj.DriverCapacities | None = None,
    ) -> inventory_obj.HostInventory | None:
        return self._call(
            _Conductor.abort, ctxt, origin=origin, assignments=assignments,
            touched=touched, fault=fault,
            driver_capacities=driver_capacities)

    def release(self, ctxt: _Context, origin: session_obj.Origin,
                assignments: Sequence[str],
                ages: Mapping[str, int] | None = None,
                ) -> inventory_obj.HostInventory | None:
        return self._call(
            _Conductor.release, ctxt, origin=origin, assignments=assignments,
            ages=ages or {})

    def confirm_migration(
        self, ctxt: _Context, origin: session_obj.Origin,
        confirmation: claim_obj.MigrationConfirmation,
    ) -> tuple[inventory_obj.HostInventory, ...]:
        return self._call(
            _Conductor.confirm_migration, ctxt, origin=origin,
            confirmation=confirmation)

    def host_assignments(self, ctxt: _Context, origin: session_obj.Origin,
                         known: Sequence[str] = (),
                         ) -> tuple[claim_obj.Assignment, ...]:
        return self._call(
            _Conductor.host_assignments, ctxt, origin=origin, known=known)

    def compare_allocations(
        self, ctxt: _Context, origin: session_obj.Origin, number: int,
        allocations: conductor_contract.Allocations,
        assignments: Sequence[str], used: Sequence[str] = (),
    ) -> inventory_obj.HostInventory:
        return self._call(
            _Conductor.compare_allocations, ctxt, origin=origin,
            number=number, allocations=allocations, assignments=assignments,
            used=used)

    def instance_assignments(self, ctxt: _Context, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        return self._call(
            _Conductor.instance_assignments, ctxt,
            instance_uuid=instance_uuid)

    def vfs_refused(self, ctxt: _Context, origin: session_obj.Origin,
                    gpus: Sequence[str]) -> tuple[str, ...]:
        return self._call(
            _Conductor.vfs_refused, ctxt, origin=origin, gpus=gpus)

    def clean_tasks(self, ctxt: _Context, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        return self._call(_Conductor.clean_tasks, ctxt, host=host)

    def clean_started(self, ctxt: _Context, origin: session_obj.Origin,
                      device_uuid: str, token: str, attempt: str) -> None:
        self._call(
            _Conductor.clean_started, ctxt, origin=origin,
            device_uuid=device_uuid, token=token, attempt=attempt)

    def clean_failure(
        self, ctxt: _Context, origin: session_obj.Origin, device_uuid: str,
        attempt: str, results: Sequence[cleaning.StepResult],
    ) -> str | None:
        return self._call(
            _Conductor.clean_failure, ctxt, origin=origin,
            device_uuid=device_uuid, attempt=attempt, results=results)

    def clean_finished(
        self, ctxt: _Context, origin: session_obj.Origin, device_uuid: str,
        attempt: str, steps: Sequence[str],
        results: Sequence[cleaning.StepResult],
        driver_capacities: report_obj.DriverCapacities | None = None,
    ) -> inventory_obj.HostInventory:
        return self._call(
            _Conductor.clean_finished, ctxt, origin=origin,
            device_uuid=device_uuid, attempt=attempt, steps=steps,
            results=results, driver_capacities=driver_capacities)

    def clean_postponed(self, ctxt: _Context, origin: session_obj.Origin,
                        device_uuid: str, attempt: str, reason: str) -> None:
        self._call(
            _Conductor.clean_postponed, ctxt, origin=origin,
            device_uuid=device_uuid, attempt=attempt, reason=reason)

    def answer(self, ctxt: _Context, host: str, question: str,
               usages: Sequence[claim_obj.Usage]) -> None:
        self._call(_Conductor.answer, ctxt, host=host, question=question,
                   usages=usages)

    def examined(self, ctxt: _Context, host: str, question: str,
                 drifts: Sequence[drift.Drift]) -> None:
        self._call(_Conductor.examined, ctxt, host=host, question=question,
                   drifts=drifts)

    # -- schedulers ---------------------------------------------------------

    def changes_since(
        self, ctxt: _Context, since: float,
        known: Sequence[scheduling_obj.HostVersion], marker: int | None,
        refusals: Sequence[scheduling_obj.FilterRefusal] = (),
        requests: Sequence[scheduling_obj.ArrivedRequests] = (),
        mix: int = 0, period: float = 0.0,
    ) -> scheduling_obj.Changes:
        return self._call(_Conductor.changes_since, ctxt, since=since,
                          known=known, marker=marker, refusals=refusals,
                          requests=requests, mix=mix, period=period)

    def chosen(self, ctxt: _Context,
               choices: Sequence[scheduling_obj.Choice]) -> None:
        self._cast_to_all(_Conductor.chosen, ctxt, choices=choices)

    def exact_host(self, ctxt: _Context,
                   request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        return self._call(_Conductor.exact_host, ctxt, request=request)
