# SPDX-License-Identifier: Apache-2.0
"""Facts of a host for gpgpu-manage doctor, and its own repairs.

``doctor.host`` finds the drifts; this module asks. It changes nothing but what
the resource tracker does by itself, earlier.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.objects import claim as claim_obj

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import resource_tracker

_Repair = drift.Repair


class Examiner:
    """Examination of one host."""

    def __init__(self, tracker: resource_tracker.ResourceTracker) -> None:
        self._tracker = tracker

    def drifts(self) -> tuple[drift.Drift, ...]:
        """Return the drifts of the host.

        :raises Exception: one of the authorities does not answer
        """
        return self._behind() or host_drifts.compare(self._view())

    def _behind(self) -> tuple[drift.Drift, ...]:
        """Return the drift of a database that was restored from a backup.

        Nothing else can be compared then.
        """
        tracker = self._tracker
        # The host may learn of a newer generation meanwhile.
        book = tracker.assignments.generation()
        conductor = tracker.api.host_inventory(
            gpgpu_context.admin(), tracker.host).generation
        return () if book <= conductor else (drift.of(
            'database_behind_book', tracker.host, tracker.host,
            book=f'generation {book}',
            conductor=f'generation {conductor}'),)

    def _view(self) -> host_drifts.HostSnapshot:
        tracker = self._tracker
        # Before and after: what begins or ends meanwhile is left out.
        building = set(tracker.builds.current())
        changes = tracker.assignments.changes()
        book = host_drifts.BookRecords(
            assigned=tuple(tracker.assignments.all()),
            pending=tuple(tracker.assignments.pending()))
        listed = tracker.session.call(tracker.api.host_assignments, [])
        devices = tracker.api.device_list(
            gpgpu_context.admin(), host=tracker.host)
        hardware = tracker.backend.inspect()
        guests = tracker.driver.domains()
        instances = self._instances((*listed, *book.assigned))
        building |= tracker.builds.current()
        building |= tracker.assignments.changed_since(changes)
        return host_drifts.HostSnapshot(
            host=tracker.host, listed=listed, devices=devices, book=book,
            building=frozenset(building), guests=guests, instances=instances,
            hardware=host_drifts.Hardware(
                functions=hardware.scan.functions,
                vgpus=hardware.scan.vgpu_capabilities,
                designated=hardware.designated))

    def _instances(self, assignments: Collection[claim_obj.Assignment],
                   ) -> Mapping[str, host_drifts.InstanceUse]:
        by_instance: dict[str, dict[str, claim_obj.Assignment]] = {}
        for assignment in assignments:
            by_instance.setdefault(assignment.instance_uuid, {}).setdefault(
                assignment.uuid, assignment)
        return {uuid: self._use(uuid, tuple(its.values()))
                for uuid, its in by_instance.items()}

    def _use(self, uuid: str, its: Sequence[claim_obj.Assignment],
             ) -> host_drifts.InstanceUse:
        """Return what the comparison with Nova would decide, and why."""
        host = self._tracker.host
        domain = self._tracker.driver.domain_of(uuid)
        location = leftovers.location_of(uuid)
        unused = assignment_use.unused(its, location, host, domain)
        return host_drifts.InstanceUse(
            unused=unused, is_deleted=location is None,
            is_active=domain.is_active,
            may_run_with_unused=assignment_use.may_run_with(unused, its,
                                                            domain),
            text=assignment_use.describe(uuid, location, host, domain))

    # -- repairs ------------------------------------------------------------

    def repair(self, repairs: Sequence[drift.Repair],
               run_once: Callable[[], object]) -> None:
        """Execute repairs of this host.

        :param run_once: runs one iteration of the resource tracker
        :raises Exception: Placement does not answer
        """
        if _Repair.PREPARE in repairs:
            self._prepare()
        if _Repair.COMPARE in repairs:
            self._tracker.assignments_changed()
            if self._behind():
                # The next call of the session would learn it, too.
                self._tracker.session.lose(doubted=True)
            run_once()
        if _Repair.OFFER in repairs:
            self._tracker.refresh()
            run_once()
            self._tracker.inventory.push_anew()

    def _prepare(self) -> None:
        """Prepare the devices that the examination finds unprepared."""
        uuids = {found.subject for found in self.drifts()
                 if found.repair is _Repair.PREPARE}
        tracker_api.restore(self._tracker, (
            assignment for assignment in self._tracker.assignments.all()
            if assignment.uuid in uuids))
