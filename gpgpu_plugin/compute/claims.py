# SPDX-License-Identifier: Apache-2.0
"""Claims of this host, and their end where nothing was built."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import liveness
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as claim_obj

LOG = logging.getLogger(__name__)


def claim(tracker: resource_tracker.ResourceTracker,
          request: claim_obj.ClaimRequest) -> claim_obj.Claim:
    """Claim devices of this host; they are not in its book yet.

    What an earlier stay of the instance left here ends with the claim.

    :raises ClaimDenied: the conductor denied it
    :raises HostNotReady: the conductor knows less than this host
    """
    orphans = _release_orphans(tracker, request)
    try:
        # A release that is still pending, such as from before the instance was
        # shelved, would end what is granted now.
        tracker.flush_releases()
        granted = _request(tracker, request)
        while _corrects_book(tracker, request, granted):
            granted = _request(tracker, request)
        _check_against_book(tracker, granted)
        return granted
    finally:
        # Some may have ended long ago, which had to be found out first.
        if orphans:
            tracker.assignments.remove(request.instance_uuid, orphans)


def _release_orphans(tracker: resource_tracker.ResourceTracker,
                     request: claim_obj.ClaimRequest) -> Collection[str]:
    """Release what an earlier stay of the instance left here; return it."""
    operation = (
        liveness.Operation(liveness.Kind.BUILD)
        if request.migration_uuid is None else
        liveness.Operation(liveness.Kind.PREPARE, request.migration_uuid))
    try:
        found = tracker.find_orphans(
            tracker.assignments.of_instance(request.instance_uuid),
            operation=operation)
    except Exception:
        LOG.exception('Cannot check what an earlier stay of instance %s left '
                      'on %s; it stays assigned', request.instance_uuid,
                      tracker.host)
        return ()
    if found:
        LOG.warning(
            'Releasing assignments on %s that nobody uses, as instance %s '
            'claims devices there: %s', tracker.host, request.instance_uuid,
            ', '.join(sorted(found)))
        tracker.release(found)
    return found


def _request(tracker: resource_tracker.ResourceTracker,
             request: claim_obj.ClaimRequest) -> claim_obj.Claim:
    try:
        return tracker.session.call(tracker.api.claim, request)
    except exception.ClaimDenied as denied:
        if denied.reason == request_mod.Reason.REQUEST_CHANGED:
            # The book lacks what the conductor has, which a comparison ends.
            tracker.request_reconcile()
        raise
    except (exception.Fenced, exception.NoSession):
        raise
    except Exception:
        # It may have been granted all the same.
        tracker.request_reconcile()
        raise


def _corrects_book(tracker: resource_tracker.ResourceTracker,
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
    found = [assignment for assignment in tracker.assignments.all()
             if assignment.stable_id in devices
             and assignment.uuid not in own]
    uuids = _ended(tracker, found)
    with tracker.builds.lock:
        # A guest that is being created may use them.
        building = tracker.builds.current() - {request.instance_uuid}
        ended = [assignment for assignment in found
                 if assignment.uuid in uuids
                 and assignment.instance_uuid not in building]
        for assignment in ended:
            tracker.assignments.remove(
                assignment.instance_uuid, [assignment.uuid])
    if not ended:
        return False
    LOG.warning(
        'Removed assignments from the book of %s that have ended in '
        'gpgpu-conductor: %s. Their devices are cleaned before they are '
        'claimed again', tracker.host, ', '.join(
            f'{assignment.uuid} (device {assignment.address}, instance '
            f'{assignment.instance_uuid})' for assignment in ended))
    outdated = {assignment.stable_id for assignment in ended}
    for touched in (True, False):
        _abort(tracker, [
            assignment for assignment in granted.assignments
            if (assignment.stable_id in outdated) is touched], touched=touched)
    tracker.refresh()
    return True


def _ended(tracker: resource_tracker.ResourceTracker,
           assignments: Sequence[claim_obj.Assignment]) -> set[str]:
    """Return the UUIDs of assignments that have ended in the conductor."""
    if not assignments:
        return set()
    try:
        listed = tracker.session.call(
            tracker.api.host_assignments,
            [assignment.uuid for assignment in assignments])
    except exception.SessionLost:
        # The database was restored: it does not know them as ended either.
        return set()
    return ({assignment.uuid for assignment in assignments}
            - {assignment.uuid for assignment in listed})


def _abort(tracker: resource_tracker.ResourceTracker,
           assignments: Sequence[claim_obj.Assignment], *,
           touched: bool) -> None:
    """Abort some assignments of a claim.

    :param touched: whether their devices must be cleaned before the next use
    :raises Exception: the conductor may have aborted them all the same
    """
    if not assignments:
        return
    try:
        tracker.session.call(
            tracker.api.abort,
            [assignment.uuid for assignment in assignments], touched=touched)
    except Exception:
        tracker.request_reconcile()
        raise


def _check_against_book(tracker: resource_tracker.ResourceTracker,
                        granted: claim_obj.Claim) -> None:
    """Refuse devices that this host knows to be used.

    :raises HostNotReady: the claim was aborted
    """
    found = tracker.assignments.contradictions(granted.assignments)
    if not found:
        return
    try:
        # After SessionLost no call is possible; the next session ends it.
        if tracker.session.is_active:
            _abort(tracker, granted.assignments, touched=True)
    finally:
        tracker.session.lose(doubted=True)
    raise exception.HostNotReady(
        path=tracker.host,
        reason=f'gpgpu-conductor granted devices that this host knows to be '
               f'used: {"; ".join(found)}. Its database may have been '
               f'restored from a backup')


def end(tracker: resource_tracker.ResourceTracker, instance_uuid: str,
        assignments: Sequence[claim_obj.Assignment]) -> None:
    """End a claim of this host whose devices nobody has touched.

    If the conductor does not answer, the claim is ended later.

    :raises HostError: the release can be neither sent nor stored
    """
    uuids = [assignment.uuid for assignment in assignments]
    if not uuids:
        return
    tracker.assignments.remove(instance_uuid, uuids, uuids)
    try:
        tracker.inventory.accept(tracker.session.call(
            tracker.api.abort, uuids, touched=False))
    except Exception:
        LOG.exception('Cannot end assignments %s on %s; they will be '
                      'released', ', '.join(uuids), tracker.host)
        tracker.release(uuids)
