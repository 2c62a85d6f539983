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
"""The conductor's RPC contract: its methods, arguments, results and errors.

Hosts, schedulers and commands use nothing else of the conductor.
``rpc.conductor_api`` calls it and ``conductor.manager`` implements it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import session as session_obj
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import device_contract
from gpgpu_plugin.rpc import doctor_contract
from gpgpu_plugin.rpc import history_contract
from gpgpu_plugin.rpc import why_not_contract

VERSION = '3.0'

_Context = gpgpu_context.RequestContext

Allocations = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Allocated units by provider UUID, consumer UUID and resource class."""


class Conductor(device_contract.Devices, doctor_contract.Doctor,
                history_contract.History, why_not_contract.WhyNot,
                typing.Protocol):
    """Methods of gpgpu-conductor; any number of conductors serve them.

    The decorators say who may call each of them. A host speaks for itself
    alone; a method that may change rows of another host raises NotOwner if
    that host did not claim them for a migration from here.

    Every method may raise the errors that it names, which are classes of
    gpgpu_plugin.exception and keep their values on the wire. A method with
    an ``origin`` raises Fenced if another session speaks for the host,
    SessionLost if the database does not know the session, and all but
    ``report`` raise Conflict if the session has not reported yet.
    """

    # -- compute hosts ------------------------------------------------------

    @caller.hosts('request.host')
    def begin_session(self, ctxt: _Context, *,
                      request: session_obj.SessionRequest,
                      ) -> session_obj.Session:
        """Let a start of nova-compute speak for its host.

        The same request again returns the same session.

        :raises Conflict: the host is known with another node UUID, or the
            node UUID under another host
        :raises Fenced: a nova-compute on another machine may be alive
        :raises SessionOutdated: another session began since the one that is
            expected
        """

    @caller.hosts('origin.host')
    def digest(self, ctxt: _Context, *, origin: session_obj.Origin) -> int:
        """Return the digest of a host's generation and assignments.

        See objects.session.digest. It shows that nova-compute is alive, too.
        """

    @caller.hosts('origin.host')
    def report(self, ctxt: _Context, *, origin: session_obj.Origin,
               report: report_obj.HostReport,
               ) -> inventory_obj.HostInventory:
        """Store the devices that a host found. Idempotent.

        A scan that was overtaken by a newer one of its session is dropped.

        :raises Invalid: the first report after a restore of the database
            does not have the host's assignments
        """

    @caller.hosts('host')
    def host_inventory(self, ctxt: _Context, *, host: str,
                       ) -> inventory_obj.HostInventory:
        """Return the current inventory of a host's groups.

        :raises NotFound: the host never reported
        """

    @caller.hosts('origin.host')
    def claim(self, ctxt: _Context, *, origin: session_obj.Origin,
              request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        """Claim devices for an instance: all of them or none.

        The same request under the same key returns the same devices. A claim
        that takes longer than its caller waits is not granted.

        :raises RequestExpired: it took longer
        :raises ClaimDenied: with a ``reason`` of
            domain.allocation.request.Reason
        """

    @caller.hosts('origin.host')
    def activate(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        assignments: Sequence[str],
        driver_capacities: report_obj.DriverCapacities | None,
        guest_addresses: claim_obj.GuestAddresses | None,
    ) -> inventory_obj.HostInventory:
        """Mark assignments as active: the guest runs and the lease ends.

        The devices change from provisioning to assigned. Idempotent: a host
        calls it again when an address in a guest has changed.

        :param assignments: UUIDs, all of one host
        :param driver_capacities: of the parent GPUs of assigned vGPUs
        :param guest_addresses: of these assignments; those of others stay
        :raises NotFound: one of them has ended
        """

    @caller.hosts('origin.host')
    def abort(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        assignments: Sequence[str], touched: bool, fault: str | None,
        driver_capacities: report_obj.DriverCapacities | None,
    ) -> inventory_obj.HostInventory | None:
        """End claims that were not activated; skip those that have ended.

        :param touched: True if hardware may have been changed: the devices
            become dirty, otherwise available
        :param fault: what is wrong; the devices are quarantined with it
        :param driver_capacities: of the parent GPUs of claimed vGPUs
        :returns: None if no such assignment ever existed
        """

    @caller.hosts('origin.host')
    def release(self, ctxt: _Context, *, origin: session_obj.Origin,
                assignments: Sequence[str],
                ) -> inventory_obj.HostInventory | None:
        """End provisioning or active assignments; their devices become dirty.

        Those that have ended are skipped, whatever has the device now.

        :returns: None if no such assignment ever existed
        """

    @caller.hosts('origin.host')
    def confirm_migration(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        confirmation: claim_obj.MigrationConfirmation,
    ) -> tuple[inventory_obj.HostInventory, ...]:
        """Give the devices of a migration's destination the role
        ``instance``, and release those of the source, in one transaction.

        Idempotent. Devices that a failed migration left on the destination
        in the role ``instance`` are released as well.

        :returns: of the source and the destination, as far as the instance
            has or had devices there
        """

    @caller.hosts('origin.host')
    def host_assignments(self, ctxt: _Context, *,
                         origin: session_obj.Origin, known: Sequence[str],
                         ) -> tuple[claim_obj.Assignment, ...]:
        """Return all active assignments on the host.

        :param known: UUIDs of the assignments in the host's book
        :raises SessionLost: the database does not know one of them, not even
            as one that has ended
        """

    @caller.hosts('origin.host')
    def compare_allocations(
        self, ctxt: _Context, *, origin: session_obj.Origin, number: int,
        allocations: Allocations, assignments: Sequence[str],
        used: Sequence[str],
    ) -> inventory_obj.HostInventory:
        """Record which assignments a Placement allocation still covers.

        A device that is assigned without an allocation is reserved in the
        inventory. A comparison that was overtaken by a newer one of its
        session is dropped.

        :param number: counts the comparisons of the session
        :param allocations: of providers of the host; providers that are left
            out stay as they are
        :param assignments: UUIDs of the assignments known before Placement
            was asked; its answer says nothing about later ones
        :param used: UUIDs of those that instances use here, by Nova and the
            hypervisor: their usage goes on, if another host ended it
        :raises NotFound: the host never reported
        """

    @caller.hosts(None)
    @caller.operators()
    def instance_assignments(self, ctxt: _Context, *, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        """Return all active assignments of an instance, on every host."""

    @caller.hosts('origin.host')
    def vfs_refused(self, ctxt: _Context, *, origin: session_obj.Origin,
                    gpus: Sequence[str]) -> tuple[str, ...]:
        """Return which GPUs of a host must not get VFs now.

        A GPU that has VFs is not cleaned as a whole. So one that waits to be
        cleaned or for another host, is quarantined, retired or assigned gets
        none. Neither does one that another service manages.

        :param gpus: stable ids of GPUs that would get VFs
        """

    @caller.hosts('host')
    def clean_tasks(self, ctxt: _Context, *, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        """Return the devices that a host has to clean.

        These are dirty, or in a cleaning that a restart may have interrupted.
        """

    @caller.hosts('origin.host')
    def clean_started(self, ctxt: _Context, *, origin: session_obj.Origin,
                      device_uuid: str, token: str, attempt: str) -> None:
        """Change a device from dirty to cleaning.

        The same call may come twice, and is executed once.

        :param token: of the CleanTask, which names the last attempt or, if
            there was none, what made the device dirty
        :param attempt: UUID of this attempt, the device's token from now on
        :raises Conflict: the device is in another state or cleaning
        """

    @caller.hosts('origin.host')
    def clean_failure(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        device_uuid: str, attempt: str,
        results: Sequence[cleaning.StepResult],
    ) -> str | None:
        """Return why a device is not clean, None if it is; change nothing.

        The host asks this before its own driver gets the device, and before
        it forgets that a guest had the device.

        :raises Conflict: the device is not in this attempt
        """

    @caller.hosts('origin.host')
    def clean_finished(
        self, ctxt: _Context, *, origin: session_obj.Origin,
        device_uuid: str, attempt: str, steps: Sequence[str],
        results: Sequence[cleaning.StepResult],
        driver_capacities: report_obj.DriverCapacities | None,
    ) -> inventory_obj.HostInventory:
        """Change a device from cleaning to available or quarantined.

        :param steps: those that the CleanTask named; if the policy requires
            others now, the device is dirty again
        :param results: of the steps that the host took, in their order
        :param driver_capacities: of the parent GPU, if the device is a vGPU
        :raises Conflict: the device is not in this attempt
        """

    @caller.hosts('origin.host')
    def clean_postponed(self, ctxt: _Context, *, origin: session_obj.Origin,
                        device_uuid: str, attempt: str, reason: str) -> None:
        """Change a device from cleaning to dirty, without a verdict.

        :param reason: what the host lacks to clean it
        :raises Conflict: the device is not in this attempt
        """

    @caller.hosts('host')
    def answer(self, ctxt: _Context, *, host: str, question: str,
               usages: Sequence[claim_obj.Usage]) -> None:
        """Answer a question that a conductor sent to the host (Compute.ask).

        An answer for which nobody waits is dropped.

        :param usages: of the assignments in the question
        """

    # -- schedulers ---------------------------------------------------------

    @caller.schedulers()
    def changes_since(
        self, ctxt: _Context, *, since: float,
        known: Sequence[scheduling_obj.HostVersion], marker: int | None,
        refusals: Sequence[scheduling_obj.FilterRefusal],
        requests: Sequence[scheduling_obj.SentRequests], mix: int,
        period: float,
    ) -> scheduling_obj.Changes:
        """Return one page of the hosts that changed.

        No change that was committed is skipped, however late.

        :param since: ``since`` of the answers before; 0: all hosts
        :param known: versions of the hosts that the caller knows and that
            changed at that time or later; only others are returned
        :param marker: None: the first page; otherwise that of the page before,
            with the same ``since``
        :param refusals: of decisions of filters, to be recorded; they must be
            sent again if the answer does not say ``recorded``
        :param requests: that arrived at the scheduler; the same holds
        :param mix: version of the mix of requests that the caller has; 0: none
        :param period: seconds; choices of schedulers (``chosen``) that are not
            older are returned
        """

    @caller.schedulers()
    def chosen(self, ctxt: _Context, *,
               choices: Sequence[scheduling_obj.Choice]) -> None:
        """Take hosts that a scheduler chose, for all schedulers.

        It is cast to every conductor, so that whichever a scheduler asks next
        knows the choices. A choice that is lost costs at most a denied claim.
        """

    @caller.schedulers()
    def exact_host(self, ctxt: _Context, *,
                   request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        """Return the host of the devices that an instance names.

        The answer has the refusal if the project may not name devices, or one
        of them is not available.
        """

    # -- operators ----------------------------------------------------------

    @caller.operators(once=True)
    def variant_create(self, ctxt: _Context, *, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        """Create a variant and apply it to all known devices.

        If that takes longer than a part of ``[gpgpu] rpc_timeout``, the call
        returns, and the conductor goes on: ``hosts_pending`` counts the hosts
        that are left. The same holds for variant_set and variant_delete.

        :raises Invalid: malformed name, id, resource class or trait
        :raises Conflict: the name is taken, also after normalisation, or
            another variant matches the same devices equally well
        """

    @caller.operators()
    def variant_list(self, ctxt: _Context) -> tuple[admin.VariantInfo, ...]:
        """Return all variants, sorted by name."""

    @caller.operators()
    def variant_show(self, ctxt: _Context, *, name: str,
                     ) -> admin.VariantInfo:
        """Return one variant.

        :raises NotFound: no variant has this name
        """

    @caller.operators(once=True)
    def variant_set(self, ctxt: _Context, *, variant: admin.VariantInfo,
                    before: admin.VariantInfo | None) -> admin.VariantInfo:
        """Replace the fields of the variant that has this name.

        If one of domain.variant.IDENTITY changes, its devices cannot be
        claimed until all hosts have the new fields. Other fields can change
        while its devices are assigned; instances keep what they have.

        :param before: as the caller read it; None: whatever it is
        :raises NotFound: no variant has this name
        :raises Conflict: somebody else changed it since, or as for
            variant_create and, where the identity changes, variant_delete
        """

    @caller.operators(once=True)
    def variant_delete(self, ctxt: _Context, *, name: str) -> None:
        """Delete a variant; its devices become unmanaged.

        The variant remains, and its devices cannot be claimed, until every
        host has applied the deletion.

        :raises NotFound: no variant has this name
        :raises Conflict: one of its devices is assigned, its last change is
            not applied to all hosts, or an instance got one of its devices
            meanwhile, and the change was undone
        """

    @caller.operators()
    def vgpu_type_list(self, ctxt: _Context, *, host: str | None,
                       variant: str | None, only_enabled: bool, limit: int,
                       marker: str | None,
                       ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Return a page of vGPU types, also passthrough, with their capacity.

        :param only_enabled: leave out those that are disabled
        :param limit: number of rows at most; a page has PAGE_SIZE at most
        :param marker: ``host:variant:type`` of the row before the first one
        :raises NotFound: no such host, variant or marker
        """

    @caller.operators(once=True)
    def vgpu_type_set(self, ctxt: _Context, *, variant: str, vgpu_type: str,
                      host: str | None, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Enable or disable a vGPU type; assigned vGPUs stay assigned.

        Without a host this is a change of the variant, which may reach hosts
        after the answer.

        :param host: None for all hosts, including those that report later
        :returns: the type on the first hosts, at most one page
        :raises NotFound: no GPU of the variant has such a type
        :raises Conflict: another type has the same resource class, or the
            last change of the variant is not applied to all hosts
        """

    @caller.operators()
    def host_list(self, ctxt: _Context, *, limit: int, marker: str | None,
                  ) -> tuple[admin.HostInfo, ...]:
        """Return a page of the hosts, sorted by name.

        :param limit: as for vgpu_type_list
        :param marker: name of the host before the first one
        """

    @caller.operators()
    def host_show(self, ctxt: _Context, *, host: str) -> admin.HostInfo:
        """Return one host.

        :raises NotFound: the host never reported
        """

    @caller.operators(once=True)
    def host_delete(self, ctxt: _Context, *, host: str, force: bool) -> None:
        """Delete a host and its devices.

        :param force: delete also a host that reports its devices again
        :raises NotFound: the host never reported
        :raises Conflict: a device of the host is assigned, or without
            ``force`` its nova-compute runs or cannot be asked, or a device is
            dirty, cleaning, quarantined, disabled, or retired and still there
        """

    @caller.operators(once=True)
    def host_drain(self, ctxt: _Context, *, host: str, draining: bool,
                   ) -> admin.HostInfo:
        """Withdraw the devices of a host, or offer them again.

        Instances keep their devices. Idempotent.

        :raises NotFound: the host never reported
        """

    @caller.operators(once=True)
    def host_takeover(self, ctxt: _Context, *, host: str) -> None:
        """Let the next start of nova-compute, anywhere, speak for a host.

        :raises NotFound: the host never reported
        """

    @caller.operators()
    def group_list(self, ctxt: _Context, *, host: str | None,
                   variant: str | None, limit: int, marker: str | None,
                   ) -> tuple[admin.GroupInfo, ...]:
        """Return a page of groups with their capacity.

        :param limit: as for vgpu_type_list
        :param marker: ``host:variant`` of the group before the first one
        :raises NotFound: no such host, variant or marker
        """

    @caller.operators(once=True)
    def group_set(self, ctxt: _Context, *, host: str | None, variant: str,
                  allocation_policy: str | None,
                  ) -> tuple[admin.GroupInfo, ...]:
        """Set the allocation policy of a group, or of all of a variant.

        Without a host this is a change of the variant, which may reach hosts
        after the answer. No group then has a policy of its own.

        :param host: None for all hosts, including those that report later
        :param allocation_policy: None for the variant's
        :returns: the group, or the first ones, at most one page
        :raises NotFound: no such group or variant
        :raises Invalid: not a domain.allocation.request.AllocationPolicy
        :raises Conflict: the last change of the variant is not applied to
            all hosts
        """

    @caller.operators(once=True)
    def group_links_set(self, ctxt: _Context, *, host: str, variant: str,
                        link_partitions: str | None,
                        ) -> tuple[admin.GroupInfo, ...]:
        """Set the link partitions of a group.

        :param link_partitions: a table of domain.link_table; None for that of
            the variant
        :returns: the group
        :raises NotFound: no such host or group
        :raises Invalid: no such table, or the host lacks GPUs that it names
        """

    @caller.operators()
    def assignment_list(self, ctxt: _Context, *, host: str | None,
                        instance: str | None, limit: int, marker: str | None,
                        ) -> tuple[admin.AssignmentInfo, ...]:
        """Return a page of active assignments.

        The host of each determines whether it is used.

        :param instance: UUID of an instance
        :param limit: as for vgpu_type_list
        :param marker: UUID of the assignment before the first one
        :raises NotFound: no such host or marker
        """

    @caller.operators(once=True)
    def assignment_end(self, ctxt: _Context, *, assignments: Sequence[str],
                       force: bool, actor: str,
                       ) -> tuple[admin.AssignmentInfo, ...]:
        """End assignments; their devices become dirty.

        :param assignments: UUIDs, all of one host
        :param force: end them also if they are used, or if the host does not
            answer
        :param actor: who ends them
        :returns: the assignments as they were before
        :raises NotFound: one of them has ended
        :raises Conflict: without ``force``, one is or may be used
        """

    @caller.hosts('host')
    @caller.operators()
    def device_list(self, ctxt: _Context, *, host: str | None,
                    variant: str | None, state: str | None,
                    used_by: str | None, project: str | None, type: str | None,
                    vgpu_type: str | None, health: str | None, faulty: bool,
                    include_retired: bool, limit: int, marker: str | None,
                    ) -> tuple[admin.DeviceInfo, ...]:
        """Return a page of devices, filtered by what is not None.

        :param state: shown state, see objects.admin.DeviceInfo
        :param used_by: UUID of an instance
        :param project: ID of the project of an instance
        :param type: type of variants
        :param vgpu_type: type of vGPUs
        :param health: of GPUs, see domain.health.Health
        :param faulty: only devices that are missing or quarantined, and GPUs
            whose health is degraded or failed
        :param include_retired: also retired devices, which are left out
            otherwise, unless ``state`` asks for them
        :param limit: as for vgpu_type_list
        :param marker: UUID of the device before the first one
        :raises Invalid: no such state, health or type of variants
        :raises NotFound: no such host, variant or marker
        """

    @caller.operators()
    def device_show(self, ctxt: _Context, *, device: str) -> admin.DeviceInfo:
        """Return one device.

        :param device: UUID
        :raises NotFound: no device has this UUID
        """

    @caller.operators(once=True)
    def device_set(self, ctxt: _Context, *, device: str, enabled: bool,
                   ) -> admin.DeviceInfo:
        """Enable or disable a device; an assigned one stays assigned.

        A GPU that has VFs stands for these, too.

        :raises NotFound: no device has this UUID
        :raises Conflict: the device is an mdev row, not a GPU or VF
        """

    @caller.operators(once=True)
    def device_release(self, ctxt: _Context, *, device: str, actor: str,
                       ) -> admin.DeviceInfo:
        """Clean a quarantined or retired device, and offer it again.

        Of an assigned one, the quarantine that is yet to come is taken back. A
        GPU that has VFs stands for these, too.

        :param actor: who has it cleaned, for the ledger
        :raises NotFound: no device has this UUID
        :raises Conflict: the device is in no such state, a guest has a vGPU on
            it, or another card has the place of a retired one
        """
