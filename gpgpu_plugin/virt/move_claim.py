# SPDX-License-Identifier: Apache-2.0
"""Claims of a destination, made where Nova can still try another host.

Nova's compute manager claims for a resize or cold migration on the
destination, before it tells the source to begin. The plugin claims right
after it: a denial then leaves the guest as it is, and Nova tries the next
alternate host.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from nova import exception as nova_exception
from oslo_log import log as logging

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import exception as virt_exception

LOG = logging.getLogger(__name__)

End = Callable[[], None]
"""Ends a claim that is not used."""


class ClaimGPUs(typing.Protocol):
    """Claims GPUs for the destination of a move."""

    def __call__(self, context: nova_types.Context,
                 instance: nova_types.Instance, flavor: nova_types.Flavor,
                 migration: nova_types.Migration,
                 allocations: nova_types.Allocations | None,
                 image: object, node: str) -> End: ...


def claim_with(tracker: nova_types.NovaResourceTracker,
               claim_gpus: ClaimGPUs) -> None:
    """Make Nova's claims for moves claim GPUs as well.

    :param tracker: the resource tracker of this nova-compute
    :param claim_gpus: called after each of Nova's claims; what it raises
        denies the move on this host
    """
    nova_claim = tracker.resize_claim

    @functools.wraps(nova_claim)
    def resize_claim(
            context: nova_types.Context, instance: nova_types.Instance,
            flavor: nova_types.Flavor, nodename: str,
            migration: nova_types.Migration,
            allocations: nova_types.Allocations | None,
            image_meta: object = None, limits: object = None,
            ) -> nova_types.MoveClaim:
        claim = nova_claim(
            context, instance, flavor, nodename, migration, allocations,
            image_meta=image_meta, limits=limits)
        try:
            end = claim_gpus(
                context, instance, flavor, migration, allocations,
                image_meta, nodename)
        except Exception as exc:
            LOG.info('Migration %s of instance %s to this host is denied: %s',
                     migration.uuid, instance.uuid,
                     virt_exception.reason(exc))
            denial.record(
                context, instance.uuid, migration.dest_compute, exc)
            claim.abort()
            raise _rollback(exc) from exc
        _end_with(claim, end)
        return claim
    tracker.resize_claim = resize_claim  # type: ignore[method-assign]


def _rollback(exc: Exception) -> nova_exception.InstanceFaultRollback:
    """Return the error after which the server stays as it is.

    On any other class Nova sets it to ERROR when no host is left.
    """
    return nova_exception.InstanceFaultRollback(
        nova_exception.ComputeResourcesUnavailable(
            reason=virt_exception.public(exc)))


def _end_with(claim: nova_types.MoveClaim, end: End) -> None:
    """Make the end of Nova's claim end that of the plugin, too.

    Nova aborts its claim if the source cannot be told to begin.
    """
    nova_abort = claim.abort

    def abort() -> None:
        try:
            nova_abort()
        finally:
            end()
    claim.abort = abort  # type: ignore[method-assign]
