#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Client side of gpgpu-conductor's RPC API.

Meaning, results and errors of each method are in rpc.conductor_contract.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import event as event_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import session as session_obj
from gpgpu_plugin.objects import usage as usage_obj
from gpgpu_plugin.objects import what_if as what_if_obj
from gpgpu_plugin.objects import why_not as why_not_obj
from gpgpu_plugin.rpc import caller as caller_mod
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import doctor_contract
from gpgpu_plugin.rpc import key_files
from gpgpu_plugin.rpc import pages
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.rpc import why_not_contract

_Context = gpgpu_context.RequestContext
_Conductor = conductor_contract.Conductor
_Result = typing.TypeVar('_Result')
_Arguments = typing.ParamSpec('_Arguments')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Channel:
    client: rpc_transport.RPCClient
    signing: contract.Signing | None


def signing(conf: cfg.ConfigOpts, kind: gpgpu_context.CallerKind, topic: str,
            name: str | None = None) -> contract.Signing | None:
    """Return how this process signs calls as a kind of caller, if it does.

    :param name: of the caller, if it is a host
    :raises ConfigInvalid: it has no key
    """
    if not key_files.is_required(conf):
        return None
    return contract.Signing(topic=topic, signer=key_files.of_caller(
        conf, kind,
        name if kind is gpgpu_context.CallerKind.HOST else None))


class ConductorAPI(_Conductor):
    """Calls to any live conductor.

    Every method raises ConductorUnavailable if no conductor answers in time.

    :param timeout: seconds; default ``[gpgpu] rpc_timeout``
    :param caller: None: each call is that of a kind of caller that may make
        it, for a process that is several of them
    :param name: of the caller, for events: of a host that of its service
    :raises ConfigInvalid: calls are signed, and the caller has no key
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport | None = None,
                 timeout: float | None = None,
                 caller: gpgpu_context.CallerKind | None = None,
                 name: str | None = None) -> None:
        self._timeout: float = timeout or conf.gpgpu.rpc_timeout
        self._conf = conf
        self._transport = transport or rpc_transport.get_transport(conf)
        self._caller = caller
        self._name = name
        self._channels: dict[gpgpu_context.CallerKind, _Channel] = {}
        if caller is not None:
            # A key that is missing is found now, not by the first call.
            self._channel(caller)
        self._probed = False

    def _call(
        self,
        method: Callable[
            typing.Concatenate[_Conductor, _Context, _Arguments], _Result],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        return self._call_within(
            self._timeout, method, ctxt, *args, **kwargs)

    def _call_within(
        self,
        timeout: float,
        method: Callable[
            typing.Concatenate[_Conductor, _Context, _Arguments], _Result],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        self._probe()
        channel = self._channel_of(method)
        client = contract.Client(channel.client, timeout, channel.signing)
        try:
            return client.call(
                method, ctxt.of_actor(self._name), *args, **kwargs)
        except (oslo_messaging.MessagingTimeout,
                oslo_messaging.MessageDeliveryFailure):
            raise exception.ConductorUnavailable(
                method=method.__name__, timeout=timeout) from None

    def _cast_to_all(
        self,
        method: Callable[
            typing.Concatenate[_Conductor, _Context, _Arguments], None],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> None:
        """Send a message to every conductor, and wait for none."""
        self._probe()
        channel = self._channel_of(method)
        try:
            contract.Client(
                channel.client.prepare(fanout=True),
                signing=channel.signing).cast(
                method, ctxt.of_actor(self._name), *args, **kwargs)
        except oslo_messaging.MessageDeliveryFailure:
            raise exception.ConductorUnavailable(
                method=method.__name__, timeout=self._timeout) from None

    def _channel_of(self, method: Callable[..., object]) -> _Channel:
        kinds = list(caller_mod.rules(method))
        return self._channel(
            kinds[0] if self._caller is None or self._caller not in kinds
            else self._caller)

    def _channel(self, kind: gpgpu_context.CallerKind) -> _Channel:
        """Return the way by which a kind of caller calls.

        :raises ConfigInvalid: calls are signed, and there is no key
        """
        found = self._channels.get(kind)
        if found is None:
            topic = rpc_transport.conductor_topic(self._conf, kind)
            found = self._channels[kind] = _Channel(
                client=rpc_transport.client(
                    self._transport, topic, conductor_contract.VERSION),
                signing=signing(self._conf, kind, topic, self._name))
        return found

    def _probe(self) -> None:
        # Only before the first call, which creates the queue for replies;
        # the queue reconnects to a broker by itself.
        if not self._probed:
            rpc_transport.probe(self._conf, self._transport)
            self._probed = True

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
                ) -> inventory_obj.HostInventory | None:
        return self._call(
            _Conductor.release, ctxt, origin=origin, assignments=assignments)

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

    # -- schedulers ---------------------------------------------------------

    def changes_since(
        self, ctxt: _Context, since: float,
        known: Sequence[scheduling_obj.HostVersion], marker: int | None,
        refusals: Sequence[scheduling_obj.FilterRefusal] = (),
        requests: Sequence[scheduling_obj.SentRequests] = (),
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

    # -- operators ----------------------------------------------------------

    def variant_create(self, ctxt: _Context, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        return self._call(_Conductor.variant_create, ctxt, variant=variant)

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

    def host_drain(self, ctxt: _Context, host: str, *,
                   draining: bool) -> admin.HostInfo:
        return self._call(
            _Conductor.host_drain, ctxt, host=host, draining=draining)

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

    def device_set(self, ctxt: _Context, device: str, *,
                   enabled: bool) -> admin.DeviceInfo:
        return self._call(
            _Conductor.device_set, ctxt, device=device, enabled=enabled)

    def device_release(self, ctxt: _Context, device: str, *,
                       actor: str) -> admin.DeviceInfo:
        return self._call(
            _Conductor.device_release, ctxt, device=device, actor=actor)

    def device_quarantine(self, ctxt: _Context, device: str,
                          reason: str) -> admin.DeviceInfo:
        return self._call(
            _Conductor.device_quarantine, ctxt, device=device, reason=reason)

    def device_clean(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        return self._call(_Conductor.device_clean, ctxt, device=device)

    def device_retire(self, ctxt: _Context, device: str,
                      reason: str | None = None) -> admin.DeviceInfo:
        return self._call(
            _Conductor.device_retire, ctxt, device=device, reason=reason)

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
            answer for some in _batches(hosts)
            for answer in self._call_within(
                self._timeout + doctor_contract.EXAMINE_TIMEOUT,
                _Conductor.examine_hosts, ctxt, hosts=some))

    def repair_hosts(self, ctxt: _Context, hosts: Sequence[str],
                     repairs: Sequence[drift.Repair],
                     ) -> tuple[view.HostAnswer, ...]:
        return tuple(
            answer for some in _batches(hosts)
            for answer in self._call_within(
                self._timeout + doctor_contract.REPAIR_TIMEOUT,
                _Conductor.repair_hosts, ctxt, hosts=some, repairs=repairs))

    def repair_database(self, ctxt: _Context, found: drift.Drift,
                        actor: str) -> bool:
        return self._call(
            _Conductor.repair_database, ctxt, found=found, actor=actor)

    def examined(self, ctxt: _Context, host: str, question: str,
                 drifts: Sequence[drift.Drift]) -> None:
        self._call(_Conductor.examined, ctxt, host=host, question=question,
                   drifts=drifts)


def _batches(hosts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield as many hosts as one call may name."""
    size = doctor_contract.HOSTS_AT_ONCE
    return (hosts[first:first + size]
            for first in range(0, len(hosts), size))
