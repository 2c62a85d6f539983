# SPDX-License-Identifier: Apache-2.0
"""Devices that a guest must have before it is started.

The host may not know of them: its book could not be read when nova-compute
started, and no comparison has filled it since. A guest that was started then
would have no GPU, and nobody would notice.
"""

from __future__ import annotations

import collections

from gpgpu_plugin import exception
from gpgpu_plugin.compute import liveness
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import orphans
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import roles


def asks_for_gpus(flavor: nova_types.Flavor) -> bool:
    """Return whether a flavor may request GPUs."""
    try:
        return bool(request_mod.from_extra_specs(flavor.extra_specs))
    except exception.Invalid:
        return True


def has_gpus(tracker: tracker_api.ResourceTrackerBase,
             instance: nova_types.Instance) -> bool:
    """Return whether an instance has GPUs here, or its flavor requests some.

    Its flavor may request devices of other services under classes of their
    own, which are no reason to refuse an operation.
    """
    if tracker.assigned(instance.uuid):
        return True
    if tracker.offered is None:
        # Which classes are the plugin's is not known yet.
        return asks_for_gpus(instance.flavor)
    return bool(_demands(tracker, instance.flavor))


def ensure(tracker: tracker_api.ResourceTrackerBase,
           instance: nova_types.Instance, select: roles.Select, *,
           claims: bool = False) -> None:
    """Ensure that a guest has the devices that its flavor requests.

    A comparison brings those that the host does not know of. A guest may have
    more devices than its flavor requests.

    :param select: returns which of the instance's assignments the guest gets
    :param claims: whether the caller claims devices if the instance has none
    :raises GPUsMissing: the guest would have too few
    """
    if not _lacking(tracker, instance, instance.flavor, select):
        return
    lacking = _lacking(
        tracker, instance, _flavor_of_devices(tracker, instance), select)
    if not lacking or (claims and not tracker.assigned(instance.uuid)):
        return
    tracker.request_reconcile()
    raise virt_exception.GPUsMissing(
        instance=instance.uuid, host=tracker.host, lacking=lacking,
        reason='the host has no other assignments of it, and compares them '
               'with gpgpu-conductor now',
        remedy='start the server again in a minute; if that fails, too, '
               'shelve and unshelve it, which claims GPUs anew')


def _lacking(tracker: tracker_api.ResourceTrackerBase,
             instance: nova_types.Instance, flavor: nova_types.Flavor | None,
             select: roles.Select) -> str:
    """Return what a guest with a flavor lacks, in words; '' for nothing.

    :param flavor: None: unknown, so that any device is enough
    """
    demands = () if flavor is None else _demands(tracker, flavor)
    if flavor is not None and not demands:
        return ''
    assigned = collections.Counter(
        assignment.resource_class for assignment in filter(
            select(), tracker.assigned(instance.uuid)))
    if flavor is None:
        return '' if assigned else 'its GPUs'
    return ', '.join(
        f'{demand.count - assigned[demand.resource_class]} of '
        f'{demand.resource_class}' for demand in demands
        if demand.count > assigned[demand.resource_class])


def _demands(tracker: tracker_api.ResourceTrackerBase,
             flavor: nova_types.Flavor) -> tuple[request_mod.Demand, ...]:
    """Return a flavor's demands for classes of the plugin.

    A class whose name has no prefix of the plugin counts only if the host
    offers it: it may belong to another service, whose guests must start while
    no conductor answers.
    """
    try:
        request = request_mod.from_extra_specs(flavor.extra_specs)
    except exception.Invalid:
        # No claim is granted for it.
        return ()
    return request.own(
        tracker.offered.resource_classes() if tracker.offered else ()).demands


def _flavor_of_devices(tracker: tracker_api.ResourceTrackerBase,
                       instance: nova_types.Instance,
                       ) -> nova_types.Flavor | None:
    """Return the flavor for which the devices were claimed; None: unknown.

    If a resize fails on its destination, Nova gives the instance its old
    flavor back. The guest keeps what was claimed for the new one.
    """
    brought = liveness.brought_by(orphans.location(instance), tracker.host)
    if brought is None or brought.new_flavor in (None, instance.flavor.id):
        return instance.flavor
    new = instance.new_flavor
    return new if new is not None and new.id == brought.new_flavor else None
