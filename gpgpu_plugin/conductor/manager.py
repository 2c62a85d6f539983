# SPDX-License-Identifier: Apache-2.0
"""The conductor's RPC endpoint: each method calls one function of a module.

Meaning, results and errors of each method are in rpc.conductor_contract. The
only decision made here is which hosts to notify: those that a migration, or
what an operator changed, concerns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import callers
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import drift as drift_mod
from gpgpu_plugin.conductor import host_messages
from gpgpu_plugin.conductor import refusals as refusals_mod
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor import selection
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor import what_if
from gpgpu_plugin.conductor import why_not
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import assignment as assignment_admin
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.doctor import cloud
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import cleaning as cleaning_rules
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.objects import history as history_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import compute_api as compute_api_mod
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import server

LOG = logging.getLogger(__name__)

# -- Base of the conductor's RPC endpoint: what its methods work with.


_Context = gpgpu_context.RequestContext


class ConductorEndpoint:
    """Base of the endpoint: the database, and clients that notify hosts.

    :param wake: has what a call left to do for a variant done at once
    :param observer: called with the end of each cleaning
    :param refused: records what is refused; default one of its own
    :param requests: counts what schedulers are asked for; as ``refused``
    :param choices: what schedulers chose; as ``refused``
    """

    def __init__(self, conf: cfg.ConfigOpts, db: api.Database,
                 compute_api: compute_api_mod.ComputeAPI,
                 wake: Callable[[], None] = lambda: None,
                 refused: refusals_mod.RefusalRecorder | None = None,
                 requests: scheduler_feed.CountedMix | None = None,
                 observer: Callable[[cleaning.EndedCleaning], None] = (
                     lambda ended: None),
                 choices: scheduler_feed.RecentChoices
                 | None = None) -> None:
        self._conf = conf
        self._silent_after: float = conf_gpgpu.silent_after(conf)
        self._db = db
        self._wake = wake
        self._observer = observer
        self._compute_api = compute_api
        self._hosts = host_messages.HostQuery(compute_api)
        self._feed = scheduler_feed.SchedulerFeed(db)
        self._refused = refused or refusals_mod.RefusalRecorder(db)
        self._requests = requests or scheduler_feed.CountedMix(db)
        self._choices = choices or scheduler_feed.RecentChoices()

    def _by_host(self, ctxt: _Context, host: str) -> api.Database:
        return self._db.by(callers.host_author(ctxt, host))

    def _by_operator(self, ctxt: _Context) -> api.Database:
        return self._db.by(callers.operator_author(ctxt))

    def _refresh(self, ctxt: _Context, hosts: Iterable[str]) -> None:
        for host in hosts:
            host_messages.notify_hosts(self._compute_api.refresh, ctxt, host)

    def _tell(self, ctxt: _Context, host: str) -> None:
        host_messages.notify_hosts(self._compute_api.assignments_changed, ctxt,
                                   host)


# -- The operators' methods.


_PART = 0.3
"""Part of its caller's time in which a call applies a variant to hosts."""


class OperatorCalls(ConductorEndpoint):
    """The operators' methods, of all contracts."""

    @contextlib.contextmanager
    def _variant_caller(self, ctxt: _Context, method: str,
                        name: str) -> Iterator[variant_sweep.SweepCaller]:
        """Return the context of a call that changes a variant."""
        wanted = ctxt.wanted or self._conf.gpgpu.rpc_timeout
        try:
            yield variant_sweep.SweepCaller(
                check_wanted=functools.partial(
                    server.check_wanted, method, f'variant {name}', wanted),
                is_over=lambda: server.seconds_left() > wanted * _PART,
                tell=lambda host: self._refresh(ctxt, [host]))
        finally:
            self._wake()

    def variant_create(self, ctxt: _Context, *, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        with self._variant_caller(
                ctxt, 'variant_create', variant.name) as caller:
            return variant_admin.create(
                self._by_operator(ctxt), variant, caller)

    def variant_preview(self, ctxt: _Context, *,
                        variants: Sequence[admin.VariantInfo], limit: int,
                        marker: str | None,
                        ) -> tuple[admin.VariantPreview, ...]:
        return variant_admin.preview(self._db, variants, limit, marker)

    def variant_list(self, ctxt: _Context) -> tuple[admin.VariantInfo, ...]:
        return variant_admin.list_all(self._db)

    def variant_show(self, ctxt: _Context, *, name: str,
                     ) -> admin.VariantInfo:
        return variant_admin.show(self._db, name)

    def variant_set(self, ctxt: _Context, *, variant: admin.VariantInfo,
                    before: admin.VariantInfo | None) -> admin.VariantInfo:
        with self._variant_caller(
                ctxt, 'variant_set', variant.name) as caller:
            return variant_admin.set_(
                self._by_operator(ctxt), variant, caller, before)

    def variant_delete(self, ctxt: _Context, *, name: str) -> None:
        with self._variant_caller(ctxt, 'variant_delete', name) as caller:
            variant_admin.delete(self._by_operator(ctxt), name, caller)

    def vgpu_type_list(self, ctxt: _Context, *, host: str | None,
                       variant: str | None, vgpu_type: str | None,
                       only_enabled: bool, limit: int, marker: str | None,
                       ) -> tuple[admin.VGPUTypeInfo, ...]:
        return group_admin.list_types(
            self._db, host, variant, limit, marker, vgpu_type=vgpu_type,
            only_enabled=only_enabled, silent_after=self._silent_after)

    def vgpu_type_set(self, ctxt: _Context, *, variant: str, vgpu_type: str,
                      host: str | None, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        with self._variant_caller(ctxt, 'vgpu_type_set', variant) as caller:
            return group_admin.set_type_enabled(
                self._by_operator(ctxt), variant, vgpu_type, host,
                enabled=enabled, caller=caller)

    def host_list(self, ctxt: _Context, *, limit: int, marker: str | None,
                  ) -> tuple[admin.HostInfo, ...]:
        return host_admin.list_all(
            self._db, limit, marker, silent_after=self._silent_after)

    def host_show(self, ctxt: _Context, *, host: str) -> admin.HostInfo:
        return host_admin.show(
            self._db, host, silent_after=self._silent_after)

    def host_delete(self, ctxt: _Context, *, host: str, force: bool) -> None:
        if not force:
            host_admin.check_not_running(
                self._db, host,
                lambda: self._hosts.is_answered(ctxt, host))
        host_admin.delete(self._by_operator(ctxt), host, force=force)
        # A nova-compute that runs despite --force reports its host again.
        self._refresh(ctxt, [host])

    def host_drain(self, ctxt: _Context, *, host: str, draining: bool,
                   reason: str | None) -> admin.HostInfo:
        changed = host_admin.drain(
            self._by_operator(ctxt), host, callers.signed_operator(ctxt),
            draining=draining, reason=reason)
        self._refresh(ctxt, [host])
        return changed

    def host_takeover(self, ctxt: _Context, *, host: str) -> None:
        sessions.allow_takeover(self._by_operator(ctxt), host)

    def group_list(self, ctxt: _Context, *, host: str | None,
                   variant: str | None, limit: int, marker: str | None,
                   ) -> tuple[admin.GroupInfo, ...]:
        return group_admin.list_all(
            self._db, host, variant, limit, marker,
            silent_after=self._silent_after)

    def group_set(self, ctxt: _Context, *, host: str, variant: str,
                  allocation_policy: str | None,
                  ) -> tuple[admin.GroupInfo, ...]:
        with self._variant_caller(ctxt, 'group_set', variant) as caller:
            return group_admin.set_(
                self._by_operator(ctxt), host, variant, allocation_policy,
                caller)

    def group_links_set(self, ctxt: _Context, *, host: str, variant: str,
                        link_partitions: str | None,
                        ) -> tuple[admin.GroupInfo, ...]:
        with self._variant_caller(
                ctxt, 'group_links_set', variant) as caller:
            return group_admin.set_links(
                self._by_operator(ctxt), host, variant, link_partitions,
                caller.check_wanted)

    def _usage(self, ctxt: _Context) -> assignment_admin.Ask:
        return functools.partial(self._hosts.usages, ctxt)

    def assignment_list(self, ctxt: _Context, *, host: str | None,
                        instance: str | None, limit: int, marker: str | None,
                        ) -> tuple[admin.AssignmentInfo, ...]:
        return assignment_admin.list_all(
            self._db, self._usage(ctxt), host, instance, limit, marker)

    def assignment_end(self, ctxt: _Context, *, assignments: Sequence[str],
                       force: bool, actor: str,
                       ) -> tuple[admin.AssignmentInfo, ...]:
        ended = assignment_admin.end(
            self._by_operator(ctxt), self._usage(ctxt), assignments,
            force=force, actor=callers.with_signature(ctxt, actor))
        for host in {assignment.host for assignment in ended}:
            self._tell(ctxt, host)
        return ended

    def device_list(self, ctxt: _Context, *, host: str | None,
                    variant: str | None, state: str | None,
                    used_by: str | None, project: str | None, type: str | None,
                    vgpu_type: str | None, health: str | None,
                    include_retired: bool, limit: int, marker: str | None,
                    faulty: bool,
                    ) -> tuple[admin.DeviceInfo, ...]:
        return device_admin.list_all(
            self._db, host=host, variant=variant, state=state,
            used_by=used_by, project=project, type=type, vgpu_type=vgpu_type,
            health=health, faulty=faulty, include_retired=include_retired,
            limit=limit, marker=marker, silent_after=self._silent_after)

    def device_show(self, ctxt: _Context, *, device: str) -> admin.DeviceInfo:
        return device_admin.show(
            self._db, device, silent_after=self._silent_after)

    def hold_list(self, ctxt: _Context, *, host: str | None,
                  kind: str | None, limit: int, marker: str | None,
                  ) -> tuple[admin.HoldInfo, ...]:
        return device_admin.list_holds(self._db, host, kind, limit, marker)

    def hold_add(self, ctxt: _Context, *, device: str, kind: str,
                 reason: str | None) -> admin.DeviceInfo:
        device_admin.add_hold(self._by_operator(ctxt), device, kind, reason,
                              callers.signed_operator(ctxt))
        return self._changed(ctxt, device)

    def hold_remove(self, ctxt: _Context, *, device: str,
                    kinds: Sequence[str]) -> admin.DeviceInfo:
        device_admin.remove_hold(self._by_operator(ctxt), device, kinds,
                                 callers.signed_operator(ctxt))
        return self._changed(ctxt, device)

    def device_release(self, ctxt: _Context, *, device: str,
                       ) -> admin.DeviceInfo:
        device_admin.release_device(self._by_operator(ctxt), device,
                                    callers.signed_operator(ctxt))
        return self._changed(ctxt, device)

    def device_accept(self, ctxt: _Context, *, devices: Sequence[str],
                      reason: str) -> tuple[admin.DeviceInfo, ...]:
        withdrawal.accept_clean(self._by_operator(ctxt), devices, reason,
                                callers.signed_operator(ctxt))
        return tuple(self._changed(ctxt, device) for device in devices)

    def device_replace(self, ctxt: _Context, *, device: str,
                       ) -> admin.DeviceInfo:
        return self._changed(ctxt, retirement.replace(
            self._by_operator(ctxt), device, callers.signed_operator(ctxt)))

    def _changed(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Return a device whose host must learn what was done to it."""
        shown = device_admin.show(self._db, device)
        self._refresh(ctxt, [shown.host])
        return shown

    def device_history(self, ctxt: _Context, *, device: str, limit: int,
                       marker: str | None) -> tuple[ledger.Record, ...]:
        return history.list_cleanings(self._db, device, limit, marker)

    def device_ledger_head(self, ctxt: _Context, *,
                           device: str) -> ledger.Head:
        return history.ledger_head(self._db, device)

    def usage_list(self, ctxt: _Context, *, query: history_obj.UsageQuery,
                   limit: int, marker: str | None,
                   ) -> tuple[history_obj.UsageInfo, ...]:
        return history.list_usage(self._db, query, limit, marker)

    def usage_summary(self, ctxt: _Context, *, query: history_obj.UsageQuery,
                      by: Sequence[str], limit: int, marker: str | None,
                      ) -> tuple[history_obj.UsageSum, ...]:
        return history.usage_summary(self._db, query, by, limit, marker)

    def usage_unexported(self, ctxt: _Context, *, limit: int,
                         marker: str | None,
                         ) -> tuple[history_obj.UsageInfo, ...]:
        return history.unexported(self._db, limit, marker)

    def usage_mark_exported(self, ctxt: _Context, *, usages: Sequence[str],
                            ) -> int:
        return history.mark_exported(self._db, usages)

    def event_list(self, ctxt: _Context, *, wanted: history_obj.EventFilter,
                   limit: int, marker: str | None,
                   ) -> tuple[history_obj.EventInfo, ...]:
        return history.list_events(
            self._db, wanted, limit=limit, marker=marker)

    def why_not(self, ctxt: _Context, *, request: request_mod.Request,
                guest_nodes: int | None, host: str | None, limit: int,
                marker: str | None) -> tuple[forecast.HostAnswer, ...]:
        return why_not.page(
            self._db, request, guest_nodes, host, limit, marker,
            silent_after=self._silent_after)

    def scheduler_view(self, ctxt: _Context, *, marker: int | None,
                       ) -> scheduling_obj.Changes:
        return dataclasses.replace(
            self._feed.changes_since(0, (), marker),
            mix=self._requests.newer(0))

    def what_if_leaving(self, ctxt: _Context, *, hosts: Sequence[str],
                        ) -> tuple[forecast.Leaving, ...]:
        return what_if.leaving(self._db, hosts)

    def what_if_drain(self, ctxt: _Context, *,
                      question: forecast.DrainQuestion,
                      ) -> forecast.DrainAnswer:
        return what_if.drain(
            self._db, question, silent_after=self._silent_after)

    def examine_database(self, ctxt: _Context, *, host: str | None,
                         limit: int, marker: str | None,
                         ) -> tuple[cloud.HostRecord, ...]:
        return drift_mod.page(self._db, host, limit, marker)

    def examine_cloud(self, ctxt: _Context) -> cloud.CloudRecord:
        return drift_mod.cloud_records(self._db)

    def examine_hosts(self, ctxt: _Context, *, hosts: Sequence[str],
                      repairs: Sequence[drift.Repair],
                      ) -> tuple[drift.Drift, ...]:
        return self._hosts.drifts(ctxt, hosts, repairs)

    def repair_database(self, ctxt: _Context, *, found: drift.Drift,
                        actor: str) -> bool:
        repaired = drift_mod.repair(
            self._by_operator(ctxt), found,
            callers.with_signature(ctxt, actor))
        if repaired and found.host is not None:
            self._refresh(ctxt, [found.host])
        return repaired


# -- The whole endpoint: methods of hosts and schedulers, and those above.


@contract.serve(conductor_contract.Conductor)
class ConductorManager(OperatorCalls):
    """Version 3.0 of the conductor's API.

    See ConductorEndpoint for the parameters.
    """

    target = oslo_messaging.Target(version=conductor_contract.VERSION)

    # -- compute hosts ------------------------------------------------------

    def begin_session(self, ctxt: _Context, *,
                      request: report_obj.SessionRequest,
                      ) -> report_obj.Session:
        sessions.compare_timeout(
            request.host, ctxt.wanted, self._conf.gpgpu.rpc_timeout)
        return sessions.begin(
            self._by_host(ctxt, request.host), request,
            conf_gpgpu.silent_after(self._conf),
            ctxt.caller.number if ctxt.caller else None)

    def digest(self, ctxt: _Context, *, origin: report_obj.Origin) -> int:
        return sessions.digest(self._db, origin)

    def report(self, ctxt: _Context, *, origin: report_obj.Origin,
               report: report_obj.HostReport,
               ) -> inventory_obj.HostInventory:
        return reports.report(
            self._by_host(ctxt, origin.host), report, origin)

    def host_inventory(self, ctxt: _Context, *, host: str,
                       ) -> inventory_obj.HostInventory:
        with self._db.reader() as session:
            return capacity.host_inventory(session, host_db.get(session, host))

    def claim(self, ctxt: _Context, *, origin: report_obj.Origin,
              request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        db = self._by_host(ctxt, origin.host)
        try:
            return claims.claim(
                db, request, conf_gpgpu.claim_lease(self._conf), origin,
                functools.partial(
                    server.check_wanted, 'claim',
                    f'instance {request.instance_uuid}', ctxt.wanted),
                self._conf.gpgpu_conductor.exact_device_projects)
        except exception.RequestExpired as exc:
            LOG.info('%s', exc)
            raise
        except exception.ClaimDenied as exc:
            LOG.info('%s', exc)
            self._refused.denied(
                callers.host_author(ctxt, origin.host), request, exc)
            raise

    def activate(
        self, ctxt: _Context, *, origin: report_obj.Origin,
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
        self, ctxt: _Context, *, origin: report_obj.Origin,
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

    def release(self, ctxt: _Context, *, origin: report_obj.Origin,
                assignments: Sequence[str], ages: Mapping[str, int],
                ) -> inventory_obj.HostInventory | None:
        released = releases.release(
            self._by_host(ctxt, origin.host), assignments, origin, ages)
        for host in releases.other_hosts(self._db, assignments):
            # It asks Nova itself whether the instance is being deleted.
            self._tell(ctxt, host)
        return released

    def confirm_migration(
        self, ctxt: _Context, *, origin: report_obj.Origin,
        confirmation: claim_obj.MigrationConfirmation,
    ) -> tuple[inventory_obj.HostInventory, ...]:
        offered, changed = claims.confirm(
            self._by_host(ctxt, origin.host), confirmation, origin)
        for host in changed:
            # The source confirms for the destination, and a host that an
            # earlier move left does not learn of it from Nova.
            self._tell(ctxt, host)
        return offered

    def host_assignments(self, ctxt: _Context, *,
                         origin: report_obj.Origin, known: Sequence[str],
                         ) -> tuple[claim_obj.Assignment, ...]:
        return claims.of_origin(self._db, origin, known)

    def compare_allocations(
        self, ctxt: _Context, *, origin: report_obj.Origin, number: int,
        allocations: conductor_contract.Allocations,
        assignments: Sequence[str], used: Sequence[str],
    ) -> inventory_obj.HostInventory:
        return releases.compare_allocations(
            self._by_host(ctxt, origin.host), origin.host, allocations,
            assignments, number, origin, used)

    def instance_assignments(self, ctxt: _Context, *, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        return claims.of_instance(self._db, instance_uuid)

    def vfs_refused(self, ctxt: _Context, *, origin: report_obj.Origin,
                    gpus: Sequence[str]) -> tuple[str, ...]:
        return cleaning.vfs_refused(self._db, origin, gpus)

    def clean_tasks(self, ctxt: _Context, *, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        return cleaning.tasks(self._db, host)

    def clean_started(self, ctxt: _Context, *, origin: report_obj.Origin,
                      device_uuid: str, token: str, attempt: str) -> None:
        cleaning.started(self._by_host(ctxt, origin.host), device_uuid,
                         token, attempt, origin)

    def clean_failure(
        self, ctxt: _Context, *, origin: report_obj.Origin,
        device_uuid: str, attempt: str,
        results: Sequence[cleaning_rules.StepResult],
    ) -> str | None:
        return cleaning.failure(
            self._db, device_uuid, attempt, results, origin)

    def clean_finished(
        self, ctxt: _Context, *, origin: report_obj.Origin,
        device_uuid: str, attempt: str, steps: Sequence[str],
        results: Sequence[cleaning_rules.StepResult],
        driver_capacities: report_obj.DriverCapacities | None,
    ) -> inventory_obj.HostInventory:
        return cleaning.finished(
            self._by_host(ctxt, origin.host), device_uuid, attempt, steps,
            results, driver_capacities, origin, self._observer)

    def clean_postponed(self, ctxt: _Context, *, origin: report_obj.Origin,
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
            callers.scheduler_author(ctxt), refusals)
        if recorded:
            self._requests.add(requests)
        return dataclasses.replace(
            changes, recorded=recorded, mix=self._requests.newer(mix),
            choices=self._choices.newer_than(period))

    def chosen(self, ctxt: _Context, *,
               choices: Sequence[scheduling_obj.SchedulerChoice]) -> None:
        self._choices.add(choices)

    def exact_host(self, ctxt: _Context, *,
                   request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        return selection.find_exact(
            self._db, request,
            self._conf.gpgpu_conductor.exact_device_projects)
