# SPDX-License-Identifier: Apache-2.0
"""Claims of this host, from the call until they end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj

LOG = logging.getLogger(__name__)


def claim(host: host_mod.HostParts, builds: host_mod.Builds,
          request: claim_obj.ClaimRequest,
          corrected: Callable[[], None]) -> claim_obj.Claim:
    """Claim devices of this host; they are not in its book yet.

    :param corrected: called when a part of the claim was aborted, since the
        book was outdated
    :raises ClaimDenied: the conductor denied it
    :raises HostNotReady: the conductor knows less than this host
    :raises Exception: it may have been granted all the same
    """
    granted = host.session.call(host.api.claim, request)
    while _corrects_book(host, builds, request, granted):
        corrected()
        granted = host.session.call(host.api.claim, request)
    _check_against_book(host, granted)
    return granted


def _corrects_book(host: host_mod.HostParts, builds: host_mod.Builds,
                   request: claim_obj.ClaimRequest,
                   granted: claim_obj.Claim) -> bool:
    """Remove assignments from the book that a claim shows to be outdated.

    They have ended in the conductor, for example by ``assignment end``, and
    the host does not know it yet. A guest may have used their devices here
    since then, so the claim is aborted and these devices are cleaned.

    :returns: whether the claim is to be repeated
    """
    devices = {assignment.stable_id for assignment in granted.assignments}
    own = {assignment.uuid for assignment in granted.assignments}
    found = [assignment for assignment in host.assignments.all()
             if assignment.stable_id in devices
             and assignment.uuid not in own]
    uuids = _ended(host, found)
    with builds.lock:
        # A guest that is being created may use them.
        building = builds.current() - {request.instance_uuid}
        ended = [assignment for assignment in found
                 if assignment.uuid in uuids
                 and assignment.instance_uuid not in building]
        for assignment in ended:
            host.assignments.remove(
                assignment.instance_uuid, [assignment.uuid])
    if not ended:
        return False
    LOG.warning(
        'Removed assignments from the book of %s that have ended in '
        'gpgpu-conductor: %s. Their devices are cleaned before they are '
        'claimed again', host.name, ', '.join(
            f'{assignment.uuid} (device {assignment.address}, instance '
            f'{assignment.instance_uuid})' for assignment in ended))
    outdated = {assignment.stable_id for assignment in ended}
    for touched in (True, False):
        _abort(host, [
            assignment for assignment in granted.assignments
            if (assignment.stable_id in outdated) is touched], touched=touched)
    return True


def _ended(host: host_mod.HostParts,
           assignments: Sequence[claim_obj.Assignment]) -> set[str]:
    """Return the UUIDs of assignments that have ended in the conductor."""
    if not assignments:
        return set()
    try:
        listed = host.session.call(
            host.api.host_assignments,
            [assignment.uuid for assignment in assignments])
    except exception.SessionLost:
        # The database was restored: it does not know them as ended either.
        return set()
    return ({assignment.uuid for assignment in assignments}
            - {assignment.uuid for assignment in listed})


def _abort(host: host_mod.HostParts,
           assignments: Sequence[claim_obj.Assignment], *,
           touched: bool) -> None:
    """Abort some assignments of a claim.

    :param touched: whether their devices must be cleaned before the next use
    :raises Exception: the conductor may have aborted them all the same
    """
    if assignments:
        host.session.call(
            host.api.abort,
            [assignment.uuid for assignment in assignments], touched=touched)


def _check_against_book(host: host_mod.HostParts,
                        granted: claim_obj.Claim) -> None:
    """Refuse devices that this host knows to be used.

    :raises HostNotReady: the claim was aborted
    """
    found = host.assignments.contradictions(granted.assignments)
    if not found:
        return
    try:
        # After SessionLost no call is possible; the next session ends it.
        if host.session.is_active:
            _abort(host, granted.assignments, touched=True)
    finally:
        host.session.lose(doubted=True)
    raise exception.HostNotReady(
        path=host.name,
        reason=f'gpgpu-conductor granted devices that this host knows to be '
               f'used: {"; ".join(found)}. Its database may have been '
               f'restored from a backup')


@dataclasses.dataclass(kw_only=True)
class _Preparation:
    """State of the device of an assignment that is not activated.

    :ivar touched: whether its hardware may have been changed
    :ivar fault: fault of the hardware
    :ivar driver_capacities: reports of a driver that had no capacity left,
        read before anything was undone
    """

    touched: bool = False
    fault: str | None = None
    driver_capacities: report_obj.DriverCapacities = dataclasses.field(
        default_factory=dict)


class OpenClaims:
    """Assignments that this process has claimed and not activated.

    Such a claim can be aborted: a device that was not touched is free at once,
    and one that failed is reported. After a restart nobody knows what was
    touched, so that all is released and cleaned. Thread-safe.
    """

    def __init__(self, backend: base.ComputeHost,
                 book: assignment_file.AssignmentFile) -> None:
        self._backend = backend
        self._book = book
        self._preparations: dict[str, _Preparation] = {}

    def add(self, claimed: Iterable[claim_obj.Assignment]) -> None:
        """Add a claim that the book has already."""
        # Read before the book, which has every open claim that did not end.
        known = set(self._preparations)
        self.remove(known.difference(
            assignment.uuid for assignment in self._book.all()))
        for assignment in claimed:
            if assignment.state == device_rules.DeviceState.PROVISIONING:
                # One that is claimed again may have been prepared before.
                self._preparations.setdefault(
                    assignment.uuid, _Preparation(
                        touched=self._book.is_prepared(assignment.stable_id)))

    def remove(self, uuids: Iterable[str]) -> None:
        """Remove assignments that were activated or have ended."""
        for uuid in uuids:
            self._preparations.pop(uuid, None)

    def __contains__(self, assignment: claim_obj.Assignment) -> bool:
        return assignment.uuid in self._preparations

    def prepare(self, assignment: claim_obj.Assignment) -> None:
        """Prepare the device of any assignment.

        :raises HostError: see base.Devices.prepare
        """
        device = base.HostDevice.of(assignment)
        found = self._preparations.get(assignment.uuid, _Preparation())
        touched, found.touched = found.touched, True
        try:
            self._backend.prepare(device)
        except exception.NoDriverCapacity:
            found.touched = touched
            found.driver_capacities = self._backend.driver_capacity([device])
            raise
        except exception.HalfPrepared:
            # Its cleaning gives it back to the host's driver.
            raise
        except exception.HostNotReady:
            found.touched = touched
            raise
        except exception.HostError as exc:
            found.fault = str(exc)
            raise
        found.fault = None

    def abort(self, host: host_mod.HostParts,
              assignments: Sequence[claim_obj.Assignment],
              ) -> Iterator[inventory_obj.HostInventory | None]:
        """Take devices back, and end their assignments.

        :param assignments: of one instance
        :returns: the conductor's answers
        :raises Exception: the conductor may have ended some of them
        """
        found = {assignment.uuid: self._preparations.pop(assignment.uuid)
                 for assignment in assignments}
        for assignment in assignments:
            if found[assignment.uuid].touched:
                self._take_back(host, assignment)
        self._book.remove(
            assignments[0].instance_uuid, found,
            [uuid for uuid, its in found.items() if not its.touched])
        driver_capacities = dict(self._backend.driver_capacity(
            map(base.HostDevice.of, assignments)))
        # Usually all in one call: none was touched, or all and none is broken.
        outcomes: dict[tuple[bool, str | None], list[str]] = {}
        for uuid, its in found.items():
            outcomes.setdefault((its.touched, its.fault), []).append(uuid)
            driver_capacities.update(its.driver_capacities)
        for (touched, fault), uuids in outcomes.items():
            yield host.session.call(
                host.api.abort, uuids, touched=touched, fault=fault,
                driver_capacities=driver_capacities)

    def _take_back(self, host: host_mod.HostParts,
                   assignment: claim_obj.Assignment) -> None:
        try:
            self._backend.release(base.HostDevice.of(assignment))
        except exception.HostError:
            # The device becomes dirty or quarantined, not available.
            LOG.exception(
                'Cannot take device %s on %s back from instance %s; it is '
                'cleaned before its next assignment', assignment.address,
                host.name, assignment.instance_uuid)


# -- Releases and confirmations of a host, until a conductor accepts them.
#
# They are stored in the book before they are sent, so that a crash loses none.
# If the book cannot be written, they are sent anyway.


class Releases:
    """Pending releases and confirmations of one host.

    :param flush: sends all that is pending; raises if that fails
    """

    def __init__(self, host: str, book: assignment_file.AssignmentFile,
                 flush: Callable[[], None]) -> None:
        self._host = host
        self._book = book
        self._flush = flush

    def release(self, uuids: Sequence[str]) -> None:
        """Release assignments now, or later if no conductor answers.

        :raises HostError: no conductor confirmed the release, and it cannot
            be stored; a conductor may have executed it
        """
        what = f'the release of assignments {", ".join(uuids)}'
        # Stored first: a crash from here on loses nothing, and releasing
        # twice does no harm.
        stored = self._book.add_pending(uuids)
        self._send(what)
        if not stored and not set(uuids).isdisjoint(self._book.pending()):
            self._check_written(
                what, lambda: self._book.remove_pending(uuids))

    def confirm(self, confirmation: claim_obj.MigrationConfirmation) -> None:
        """Confirm a migration now, or later if no conductor answers.

        :raises HostError: no conductor accepted the confirmation, and it
            cannot be stored; a conductor may have executed it
        """
        what = f'the confirmation of migration {confirmation.migration_uuid}'
        stored = self._book.add_confirmation(confirmation)
        self._send(what)
        if not stored and confirmation in self._book.confirmations():
            self._check_written(
                what, lambda: self._book.remove_confirmation(confirmation))
        self._book.confirm(confirmation)

    def _send(self, what: str) -> None:
        try:
            self._flush()
        except exception.ConductorUnavailable as exc:
            LOG.warning('%s; %s of %s stays pending', exc, what, self._host)
        except Exception:
            # The conductor failed, for example because its database does
            # not answer. The caller's delete goes on.
            LOG.exception('Cannot send %s of %s; it stays pending', what,
                          self._host)

    def _check_written(self, what: str, forget: Callable[[], None]) -> None:
        """Refuse a request that was neither sent nor stored.

        :param forget: removes the request from the pending ones
        :raises HostError: the book is not on disk
        """
        error = self._book.error()
        if error is None:
            # It was written with another change meanwhile.
            return
        forget()
        raise exception.HostError(
            path=self._host,
            reason=f'{what} was not confirmed by any gpgpu-conductor and '
                   f'cannot be stored in {self._book.path} '
                   f'({error.strerror or error}). The devices may still be '
                   f'assigned. Free space on the file system of this file, or '
                   f'start a gpgpu-conductor, then repeat the operation')
