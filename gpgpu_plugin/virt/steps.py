# SPDX-License-Identifier: Apache-2.0
"""Spawning an instance with GPUs: a table of steps, each with its undo.

The claim is in the database before hardware is touched. If a step fails, the
steps done so far are undone in reverse order. An undo that fails is logged and
does not stop the others; reconciliation finds what it leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import placement
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim as claim_obj

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True)
class Spawn:
    """State of one spawn.

    :ivar spawn: Nova's own spawn; ``destroy`` its undo
    :ivar claimed: called with the claim once it is granted
    :ivar keeps: whether this is a rebuild in place, in which the instance
        keeps its devices
    :ivar allocation_removal: whether this is an evacuation: if it fails, Nova
        removes the allocation on this host without a retry
    :ivar was_assigned: whether the devices were assigned to the instance
        before
    :ivar client: Nova's report client
    :ivar added: what was added to the instance's allocation in Placement
    """

    tracker: tracker_api.ResourceTrackerBase
    request: claim_obj.ClaimRequest
    spawn: Callable[[], None]
    destroy: Callable[[], None]
    claimed: Callable[[claim_obj.ClaimRequest, claim_obj.Claim], None] = (
        lambda request, claim: None)
    keeps: bool = False
    allocation_removal: bool = False
    assignments: tuple[claim_obj.Assignment, ...] = ()
    was_assigned: bool = False
    client: nova_types.ReportClient | None = None
    added: nova_types.Allocations = dataclasses.field(default_factory=dict)

    @property
    def uuids(self) -> list[str]:
        """Return the UUIDs of the assignments."""
        return [assignment.uuid for assignment in self.assignments]


@dataclasses.dataclass(frozen=True)
class SpawnStep:
    """One step; ``undo`` also handles a ``do`` that failed half way."""

    name: str
    do: Callable[[Spawn], None]
    undo: Callable[[Spawn], None]


def _claim(run: Spawn) -> None:
    assigned = run.tracker.assigned(run.request.instance_uuid)
    if run.keeps and assigned:
        # No call: a guest is made anew also while no conductor answers.
        run.assignments, run.was_assigned = assigned, True
        return
    claim = run.tracker.claim(run.request)
    run.assignments = claim.assignments
    # Claimed and activated before: they are the instance's already.
    run.was_assigned = bool(claim.assignments) and all(
        assignment.state == device_rules.DeviceState.ASSIGNED
        for assignment in claim.assignments)
    run.claimed(run.request, claim)


def _unclaim(run: Spawn) -> None:
    if run.was_assigned and not run.keeps:
        # The claim found devices of an earlier stay, which nobody uses.
        run.tracker.request_reconcile()
    if run.was_assigned or not run.assignments:
        return
    instance_uuid = run.request.instance_uuid
    run.tracker.release_instance(
        instance_uuid, lambda assignment: assignment.uuid in run.uuids,
        allocation_removal=instance_uuid if run.allocation_removal else None)


def _allocate(run: Spawn) -> None:
    """Add devices that the instance named to its allocation.

    :raises ClaimDenied: Placement refuses
    """
    if (not run.request.exact_devices or run.was_assigned
            or run.client is None):
        return
    offered = run.tracker.offered
    lacking = placement.missing_exact(
        () if offered is None else offered.groups, run.assignments,
        run.request.allocated)
    if lacking:
        placement.add_exact(run.client, run.request.instance_uuid,
                            run.tracker.host, lacking)
        run.added = lacking


def _deallocate(run: Spawn) -> None:
    if run.added and run.client is not None:
        placement.remove_exact(
            run.client, run.request.instance_uuid, run.added)


def _prepare(run: Spawn) -> None:
    run.tracker.prepare(run.assignments)


def _spawn(run: Spawn) -> None:
    run.spawn()


def _unspawn(run: Spawn) -> None:
    run.destroy()


def _activate(run: Spawn) -> None:
    if run.was_assigned:
        return
    run.tracker.activate(run.request.instance_uuid, run.assignments)


def _nothing(run: Spawn) -> None:
    """Do nothing: _unclaim, which comes later, does what is to be undone."""


STEPS = (
    SpawnStep('claim', _claim, _unclaim),
    SpawnStep('allocate', _allocate, _deallocate),
    SpawnStep('prepare', _prepare, _nothing),
    SpawnStep('spawn', _spawn, _unspawn),
    SpawnStep('activate', _activate, _nothing),
)


def execute(run: Spawn, steps: tuple[SpawnStep, ...] = STEPS) -> None:
    """Run all steps; if one fails, undo those that were begun and raise.

    A BaseException that is no Exception ends the process: nothing is undone,
    as nothing would be after a kill.
    """
    begun: list[SpawnStep] = []
    try:
        for step in steps:
            begun.append(step)
            step.do(run)
    except Exception:
        for step in reversed(begun):
            _undo(step, run)
        raise


def _undo(step: SpawnStep, run: Spawn) -> None:
    try:
        step.undo(run)
    except Exception:
        LOG.exception('Cannot undo step %s of instance %s on %s; what is left '
                      'is found by the next comparison with the conductor',
                      step.name, run.request.instance_uuid, run.tracker.host)
        run.tracker.request_reconcile()
