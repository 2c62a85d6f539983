# SPDX-License-Identifier: Apache-2.0
"""Resource tracker, which keeps conductor, Placement and devices in step.

Every event makes tasks due (``gpgpu_plugin.compute.tasks``), and ``run_once``
runs the tasks that are due. One worker thread calls it at each interval and
when it is woken. If no task is due, it makes no call. Builds and deletes call
the methods of ``tracker_api.ResourceTrackerBase`` from Nova's threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from nova import context as nova_context
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import claims as claims_mod
from gpgpu_plugin.compute import cleaning
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.compute import inventory
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import placement
from gpgpu_plugin.compute import service
from gpgpu_plugin.compute import session
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)

_T = tasks.Task

_RETRY_INTERVAL = 0.5
"""Seconds until Nova is asked again whether an allocation is gone."""

_CLEANING_INTERVAL = 5.0
"""Seconds until the next iteration while devices are being cleaned."""


def for_host(conf: cfg.ConfigOpts, host: str,
             driver: tracker_api.VirtDriver) -> ResourceTracker:
    """Return the tracker that claims from gpgpu-conductor.

    Entry point ``conductor`` of ``gpgpu_plugin.resource_trackers``.

    :raises ConfigInvalid: another process has the host's book, or the host
        has no key
    """
    lock = assignment_file.acquire_lock(assignment_file.path_of(conf, host))
    transport = rpc_transport.get_transport(conf)
    host_class = extensions.load(extensions.HOSTS, driver.host_type)
    tracker = ResourceTracker(
        conf, host, host_class.for_host(conf, host, driver.guests()),
        conductor_client.ConductorAPI(
            conf, transport, caller=gpgpu_context.CallerKind.HOST, name=host),
        driver, functools.partial(leftovers.find_orphans,
                                  domain_of=driver.domain_of),
        transport=transport)
    tracker.book_lock = lock
    tracker.is_here = functools.partial(leftovers.is_here, host=host)
    tracker.runs = lambda instance_uuid: (
        driver.domain_of(instance_uuid).is_active)
    tracker.arrived_with = functools.partial(
        leftovers.arrived_with, host=host, domain_of=driver.domain_of)
    return tracker


class ResourceTracker(tracker_api.ResourceTrackerBase):
    """Resource tracker of one host's groups, devices and assignments.

    :param find_orphans: given all assignments of an instance here, returns the
        UUIDs of those that nobody uses any more; not called while a build on
        this host has them; raises if that is unknown
    :param clock: seconds that only grow
    :param transport: see HostService
    :ivar is_here: returns whether Nova has an instance on this host
    :ivar runs: returns whether the guest of an instance runs on this host
    :ivar arrived_with: returns the UUID of the migration, which is over, that
        made the guest of an instance that runs on this host
    :ivar book_lock: open until the process ends: to close it would unlock the
        book
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str,
                 backend: base.ComputeHost, api: conductor_client.ConductorAPI,
                 driver: tracker_api.VirtDriver,
                 find_orphans: tasks.FindOrphans,
                 clock: Callable[[], float] = time.monotonic,
                 transport: rpc_transport.Transport | None = None) -> None:
        super().__init__(conf, host, driver)
        client = driver.virtapi.reportclient
        self.book_lock: typing.TextIO | None = None
        self.backend = backend
        self.api = api
        self.assignments = assignment_file.AssignmentFile(
            assignment_file.path_of(conf, host))
        self.allocation_removal = placement.AllocationRemoval(clock)
        self.guest_addresses = host_mod.GuestAddresses()
        # Held by the thread that sends them.
        self._sending = threading.Lock()
        self.inventory = inventory.OfferedInventory(
            host, client, lambda: bool(self.allocation_removal),
            self.assignments.acknowledge)
        self._client = client
        self._releases = claims_mod.Releases(
            host, self.assignments, self.flush_releases)
        self.find_orphans = find_orphans
        self.is_here: Callable[[str], bool] = lambda instance_uuid: True
        self.runs: Callable[[str], bool] = lambda instance_uuid: False
        self.arrived_with: Callable[[str], str | None] = (
            lambda instance_uuid: None)
        self.session = session.HostSession(
            host, api, self.assignments, self.inventory)
        self._schedule = tasks.Schedule(
            clock, conf_gpgpu.claim_lease(conf), conf.gpgpu.digest_interval)
        self.builds = host_mod.Builds(self._build_left_out)
        self._open_claims = claims_mod.OpenClaims(backend, self.assignments)
        self._unexpected = leftovers.UnexpectedAssignments(clock)
        self._cleanings = cleaning.Cleanings(
            conf.gpgpu_compute.max_cleanings,
            lambda task: cleaning.clean(self._host(), task),
            self._cleaning_ended, clock=clock)
        self.service = service.HostService(self, transport)
        self.wake: Callable[[], None] = self.service.worker.wake
        self._node: tasks.NodeUUIDs | None = None
        self._managed_by_cyborg: dict[str, str] = {}
        self._owners: tracker_api.Owners | None = None
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

    # -- start and end ------------------------------------------------------

    def start(self, node: str, node_uuid: str,
              owners: tracker_api.Owners) -> None:
        self.set_node(node, node_uuid)
        # Before the first report: a GPU of other guests is not offered.
        self._owners = owners
        self.service.start(owners)

    def stop(self) -> None:
        self.service.stop()

    # -- what happened -> which tasks are due -------------------------------

    def set_node(self, name: str, uuid: str) -> None:
        """Set the compute node below which the groups are."""
        self._node = tasks.NodeUUIDs(name=name, uuid=uuid)

    def refresh(self) -> None:
        """Record that the conductor changed something about the host."""
        self._schedule.require(_T.FETCH, _T.CLEAN)
        self.wake()

    def _cleaning_ended(self) -> None:
        self._schedule.require(_T.CLEAN)
        self.wake()

    def assignments_changed(self) -> None:
        """Record that the conductor changed assignments of the host."""
        self.request_reconcile()
        self.refresh()

    def request_reconcile(self,
                          allocation_removal: str | None = None) -> None:
        if allocation_removal is not None:
            self.allocation_removal.add(allocation_removal)
            self.wake()
        # A call whose outcome is unknown may still be running during the
        # comparison, so another one follows.
        self._schedule.require(_T.RECONCILE, _T.RECONCILE_LATER)

    def _build_left_out(self, instance_uuid: str) -> None:
        if self.assignments.of_instance(instance_uuid):
            self._schedule.require(_T.RECONCILE)

    # -- Nova's tree --------------------------------------------------------

    def update_provider_tree(self, tree: nova_types.ProviderTree,
                             node: str) -> None:
        if any([self._update_tree(tree, node), self._owners_changed(),
                self._has_unexpected()]):
            self.wake()

    def _update_tree(self, tree: nova_types.ProviderTree, node: str) -> bool:
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

    def _owners_changed(self) -> bool:
        """Make a report due if a GPU has another owner; never raises."""
        try:
            if self._owners is None or not self._owners.changed():
                return False
        except Exception:
            # Whatever it is, the host must stay usable; Nova asks again.
            LOG.exception('Cannot read which GPUs of %s are used by guests '
                          'that the plugin did not create; these GPUs stay '
                          'unmanaged', self.host)
            return False
        self._schedule.require(_T.REPORT)
        return True

    def _has_unexpected(self) -> bool:
        """Make a comparison due if Nova expects other assignments here."""
        try:
            found = self._unexpected.find(
                self.assignments.all(), self.driver.virtapi._compute.rt,
                self.builds.current())
        except Exception:
            # Whatever it is, the host must stay usable.
            LOG.exception('Cannot compare the assignments of %s with Nova\'s '
                          'resource tracker', self.host)
            return False
        if found:
            LOG.info('%s has assignments of instances %s, which Nova does not '
                     'expect there; comparing them with Nova', self.host,
                     ', '.join(found))
            self.request_reconcile()
        return bool(found)

    @property
    def offered(self) -> inventory_obj.HostInventory | None:
        return self.inventory.newest

    # -- the book -----------------------------------------------------------

    def assigned(self, instance_uuid: str | None = None,
                 ) -> tuple[claim_obj.Assignment, ...]:
        if instance_uuid is None:
            return tuple(self.assignments.all())
        return self.assignments.of_instance(instance_uuid)

    @contextlib.contextmanager
    def building(self, instance_uuid: str) -> Iterator[None]:
        try:
            with self.builds.running(instance_uuid):
                yield
        finally:
            self.wake()

    # -- the beginning of an assignment -------------------------------------

    def claim(self, request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        instance_uuid = request.instance_uuid
        orphaned = self._release_orphans(request)
        try:
            # A release that is still pending, such as from before the instance
            # was shelved, would end what is granted now.
            self.flush_releases()
            granted = self._claim(request)
        finally:
            # Some may have ended long ago, which had to be found out first.
            if orphaned:
                self.assignments.remove(instance_uuid, orphaned)
        try:
            self.assignments.add(instance_uuid, granted.assignments)
        except Exception:
            self._open_claims.add(granted.assignments)
            self._abort(granted.assignments)
            self.request_reconcile()
            raise
        self._open_claims.add(granted.assignments)
        self.inventory.accept(granted.inventory)
        return granted

    def _release_orphans(
            self, request: claim_obj.ClaimRequest) -> Collection[str]:
        """Release what an earlier stay of the instance left here; return it.
        """
        operation = (
            assignment_use.Operation(assignment_use.OperationKind.BUILD)
            if request.migration_uuid is None else
            assignment_use.Operation(assignment_use.OperationKind.PREPARE,
                                     request.migration_uuid))
        try:
            found = self.find_orphans(
                self.assignments.of_instance(request.instance_uuid),
                operation=operation)
        except Exception:
            LOG.exception('Cannot check what an earlier stay of instance %s '
                          'left on %s; it stays assigned',
                          request.instance_uuid, self.host)
            return ()
        if found:
            LOG.warning(
                'Releasing assignments on %s that nobody uses, as instance %s '
                'claims devices there: %s', self.host, request.instance_uuid,
                ', '.join(sorted(found)))
            self.release(found)
        return found

    def _claim(self, request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        try:
            return claims_mod.claim(
                self._host(), self.builds, request, self.refresh)
        except exception.ClaimDenied as denied:
            if denied.reason == request_mod.Reason.REQUEST_CHANGED:
                # The book lacks what the conductor has, which a comparison
                # ends.
                self.request_reconcile()
            raise
        except (exception.Fenced, exception.NoSession):
            raise
        except Exception:
            # It may have been granted all the same.
            self.request_reconcile()
            raise

    def prepare(self, assignments: Iterable[claim_obj.Assignment]) -> None:
        prepared = []
        try:
            for assignment in assignments:
                self._open_claims.prepare(assignment)
                prepared.append(assignment)
        finally:
            # Before the guest, of which the conductor may never hear.
            self.assignments.prepare(prepared)

    def attachment(self, assignment: claim_obj.Assignment) -> base.Attachment:
        return self.backend.attachment(base.HostDevice.of(assignment))

    def activate(self, instance_uuid: str,
                 claimed: Sequence[claim_obj.Assignment]) -> None:
        uuids = [assignment.uuid for assignment in claimed]
        addresses = self.guest_addresses.due(uuids)
        self.inventory.accept(self.session.call(
            self.api.activate, uuids, self.backend.driver_capacity(
                map(base.HostDevice.of, claimed)), addresses))
        self.guest_addresses.accept(addresses)
        self.assignments.activated(instance_uuid, uuids)
        self._open_claims.remove(uuids)
        self.inventory.push()

    # -- the end of an assignment -------------------------------------------

    def release_instance(
            self, instance_uuid: str,
            which: Callable[[claim_obj.Assignment], bool] | None = None, *,
            host: str | None = None,
            allocation_removal: str | None = None) -> None:
        if host not in (None, self.host):
            self._abort_on(host, instance_uuid, which)
            return
        selected = list(filter(
            which, self.assignments.of_instance(instance_uuid)))
        if selected and allocation_removal is not None:
            self.allocation_removal.add(allocation_removal)
        used = [assignment.uuid for assignment in selected
                if assignment not in self._open_claims]
        if used:
            self.release(used)
            self.assignments.remove(instance_uuid, used)
        self._abort(selected)
        self.wake()

    def _abort(self, assignments: Iterable[claim_obj.Assignment]) -> None:
        """End those of a claim that are open, later if no conductor answers.

        :raises HostError: see Releases.release
        """
        opened = [assignment for assignment in assignments
                  if assignment in self._open_claims]
        if not opened:
            return
        uuids = [assignment.uuid for assignment in opened]
        try:
            for answer in self._open_claims.abort(self._host(), opened):
                self.inventory.accept(answer)
        except Exception:
            # It may be active, though the answer did not arrive.
            LOG.exception('Cannot end assignments %s on %s; they will be '
                          'released', ', '.join(uuids), self.host)
            self.release(uuids)
        self.refresh()

    def _abort_on(self, host: str | None, instance_uuid: str,
                  which: Callable[[claim_obj.Assignment], bool] | None,
                  ) -> None:
        """End the claim of a migration's destination.

        :raises Exception: the destination ends it later
        """
        uuids = [
            assignment.uuid for assignment in self.api.instance_assignments(
                gpgpu_context.current(), instance_uuid)
            if assignment.host == host and (
                which is None or which(assignment))]
        if uuids:
            # A destination that was restarted meanwhile has prepared all that
            # is assigned there, this claim, too.
            self.session.call(self.api.abort, uuids, touched=True)

    def release(self, uuids: Iterable[str]) -> None:
        """Release assignments now, or later if no conductor answers.

        :raises HostError: see Releases.release
        """
        with self._delivering():
            self._releases.release(list(uuids))

    def confirm_migration(
            self, confirmation: claim_obj.MigrationConfirmation) -> None:
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
        # What no conductor accepts stays due. The addresses of a claim that is
        # not active yet are sent with its activation.
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

    def restore(self) -> None:
        """Prepare all assigned devices, while nothing else prepares any."""
        if not self.session.is_reported or self.session.is_restored:
            # A report would have made them, with a conductor's consent. It
            # does not consent before it knows the book.
            tasks.restore_vfs(self._host())
        tracker_api.restore(self, self.assignments.all())

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
        for task in tasks.ITERATION:
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
                task in tasks.AFTER_REPORT
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

    def _host(self) -> host_mod.HostParts:
        return host_mod.HostParts(
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
        owners = {} if self._owners is None else self._owners.owners(scan)
        return owners | self._managed_by_cyborg

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
        with self._sending:
            due = self._due_guest_addresses()
            if not due:
                # Another thread has sent them meanwhile.
                return
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
                tracker_api.activate_late(self, instance_uuid, built)
            [*claims] = {assignment.migration_uuid for assignment in its}
            if len(claims) == 1 and claims[0] is not None and (
                    self.arrived_with(instance_uuid) == claims[0]):
                self.confirm_migration(claim_obj.MigrationConfirmation(
                    instance_uuid=instance_uuid, migration_uuid=claims[0]))
