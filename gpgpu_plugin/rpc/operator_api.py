# SPDX-License-Identifier: Apache-2.0
"""Operators' part of the conductor's client.

Meaning, results and errors of each method are in rpc.operator_contract and in
the contracts beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import event as event_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import usage as usage_obj
from gpgpu_plugin.objects import what_if as what_if_obj
from gpgpu_plugin.objects import why_not as why_not_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import doctor_contract
from gpgpu_plugin.rpc import pages
from gpgpu_plugin.rpc import why_not_contract

_Context = gpgpu_context.RequestContext
_Conductor = conductor_contract.Conductor


class OperatorAPI(conductor_client.ConductorClient):
    """The operators' methods, of all contracts."""

    def variant_create(self, ctxt: _Context, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        return self._call(_Conductor.variant_create, ctxt, variant=variant)

    def variant_preview(self, ctxt: _Context,
                        variants: Sequence[admin.VariantInfo],
                        limit: int | None = None, marker: str | None = None,
                        ) -> tuple[admin.VariantPreview, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.variant_preview, ctxt, variants=variants, limit=limit,
            marker=marker), limit, marker)

    def variant_list(self, ctxt: _Context) -> tuple[admin.VariantInfo, ...]:
        return self._call(_Conductor.variant_list, ctxt)

    def variant_show(self, ctxt: _Context, name: str) -> admin.VariantInfo:
        return self._call(_Conductor.variant_show, ctxt, name=name)

    def variant_set(self, ctxt: _Context, variant: admin.VariantInfo,
                    before: admin.VariantInfo | None = None,
                    ) -> admin.VariantInfo:
        return self._call(_Conductor.variant_set, ctxt, variant=variant,
                          before=before)

    def variant_delete(self, ctxt: _Context, name: str) -> None:
        self._call(_Conductor.variant_delete, ctxt, name=name)

    # Lists get all pages: limit is the number of rows, None for all of them.

    def vgpu_type_list(self, ctxt: _Context, host: str | None = None,
                       variant: str | None = None, *,
                       only_enabled: bool = False, limit: int | None = None,
                       marker: str | None = None,
                       ) -> tuple[admin.VGPUTypeInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.vgpu_type_list, ctxt, host=host, variant=variant,
            only_enabled=only_enabled, limit=limit, marker=marker),
            limit, marker)

    def vgpu_type_set(self, ctxt: _Context, variant: str, vgpu_type: str,
                      host: str | None = None, *, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        return self._call(
            _Conductor.vgpu_type_set, ctxt, variant=variant,
            vgpu_type=vgpu_type, host=host, enabled=enabled)

    def host_list(self, ctxt: _Context, limit: int | None = None,
                  marker: str | None = None) -> tuple[admin.HostInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.host_list, ctxt, limit=limit, marker=marker),
            limit, marker)

    def host_show(self, ctxt: _Context, host: str) -> admin.HostInfo:
        return self._call(_Conductor.host_show, ctxt, host=host)

    def host_delete(self, ctxt: _Context, host: str, *,
                    force: bool = False) -> None:
        # Without force, the conductor itself waits for nova-compute.
        longer = 0 if force else compute_api.PING_TIMEOUT
        self._call_within(
            self._timeout + longer, _Conductor.host_delete, ctxt, host=host,
            force=force)

    def host_drain(self, ctxt: _Context, host: str, *, draining: bool,
                   reason: str | None = None) -> admin.HostInfo:
        return self._call(_Conductor.host_drain, ctxt, host=host,
                          draining=draining, reason=reason)

    def host_takeover(self, ctxt: _Context, host: str) -> None:
        self._call(_Conductor.host_takeover, ctxt, host=host)

    def group_list(self, ctxt: _Context, host: str | None = None,
                   variant: str | None = None, limit: int | None = None,
                   marker: str | None = None,
                   ) -> tuple[admin.GroupInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.group_list, ctxt, host=host, variant=variant,
            limit=limit, marker=marker), limit, marker)

    def group_set(self, ctxt: _Context, host: str | None, variant: str,
                  allocation_policy: str | None,
                  ) -> tuple[admin.GroupInfo, ...]:
        return self._call(
            _Conductor.group_set, ctxt, host=host, variant=variant,
            allocation_policy=allocation_policy)

    def group_links_set(self, ctxt: _Context, host: str, variant: str,
                        link_partitions: str | None,
                        ) -> tuple[admin.GroupInfo, ...]:
        return self._call(
            _Conductor.group_links_set, ctxt, host=host, variant=variant,
            link_partitions=link_partitions)

    def assignment_list(self, ctxt: _Context, host: str | None = None,
                        instance: str | None = None,
                        limit: int | None = None, marker: str | None = None,
                        ) -> tuple[admin.AssignmentInfo, ...]:
        # The conductor itself waits for nova-computes.
        return pages.collect(lambda limit, marker: self._call_within(
            self._timeout + compute_api.USAGE_TIMEOUT,
            _Conductor.assignment_list, ctxt, host=host, instance=instance,
            limit=limit, marker=marker), limit, marker)

    def assignment_end(self, ctxt: _Context, assignments: Sequence[str], *,
                       force: bool, actor: str,
                       ) -> tuple[admin.AssignmentInfo, ...]:
        return self._call_within(
            self._timeout + compute_api.USAGE_TIMEOUT,
            _Conductor.assignment_end, ctxt, assignments=assignments,
            force=force, actor=actor)

    def device_list(self, ctxt: _Context, host: str | None = None,
                    variant: str | None = None, state: str | None = None,
                    used_by: str | None = None, project: str | None = None,
                    type: str | None = None, vgpu_type: str | None = None, *,
                    health: str | None = None, faulty: bool = False,
                    include_retired: bool = False,
                    limit: int | None = None, marker: str | None = None,
                    ) -> tuple[admin.DeviceInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.device_list, ctxt, host=host, variant=variant,
            state=state, used_by=used_by, project=project, type=type,
            vgpu_type=vgpu_type, health=health, faulty=faulty,
            include_retired=include_retired, limit=limit, marker=marker),
            limit, marker)

    def device_show(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        return self._call(_Conductor.device_show, ctxt, device=device)

    def hold_list(self, ctxt: _Context, host: str | None = None,
                  kind: str | None = None, limit: int | None = None,
                  marker: str | None = None) -> tuple[admin.HoldInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.hold_list, ctxt, host=host, kind=kind, limit=limit,
            marker=marker), limit, marker)

    def hold_add(self, ctxt: _Context, device: str, kind: str,
                 reason: str | None = None) -> admin.DeviceInfo:
        return self._call(_Conductor.hold_add, ctxt, device=device,
                          kind=kind, reason=reason)

    def hold_remove(self, ctxt: _Context, device: str,
                    kinds: Sequence[str]) -> admin.DeviceInfo:
        return self._call(
            _Conductor.hold_remove, ctxt, device=device, kinds=kinds)

    def device_clean(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        return self._call(_Conductor.device_clean, ctxt, device=device)

    def device_accept(self, ctxt: _Context, devices: Sequence[str],
                      reason: str) -> tuple[admin.DeviceInfo, ...]:
        return self._call(
            _Conductor.device_accept, ctxt, devices=devices, reason=reason)

    def device_replace(self, ctxt: _Context,
                       device: str) -> admin.DeviceInfo:
        return self._call(_Conductor.device_replace, ctxt, device=device)

    def device_history(self, ctxt: _Context, device: str,
                       limit: int | None = None, marker: str | None = None,
                       ) -> tuple[ledger.Record, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.device_history, ctxt, device=device, limit=limit,
            marker=marker), limit, marker, ledger.PAGE_SIZE)

    def device_ledger_head(self, ctxt: _Context, device: str) -> ledger.Head:
        return self._call(_Conductor.device_ledger_head, ctxt, device=device)

    def usage_list(self, ctxt: _Context, query: usage_obj.UsageQuery,
                   limit: int | None = None, marker: str | None = None,
                   ) -> tuple[usage_obj.UsageInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.usage_list, ctxt, query=query, limit=limit,
            marker=marker), limit, marker)

    def usage_summary(self, ctxt: _Context, query: usage_obj.UsageQuery,
                      by: Sequence[str], limit: int | None = None,
                      marker: str | None = None,
                      ) -> tuple[usage_obj.UsageSum, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.usage_summary, ctxt, query=query, by=by, limit=limit,
            marker=marker), limit, marker)

    def usage_unexported(self, ctxt: _Context, limit: int | None = None,
                         marker: str | None = None,
                         ) -> tuple[usage_obj.UsageInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.usage_unexported, ctxt, limit=limit, marker=marker),
            limit, marker)

    def usage_mark_exported(self, ctxt: _Context,
                            usages: Sequence[str]) -> int:
        return self._call(
            _Conductor.usage_mark_exported, ctxt, usages=usages)

    def event_list(self, ctxt: _Context, wanted: event_obj.EventFilter, *,
                   oldest_first: bool = False, limit: int | None = None,
                   marker: str | None = None,
                   ) -> tuple[event_obj.EventInfo, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.event_list, ctxt, wanted=wanted,
            oldest_first=oldest_first, limit=limit, marker=marker),
            limit, marker)

    def examine_database(self, ctxt: _Context, host: str | None = None,
                         limit: int | None = None, marker: str | None = None,
                         ) -> tuple[view.HostRecord, ...]:
        return pages.collect(lambda limit, marker: self._call(
            _Conductor.examine_database, ctxt, host=host, limit=limit,
            marker=marker), limit, marker, doctor_contract.HOSTS_AT_ONCE)

    def why_not(self, ctxt: _Context, request: request_mod.Request,
                guest_nodes: int | None = None, host: str | None = None,
                limit: int | None = None, marker: str | None = None,
                ) -> tuple[why_not_obj.HostAnswer, ...]:
        return pages.collect(
            lambda limit, marker: self._call(
                _Conductor.why_not, ctxt, request=request,
                guest_nodes=guest_nodes, host=host, limit=limit,
                marker=marker),
            limit, marker, why_not_contract.HOSTS_AT_ONCE)

    def scheduler_view(self, ctxt: _Context, marker: int | None = None,
                       ) -> scheduling_obj.Changes:
        return self._call(_Conductor.scheduler_view, ctxt, marker=marker)

    def what_if_leaving(self, ctxt: _Context, hosts: Sequence[str],
                        ) -> tuple[what_if_obj.Leaving, ...]:
        return self._call(_Conductor.what_if_leaving, ctxt, hosts=hosts)

    def what_if_drain(self, ctxt: _Context,
                      question: what_if_obj.DrainQuestion,
                      ) -> what_if_obj.DrainAnswer:
        return self._call(_Conductor.what_if_drain, ctxt, question=question)

    def examine_cloud(self, ctxt: _Context) -> view.CloudRecord:
        return self._call(_Conductor.examine_cloud, ctxt)

    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      ) -> tuple[view.HostAnswer, ...]:
        # The conductor itself waits for nova-computes.
        return tuple(
            answer for some in doctor_contract.batches(hosts)
            for answer in self._call_within(
                self._timeout + doctor_contract.EXAMINE_TIMEOUT,
                _Conductor.examine_hosts, ctxt, hosts=some))

    def repair_hosts(self, ctxt: _Context, hosts: Sequence[str],
                     repairs: Sequence[drift.Repair],
                     ) -> tuple[view.HostAnswer, ...]:
        return self._call_within(
            self._timeout + doctor_contract.REPAIR_TIMEOUT,
            _Conductor.repair_hosts, ctxt, hosts=hosts, repairs=repairs)

    def repair_database(self, ctxt: _Context, found: drift.Drift,
                        actor: str) -> bool:
        return self._call(
            _Conductor.repair_database, ctxt, found=found, actor=actor)
