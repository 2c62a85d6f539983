# SPDX-License-Identifier: Apache-2.0
"""The conductor's RPC contract: its methods, arguments, results and errors.

Hosts, schedulers and commands use nothing else of the conductor.
``rpc.conductor_api`` calls it and ``conductor.manager`` implements it.
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
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import device_contract
from gpgpu_plugin.rpc import doctor_contract
from gpgpu_plugin.rpc import history_contract
from gpgpu_plugin.rpc import operator_contract
from gpgpu_plugin.rpc import why_not_contract

VERSION = '3.0'

_Context = gpgpu_context.RequestContext

Allocations = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Allocated units by provider UUID, consumer UUID and resource class."""

_NO_AGES: Mapping[str, int] = {}


class Conductor(operator_contract.Operators, device_contract.Devices,
                doctor_contract.Doctor, history_contract.History,
                why_not_contract.WhyNot):
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

    @caller.hosts('request.host', once=True)
    def begin_session(self, ctxt: _Context,
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
    def digest(self, ctxt: _Context, origin: session_obj.Origin) -> int:
        """Return the digest of a host's generation and assignments.

        See objects.session.digest. It shows that nova-compute is alive, too.
        """

    @caller.hosts('origin.host')
    def report(self, ctxt: _Context, origin: session_obj.Origin,
               report: report_obj.HostReport) -> inventory_obj.HostInventory:
        """Store the devices that a host found. Idempotent.

        A scan that was overtaken by a newer one of its session is dropped.

        :raises Invalid: the first report after a restore of the database
            does not have the host's assignments
        """

    @caller.hosts('host')
    def host_inventory(self, ctxt: _Context, host: str,
                       ) -> inventory_obj.HostInventory:
        """Return the current inventory of a host's groups.

        :raises NotFound: the host never reported
        """

    @caller.hosts('origin.host', once=True)
    def claim(self, ctxt: _Context, origin: session_obj.Origin,
              request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        """Claim devices for an instance: all of them or none.

        The same request under the same key returns the same devices. A claim
        that takes longer than its caller waits is not granted.

        :raises RequestExpired: it took longer
        :raises ClaimDenied: with a ``reason`` of
            domain.allocation.request.Reason
        """

    @caller.hosts('origin.host', once=True)
    def activate(self, ctxt: _Context, origin: session_obj.Origin,
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

    @caller.hosts('origin.host')
    def abort(self, ctxt: _Context, origin: session_obj.Origin,
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

    @caller.hosts('origin.host')
    def release(self, ctxt: _Context, origin: session_obj.Origin,
                assignments: Sequence[str], ages: Mapping[str, int] = _NO_AGES,
                ) -> inventory_obj.HostInventory | None:
        """End provisioning or active assignments; their devices become dirty.

        Those that have ended are skipped, whatever has the device now.

        :param ages: seconds since the host released them, by UUID; default 0.
            Usage of the host's own assignments ends so much earlier, but not
            before it began
        :returns: None if no such assignment ever existed
        """

    @caller.hosts('origin.host')
    def confirm_migration(self, ctxt: _Context, origin: session_obj.Origin,
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
    def host_assignments(self, ctxt: _Context, origin: session_obj.Origin,
                         known: Sequence[str] = (),
                         ) -> tuple[claim_obj.Assignment, ...]:
        """Return all active assignments on the host.

        :param known: UUIDs of the assignments in the host's book
        :raises SessionLost: the database does not know one of them, not even
            as one that has ended
        """

    @caller.hosts('origin.host')
    def compare_allocations(self, ctxt: _Context, origin: session_obj.Origin,
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

    @caller.hosts(None)
    @caller.operators()
    def instance_assignments(self, ctxt: _Context, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        """Return all active assignments of an instance, on every host."""

    @caller.hosts('origin.host')
    def vfs_refused(self, ctxt: _Context, origin: session_obj.Origin,
                    gpus: Sequence[str]) -> tuple[str, ...]:
        """Return which GPUs of a host must not get VFs now.

        A GPU that has VFs is not cleaned as a whole. So one that waits to be
        cleaned, is quarantined, retired or assigned gets none. Neither does
        one that another service manages, nor any of a host that has not
        reported since a restore of the database.

        :param gpus: stable ids of GPUs that would get VFs
        """

    @caller.hosts('host')
    def clean_tasks(self, ctxt: _Context, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        """Return the devices that a host has to clean.

        These are dirty, or in a cleaning that a restart may have interrupted.
        """

    @caller.hosts('origin.host')
    def clean_started(self, ctxt: _Context, origin: session_obj.Origin,
                      device_uuid: str, token: str, attempt: str) -> None:
        """Change a device from dirty to cleaning.

        The same call may come twice, and is executed once.

        :param token: of the CleanTask, which names the last attempt or, if
            there was none, what made the device dirty
        :param attempt: UUID of this attempt, the device's token from now on
        :raises Conflict: the device is in another state or cleaning
        """

    @caller.hosts('origin.host')
    def clean_failure(self, ctxt: _Context, origin: session_obj.Origin,
                      device_uuid: str, attempt: str,
                      results: Sequence[cleaning.StepResult]) -> str | None:
        """Return why a device is not clean, None if it is; change nothing.

        The host asks this before its own driver gets the device, and before
        it forgets that a guest had the device.

        :raises Conflict: the device is not in this attempt
        """

    @caller.hosts('origin.host')
    def clean_finished(
        self, ctxt: _Context, origin: session_obj.Origin, device_uuid: str,
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

    @caller.hosts('origin.host')
    def clean_postponed(self, ctxt: _Context, origin: session_obj.Origin,
                        device_uuid: str, attempt: str, reason: str) -> None:
        """Change a device from cleaning to dirty, without a verdict.

        :param reason: what the host lacks to clean it
        :raises Conflict: the device is not in this attempt
        """

    @caller.hosts('host')
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

    @caller.schedulers()
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

    @caller.schedulers()
    def chosen(self, ctxt: _Context, choices: Sequence[scheduling_obj.Choice],
               ) -> None:
        """Take hosts that a scheduler chose, for all schedulers.

        It is cast to every conductor, so that whichever a scheduler asks next
        knows the choices. A choice that is lost costs at most a denied claim.
        """

    @caller.schedulers()
    def exact_host(self, ctxt: _Context, request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        """Return the host of the devices that an instance names.

        The answer has the refusal if the project may not name devices, or one
        of them is not available.
        """
