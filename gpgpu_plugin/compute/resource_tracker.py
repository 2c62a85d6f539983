# SPDX-License-Identifier: Apache-2.0
"""Resource tracker, which keeps conductor, Placement and devices in step.

Every event makes tasks due (``gpgpu_plugin.compute.tasks``), and ``run_once``
runs the tasks that are due. One worker thread calls it at each interval and
when it is woken. If no task is due, it makes no call. Builds and deletes call
the other methods from Nova's threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from nova import context as nova_context
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import allocation_removal
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.compute import builds
from gpgpu_plugin.compute import cleaner
from gpgpu_plugin.compute import cleanings
from gpgpu_plugin.compute import guest_addresses
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.compute import inventory
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import placement
from gpgpu_plugin.compute import releases
from gpgpu_plugin.compute import schedule
from gpgpu_plugin.compute import session
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_api

LOG = logging.getLogger(__name__)

_T = tasks.Task

_RETRY_INTERVAL = 0.5
"""Seconds until Nova is asked again whether an allocation is gone."""

_CLEANING_INTERVAL = 5.0
"""Seconds until the next iteration while devices are being cleaned."""

class ResourceTracker:
    """Resource tracker of one host's groups, devices and assignments.

    :param host: name of the nova-compute service
    :param client: Nova's report client (``virtapi.reportclient``)
    :param find_orphans: given all assignments of an instance here, returns the
        UUIDs of those that nobody uses any more; not called while a build on
        this host has them; raises if that is unknown
    :param clock: seconds that only grow
    :ivar is_here: returns whether Nova has an instance on this host
    :ivar runs: returns whether the guest of an instance runs on this host
    :ivar arrived_with: returns the UUID of the migration, which is over, that
        made the guest of an instance that runs on this host
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str,
                 backend: base.Host, api: conductor_api.ConductorAPI,
                 client: nova_types.ReportClient,
                 find_orphans: tasks.FindOrphans,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self.backend = backend
        self.api = api
        self.assignments = assignments.HostAssignments(
            assignments.path_of(conf, host))
        self.allocation_removal = allocation_removal.AllocationRemoval(clock)
        self.guest_addresses = guest_addresses.GuestAddresses()
        self.inventory = inventory.OfferedInventory(
            host, client, lambda: bool(self.allocation_removal),
            self.assignments.acknowledge)
        self._client = client
        self._releases = releases.Releases(
            host, self.assignments, self.flush_releases)
        self.find_orphans = find_orphans
        self.is_here: Callable[[str], bool] = lambda instance_uuid: True
        self.runs: Callable[[str], bool] = lambda instance_uuid: False
        self.arrived_with: Callable[[str], str | None] = (
            lambda instance_uuid: None)
        self.session = session.HostSession(
            host, api, self.assignments, self.inventory)
        self._schedule = schedule.Schedule(
            clock, conf.gpgpu.claim_lease, conf.gpgpu.digest_interval)
        self.builds = builds.Builds(self._build_left_out)
        self._cleanings = cleanings.Cleanings(
            conf.gpgpu.max_cleanings,
            lambda task: cleaner.clean(self._host(), task),
            self._cleaning_ended, clock=clock)
        self.wake: Callable[[], None] = lambda: None
        self._node: tasks.ComputeNode | None = None
        self._managed_by_cyborg: dict[str, str] = {}
        self._managed_by_others: tasks.ManagedElsewhere = lambda scan: {}
        self._run = {
            _T.BEGIN: self._begin,
            _T.DIGEST: self._compare_digest,
            _T.AWAIT_ALLOCATION_REMOVAL: self._await_allocation_removal,
            _T.RELEASE: self.flush_releases,
            _T.RECONCILE: self._reconcile,
            _T.REPORT: self._report,
            _T.GUEST_ADDRESSES: self._send_guest_addresses,
            _T.FETCH: self._fetch,
            _T.CLEAN: self._clean,
        }

    # -- what happened -> which tasks are due -------------------------------

    def exclude(self, owners: tasks.ManagedElsewhere) -> None:
        """Exclude devices from all variants if ``owners`` returns an owner."""
        self._managed_by_others = owners
        self._schedule.require(_T.REPORT)

    def set_node(self, name: str, uuid: str) -> None:
        """Set the compute node below which the groups are."""
        self._node = tasks.ComputeNode(name=name, uuid=uuid)

    def refresh(self) -> None:
        """Record that the conductor changed something about the host."""
        self._schedule.require(_T.FETCH, _T.CLEAN)

    def _cleaning_ended(self) -> None:
        self._schedule.require(_T.CLEAN)
        self.wake()

    def assignments_changed(self) -> None:
        """Record that the conductor changed assignments of the host."""
        self.request_reconcile()
        self.refresh()

    def allocation_removed(self, consumer: str) -> None:
        """Record that Nova removes an allocation of devices that stay."""
        self.allocation_removal.add(consumer)
        self.request_reconcile()

    def request_reconcile(self) -> None:
        """Make a reconciliation due, since a call's outcome is unknown.

        The call may still be running during the comparison, so another one
        follows.
        """
        self._schedule.require(_T.RECONCILE, _T.RECONCILE_LATER)

    def _build_left_out(self, instance_uuid: str) -> None:
        if self.assignments.of_instance(instance_uuid):
            self._schedule.require(_T.RECONCILE)

    # -- Nova's tree --------------------------------------------------------

    def update_provider_tree(self, tree: nova_types.ProviderTree,
                             node: str) -> bool:
        """Put the groups into Nova's tree: memory only, never raises.

        :returns: whether the host is to be reported now
        """
        try:
            managed = placement.managed_by_cyborg(tree, node)
            if managed != self._managed_by_cyborg:
                # What the conductor offers may be Cyborg's: Placement keeps
                # what it has until the conductor answered.
                self._managed_by_cyborg = managed
                self._schedule.require(_T.REPORT)
                return True
            self.inventory.apply(tree, node)
            return self._set_disabled(placement.is_disabled(tree, node))
        except Exception:
            # Whatever it is, the host must stay usable without GPUs.
            LOG.exception('Cannot put the GPU groups of %s into the provider '
                          'tree; Placement keeps what it has', node)
        return False

    def _set_disabled(self, disabled: bool) -> bool:
        if self._node is None or self._node.is_disabled == disabled:
            return False
        self._node = dataclasses.replace(self._node, is_disabled=disabled)
        self._schedule.require(_T.REPORT)
        return True

    # -- the beginning of an assignment -------------------------------------

    def activate(self, instance_uuid: str,
                 claimed: Collection[claim_obj.Assignment]) -> None:
        """Record that a guest has what was claimed for it.

        :raises NotFound: part of the claim has ended
        """
        uuids = [assignment.uuid for assignment in claimed]
        addresses = self.guest_addresses.due(uuids)
        self.inventory.accept(self.session.call(
            self.api.activate, uuids, self.backend.driver_capacity(
                map(base.HostDevice.of, claimed)), addresses))
        self.guest_addresses.accept(addresses)
        self.assignments.activated(instance_uuid, uuids)

    def activate_late(self, instance_uuid: str,
                      assigned: Iterable[claim_obj.Assignment]) -> None:
        """Activate those of a guest's assignments that are not; never raises.

        nova-compute was killed before it did so, or no conductor answered.
        Until then they count as those of a build that may have failed.
        """
        late = [assignment for assignment in assigned
                if assignment.state == device_rules.DeviceState.PROVISIONING]
        if not late:
            return
        try:
            self.activate(instance_uuid, late)
        except Exception:
            LOG.exception('Cannot activate the assignments of instance %s on '
                          '%s; the next comparison does so if its guest runs',
                          instance_uuid, self.host)
            self.request_reconcile()

    # -- the end of an assignment -------------------------------------------

    def release_instance(
            self, instance_uuid: str,
            which: Callable[[claim_obj.Assignment], bool] | None = None,
            allocation_removal: str | None = None) -> None:
        """Release devices of an instance, later if no conductor answers.

        :param which: selects some of its assignments; default all
        :param allocation_removal: the consumer whose allocation Nova removes
            next, without a retry
        :raises HostError: see Releases.release
        """
        uuids = [
            assignment.uuid
            for assignment in self.assignments.of_instance(instance_uuid)
            if which is None or which(assignment)]
        if uuids:
            if allocation_removal is not None:
                self.allocation_removal.add(allocation_removal)
            self.release(uuids)
            self.assignments.remove(instance_uuid, uuids)

    def release(self, uuids: Iterable[str]) -> None:
        """Release assignments now, or later if no conductor answers.

        :raises HostError: see Releases.release
        """
        with self._delivering():
            self._releases.release(list(uuids))

    def confirm_migration(
            self, confirmation: claim_obj.MigrationConfirmation) -> None:
        """Confirm a migration from here, later if no conductor answers.

        :raises HostError: see Releases.confirm
        """
        if confirmation.source_assignments:
            # Nova removes the migration's allocation next.
            self.allocation_removal.add(confirmation.migration_uuid)
        with self._delivering():
            self._releases.confirm(confirmation)

    @contextlib.contextmanager
    def _delivering(self) -> Iterator[None]:
        try:
            yield
        except exception.HostError:
            # A conductor may have executed the request all the same.
            self.request_reconcile()
            raise
        finally:
            self._schedule.require(_T.CLEAN)

    def flush_releases(self) -> None:
        """Send pending releases and confirmations.

        :raises ConductorUnavailable: they stay pending
        """
        if self._is_due(_T.RELEASE):
            # What is released is dirty, also if the answer gets lost.
            self._schedule.require(_T.CLEAN)
            if not tasks.release(self._host(), self.inventory.accept):
                self.request_reconcile()

    def place(self, found: claim_obj.GuestAddresses) -> None:
        """Send where a guest that starts has its devices; never raises.

        What no conductor accepts stays due. The addresses of a claim that is
        not active yet are sent with its activation.
        """
        self.guest_addresses.note(found)
        try:
            if self._is_due(_T.GUEST_ADDRESSES):
                self._send_guest_addresses()
        except exception.ConductorUnavailable as exc:
            LOG.warning('%s; dynamic vendordata of guests on %s may have the '
                        'previous PCI addresses', exc, self.host)
        except Exception:
            LOG.exception('Cannot send where guests of %s have their GPUs; '
                          'dynamic vendordata may have the previous PCI '
                          'addresses until the next iteration', self.host)

    def restore(
            self, assignments: Iterable[claim_obj.Assignment] | None = None,
            ) -> None:
        """Prepare assigned devices again, as after a reboot of the host.

        See tasks.restore.

        :param assignments: only these; None: all, which nothing else prepares
            meanwhile
        """
        if assignments is None:
            assignments = self.assignments.all()
            if not self.session.is_reported or self.session.is_restored:
                # A report would have made them, with a conductor's consent. It
                # does not consent before it knows the book.
                tasks.restore_vfs(self._host())
        tasks.restore(self._host(), assignments)

    # -- tasks that are due -> done -----------------------------------------

    def run_once(self) -> float | None:
        """Run the tasks that are due; those that fail stay due.

        :returns: seconds until the next iteration, None: the usual interval
        """
        self.assignments.write_again()
        try:
            self._run_due()
        except exception.SessionLost as exc:
            # The database was restored, or the host was deleted in it.
            LOG.warning('%s. A new session begins', exc.msg_fmt % exc.kwargs)
            with contextlib.suppress(exception.SessionLost):
                self._run_due()
        self.inventory.push()
        if self.allocation_removal:
            return _RETRY_INTERVAL
        return _CLEANING_INTERVAL if self._cleanings else None

    def _run_due(self) -> None:
        """Run the tasks that are due.

        :raises SessionLost: a new session must begin
        """
        failed: set[tasks.Task] = set()
        for task in schedule.ITERATION:
            if task in failed:
                continue
            try:
                if self._is_due(task):
                    self._run_task(task)
            except exception.SessionLost:
                raise
            except exception.Fenced:
                # It was said once; nothing else may be done.
                break
            except exception.ConductorUnavailable as exc:
                LOG.warning('%s; task %s of %s will be retried later', exc,
                            task, self.host)
                # The others would wait for it in vain, one after the other.
                break
            except exception.HostNotReady as exc:
                failed.add(task)
                LOG.error('Host %s is not set up, and task %s waits for it: '
                          '%s', self.host, task, exc)
            except Exception:
                # Also what the conductor, Nova or the hypervisor did not
                # foresee: nova-compute starts all the same.
                failed.add(task)
                LOG.exception('Task %s of %s failed and will be retried later',
                              task, self.host)

    def _run_task(self, task: tasks.Task) -> None:
        # Taken out first: what happens meanwhile makes it due again.
        self._schedule.take(task)
        try:
            self._run[task]()
        except Exception:
            self._schedule.require(task)
            raise

    def _is_due(self, task: tasks.Task) -> bool:
        if task is _T.BEGIN:
            return self._node is not None and not self.session.is_active
        if task is _T.AWAIT_ALLOCATION_REMOVAL:
            return bool(self.allocation_removal)
        if not self.session.is_active or (
                task in schedule.AFTER_REPORT
                and not self.session.is_reported):
            return False
        if task is _T.RELEASE:
            return bool(self.assignments.pending()
                        or self.assignments.confirmations())
        if task is _T.GUEST_ADDRESSES:
            return bool(self._due_guest_addresses())
        if task is _T.RECONCILE and self.allocation_removal:
            return False
        return self._schedule.is_due(task) or (
            task is _T.REPORT and self.backend.changed())

    def _host(self) -> host_mod.Host:
        return host_mod.Host(
            name=self.host, backend=self.backend, api=self.api,
            client=self._client, assignments=self.assignments,
            session=self.session)

    def _begin(self) -> None:
        assert self._node is not None
        tasks.begin(self._host(), self._node)
        self._schedule.begin()
        self.guest_addresses.begin({
            assignment.uuid for assignment in self.assignments.all()})

    def _compare_digest(self) -> None:
        if not tasks.is_digest_equal(self._host(), self.inventory.newest):
            LOG.info('The data of %s in the conductor changed without a '
                     'message; fetching it', self.host)
            self._schedule.require(_T.FETCH, _T.CLEAN, _T.RECONCILE)

    def _await_allocation_removal(self) -> None:
        self.allocation_removal.forget_removed(
            nova_context.get_admin_context(), self._client,
            self.inventory.provider_uuids())

    def _managed_elsewhere(self, scan: scanner.Scan) -> dict[str, str]:
        return self._managed_by_others(scan) | self._managed_by_cyborg

    def _report(self) -> None:
        assert self._node is not None
        reported = tasks.report(
            self._host(), self._node, self._managed_elsewhere)
        self.inventory.accept(reported.inventory)
        # Also a device that was away while it was to be cleaned.
        self._schedule.require(_T.CLEAN)
        if reported.moved:
            self._schedule.require(_T.RECONCILE)
        if reported.in_use:
            # The kernel does not notify when the process closes the device.
            self._schedule.require(_T.REPORT)

    def _due_guest_addresses(self) -> dict[str, tuple[str, ...]]:
        return self.guest_addresses.due({
            assignment.uuid for assignment in self.assignments.all()
            if assignment.state == device_rules.DeviceState.ASSIGNED})

    def _send_guest_addresses(self) -> None:
        due = self._due_guest_addresses()
        try:
            self.inventory.accept(
                tasks.send_guest_addresses(self._host(), due))
        except exception.NotFound:
            # The book has an assignment that has ended.
            self.request_reconcile()
        else:
            self.guest_addresses.accept(due)

    def _fetch(self) -> None:
        try:
            self.inventory.accept(tasks.fetch(self._host()))
            if self.backend.lacks_vfs():
                # Such as a GPU that need not wait for its cleaning any more.
                self._schedule.require(_T.REPORT)
        except exception.NotFound:
            # The host was deleted in the conductor, or the database was
            # restored: nothing of it can be claimed until it reports anew.
            self.session.lose()
            raise exception.SessionLost(
                host=self.host, session=self.assignments.session(),
                reason='it does not know the host') from None

    def _clean(self) -> None:
        def skipped(task: claim_obj.CleanTask) -> None:
            LOG.info('Device %s of %s is cleaned after the next comparison: '
                     'it is dirty in the conductor and assigned in the book',
                     task.address, self.host)
            self._schedule.require(_T.RECONCILE, _T.CLEAN)
        for answer in tasks.clean(self._host(), self._cleanings, skipped):
            if answer is None:
                # Another cleaning of the device has begun, maybe by a call
                # that was given up here: whoever sent it, the device is not
                # to wait for the next event.
                self._schedule.require(_T.CLEAN)
            elif self.backend.lacks_vfs():
                # Such as the GPU that is clean now: before it is claimed.
                self._schedule.require(_T.REPORT)
                self.wake()
            self.inventory.accept(answer)
            self.inventory.push()

    def _reconcile(self) -> None:
        done = tasks.reconcile(
            self._host(), self.builds, self.find_orphans, self.is_here)
        if done.repeat:
            self._schedule.require(_T.RECONCILE)
        if done.orphans:
            self.release(orphan.uuid for orphan in done.orphans)
        self._begin_usage(done.used)
        self.inventory.accept(tasks.compare_allocations(
            self._host(), self.inventory.newest, done.listed, done.used))
        self._schedule.reconciled()

    def _begin_usage(self, used: Iterable[claim_obj.Assignment]) -> None:
        """Begin the usage of guests that run after their build or move ended.

        The guest of a migration under way may have other devices.
        """
        for instance_uuid, its in tasks.by_instance(used).items():
            built = [
                assignment for assignment in its
                if assignment.state == device_rules.DeviceState.PROVISIONING
                and assignment.role is claim_obj.ClaimRole.INSTANCE]
            if built and self.runs(instance_uuid):
                self.activate_late(instance_uuid, built)
            [*claims] = {assignment.migration_uuid for assignment in its}
            if len(claims) == 1 and claims[0] is not None and (
                    self.arrived_with(instance_uuid) == claims[0]):
                self.confirm_migration(claim_obj.MigrationConfirmation(
                    instance_uuid=instance_uuid, migration_uuid=claims[0]))
