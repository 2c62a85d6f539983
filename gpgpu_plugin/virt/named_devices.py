# SPDX-License-Identifier: Apache-2.0
"""Devices that the scheduler hint of an instance names.

Nova passes the request with its hints to the method of the compute manager
that builds or moves the instance, but not to its driver. So these methods are
wrapped, and note the hint for the claim that follows.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from collections.abc import Sequence

from nova import objects

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import exact
from gpgpu_plugin.domain.allocation import request as request_mod

WRAPPED = ('build_and_run_instance', 'prep_resize', 'rebuild_instance',
           'unshelve_instance')
"""Methods of the compute manager after which the plugin may claim."""

_KEPT = 1000
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
            if len(self._hints) > _KEPT:
                self._hints.popitem(last=False)

    def of(self, instance_uuid: str) -> tuple[str, ...]:
        """Return the names of the devices; empty: the flavor decides.

        :raises ClaimDenied: the hint names no devices
        """
        with self._lock:
            hint = self._hints.get(instance_uuid)
        try:
            return tuple(map(str, exact.of_hint(hint)))
        except exception.Invalid as exc:
            raise exception.ClaimDenied(
                instance=instance_uuid, host=self._host,
                reason=str(request_mod.Reason.EXACT_DEVICES_INVALID),
                detail=str(exc)) from exc


def listen(virtapi: object, named: NamedDevices) -> None:
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
        hint = next((spec.get_scheduler_hint(exact.HINT) for spec in given
                     if isinstance(spec, objects.RequestSpec)), None)
        for instance in given:
            if isinstance(instance, objects.Instance):
                named.note(instance.uuid, hint)
        return method(*args, **kwargs)
    return call
