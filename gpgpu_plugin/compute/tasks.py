# SPDX-License-Identifier: Apache-2.0
"""The tasks of an iteration of the resource tracker, and which are due.

A function gets what it needs as arguments and returns its result. ``Schedule``
knows which tasks are due, and the resource tracker what follows from a result.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import random
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from nova import context as nova_context
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import cleaning
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.compute import placement
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj

LOG = logging.getLogger(__name__)


class Task(enum.StrEnum):
    """Task of an iteration; the value is its name in the log."""

    BEGIN = 'begin'
    AWAIT_ALLOCATION_REMOVAL = 'await_allocation_removal'
    RELEASE = 'release'
    RECONCILE = 'reconcile'
    RECONCILE_LATER = 'reconcile_later'
    REPORT = 'report'
    GUEST_ADDRESSES = 'guest_addresses'
    FETCH = 'fetch'
    CLEAN = 'clean'
    DIGEST = 'digest'


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeUUIDs:
    """The compute node below whose resource provider the groups are.

    :ivar is_disabled: whether its nova-compute is disabled in Nova
    """

    name: str
    uuid: str
    is_disabled: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reported:
    """Outcome of a report.

    :ivar moved: whether an assigned device has another PCI address than before
    :ivar in_use: whether a process has a device open that is not assigned
    """

    inventory: inventory_obj.HostInventory
    moved: bool
    in_use: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reconciled:
    """Outcome of a comparison with the conductor.

    :ivar listed: all active assignments of the host
    :ivar orphans: the assignments among them that nobody uses any more; their
        releases are pending
    :ivar used: those that are in use, of instances that are on this host in
        Nova, unlike one that was evacuated and still has a guest here
    :ivar repeat: whether an instance changed here during the comparison, so
        that its assignments stay until the next one
    """

    listed: tuple[claim_obj.Assignment, ...]
    orphans: tuple[claim_obj.Assignment, ...]
    used: tuple[claim_obj.Assignment, ...] = ()
    repeat: bool = False


FindOrphans = Callable[..., Collection[str]]
"""Search for assignments of one instance here that nobody uses any more; see
compute.leftovers.find_orphans. It raises if that is unknown."""

ManagedElsewhere = Callable[[scanner.Scan], dict[str, str]]
"""Given a scan of the host, what manages them instead of us, by address."""


def begin(host: host_mod.HostParts, node: NodeUUIDs) -> None:
    """Begin a session of this start of nova-compute.

    :raises Fenced: another machine may speak for the host
    :raises HostError: the host cannot be scanned
    """
    host.session.begin(node.name, node.uuid, host.backend.identity(
        host.backend.scan()))


def is_digest_equal(host: host_mod.HostParts,
                    inventory: inventory_obj.HostInventory | None) -> bool:
    """Return whether the conductor's data is what the host knows.

    :param inventory: the newest that the host has
    """
    # Before the call: what changes meanwhile is a difference.
    expected = report_obj.digest(
        inventory.generation if inventory is not None else 0, (
            (assignment.uuid, assignment.instance_uuid, assignment.role,
             assignment.migration_uuid or '')
            for assignment in host.assignments.all()))
    return host.session.call(host.api.digest) == expected


def report(host: host_mod.HostParts, node: NodeUUIDs,
           managed_elsewhere: ManagedElsewhere) -> Reported:
    """Scan the host and send the scan to the conductor.

    :raises HostError: the host cannot be scanned
    """
    # Counted before the scan: one that began later knows more.
    number = host.session.next_report()
    assigned = host.assignments.with_use()
    host.backend.make_vfs(
        _busy(host, assigned),
        lambda gpus: host.session.call(host.api.vfs_refused, gpus))
    scan = host.backend.scan()
    for problem in scan.problems:
        LOG.warning('%s: %s', host.name, problem)
    in_use = _open_devices(scan, (*assigned, *host.assignments.all()))
    owners = in_use | managed_elsewhere(scan)
    inventory = host.session.call(
        host.api.report, report_obj.HostReport(
            host=host.name, node=node.name, node_uuid=node.uuid,
            functions=tuple(
                dataclasses.replace(
                    function, owner=owners.get(function.address))
                for function in host.backend.discover(scan)),
            vgpu_capabilities=dict(scan.vgpu_capabilities),
            driver_capacities=dict(scan.driver_capacities),
            health=dict(scan.health),
            problems=scan.problems, service_disabled=node.is_disabled,
            number=number,
            assignments=None if host.session.is_reported
            else assigned))
    host.session.accept_report()
    return Reported(inventory=inventory, moved=_moved(scan, assigned),
                    in_use=bool(in_use))


def _busy(host: host_mod.HostParts,
          assigned: Iterable[claim_obj.Assignment]) -> frozenset[str]:
    """Return the stable ids of devices that are assigned or not clean."""
    return host.assignments.unclean().union(
        assignment.stable_id for assignment in assigned)


def _open_devices(scan: scanner.Scan,
                  assigned: Iterable[claim_obj.Assignment]) -> dict[str, str]:
    """Return the user of each device that is open and not assigned.

    :param assigned: the assignments before and after the scan. Both are
        needed: a guest is created after its assignment, and destroyed before
        the assignment ends
    """
    ours = {pci.function_id_of(assignment.stable_id)
            for assignment in assigned}
    is_open = {function.address for function in scan.functions
               if function.used_by is device_rules.DeviceUser.VFIO}
    return {function.address: 'a process that has it open through VFIO, '
                              'without an assignment'
            for function in scan.functions
            if function.part_of is None and function.id not in ours
            and is_open.intersection((function.address,
                                      *function.companions))}


def _moved(scan: scanner.Scan,
           assigned: Iterable[claim_obj.Assignment]) -> bool:
    """Return whether an assigned device was found at another address.

    PCI buses may be numbered anew when the host reboots.
    """
    addresses = {function.id: function.address for function in scan.functions}
    return any(
        addresses.get(pci.function_id_of(assignment.stable_id),
                      assignment.address) != assignment.address
        for assignment in assigned)


def release(host: host_mod.HostParts, accept: Callable[
        [inventory_obj.HostInventory | None], None]) -> bool:
    """Send pending releases, then pending confirmations of migrations.

    :param accept: called with the conductor's answers
    :returns: whether all confirmations were accepted; one that was refused is
        dropped, so that nothing waits for it for ever, and the host must
        compare
    :raises ConductorUnavailable: whatever was not sent stays pending
    """
    pending = host.assignments.pending()
    if pending:
        accept(host.session.call(
            host.api.release, pending, host.assignments.ages(pending)))
        host.assignments.remove_pending(pending)
    all_accepted = True
    for confirmation in host.assignments.confirmations():
        try:
            for inventory in host.session.call(
                    host.api.confirm_migration, confirmation):
                accept(inventory)
        except exception.NotOwner as exc:
            LOG.error('%s; %s compares its assignments with Nova instead',
                      exc, host.name)
            all_accepted = False
        host.assignments.remove_confirmation(confirmation)
    return all_accepted


def send_guest_addresses(host: host_mod.HostParts,
                         due: claim_obj.GuestAddresses,
                         ) -> inventory_obj.HostInventory:
    """Send where guests have their devices.

    :raises NotFound: one of the assignments has ended
    """
    return host.session.call(host.api.activate, list(due), None, due)


def fetch(host: host_mod.HostParts) -> inventory_obj.HostInventory:
    """Return the host's inventory as the conductor has it now.

    :raises NotFound: the host was deleted in the conductor
    """
    return host.api.host_inventory(gpgpu_context.admin(), host.name)


def clean(host: host_mod.HostParts, cleanings: cleaning.Cleanings,
          skipped: Callable[[claim_obj.CleanTask], None],
          ) -> Iterator[inventory_obj.HostInventory | None]:
    """Begin to clean the host's dirty devices.

    What the book still has assigned is not cleaned: it may be a guest's, and
    a comparison that came afterwards would take it for unclean.

    :param skipped: called with each device of that kind
    :returns: the host's inventory after each device whose cleaning has ended
    :raises Exception: see Cleanings.run
    """
    wanted = []
    for task in host.api.clean_tasks(gpgpu_context.admin(), host.name):
        if any(assignment.stable_id == task.stable_id
               for assignment in host.assignments.all()):
            skipped(task)
        else:
            wanted.append(task)
    return cleanings.run(wanted)


def reconcile(host: host_mod.HostParts, builds: host_mod.Builds,
              find_orphans: FindOrphans,
              is_here: Callable[[str], bool] = lambda instance_uuid: True,
              ) -> Reconciled:
    """Compare the conductor's assignments with the host's instances.

    Afterwards the host's state file has the conductor's list, without orphans
    and with what changed here meanwhile. In doubt an assignment stays.

    :param is_here: returns whether Nova has an instance on this host
    :raises Exception: what they raise; nothing was changed
    """
    builds.begin_comparison()
    changes = host.assignments.changes()
    listed = host.session.call(host.api.host_assignments, [
        assignment.uuid for assignment in host.assignments.all()])
    # Read after the list: a claim in the list was made by a build that is in
    # the set, or that is over.
    building = builds.leave_out()
    pending = set(host.assignments.pending())
    unused: set[str] = set()
    here: set[str] = set()
    for instance_uuid, assigned in by_instance(
            assignment for assignment in listed
            if assignment.uuid not in pending).items():
        if instance_uuid not in building:
            unused.update(find_orphans(assigned))
            if is_here(instance_uuid):
                here.add(instance_uuid)
    # Nova and the hypervisor were asked about one instance after the other. A
    # build that began meanwhile may use what was unused when they answered.
    with builds.lock:
        late = builds.since_begin() | host.assignments.changed_since(changes)
        orphans = tuple(
            assignment for assignment in listed
            if assignment.uuid in unused
            and assignment.instance_uuid not in late)
        host.assignments.replace(
            by_instance(assignment for assignment in listed
                        if assignment not in orphans), changes,
            building | late)
        if orphans:
            host.assignments.add_pending(
                assignment.uuid for assignment in orphans)
    _warn(host, orphans)
    return Reconciled(listed=listed, orphans=orphans,
                      used=tuple(assignment for assignment in listed
                                 if assignment.uuid not in pending | unused
                                 and assignment.instance_uuid in here - late),
                      repeat=len(orphans) < len(unused))


def _warn(host: host_mod.HostParts,
          orphans: Sequence[claim_obj.Assignment]) -> None:
    """Name the assignments that a comparison found unused, if any."""
    if orphans:
        LOG.warning(
            'Releasing assignments on %s that are no longer used: %s',
            host.name, ', '.join(
                f'{orphan.uuid} (device {orphan.address}, instance '
                f'{orphan.instance_uuid})' for orphan in orphans))


def by_instance(
        listed: Iterable[claim_obj.Assignment]) -> assignment_file.ByInstance:
    """Return assignments by the UUID of their instance."""
    found: assignment_file.ByInstance = {}
    for assignment in listed:
        found[assignment.instance_uuid] = (
            *found.get(assignment.instance_uuid, ()), assignment)
    return found


def compare_allocations(
        host: host_mod.HostParts,
        inventory: inventory_obj.HostInventory | None,
        listed: Sequence[claim_obj.Assignment],
        used: Iterable[claim_obj.Assignment] = (),
        ) -> inventory_obj.HostInventory | None:
    """Send the conductor the allocations that Placement has for the host.

    Devices that their instances named are added to allocations that lack them.
    Only groups with assigned devices matter; without any no call is made.

    :param listed: assignments known before Placement is asked
    :param used: those among them that instances use here
    """
    variants = {assignment.variant for assignment in listed}
    if inventory is None or not variants:
        return None
    number = host.session.next_comparison()
    allocated = placement.allocations(
        nova_context.get_admin_context(), host.client, [
            group.provider_uuid for group in inventory.groups
            if group.variant in variants])
    used_uuids = [assignment.uuid for assignment in used]
    placement.cover_exact(host.client, host.name, inventory.groups, listed,
                          used_uuids, allocated)
    return host.session.call(
        host.api.compare_allocations, number, allocated,
        [assignment.uuid for assignment in listed], used_uuids)


def restore_vfs(host: host_mod.HostParts) -> None:
    """Create VFs again on GPUs that had them, by the host's book.

    They are lost when the host reboots. No conductor is asked, since none may
    answer before Nova starts the guests. Never raises.
    """
    assigned = host.assignments.all()
    gpus = {pci.pf_of(assignment.stable_id) for assignment in assigned}
    try:
        host.backend.make_vfs(_busy(host, assigned),
                              lambda possible: set(possible) - gpus)
    except Exception:
        # Whatever it is, the host must stay usable.
        LOG.exception('Cannot create VFs on %s; its guests with VFs do not '
                      'start', host.name)


# -- Schedule of the resource tracker: its due tasks, and when others follow.


_T = Task

ITERATION = (
    _T.BEGIN,
    _T.AWAIT_ALLOCATION_REMOVAL,
    _T.RELEASE,
    _T.DIGEST,
    _T.REPORT,
    # The report may have found assigned devices at other addresses.
    _T.RECONCILE,
    _T.GUEST_ADDRESSES,
    _T.FETCH,
    _T.CLEAN,
)
"""Order in which an iteration runs the tasks that are due."""

AFTER_REPORT = (_T.DIGEST, _T.RECONCILE, _T.GUEST_ADDRESSES, _T.FETCH,
                _T.CLEAN)
"""Tasks that wait until the first report of the session was accepted: until
then the conductor may not know what is assigned here."""

_FULL_RECONCILE_INTERVAL = 24 * 3600
"""Seconds, on average, between two comparisons that nothing has asked for."""


class Schedule:
    """Tasks that are due. Thread-safe.

    :param clock: seconds that only grow
    :param reconcile_later: seconds after which a comparison is repeated whose
        outcome may have come too early
    :param digest_interval: seconds, on average, between two digests
    """

    def __init__(self, clock: Callable[[], float], reconcile_later: float,
                 digest_interval: float) -> None:
        self._clock = clock
        self._reconcile_later = reconcile_later
        self._digest_interval = digest_interval
        self._lock = threading.Lock()
        self._due: set[Task] = set()
        self._reconcile_at = math.inf
        self._digest_at = math.inf

    def require(self, *due: Task) -> None:
        """Make tasks due."""
        with self._lock:
            self._due.update(due)

    def take(self, task: Task) -> None:
        """Note that a task begins; what happens from now on makes it due."""
        with self._lock:
            self._due.discard(task)
            if task is _T.DIGEST:
                self._digest_at = self._after(self._digest_interval)

    def is_due(self, task: Task) -> bool:
        """Return whether a task is due."""
        with self._lock:
            if task is _T.RECONCILE and self._clock() >= self._reconcile_at:
                self._due.add(task)
                self._due.discard(_T.RECONCILE_LATER)
            return task in self._due or (
                task is _T.DIGEST and self._clock() >= self._digest_at)

    def begin(self) -> None:
        """Make due what follows the begin of a session.

        A predecessor may have died in the middle of anything.
        """
        self.take(_T.DIGEST)
        self.require(_T.REPORT, _T.CLEAN, _T.RECONCILE, _T.RECONCILE_LATER)

    def reconciled(self) -> None:
        """Note that a comparison was done."""
        with self._lock:
            self._reconcile_at = (
                self._clock() + self._reconcile_later
                if _T.RECONCILE_LATER in self._due
                else self._after(_FULL_RECONCILE_INTERVAL))

    def _after(self, interval: float) -> float:
        """Return a time after about an interval.

        It differs from host to host, so that they do not call together.
        """
        return self._clock() + interval * random.uniform(0.5, 1.5)
