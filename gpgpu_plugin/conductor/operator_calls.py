# SPDX-License-Identifier: Apache-2.0
"""Operators' part of the conductor's RPC endpoint.

Meaning, results and errors of each method are in rpc.operator_contract and in
the contracts beside it. The only decision made here is which hosts to notify:
those that a change concerns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.conductor import acceptance
from gpgpu_plugin.conductor import authors
from gpgpu_plugin.conductor import endpoint
from gpgpu_plugin.conductor import examination
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor import what_if
from gpgpu_plugin.conductor import why_not
from gpgpu_plugin.conductor.admin import assignment as assignment_admin
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import event as event_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import hold as hold_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import ledger as ledger_admin
from gpgpu_plugin.conductor.admin import usage as usage_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.doctor import cloud
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import event as event_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import usage as usage_obj
from gpgpu_plugin.objects import what_if as what_if_obj
from gpgpu_plugin.objects import why_not as why_not_obj
from gpgpu_plugin.rpc import arrival

_Context = gpgpu_context.RequestContext

_PART = 0.3
"""Part of its caller's time in which a call applies a variant to hosts."""


class OperatorCalls(endpoint.Endpoint):
    """The operators' methods, of all contracts."""

    @contextlib.contextmanager
    def _variant_caller(self, ctxt: _Context, method: str,
                        name: str) -> Iterator[variant_sweep.Caller]:
        """Return the context of a call that changes a variant."""
        wanted = ctxt.wanted or self._conf.gpgpu.rpc_timeout
        try:
            yield variant_sweep.Caller(
                check_wanted=functools.partial(
                    arrival.check_wanted, method, f'variant {name}', wanted),
                is_over=lambda: arrival.seconds() > wanted * _PART,
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
        return vgpu_type_admin.list_all(
            self._db, host, variant, limit, marker, vgpu_type=vgpu_type,
            only_enabled=only_enabled, silent_after=self._silent_after)

    def vgpu_type_set(self, ctxt: _Context, *, variant: str, vgpu_type: str,
                      host: str | None, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        with self._variant_caller(ctxt, 'vgpu_type_set', variant) as caller:
            return vgpu_type_admin.set_enabled(
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
            self._by_operator(ctxt), host, authors.operator(ctxt),
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
            force=force, actor=authors.signed(ctxt, actor))
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
        return hold_admin.list_all(self._db, host, kind, limit, marker)

    def hold_add(self, ctxt: _Context, *, device: str, kind: str,
                 reason: str | None) -> admin.DeviceInfo:
        hold_admin.add(self._by_operator(ctxt), device, kind, reason,
                       authors.operator(ctxt))
        return self._changed(ctxt, device)

    def hold_remove(self, ctxt: _Context, *, device: str,
                    kinds: Sequence[str]) -> admin.DeviceInfo:
        hold_admin.remove(self._by_operator(ctxt), device, kinds,
                          authors.operator(ctxt))
        return self._changed(ctxt, device)

    def device_release(self, ctxt: _Context, *, device: str,
                       ) -> admin.DeviceInfo:
        hold_admin.release(self._by_operator(ctxt), device,
                           authors.operator(ctxt))
        return self._changed(ctxt, device)

    def device_accept(self, ctxt: _Context, *, devices: Sequence[str],
                      reason: str) -> tuple[admin.DeviceInfo, ...]:
        acceptance.accept(self._by_operator(ctxt), devices, reason,
                          authors.operator(ctxt))
        return tuple(self._changed(ctxt, device) for device in devices)

    def device_replace(self, ctxt: _Context, *, device: str,
                       ) -> admin.DeviceInfo:
        return self._changed(ctxt, retirement.replace(
            self._by_operator(ctxt), device, authors.operator(ctxt)))

    def _changed(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Return a device whose host must learn what was done to it."""
        shown = device_admin.show(self._db, device)
        self._refresh(ctxt, [shown.host])
        return shown

    def device_history(self, ctxt: _Context, *, device: str, limit: int,
                       marker: str | None) -> tuple[ledger.Record, ...]:
        return ledger_admin.list_all(self._db, device, limit, marker)

    def device_ledger_head(self, ctxt: _Context, *,
                           device: str) -> ledger.Head:
        return ledger_admin.head(self._db, device)

    def usage_list(self, ctxt: _Context, *, query: usage_obj.UsageQuery,
                   limit: int, marker: str | None,
                   ) -> tuple[usage_obj.UsageInfo, ...]:
        return usage_admin.list_all(self._db, query, limit, marker)

    def usage_summary(self, ctxt: _Context, *, query: usage_obj.UsageQuery,
                      by: Sequence[str], limit: int, marker: str | None,
                      ) -> tuple[usage_obj.UsageSum, ...]:
        return usage_admin.summary(self._db, query, by, limit, marker)

    def usage_unexported(self, ctxt: _Context, *, limit: int,
                         marker: str | None,
                         ) -> tuple[usage_obj.UsageInfo, ...]:
        return usage_admin.unexported(self._db, limit, marker)

    def usage_mark_exported(self, ctxt: _Context, *, usages: Sequence[str],
                            ) -> int:
        return usage_admin.mark_exported(self._db, usages)

    def event_list(self, ctxt: _Context, *, wanted: event_obj.EventFilter,
                   limit: int, marker: str | None,
                   ) -> tuple[event_obj.EventInfo, ...]:
        return event_admin.list_all(
            self._db, wanted, limit=limit, marker=marker)

    def why_not(self, ctxt: _Context, *, request: request_mod.Request,
                guest_nodes: int | None, host: str | None, limit: int,
                marker: str | None) -> tuple[why_not_obj.HostAnswer, ...]:
        return why_not.page(
            self._db, request, guest_nodes, host, limit, marker,
            silent_after=self._silent_after)

    def scheduler_view(self, ctxt: _Context, *, marker: int | None,
                       ) -> scheduling_obj.Changes:
        return dataclasses.replace(
            self._feed.changes_since(0, (), marker),
            mix=self._requests.newer(0))

    def what_if_leaving(self, ctxt: _Context, *, hosts: Sequence[str],
                        ) -> tuple[what_if_obj.Leaving, ...]:
        return what_if.leaving(self._db, hosts)

    def what_if_drain(self, ctxt: _Context, *,
                      question: what_if_obj.DrainQuestion,
                      ) -> what_if_obj.DrainAnswer:
        return what_if.drain(
            self._db, question, silent_after=self._silent_after)

    def examine_database(self, ctxt: _Context, *, host: str | None,
                         limit: int, marker: str | None,
                         ) -> tuple[cloud.HostRecord, ...]:
        return examination.page(self._db, host, limit, marker)

    def examine_cloud(self, ctxt: _Context) -> cloud.CloudRecord:
        return examination.cloud(self._db)

    def examine_hosts(self, ctxt: _Context, *, hosts: Sequence[str],
                      repairs: Sequence[drift.Repair],
                      ) -> tuple[drift.Drift, ...]:
        return self._hosts.drifts(ctxt, hosts, repairs)

    def repair_database(self, ctxt: _Context, *, found: drift.Drift,
                        actor: str) -> bool:
        repaired = examination.repair(
            self._by_operator(ctxt), found, authors.signed(ctxt, actor))
        if repaired and found.host is not None:
            self._refresh(ctxt, [found.host])
        return repaired
