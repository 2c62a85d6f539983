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
"""Resource tracker, which keeps conductor, Placement and devices in step.

Every event makes tasks due (``gpgpu_plugin.compute.tasks``), and ``run_once``
runs the tasks that are due. One worker thread calls it at each interval and
when it is woken. If no task is due, it makes no call. Builds and deletes call
the other methods from Nova's threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from nova import context as nova_context
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import allocation_removal
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.compute import inventory
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import placement
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_api

LOG = logging.getLogger(__name__)

_T = tasks.Task

_RETRY_INTERVAL = 0.5
"""Seconds until Nova is asked again whether an allocation is gone."""

_ITERATION = (
    _T.AWAIT_ALLOCATION_REMOVAL,
    _T.RELEASE,
    _T.RECONCILE,
    _T.REPORT,
    # The report may have found assigned devices at other addresses.
    _T.RECONCILE,
    _T.FETCH,
    _T.CLEAN,
)


class ResourceTracker:
    """Resource tracker of one host's groups, devices and assignments.

    :param host: name of the nova-compute service
    :param client: Nova's report client (``virtapi.reportclient``)
    :param is_orphaned: returns whether nobody uses an assignment any more; not
        called while a build on this host has it; raises if that is unknown
    :param clock: seconds that only grow
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str,
                 backend: base.Host, api: conductor_api.ConductorAPI,
                 client: nova_types.ReportClient,
                 is_orphaned: Callable[[claim_obj.Assignment], bool],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self.backend = backend
        self.api = api
        self.assignments = assignments.HostAssignments(
            os.path.join(conf.gpgpu.state_path, f'{host}.json'))
        self.allocation_removal = allocation_removal.AllocationRemoval(clock)
        self.inventory = inventory.OfferedInventory(
            host, client, lambda: bool(self.allocation_removal))
        self._client = client
        self._is_orphaned = is_orphaned
        self._clock = clock
        self._reconcile_interval: float = conf.gpgpu.claim_lease
        self._reconcile_at = 0.0
        self._lock = threading.Lock()
        self._due = {_T.REPORT, _T.CLEAN, _T.RECONCILE, _T.RECONCILE_LATER}
        self._builds: set[str] = set()
        self._node: tasks.ComputeNode | None = None
        self._managed_by_cyborg: dict[str, str] = {}
        self._managed_by_nova: tasks.ManagedElsewhere = lambda scan: {}
        self._run = {
            _T.AWAIT_ALLOCATION_REMOVAL: self._await_allocation_removal,
            _T.RELEASE: self.flush_releases,
            _T.RECONCILE: self._reconcile,
            _T.REPORT: self._report,
            _T.FETCH: self._fetch,
            _T.CLEAN: self._clean,
        }

    # -- what happened -> which tasks are due -------------------------------

    def _require(self, *due: tasks.Task) -> None:
        with self._lock:
            self._due.update(due)

    def exclude(self, options: tasks.ManagedElsewhere) -> None:
        """Exclude devices that Nova's options cover from all variants.

        :param options: Nova's options by the PCI address that they cover
        """
        self._managed_by_nova = options
        self._require(_T.REPORT)

    def set_node(self, name: str, uuid: str) -> None:
        """Set the compute node below which the groups are."""
        self._node = tasks.ComputeNode(name=name, uuid=uuid)

    def refresh(self) -> None:
        """Record that the conductor changed something about the host.

        It may be a claim for a migration that never comes, which only a
        later comparison finds.
        """
        self._require(_T.FETCH, _T.CLEAN, _T.RECONCILE_LATER)

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
        self._require(_T.RECONCILE, _T.RECONCILE_LATER)

    @contextlib.contextmanager
    def building(self, instance_uuid: str) -> Iterator[None]:
        """Protect the claims of an instance while it is built here."""
        with self._lock:
            self._builds.add(instance_uuid)
        try:
            yield
        finally:
            with self._lock:
                self._builds.discard(instance_uuid)

    def _current_builds(self) -> set[str]:
        with self._lock:
            return set(self._builds)

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
                self._require(_T.REPORT)
                return True
            self.inventory.apply(tree, node)
        except Exception:
            # Whatever it is, the host must stay usable without GPUs.
            LOG.exception('Cannot put the GPU groups of %s into the provider '
                          'tree; Placement keeps what it has', node)
        return False

    # -- the end of an assignment -------------------------------------------

    def release_instance(
            self, instance_uuid: str,
            which: Callable[[claim_obj.Assignment], bool] | None = None,
            allocation_removal: str | None = None) -> None:
        """Release devices of an instance, later if no conductor answers.

        :param which: selects some of its assignments; default all
        :param allocation_removal: the consumer whose allocation Nova removes
            next, without a retry
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
        """Release assignments now, or later if no conductor answers."""
        uuids = list(uuids)
        # Stored first: a crash from here on loses nothing, and releasing
        # twice does no harm.
        self.assignments.add_pending(uuids)
        self._send(f'the release of assignments {", ".join(uuids)}')

    def confirm_migration(
            self, confirmation: claim_obj.MigrationConfirmation) -> None:
        """Confirm a migration from here, later if no conductor answers."""
        if confirmation.source_assignments:
            # Nova removes the migration's allocation next.
            self.allocation_removal.add(confirmation.migration_uuid)
        self.assignments.add_confirmation(confirmation)
        self._send(f'the confirmation of migration '
                   f'{confirmation.migration_uuid}')
        self.assignments.confirm(confirmation)

    def _send(self, what: str) -> None:
        try:
            self.flush_releases()
        except exception.ConductorUnavailable as exc:
            LOG.warning('%s; %s of %s will be sent again later', exc, what,
                        self.host)
        except Exception:
            # The conductor answers with trouble of its own, such as a
            # database that is away. The caller's delete goes on.
            LOG.exception('Cannot send %s of %s; it will be sent again later',
                          what, self.host)
        self._require(_T.CLEAN)

    def flush_releases(self) -> None:
        """Send pending releases and confirmations.

        :raises ConductorUnavailable: they stay pending
        """
        if self._is_due(_T.RELEASE):
            # What is released is dirty, also if the answer gets lost.
            self._require(_T.CLEAN)
            tasks.release(self._host(), self.inventory.accept)

    def restore(
            self, assignments: Iterable[claim_obj.Assignment] | None = None,
            ) -> None:
        """Prepare assigned devices again, as after a reboot of the host.

        Devices that are ready stay as they are. Never raises.

        :param assignments: only these
        """
        for assignment in (
                self.assignments.all() if assignments is None
                else assignments):
            try:
                self.backend.prepare(base.HostDevice.of(assignment))
            except exception.HostError:
                # Its guest does not start, and says why; the others do.
                LOG.exception(
                    'Cannot prepare device %s on %s for instance %s',
                    assignment.address, self.host, assignment.instance_uuid)

    # -- tasks that are due -> done -----------------------------------------

    def run_once(self) -> float | None:
        """Run the tasks that are due; those that fail stay due.

        :returns: seconds until the next iteration, None: the usual interval
        """
        failed: set[tasks.Task] = set()
        for task in _ITERATION:
            if task in failed:
                continue
            try:
                if self._is_due(task):
                    self._run_task(task)
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
        self.inventory.push()
        return _RETRY_INTERVAL if self.allocation_removal else None

    def _run_task(self, task: tasks.Task) -> None:
        # Taken out first: what happens meanwhile makes it due again.
        with self._lock:
            self._due.discard(task)
        try:
            self._run[task]()
        except Exception:
            self._require(task)
            raise

    def _is_due(self, task: tasks.Task) -> bool:
        if task is _T.AWAIT_ALLOCATION_REMOVAL:
            return bool(self.allocation_removal)
        if task is _T.RELEASE:
            return bool(self.assignments.pending()
                        or self.assignments.confirmations())
        if task is _T.RECONCILE:
            self._require_periodic_reconcile()
            return task in self._due and not self.allocation_removal
        if task is _T.REPORT:
            return self._node is not None and (
                task in self._due or self.backend.changed())
        return task in self._due

    def _require_periodic_reconcile(self) -> None:
        """Make a reconciliation due after a lease if anything is assigned."""
        assigned = bool(self.assignments.all())
        with self._lock:
            if (_T.RECONCILE not in self._due
                    and self._clock() >= self._reconcile_at
                    and (assigned or _T.RECONCILE_LATER in self._due)):
                self._due.add(_T.RECONCILE)
                self._due.discard(_T.RECONCILE_LATER)

    def _host(self) -> tasks.Host:
        return tasks.Host(
            name=self.host, backend=self.backend, api=self.api,
            client=self._client, assignments=self.assignments)

    def _await_allocation_removal(self) -> None:
        self.allocation_removal.forget_removed(
            nova_context.get_admin_context(), self._client,
            self.inventory.provider_uuids())

    def _managed_elsewhere(self, scan: scanner.Scan) -> dict[str, str]:
        return {address: f'Nova ({option})' for address, option
                in self._managed_by_nova(scan).items()
                } | self._managed_by_cyborg

    def _report(self) -> None:
        assert self._node is not None
        reported = tasks.report(
            self._host(), self._node, self._managed_elsewhere)
        self.inventory.accept(reported.inventory)
        if reported.moved:
            self._require(_T.RECONCILE)

    def _fetch(self) -> None:
        try:
            self.inventory.accept(tasks.fetch(self._host()))
        except exception.NotFound:
            # The host was deleted in the conductor. It reports anew in this
            # iteration: nothing of it can be claimed until then.
            self._require(_T.REPORT)
            if self._is_due(_T.REPORT):
                self._run_task(_T.REPORT)

    def _clean(self) -> None:
        for answer in tasks.clean(self._host()):
            self.inventory.accept(answer)
            self.inventory.push()

    def _reconcile(self) -> None:
        done = tasks.reconcile(
            self._host(), self._current_builds, self._is_orphaned)
        if done.orphans:
            LOG.warning(
                'Releasing assignments on %s that nobody uses any more: %s',
                self.host, ', '.join(
                    f'{orphan.uuid} (device {orphan.address}, instance '
                    f'{orphan.instance_uuid})' for orphan in done.orphans))
            self.release(orphan.uuid for orphan in done.orphans)
        self.inventory.accept(tasks.compare_allocations(
            self._host(), self.inventory.newest, done.listed))
        self._reconcile_at = self._clock() + self._reconcile_interval
