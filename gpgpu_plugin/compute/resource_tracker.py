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
"""Keeps the conductor, Placement and this host's devices in step.

``tick`` is one look: it delivers what is owed, scans when the hardware
changed, fetches when the conductor said so, cleans what is dirty and pushes
what Placement does not have yet. Where nothing happened it calls nobody.
It runs in one worker thread; builds and deletes call the other methods.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from nova import context as nova_context
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import allocation_removal
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.compute import cleaner
from gpgpu_plugin.compute import placement
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.rpc import conductor_api

LOG = logging.getLogger(__name__)

# Seconds until Nova is asked again whether it is done.
_SOON = 0.5


class ResourceTracker:
    """Namespace ``gpgpu_plugin.resource_trackers``, entry ``pci``.

    :param host: name of the nova-compute service
    :param client: Nova's report client (``virtapi.reportclient``)
    :param is_orphaned: whether an assignment that no build here holds is used
        by nobody any more; raises where that is not known
    :param clock: seconds that only grow
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str,
                 backend: base.Host, api: conductor_api.ConductorAPI,
                 client: typing.Any,
                 is_orphaned: Callable[[claim_obj.Assignment], bool],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self.backend = backend
        self.api = api
        self._client = client
        self._is_orphaned = is_orphaned
        self._clock = clock
        self._compare_every = conf.gpgpu.claim_lease
        self.assignments = assignments.HostAssignments(
            os.path.join(conf.gpgpu.state_path, f'{host}.json'))
        self.allocation_removal = allocation_removal.AllocationRemoval(clock)
        self._lock = threading.Lock()
        self._builds: set[str] = set()
        self._inventory: inventory_obj.HostInventory | None = None
        self._pushed: dict[str, str] = {}
        self._node: tuple[str, str] | None = None
        self._in_tree = False
        # What Cyborg gives away, by address, and what Nova itself does.
        self._owned: dict[str, str] = {}
        self._nova_managed: Callable[
            [Iterable[pci.PCIFunction]], dict[str, str]
        ] = lambda functions: {}
        self._report_due = True
        self._fetch_due = False
        self._clean_due = True
        self._compare_at = 0.0
        self.request_reconcile()

    # -- what others tell it ------------------------------------------------

    def exclude(self, options: Callable[
            [Iterable[pci.PCIFunction]], dict[str, str]]) -> None:
        """What Nova gives away itself is nobody else's from now on, whatever
        variants there will be.

        :param options: Nova's options by the address of what they cover
        """
        self._nova_managed = options
        self._report_due = True

    def set_node(self, name: str, uuid: str) -> None:
        """The compute node below which the groups are."""
        self._node = (name, uuid)

    def accept_inventory(self,
              inventory: inventory_obj.HostInventory | None) -> None:
        """Take over an answer of the conductor, unless a newer one came or
        it is about another host, for which this one claimed."""
        if inventory is None or inventory.host != self.host:
            return
        with self._lock:
            if (self._inventory is None or inventory.generation
                    >= self._inventory.generation):
                self._inventory = inventory

    def refresh(self) -> None:
        """The conductor says that something of the host changed."""
        self._fetch_due = True
        self._clean_due = True
        # It may be a claim for a migration that never comes.
        self._late_call = True

    def allocation_removed(self, consumer: str) -> None:
        """Nova takes an allocation back, while what it was for stays held."""
        self.allocation_removal.add(consumer)
        self.request_reconcile()

    def request_reconcile(self) -> None:
        """A call's outcome is unknown: compare with the conductor."""
        self._reconcile_due = True
        # A call that is slow may be done after that comparison.
        self._late_call = True

    @contextlib.contextmanager
    def building(self, instance_uuid: str) -> Iterator[None]:
        """While an instance is built here, its claim is not dead."""
        with self._lock:
            self._builds.add(instance_uuid)
        try:
            yield
        finally:
            with self._lock:
                self._builds.discard(instance_uuid)

    # -- Nova's tree --------------------------------------------------------

    def update_provider_tree(self, tree: typing.Any, node: str) -> bool:
        """Put the groups into Nova's tree: memory only, never raises.

        :returns: whether there is something to report now
        """
        try:
            owned = placement.owned_by_cyborg(tree, node)
            if owned != self._owned:
                # What the conductor offers may be Cyborg's: Placement keeps
                # what it has until it answered.
                self._owned = owned
                self._report_due = True
                return True
            if self.allocation_removal and self._in_tree:
                return False
            placement.apply(tree, node, self._inventory)
            self._in_tree = True
        except Exception:
            # Whatever it is, the host must stay usable without GPUs.
            LOG.exception('The GPU groups of %s could not be put into the '
                          'provider tree; Placement keeps what it has', node)
        return False

    def resource_classes(self) -> set[str]:
        """Of the host's groups, as far as they are known."""
        inventory = self._inventory
        return {each.resource_class for group in (
            inventory.groups if inventory is not None else ())
            for each in group.types}

    def owns_any(self, providers: Iterable[str]) -> bool:
        """Whether one of the resource providers is a group of this host."""
        inventory = self._inventory
        return inventory is not None and not {
            group.provider_uuid for group in inventory.groups
        }.isdisjoint(providers)

    # -- the end of an assignment -------------------------------------------

    def release_instance(self, instance_uuid: str,
                which: Callable[[claim_obj.Assignment], bool] | None = None,
                allocation_removal: str | None = None) -> None:
        """Give back what an instance holds here; never raises for want of a
        conductor, but delivers the release later.

        :param which: picks some of it; default all
        :param allocation_removal: the consumer whose allocation Nova then
            takes back, and tries to only once
        """
        assignments = [
            each.uuid
            for each in self.assignments.held(instance_uuid)
            if which is None or which(each)
        ]
        if assignments:
            if allocation_removal is not None:
                self.allocation_removal.add(allocation_removal)
            self.release(assignments)
            self.assignments.drop(instance_uuid, assignments)

    def release(self, assignments: Iterable[str]) -> None:
        """Release assignments now, or later when no conductor answers."""
        assignments = list(assignments)
        # Written down first: a crash from here on loses nothing, and
        # releasing twice does no harm.
        self.assignments.postpone(assignments)
        try:
            self.flush_releases()
        except exception.ConductorUnavailable as exc:
            LOG.warning('%s; the release of %s is delivered later', exc,
                        assignments)
        except Exception:
            # The conductor answers, but with its own trouble, such as a
            # database that is away. The caller's delete goes on.
            LOG.exception('The release of %s is delivered later',
                          assignments)
        self._clean_due = True

    def flush_releases(self) -> None:
        """Deliver the releases that are owed.

        :raises ConductorUnavailable: it stays owed
        """
        pending = self.assignments.pending()
        if not pending:
            return
        self.accept_inventory(self.api.release(gpgpu_context.admin(), pending))
        self.assignments.delivered(pending)
        self._clean_due = True

    def restore(
            self, assignments: Iterable[claim_obj.Assignment] | None = None,
            ) -> None:
        """Make ready again what instances hold, as after a reboot of the
        host; does no harm where it is ready. Never raises.

        :param assignments: only these
        """
        for each in (
            self.assignments.all() if assignments is None else assignments
        ):
            try:
                self.backend.prepare(base.HostDevice.of(each))
            except exception.HostError:
                # Its guest does not start, and says why; the others do.
                LOG.exception('Device %s of instance %s is not ready',
                              each.address, each.instance_uuid)

    # -- the worker's look --------------------------------------------------

    def run_once(self) -> float | None:
        """One look; what fails is tried again by the next one.

        :returns: seconds after which to look again; None: when it is time
        """
        for step in (
            self._await_allocation_removal,
            self.flush_releases,
            self._reconcile,
            self._report,
            self._fetch,
            self._clean,
        ):
            try:
                step()
            except exception.ConductorUnavailable as exc:
                LOG.warning('%s; tried again later', exc)
                # The others would wait for it in vain, one after the other.
                break
            except exception.HostNotReady as exc:
                LOG.error('Devices of %s wait for it to be set up: %s',
                          self.host, exc)
            except Exception:
                # Also what the conductor, Nova or the hypervisor did not
                # foresee: nova-compute starts all the same.
                LOG.exception('%s of the devices of %s failed; tried again '
                              'later', step.__name__.strip('_'), self.host)
        self.push()
        return _SOON if self.allocation_removal else None

    def _await_allocation_removal(self) -> None:
        if self.allocation_removal:
            inventory = self._inventory
            self.allocation_removal.forget_removed(
                nova_context.get_admin_context(), self._client, {
                    group.provider_uuid for group in (
                        inventory.groups if inventory is not None else ())})

    def _report(self) -> None:
        if self._node is None:
            return
        if not self._report_due and not self.backend.changed():
            return
        self._report_due = True
        self.backend.make_vfs(
            {each.stable_id for each in self.assignments.all()}
        )
        scan = self.backend.scan()
        for problem in scan.problems:
            LOG.warning('%s', problem)
        node, node_uuid = self._node
        owned = self._owned
        owners = {address: f'Nova ({option})' for address, option
                  in self._nova_managed(scan.functions).items()} | owned
        self.accept_inventory(self.api.report(
            gpgpu_context.admin(), report_obj.HostReport(
                host=self.host, node=node, node_uuid=node_uuid,
                functions=tuple(
                    dataclasses.replace(each, owner=owners.get(each.address))
                    for each in self.backend.discover(scan)),
                problems=scan.problems)))
        self._report_due = owned != self._owned
        places = {each.id: each.address for each in scan.functions}
        if any(places.get(pci.function_id_of(each.stable_id), each.address)
               != each.address for each in self.assignments.all()):
            # Buses were numbered anew; what is held is where it is now.
            self._reconcile_due = True
            self._reconcile()

    def _fetch(self) -> None:
        if not self._fetch_due:
            return
        self._fetch_due = False
        try:
            self.accept_inventory(self.api.host_inventory(
                gpgpu_context.admin(), self.host))
        except exception.NotFound:
            # The host was deleted in the conductor; it reports anew.
            self._report_due = True
        except Exception:
            self._fetch_due = True
            raise

    def _clean(self) -> None:
        if not self._clean_due:
            return
        self._clean_due = False
        try:
            for task in self.api.clean_tasks(
                    gpgpu_context.admin(), self.host):
                self.accept_inventory(
                    cleaner.clean(self.api, self.backend, task)
                )
                self.push()
        except Exception:
            self._clean_due = True
            raise

    def _reconcile(self) -> None:
        """End what is dead: claims that nobody builds, assignments of
        instances that Nova deleted. In doubt they stay."""
        if self.allocation_removal or not (
                self._reconcile_due or self._compares_again()):
            return
        listed = self.api.host_assignments(
            gpgpu_context.admin(), self.host)
        with self._lock:
            # Read after the list: a claim in the list was made by a build
            # that is in the set, or is over.
            builds = set(self._builds)
        pending = set(self.assignments.pending())
        dead = [each for each in listed if each.uuid not in pending
                and each.instance_uuid not in builds
                and self._is_orphaned(each)]
        self._remember(listed, builds, dead)
        if dead:
            LOG.warning('Ending assignments that nobody uses any more: %s',
                        [(each.uuid, each.instance_uuid) for each in dead])
            self.release(each.uuid for each in dead)
        self._compare_allocations(listed)
        self._late_call = self._late_call and self._reconcile_due
        self._reconcile_due = False
        self._compare_at = self._clock() + self._compare_every

    def _compare_allocations(
            self, listed: Sequence[claim_obj.Assignment]) -> None:
        """Tell the conductor what Placement has of the groups of which
        devices are held."""
        inventory = self._inventory
        variants = {each.variant for each in listed}
        if inventory is None or not variants:
            return
        self.accept_inventory(self.api.compare_allocations(
            gpgpu_context.admin(), self.host, placement.allocations(
                nova_context.get_admin_context(), self._client, [
                    group.provider_uuid for group in inventory.groups
                    if group.variant in variants]),
            [each.uuid for each in listed]))

    def _compares_again(self) -> bool:
        """Whether it is time, and there is something to compare."""
        return (self._clock() >= self._compare_at
                and (self._late_call or bool(self.assignments.all())))

    def _remember(self, listed: Iterable[claim_obj.Assignment],
                  builds: set[str],
                  dead: Iterable[claim_obj.Assignment]) -> None:
        gone = {each.uuid for each in dead}
        # What is built right now knows better than a list of a moment ago.
        held = {uuid: self.assignments.held(uuid) for uuid in builds
                if self.assignments.held(uuid)}
        for each in listed:
            if each.uuid not in gone and each.instance_uuid not in builds:
                held[each.instance_uuid] = (
                    *held.get(each.instance_uuid, ()), each)
        self.assignments.replace_held(held)

    # -- Placement ----------------------------------------------------------

    def push(self) -> None:
        """Write what Placement does not have yet, unless Nova is about to
        take allocations back; then a later look does.

        Before Nova made the compute node's provider there is nothing to
        write to; Nova's own update writes the groups then.
        """
        if (self._inventory is None or not self._in_tree
                or self.allocation_removal):
            return
        try:
            self._write()
        except Exception:
            # Nova's exceptions and keystoneauth's have no common base. The
            # report client's cache still differs, so the next look writes.
            LOG.exception('The inventory of the GPU groups of %s could not '
                          'be written to Placement; tried again later',
                          self.host)

    @placement.under_novas_lock
    def _write(self) -> None:
        # Read under the lock: Nova writes what it was given under it.
        inventory = self._inventory
        assert inventory is not None
        context = nova_context.get_admin_context()
        placement.push(context, self._client, inventory)
        self._withdraw(context, inventory)

    def _withdraw(self, context: typing.Any,
                  inventory: inventory_obj.HostInventory) -> None:
        now = {group.provider_uuid: group.provider_name
               for group in inventory.groups}
        for uuid, name in list(self._pushed.items()):
            if uuid not in now:
                placement.withdraw(context, self._client, uuid, name,
                                   inventory.node_uuid)
                del self._pushed[uuid]
        self._pushed.update(now)
