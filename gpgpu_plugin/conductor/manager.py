# SPDX-License-Identifier: Apache-2.0
"""The conductor's RPC endpoint: each method calls one function of a module.

Meaning, results and errors of each method are in rpc.conductor_contract. The
only decision made here is which hosts to notify: those that a migration
concerns. The operators' methods are in operator_calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from collections.abc import Sequence

import oslo_messaging
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import allocation_sync
from gpgpu_plugin.conductor import authors
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import confirmation as confirmation_mod
from gpgpu_plugin.conductor import exact_devices
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import operator_calls
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import cleaning as cleaning_rules
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import session as session_obj
from gpgpu_plugin.rpc import arrival
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract

LOG = logging.getLogger(__name__)

_Context = gpgpu_context.RequestContext


@contract.serve(conductor_contract.Conductor)
class ConductorManager(operator_calls.OperatorCalls):
    """Version 3.0 of the conductor's API; see Endpoint for the parameters."""

    target = oslo_messaging.Target(version=conductor_contract.VERSION)

    # -- compute hosts ------------------------------------------------------

    def begin_session(self, ctxt: _Context, *,
                      request: session_obj.SessionRequest,
                      ) -> session_obj.Session:
        sessions.compare_timeout(
            request.host, ctxt.wanted, self._conf.gpgpu.rpc_timeout)
        return sessions.begin(
            self._by_host(ctxt, request.host), request,
            conf_gpgpu.silent_after(self._conf),
            ctxt.caller.number if ctxt.caller else None)

    def digest(self, ctxt: _Context, *, origin: session_obj.Origin) -> int:
        return sessions.digest(self._db, origin)

    def report(self, ctxt: _Context, *, origin: session_obj.Origin,
               report: report_obj.HostReport,
               ) -> inventory_obj.HostInventory:
        return reports.report(
            self._by_host(ctxt, origin.host), report, origin)

    def host_inventory(self, ctxt: _Context, *, host: str,
                       ) -> inventory_obj.HostInventory:
        with self._db.reader() as session:
            return inventory.of_host(session, host_db.get(session, host))

    def claim(self, ctxt: _Context, *, origin: session_obj.Origin,
              request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        db = self._by_host(ctxt, origin.host)
        try:
            return claims.claim(
                db, request, conf_gpgpu.claim_lease(self._conf), origin,
                functools.partial(
                    arrival.check_wanted, 'claim',
                    f'instance {request.instance_uuid}', ctxt.wanted),
                self._conf.gpgpu_conductor.exact_device_projects)
        except exception.RequestExpired as exc:
            LOG.info('%s', exc)
            raise
        except exception.ClaimDenied as exc:
            LOG.info('%s', exc)
            self._refused.denied(
                authors.of_host(ctxt, origin.host), request, exc)
            raise

    def activate(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        assignments: Sequence[str],
        driver_capacities: report_obj.DriverCapacities | None,
        guest_addresses: claim_obj.GuestAddresses | None,
    ) -> inventory_obj.HostInventory:
        offered = claims.activate(
            self._by_host(ctxt, origin.host), assignments,
            driver_capacities, origin, guest_addresses)
        for host in releases.left_hosts(self._db, assignments):
            # Usage there has ended unless the host knows better.
            self._tell(ctxt, host)
        return offered

    def abort(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        assignments: Sequence[str], touched: bool, fault: str | None,
        driver_capacities: report_obj.DriverCapacities | None,
    ) -> inventory_obj.HostInventory | None:
        changed = releases.abort(
            self._by_host(ctxt, origin.host), assignments,
            touched=touched, fault=fault,
            driver_capacities=driver_capacities, origin=origin)
        if changed is not None and changed.host != origin.host:
            # The source of a migration that failed there ends what the
            # destination has claimed.
            self._tell(ctxt, changed.host)
        return changed

    def release(self, ctxt: _Context, *, origin: session_obj.Origin,
                assignments: Sequence[str], ages: Mapping[str, int],
                ) -> inventory_obj.HostInventory | None:
        released = releases.release(
            self._by_host(ctxt, origin.host), assignments, origin, ages)
        for host in releases.other_hosts(self._db, assignments):
            # It asks Nova itself whether the instance is being deleted.
            self._tell(ctxt, host)
        return released

    def confirm_migration(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        confirmation: claim_obj.MigrationConfirmation,
    ) -> tuple[inventory_obj.HostInventory, ...]:
        offered, changed = confirmation_mod.confirm(
            self._by_host(ctxt, origin.host), confirmation, origin)
        for host in changed:
            # The source confirms for the destination, and a host that an
            # earlier move left does not learn of it from Nova.
            self._tell(ctxt, host)
        return offered

    def host_assignments(self, ctxt: _Context, *,
                         origin: session_obj.Origin, known: Sequence[str],
                         ) -> tuple[claim_obj.Assignment, ...]:
        return claims.of_origin(self._db, origin, known)

    def compare_allocations(
        self, ctxt: _Context, *, origin: session_obj.Origin, number: int,
        allocations: conductor_contract.Allocations,
        assignments: Sequence[str], used: Sequence[str],
    ) -> inventory_obj.HostInventory:
        return allocation_sync.compare(
            self._by_host(ctxt, origin.host), origin.host, allocations,
            assignments, number, origin, used)

    def instance_assignments(self, ctxt: _Context, *, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        return claims.of_instance(self._db, instance_uuid)

    def vfs_refused(self, ctxt: _Context, *, origin: session_obj.Origin,
                    gpus: Sequence[str]) -> tuple[str, ...]:
        return cleaning.vfs_refused(self._db, origin, gpus)

    def clean_tasks(self, ctxt: _Context, *, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        return cleaning.tasks(self._db, host)

    def clean_started(self, ctxt: _Context, *, origin: session_obj.Origin,
                      device_uuid: str, token: str, attempt: str) -> None:
        cleaning.started(self._by_host(ctxt, origin.host), device_uuid,
                         token, attempt, origin)

    def clean_failure(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        device_uuid: str, attempt: str,
        results: Sequence[cleaning_rules.StepResult],
    ) -> str | None:
        return cleaning.failure(
            self._db, device_uuid, attempt, results, origin)

    def clean_finished(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        device_uuid: str, attempt: str, steps: Sequence[str],
        results: Sequence[cleaning_rules.StepResult],
        driver_capacities: report_obj.DriverCapacities | None,
    ) -> inventory_obj.HostInventory:
        return cleaning.finished(
            self._by_host(ctxt, origin.host), device_uuid, attempt, steps,
            results, driver_capacities, origin, self._observer)

    def clean_postponed(self, ctxt: _Context, *, origin: session_obj.Origin,
                        device_uuid: str, attempt: str, reason: str) -> None:
        cleaning.postponed(self._by_host(ctxt, origin.host), device_uuid,
                           attempt, reason, origin)

    def answer(self, ctxt: _Context, *, host: str, question: str,
               usages: Sequence[claim_obj.Usage],
               drifts: Sequence[drift.Drift]) -> None:
        self._hosts.answer(host, question, usages, drifts)

    # -- schedulers ---------------------------------------------------------

    def changes_since(
        self, ctxt: _Context, *, since: float,
        known: Sequence[scheduling_obj.HostVersion], marker: int | None,
        refusals: Sequence[scheduling_obj.FilterRefusal],
        requests: Sequence[scheduling_obj.ArrivedRequests], mix: int,
        period: float,
    ) -> scheduling_obj.Changes:
        changes = self._feed.changes_since(since, known, marker)
        recorded = self._refused.filtered(
            authors.of_scheduler(ctxt), refusals)
        if recorded:
            self._requests.add(requests)
        return dataclasses.replace(
            changes, recorded=recorded, mix=self._requests.newer(mix),
            choices=self._choices.newer_than(period))

    def chosen(self, ctxt: _Context, *,
               choices: Sequence[scheduling_obj.Choice]) -> None:
        self._choices.add(choices)

    def exact_host(self, ctxt: _Context, *,
                   request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        return exact_devices.find(
            self._db, request,
            self._conf.gpgpu_conductor.exact_device_projects)
