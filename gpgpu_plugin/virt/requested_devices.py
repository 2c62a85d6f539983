# SPDX-License-Identifier: Apache-2.0
"""Devices that a guest must have, and those named by a hint.

A guest must have what its flavor requests, or it is not started: the host may
not know of its devices, if its book could not be read when nova-compute
started and no comparison has filled it since. Nobody would notice that the
guest has no GPU.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from collections.abc import Sequence

from nova import objects

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import exception as virt_exception


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
           instance: nova_types.Instance, select: assignment_selector.Select,
           *, claims: bool = False) -> None:
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
             select: assignment_selector.Select) -> str:
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
    brought = assignment_use.brought_by(leftovers.location(instance),
                                        tracker.host)
    if brought is None or brought.new_flavor in (None, instance.flavor.id):
        return instance.flavor
    new = instance.new_flavor
    return new if new is not None and new.id == brought.new_flavor else None


# -- Devices that the scheduler hint of an instance names.
#
# Nova passes the request with its hints to the method of the compute manager
# that builds or moves the instance, but not to its driver. So these methods
# are wrapped, and note the hint for the claim that follows.


WRAPPED = ('build_and_run_instance', 'prep_resize', 'rebuild_instance',
           'unshelve_instance')
"""Methods of the compute manager after which the plugin may claim."""

_MAX_KEPT = 1000
"""Instances whose hints are kept, the last ones."""

_Hint = str | Sequence[str]


class NamedDevices:
    """Hints of the instances that Nova builds here or moves to this host.

    Thread-safe.

    :param host: name of the nova-compute service
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._hints: collections.OrderedDict[str, _Hint] = (
            collections.OrderedDict())

    def note(self, instance_uuid: str, hint: _Hint | None) -> None:
        """Note the hint of an instance; None: it has none."""
        with self._lock:
            self._hints.pop(instance_uuid, None)
            if hint is not None:
                self._hints[instance_uuid] = hint
            if len(self._hints) > _MAX_KEPT:
                self._hints.popitem(last=False)

    def of(self, instance_uuid: str) -> tuple[str, ...]:
        """Return the names of the devices; empty: the flavor decides.

        :raises ClaimDenied: the hint names no devices
        """
        with self._lock:
            hint = self._hints.get(instance_uuid)
        try:
            return tuple(map(str, request_mod.devices_of_hint(hint)))
        except exception.Invalid as exc:
            raise exception.ClaimDenied(
                instance=instance_uuid, host=self._host,
                reason=str(request_mod.Reason.EXACT_DEVICES_INVALID),
                detail=str(exc)) from exc


def listen_for_hints(virtapi: object, named: NamedDevices) -> None:
    """Have the hint noted with each call of Nova that leads to a claim.

    :raises ConfigInvalid: this Nova has no such method
    """
    manager = getattr(virtapi, '_compute', None)
    for name in WRAPPED:
        method = getattr(manager, name, None)
        if method is None:
            raise exception.ConfigInvalid(
                option='compute_driver',
                reason=f'Nova\'s compute manager has no method {name}. '
                       f'Install a version of Nova that this version of '
                       f'gpgpu_plugin supports')
        setattr(manager, name, _noting(method, named))


def _noting(method: Callable[..., object],
            named: NamedDevices) -> Callable[..., object]:
    """Return the method, which notes the hint before it is called.

    A decorator of oslo.messaging hides the parameters, so the arguments are
    known by their types.
    """
    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        given = (*args, *kwargs.values())
        hint = next((spec.get_scheduler_hint(request_mod.HINT)
                     for spec in given
                     if isinstance(spec, objects.RequestSpec)), None)
        for instance in given:
            if isinstance(instance, objects.Instance):
                named.note(instance.uuid, hint)
        return method(*args, **kwargs)
    return call
