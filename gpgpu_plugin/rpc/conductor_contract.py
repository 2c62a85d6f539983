# SPDX-License-Identifier: Apache-2.0
"""The conductor's RPC contract: its methods, arguments, results and errors.

Hosts, schedulers and commands use nothing else of the conductor.
``rpc.conductor_client`` calls it and ``conductor.manager`` implements it.
``Conductor`` is the whole contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.doctor import cloud
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.objects import history
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import pages

# -- Methods that take devices out and back.


_Context = gpgpu_context.RequestContext


class DeviceContract:
    """Methods for operators: hold, clean, accept and replace devices."""

    @guard.operators()
    def hold_list(self, ctxt: _Context, host: str | None = None,
                  kind: str | None = None, limit: int = pages.ALL,
                  marker: str | None = None) -> tuple[admin.HoldInfo, ...]:
        """Return a page of holds, the oldest first.

        :param kind: one of domain.device.HOLD_KINDS
        :param limit: as for vgpu_type_list
        :param marker: id of the hold before the first one
        :raises NotFound: no such host
        :raises Invalid: there is no such kind, or the marker is no number
        """

    @guard.operators(once=True)
    def hold_add(self, ctxt: _Context, device: str, kind: str,
                 reason: str | None = None) -> admin.DeviceInfo:
        """Hold a device; a GPU with its VFs and the vGPUs on it.

        An assigned one stays assigned. A retired one leaves lists, offers and
        counts, and stays retired if its host reports it again.

        :param kind: one of domain.device.BY_OPERATORS
        :param reason: one line; a quarantine needs one
        :raises NotFound: no device has this UUID
        :raises Invalid: the reason is empty or has several lines, or operators
            set no such kind
        :raises Conflict: it is an mdev row; it is to be quarantined or retired
            and is so already; or it is to be retired, and an instance has the
            GPU or a vGPU of it, or it is a VF
        """

    @guard.operators(once=True)
    def hold_remove(self, ctxt: _Context, device: str, kinds: Sequence[str],
                    ) -> admin.DeviceInfo:
        """Remove holds of a device; it is cleaned if one withdrew it.

        A GPU stands for its VFs.

        :param kinds: each a domain.device.HoldKind
        :raises NotFound: no device has this UUID
        :raises Invalid: there is no such kind
        :raises Conflict: the device has none of the named kinds other than
            ``disabled``, a guest has a vGPU on it, another card has the place
            of a retired one, or ``disabled`` is a hold of its GPU or named for
            an mdev row; then nothing is removed
        """

    @guard.operators(once=True)
    def device_release(self, ctxt: _Context, device: str,
                       ) -> admin.DeviceInfo:
        """Have a device cleaned; of a GPU with VFs, all of these.

        If holds withdraw the device, they are removed, as by hold_remove,
        also if an instance has it. A device that is dirty or is being cleaned
        stays so.

        :raises NotFound: no device has this UUID
        :raises Conflict: as for hold_remove, or nothing withdraws the device,
            and an instance has it or a vGPU of it, or it is unmanaged or an
            mdev row
        """

    @guard.operators(once=True)
    def device_accept(self, ctxt: _Context, devices: Sequence[str],
                      reason: str) -> tuple[admin.DeviceInfo, ...]:
        """Take new devices of one host as clean, all or none.

        :param devices: UUIDs; a GPU that has VFs stands for these
        :param reason: one line
        :raises NotFound: the host has no device with one of these UUIDs
        :raises Invalid: as for hold_add, or no device is named
        :raises Conflict: a device is not dirty, not new or an mdev row
        """

    @guard.operators(once=True)
    def device_replace(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Retire a GPU, and accept the other card in its place.

        The other card is dirty. If the host has not reported it yet, it is
        accepted when the host does.

        :param device: the GPU, or the other card, which is quarantined
        :returns: the other card; the GPU if the other is awaited
        :raises NotFound: no device has this UUID
        :raises Conflict: an instance has the GPU or a vGPU of it, or it was
            replaced already, or is a VF or an mdev row
        """


# -- Methods that read the history.


class HistoryContract:
    """Methods for operators: cleanings, usage, events."""

    @pages.sized(ledger.PAGE_SIZE)
    @guard.operators()
    def device_history(self, ctxt: _Context, device: str,
                       limit: int = pages.ALL, marker: str | None = None,
                       ) -> tuple[ledger.Record, ...]:
        """Return a page of the ledger of a device, in the order of time.

        :param device: UUID, also of a device that was deleted
        :param limit: as for vgpu_type_list
        :param marker: number of the record before the first one
        :raises NotFound: no device has or had this UUID
        :raises Invalid: the marker is no number
        """

    @guard.operators()
    def device_ledger_head(self, ctxt: _Context, device: str) -> ledger.Head:
        """Return what the ledger of a device must end with.

        :raises NotFound: no device has or had this UUID
        """

    @guard.operators()
    def usage_list(self, ctxt: _Context, query: history.UsageQuery,
                   limit: int = pages.ALL, marker: str | None = None,
                   ) -> tuple[history.UsageInfo, ...]:
        """Return a page of usage in the order in which it was recorded.

        :param limit: as for vgpu_type_list
        :param marker: UUID of the usage before the first one
        :raises NotFound: no such marker
        :raises Invalid: the period ends before it begins
        """

    @guard.operators()
    def usage_summary(self, ctxt: _Context, query: history.UsageQuery,
                      by: Sequence[str], limit: int = pages.ALL,
                      marker: str | None = None,
                      ) -> tuple[history.UsageSum, ...]:
        """Return a page of sums of usage, sorted by their values.

        :param by: objects.history.UsageKey of which each sum has the values
        :param limit: as for vgpu_type_list
        :param marker: JSON of the values of the sum before the first one
        :raises Invalid: no such key or marker, or as for usage_list
        """

    @guard.operators()
    def usage_unexported(self, ctxt: _Context, limit: int = pages.ALL,
                         marker: str | None = None,
                         ) -> tuple[history.UsageInfo, ...]:
        """Return a page of ended usage that is not marked as exported.

        It is in the order of its end. A usage whose end is committed late is
        in no page after the marker, but in those of the next export.

        :param limit: as for vgpu_type_list
        :param marker: UUID of the usage before the first one
        :raises NotFound: no such marker
        """

    @guard.operators(once=True)
    def usage_mark_exported(self, ctxt: _Context, usages: Sequence[str],
                            ) -> int:
        """Mark ended usage as exported, so that ``db purge`` may delete it.

        :param usages: UUIDs of what was written, not the last one alone:
            others may have ended before it since they were listed
        :returns: number of those that were not marked before
        """

    @guard.operators()
    def event_list(self, ctxt: _Context, wanted: history.EventFilter, *,
                   limit: int = pages.ALL, marker: str | None = None,
                   ) -> tuple[history.EventInfo, ...]:
        """Return a page of the history, newest first.

        :param limit: as for vgpu_type_list
        :param marker: id of the event before the first one
        :raises Invalid: no such kind, or the marker is no number
        """


# -- Methods that explain refusals.


EXAMINED_HOSTS_AT_ONCE = 50
"""Number of hosts that one call explains at most."""

LEAVING_AT_ONCE = 256
"""Number of instances that one plan has at most."""

OPTIONS_AT_ONCE = 1000
"""Number of candidates that one plan has at most, those of all kinds together.
1,000 hosts that all refuse take 5 s; the default ``[gpgpu] rpc_timeout`` is
10."""


class WhyNotContract:
    """Methods for operators: where a request fits, and why not elsewhere."""

    @pages.sized(EXAMINED_HOSTS_AT_ONCE)
    @guard.operators()
    def why_not(self, ctxt: _Context, request: request_mod.Request,
                guest_nodes: int | None = None, host: str | None = None,
                limit: int = pages.ALL, marker: str | None = None,
                ) -> tuple[forecast.HostAnswer, ...]:
        """Return what each host says to a request, page by page.

        Nothing is claimed or locked.

        :param guest_nodes: number of NUMA nodes of the guest; None: it has no
            NUMA topology
        :param host: only this one
        :param limit: number of hosts at most; a page has 50 at most
        :param marker: name of the host before the first one
        :raises Invalid: the request is for no GPU
        :raises NotFound: no such host
        """

    @guard.operators()
    def scheduler_view(self, ctxt: _Context, marker: int | None = None,
                       ) -> scheduling_obj.Changes:
        """Return one page of all hosts as schedulers see them, and the mix.

        :param marker: None: the first page; otherwise that of the page before
        """

    @guard.operators()
    def what_if_leaving(self, ctxt: _Context, hosts: Sequence[str],
                        ) -> tuple[forecast.Leaving, ...]:
        """Return the instances that have devices on hosts.

        :raises NotFound: no such host
        """

    @guard.operators()
    def what_if_drain(self, ctxt: _Context,
                      question: forecast.DrainQuestion,
                      ) -> forecast.DrainAnswer:
        """Return where instances would go if hosts were drained.

        Nothing is claimed, drained or locked. One order is tried, the largest
        instance first; as many hosts are examined as can matter.

        :raises Invalid: there are too many instances or candidates, or one
            requests no GPU
        :raises NotFound: no such host
        """


# -- Methods of gpgpu-manage doctor.


HOSTS_AT_ONCE = 100
"""Number of hosts that one call examines at most."""


class DoctorContract:
    """Methods of gpgpu-conductor that find and repair drifts."""

    @pages.sized(HOSTS_AT_ONCE)
    @guard.operators()
    def examine_database(self, ctxt: _Context, host: str | None = None,
                         limit: int = pages.ALL, marker: str | None = None,
                         ) -> tuple[cloud.HostRecord, ...]:
        """Return a page of hosts, each with its drifts in the database.

        :param host: only this one
        :param limit: number of hosts at most; a page has 100 at most
        :param marker: name of the host before the first one
        :raises NotFound: no such host
        """

    @guard.operators()
    def examine_cloud(self, ctxt: _Context) -> cloud.CloudRecord:
        """Return what is known that belongs to no host."""

    # A copy that another conductor executes has hosts compare once more.
    @contract.longer(compute_api.REPAIR_TIMEOUT)
    @guard.operators()
    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      repairs: Sequence[drift.Repair] = (),
                      ) -> tuple[drift.Drift, ...]:
        """Ask hosts for their drifts, all at the same time.

        A host that does not answer is a drift as well.

        :param hosts: names, 100 at most
        :param repairs: what each of them repairs first
        :raises Invalid: too many hosts, or a repair is none of drift.OF_HOST
        :raises BrokerUnavailable: no host can be asked
        """

    @guard.operators(once=True)
    def repair_database(self, ctxt: _Context, found: drift.Drift, actor: str,
                        ) -> bool:
        """Repair a drift in the database, if it still exists.

        :param actor: who has it repaired, for the events
        :returns: whether it existed
        :raises Invalid: its repair is none of drift.OF_CONDUCTOR
        """


# -- The operators' other methods.


class OperatorContract:
    """Methods for operators: variants, hosts, groups, assignments, devices."""

    @guard.operators(once=True)
    def variant_create(self, ctxt: _Context, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        """Create a variant and apply it to all known devices.

        If that takes longer than a part of ``[gpgpu] rpc_timeout``, the call
        returns, and the conductor goes on: ``hosts_pending`` counts the hosts
        that are left. The same holds for variant_set and variant_delete.

        :raises Invalid: malformed name, id, resource class or trait
        :raises Conflict: the name is taken, also after normalisation, or
            another variant matches the same devices equally well
        """

    @guard.operators()
    def variant_preview(self, ctxt: _Context,
                        variants: Sequence[admin.VariantInfo],
                        limit: int = pages.ALL, marker: str | None = None,
                        ) -> tuple[admin.VariantPreview, ...]:
        """Return a page of hosts that have devices of variants to create.

        :param limit: number of rows at most; a page has PAGE_SIZE at most
        :param marker: id of the host before the first one
        :raises Invalid: as for variant_create
        :raises Conflict: as for variant_create
        """

    @guard.operators()
    def variant_list(self, ctxt: _Context) -> tuple[admin.VariantInfo, ...]:
        """Return all variants, sorted by name."""

    @guard.operators()
    def variant_show(self, ctxt: _Context, name: str) -> admin.VariantInfo:
        """Return one variant.

        :raises NotFound: no variant has this name
        """

    @guard.operators(once=True)
    def variant_set(self, ctxt: _Context, variant: admin.VariantInfo,
                    before: admin.VariantInfo | None = None,
                    ) -> admin.VariantInfo:
        """Replace the fields of the variant that has this name.

        None of domain.variant.IDENTITY can change while its devices are
        assigned. All others can; instances keep what they have. Each claim
        goes by the new fields, also on a host that does not have them yet.

        :param before: as the caller read it; None: whatever it is
        :raises NotFound: no variant has this name
        :raises Conflict: somebody else changed it since, or as for
            variant_create and, where the identity changes, variant_delete
        """

    @guard.operators(once=True)
    def variant_delete(self, ctxt: _Context, name: str) -> None:
        """Delete a variant; its devices become unmanaged.

        Nobody can claim its devices any more. The variant remains until every
        host has applied the deletion.

        :raises NotFound: no variant has this name
        :raises Conflict: one of its devices is assigned, or it is being
            deleted already
        """

    @guard.operators()
    def vgpu_type_list(self, ctxt: _Context, host: str | None = None,
                       variant: str | None = None,
                       vgpu_type: str | None = None, *,
                       only_enabled: bool = False, limit: int = pages.ALL,
                       marker: str | None = None,
                       ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Return a page of vGPU types, also passthrough, with their capacity.

        :param only_enabled: leave out those that are disabled
        :param limit: number of rows at most; a page has PAGE_SIZE at most
        :param marker: ``host:variant:type`` of the row before the first one
        :raises NotFound: no such host, variant or marker
        """

    @guard.operators(once=True)
    def vgpu_type_set(self, ctxt: _Context, variant: str, vgpu_type: str,
                      host: str | None = None, *, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Enable or disable a vGPU type; assigned vGPUs stay assigned.

        Without a host this is a change of the variant, which may reach hosts
        after the answer.

        :param host: None for all hosts, including those that report later
        :returns: the type on the first hosts, at most one page
        :raises NotFound: no GPU of the variant has such a type
        :raises Conflict: another type has the same resource class
        """

    @guard.operators()
    def host_list(self, ctxt: _Context, limit: int = pages.ALL,
                  marker: str | None = None) -> tuple[admin.HostInfo, ...]:
        """Return a page of the hosts, sorted by name.

        :param limit: as for vgpu_type_list
        :param marker: name of the host before the first one
        :raises NotFound: no such marker
        """

    @guard.operators()
    def host_show(self, ctxt: _Context, host: str) -> admin.HostInfo:
        """Return one host.

        :raises NotFound: the host never reported
        """

    @contract.longer(compute_api.PING_TIMEOUT)
    @guard.operators(once=True)
    def host_delete(self, ctxt: _Context, host: str, *, force: bool = False,
                    ) -> None:
        """Delete a host and its devices.

        :param force: delete also a host that reports its devices again
        :raises NotFound: the host never reported
        :raises Conflict: a device of the host is assigned, or without
            ``force`` its nova-compute runs or cannot be asked, or a device is
            dirty, cleaning, quarantined, disabled, or retired and still there
        """

    @guard.operators(once=True)
    def host_drain(self, ctxt: _Context, host: str, *, draining: bool,
                   reason: str | None = None) -> admin.HostInfo:
        """Stop offering the devices of a host, or offer them.

        Instances keep their devices. Idempotent: a host that is draining
        keeps the reason and the author that it has.

        :param reason: one line; None: none is given
        :raises NotFound: the host never reported
        :raises Invalid: the reason is no line of text
        """

    @guard.operators(once=True)
    def host_takeover(self, ctxt: _Context, host: str) -> None:
        """Let the next start of nova-compute, anywhere, speak for a host.

        :raises NotFound: the host never reported
        """

    @guard.operators()
    def group_list(self, ctxt: _Context, host: str | None = None,
                   variant: str | None = None, limit: int = pages.ALL,
                   marker: str | None = None) -> tuple[admin.GroupInfo, ...]:
        """Return a page of groups with their capacity.

        :param limit: as for vgpu_type_list
        :param marker: ``host:variant`` of the group before the first one
        :raises NotFound: no such host, variant or marker
        """

    @guard.operators(once=True)
    def group_set(self, ctxt: _Context, host: str, variant: str,
                  allocation_policy: str | None,
                  ) -> tuple[admin.GroupInfo, ...]:
        """Set the allocation policy of a group.

        :param allocation_policy: None for the variant's
        :returns: the group
        :raises NotFound: no such host or group
        :raises Invalid: not a domain.allocation.request.AllocationPolicy
        """

    @guard.operators(once=True)
    def group_links_set(self, ctxt: _Context, host: str, variant: str,
                        link_partitions: str | None,
                        ) -> tuple[admin.GroupInfo, ...]:
        """Set the link partitions of a group.

        :param link_partitions: a table of domain.fabric; None for that of
            the variant
        :returns: the group
        :raises NotFound: no such host or group
        :raises Invalid: no such table, or the host lacks GPUs that it names
        """

    @contract.longer(compute_api.USAGE_TIMEOUT)
    @guard.operators()
    def assignment_list(self, ctxt: _Context, host: str | None = None,
                        instance: str | None = None, limit: int = pages.ALL,
                        marker: str | None = None,
                        ) -> tuple[admin.AssignmentInfo, ...]:
        """Return a page of active assignments.

        The host of each determines whether it is used.

        :param instance: UUID of an instance
        :param limit: as for vgpu_type_list
        :param marker: UUID of the assignment before the first one
        :raises NotFound: no such host or marker
        """

    @contract.longer(compute_api.USAGE_TIMEOUT)
    @guard.operators(once=True)
    def assignment_end(self, ctxt: _Context, assignments: Sequence[str], *,
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

    @guard.hosts('host')
    @guard.operators()
    def device_list(self, ctxt: _Context, host: str | None = None,
                    variant: str | None = None, state: str | None = None,
                    used_by: str | None = None, project: str | None = None,
                    type: str | None = None, vgpu_type: str | None = None, *,
                    health: str | None = None, faulty: bool = False,
                    include_retired: bool = False, limit: int = pages.ALL,
                    marker: str | None = None) -> tuple[admin.DeviceInfo, ...]:
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

    @guard.operators()
    def device_show(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Return one device.

        :param device: UUID
        :raises NotFound: no device has this UUID
        """


# -- The whole contract: methods of hosts and schedulers, and those above.


VERSION = '3.0'


Allocations = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Allocated units by provider UUID, consumer UUID and resource class."""

_NO_AGES: Mapping[str, int] = {}


class Conductor(OperatorContract, DeviceContract,
                DoctorContract, HistoryContract,
                WhyNotContract):
    """Methods of gpgpu-conductor; any number of conductors serve them.

    The decorators say who may call each of them. A host speaks for itself
    alone; a method that may change rows of another host raises NotOwner if
    that host did not claim them for a migration from here.

    Every method may raise the errors that it names, which are classes of
    gpgpu_plugin.exception and keep their values on the wire. A method with
    an ``origin`` raises Fenced if another session speaks for the host, and
    SessionLost if the database does not know the session. Those that need
    what the host has now raise Conflict if the session has not reported yet.
    """

    # -- compute hosts ------------------------------------------------------

    @guard.hosts('request.host', once=True)
    def begin_session(self, ctxt: _Context,
                      request: report_obj.SessionRequest,
                      ) -> report_obj.Session:
        """Let a start of nova-compute speak for its host.

        The same request again returns the same session.

        :raises Conflict: the host is known with another node UUID, or the
            node UUID under another host
        :raises Fenced: a nova-compute on another machine may be alive
        :raises SessionOutdated: another session began since the one that is
            expected
        """

    @guard.hosts('origin.host')
    def digest(self, ctxt: _Context, origin: report_obj.Origin) -> int:
        """Return the digest of a host's generation and assignments.

        See objects.report.digest. It shows that nova-compute is alive, too.
        """

    @guard.hosts('origin.host')
    def report(self, ctxt: _Context, origin: report_obj.Origin,
               report: report_obj.HostReport) -> inventory_obj.HostInventory:
        """Store the devices that a host found. Idempotent.

        A scan that was overtaken by a newer one of its session is dropped.

        :raises Invalid: the first report after a restore of the database
            does not have the host's assignments
        """

    @guard.hosts('host')
    def host_inventory(self, ctxt: _Context, host: str,
                       ) -> inventory_obj.HostInventory:
        """Return the current inventory of a host's groups.

        :raises NotFound: the host never reported
        """

    @guard.hosts('origin.host', once=True)
    def claim(self, ctxt: _Context, origin: report_obj.Origin,
              request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        """Claim devices for an instance: all of them or none.

        The same request under the same key returns the same devices. A claim
        that takes longer than its caller waits is not granted.

        :raises RequestExpired: it took longer
        :raises ClaimDenied: with a ``reason`` of
            domain.allocation.request.Reason
        """

    @guard.hosts('origin.host', once=True)
    def activate(self, ctxt: _Context, origin: report_obj.Origin,
                 assignments: Sequence[str],
                 driver_capacities: report_obj.DriverCapacities | None = None,
                 guest_addresses: claim_obj.GuestAddresses | None = None,
                 ) -> inventory_obj.HostInventory:
        """Mark assignments as active: the guest runs and the lease ends.

        The devices change from provisioning to assigned. Idempotent: a host
        calls it again when an address in a guest has changed.

        :param assignments: UUIDs, all of one host
        :param driver_capacities: of the parent GPUs of assigned vGPUs
        :param guest_addresses: of these assignments; those of others stay
        :raises NotFound: one of them has ended
        """

    @guard.hosts('origin.host')
    def abort(self, ctxt: _Context, origin: report_obj.Origin,
              assignments: Sequence[str], *, touched: bool,
              fault: str | None = None,
              driver_capacities: report_obj.DriverCapacities | None = None,
              ) -> inventory_obj.HostInventory | None:
        """End claims that were not activated; skip those that have ended.

        :param touched: True if hardware may have been changed: the devices
            become dirty, otherwise available
        :param fault: what is wrong; the devices are quarantined with it
        :param driver_capacities: of the parent GPUs of claimed vGPUs
        :returns: None if no such assignment ever existed
        """

    @guard.hosts('origin.host')
    def release(self, ctxt: _Context, origin: report_obj.Origin,
                assignments: Sequence[str], ages: Mapping[str, int] = _NO_AGES,
                ) -> inventory_obj.HostInventory | None:
        """End provisioning or active assignments; their devices become dirty.

        Those that have ended are skipped, whatever has the device now.

        :param ages: seconds since the host released them, by UUID; default 0.
            Usage of the host's own assignments ends so much earlier, but not
            before it began
        :returns: None if no such assignment ever existed
        """

    @guard.hosts('origin.host')
    def confirm_migration(self, ctxt: _Context, origin: report_obj.Origin,
                          confirmation: claim_obj.MigrationConfirmation,
                          ) -> tuple[inventory_obj.HostInventory, ...]:
        """Give the devices of a migration's destination the role
        ``instance``, and release those of the source, in one transaction.

        Idempotent. Devices that a failed migration left on the destination
        in the role ``instance`` are released as well.

        :returns: of the source and the destination, as far as the instance
            has or had devices there
        """

    @guard.hosts('origin.host')
    def host_assignments(self, ctxt: _Context, origin: report_obj.Origin,
                         known: Sequence[str] = (),
                         ) -> tuple[claim_obj.Assignment, ...]:
        """Return all active assignments on the host.

        :param known: UUIDs of the assignments in the host's book
        :raises SessionLost: the database does not know one of them, not even
            as one that has ended
        """

    @guard.hosts('origin.host')
    def compare_allocations(self, ctxt: _Context, origin: report_obj.Origin,
                            number: int, allocations: Allocations,
                            assignments: Sequence[str],
                            used: Sequence[str] = (),
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

    @guard.hosts(None)
    @guard.operators()
    def instance_assignments(self, ctxt: _Context, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        """Return all active assignments of an instance, on every host."""

    @guard.hosts('origin.host')
    def vfs_refused(self, ctxt: _Context, origin: report_obj.Origin,
                    gpus: Sequence[str]) -> tuple[str, ...]:
        """Return which GPUs of a host must not get VFs now.

        A GPU that has VFs is not cleaned as a whole. So one that waits to be
        cleaned, is quarantined, retired or assigned gets none. Neither does
        one that another service manages, nor any of a host that has not
        reported since a restore of the database.

        :param gpus: stable ids of GPUs that would get VFs
        """

    @guard.hosts('host')
    def clean_tasks(self, ctxt: _Context, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        """Return the devices that a host has to clean.

        These are dirty, or in a cleaning that a restart may have interrupted.
        """

    @guard.hosts('origin.host')
    def clean_started(self, ctxt: _Context, origin: report_obj.Origin,
                      device_uuid: str, token: str, attempt: str) -> None:
        """Change a device from dirty to cleaning.

        The same call may come twice, and is executed once.

        :param token: of the CleanTask, which names the last attempt or, if
            there was none, what made the device dirty
        :param attempt: UUID of this attempt, the device's token from now on
        :raises Conflict: the device is in another state or cleaning
        """

    @guard.hosts('origin.host')
    def clean_failure(self, ctxt: _Context, origin: report_obj.Origin,
                      device_uuid: str, attempt: str,
                      results: Sequence[cleaning.StepResult]) -> str | None:
        """Return why a device is not clean, None if it is; change nothing.

        The host asks this before its own driver gets the device, and before
        it forgets that a guest had the device.

        :raises Conflict: the device is not in this attempt
        """

    @guard.hosts('origin.host')
    def clean_finished(
        self, ctxt: _Context, origin: report_obj.Origin, device_uuid: str,
        attempt: str, steps: Sequence[str],
        results: Sequence[cleaning.StepResult],
        driver_capacities: report_obj.DriverCapacities | None = None,
    ) -> inventory_obj.HostInventory:
        """End the cleaning of a device, which is available or dirty then.

        :param steps: those that the CleanTask named; if the policy requires
            others now, the device is dirty again
        :param results: of the steps that the host took, in their order
        :param driver_capacities: of the parent GPU, if the device is a vGPU
        :raises Conflict: the device is not in this attempt
        """

    @guard.hosts('origin.host')
    def clean_postponed(self, ctxt: _Context, origin: report_obj.Origin,
                        device_uuid: str, attempt: str, reason: str) -> None:
        """Change a device from cleaning to dirty, without a verdict.

        :param reason: what the host lacks to clean it
        :raises Conflict: the device is not in this attempt
        """

    @guard.hosts('host')
    def answer(self, ctxt: _Context, host: str, question: str,
               usages: Sequence[claim_obj.Usage] = (),
               drifts: Sequence[drift.Drift] = ()) -> None:
        """Answer a question of a conductor (Compute.ask, Compute.examine).

        It is cast to every conductor. Those that did not ask drop it, and so
        does the one that did if it no longer waits.

        :param usages: of the assignments in the question
        :param drifts: what the host found on itself
        """

    # -- schedulers ---------------------------------------------------------

    @guard.schedulers()
    def changes_since(self, ctxt: _Context, since: float,
                      known: Sequence[scheduling_obj.HostVersion],
                      marker: int | None,
                      refusals: Sequence[scheduling_obj.FilterRefusal] = (),
                      requests: Sequence[scheduling_obj.ArrivedRequests] = (),
                      mix: int = 0, period: float = 0.0,
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

    @guard.schedulers()
    def chosen(self, ctxt: _Context,
               choices: Sequence[scheduling_obj.SchedulerChoice]) -> None:
        """Take hosts that a scheduler chose, for all schedulers.

        It is cast to every conductor, so that whichever a scheduler asks next
        knows the choices. A choice that is lost costs at most a denied claim.
        """

    @guard.schedulers()
    def exact_host(self, ctxt: _Context, request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        """Return the host of the devices that an instance names.

        The answer has the refusal if the project may not name devices, or one
        of them is not available.
        """
