# SPDX-License-Identifier: Apache-2.0
"""Request of an instance, the view for it, and what a filter decided."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import weakref

import nova.conf
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import host_numa
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.scheduler_filters import conductor_messages
from gpgpu_plugin.scheduler_filters import scheduler_view

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds after which the view is read again if no decision read it."""

PAUSE = 2.0
"""Seconds between two looks whether that is due, or a refusal waits."""


def _api() -> conductor_client.ConductorAPI:
    """Return the client of the conductor.

    :raises CallerRefused: the scheduler has no key
    """
    try:
        return conductor_client.ConductorAPI(
            CONF,
            rpc_transport.get_transport(CONF),
            caller=gpgpu_context.CallerKind.SCHEDULER,
            name=CONF.host,
        )
    except exception.ConfigInvalid as exc:
        # Nova's other requests must go on, and the key may come later.
        LOG.error('Requests for GPUs are refused: %s', exc)
        raise exception.CallerRefused(
            method='changes_since', reason=str(exc)
        ) from exc


class ViewSource:
    """Source of the newest view, connected at first use.

    Not when it is made: nova-scheduler makes its filters before it forks its
    workers. Each worker begins to read the view when it starts, or with its
    first decision if it was not forked. A thread goes on by time: what was
    refused is sent, and requests without GPUs find a view, also while nobody
    requests GPUs.

    :ivar ended: set when the thread shall end
    :ivar thread: None: it has not begun
    """

    def __init__(
        self, cache: scheduler_view.SchedulerViewCache | None = None
    ) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._is_tried = False
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None
        weakref.finalize(self, self.ended.set)
        SOURCES.add(self)

    def _connected(self) -> scheduler_view.SchedulerViewCache:
        with self._lock:
            if self._cache is None:
                conf_gpgpu.register_opts(CONF)
                self._cache = scheduler_view.SchedulerViewCache(_api())
                if self.thread is None:
                    self.begin()
            return self._cache

    def refresh(self) -> scheduler_view.SchedulerView:
        """Return the newest view.

        :raises ConductorUnavailable: the view may be out of date
        """
        return self._connected().refresh()

    def last(self) -> scheduler_view.SchedulerView | None:
        """Return the view that was read last.

        The first caller of a process waits for it, and for one attempt only.

        :returns: None: nothing was read yet
        """
        if not self._is_tried:
            self.read()
        return None if self._cache is None else self._cache.last

    def exact_host(self, request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        """Return the host of the devices that an instance names.

        :raises ConductorUnavailable: no conductor answered
        """
        return self._connected().exact_host(request)

    def refused(self, decision: scheduling_obj.FilterRefusal) -> None:
        """Keep what a filter refused until a conductor has recorded it."""
        try:
            self._connected().refused.add(decision)
        except exception.ConductorUnavailable as exc:
            # Without a key nothing is ever sent.
            LOG.debug('Cannot record what a filter refused: %s', exc)

    def count(self, spec_obj: nova_types.RequestSpec,
              request: request_mod.Request, *, is_refused: bool = False,
              ) -> None:
        """Count a request for the mix of the cloud, once for an instance.

        :param is_refused: whether no host can take it
        """
        try:
            self._connected().requests.add(
                spec_obj.instance_uuid,
                conductor_messages.request_kind(spec_obj.flavor, request),
                (spec_obj.project_id or '') if is_refused else None)
        except exception.ConductorUnavailable as exc:
            # Without a key nothing is ever sent.
            LOG.debug('Cannot count a request: %s', exc)

    def read(self) -> None:
        """Read the view and send what was refused, if due; never raises."""
        try:
            self._connected().keep_fresh(PERIOD)
        except exception.ConductorUnavailable as exc:
            LOG.debug('The view of the GPUs may be out of date: %s', exc)
        except Exception:
            # Else the view would never be read by time again.
            LOG.exception('Cannot read the view of the GPUs')
        self._is_tried = True

    def begin(self) -> None:
        """Start to read the view by time, in a thread."""
        self.thread = threading.Thread(
            target=_keep, args=(weakref.ref(self), self.ended),
            name='gpgpu-view', daemon=True)
        self.thread.start()


def _keep(source: weakref.ref[ViewSource], ended: threading.Event) -> None:
    """Read the view by time, as long as its source exists."""
    while (found := source()) is not None:
        found.read()
        del found
        if ended.wait(PAUSE):
            return


SOURCES: weakref.WeakSet[ViewSource] = weakref.WeakSet()
"""Those of this process."""


def _begin_all() -> None:
    for source in list(SOURCES):
        source.begin()


os.register_at_fork(after_in_child=_begin_all)


def read_request(spec_obj: nova_types.RequestSpec) -> request_mod.Request:
    """Return everything that an instance may request from the plugin.

    :raises Invalid: as ``from_extra_specs``
    """
    return request_mod.from_extra_specs(
        spec_obj.flavor.extra_specs, host_numa.image_policy(spec_obj.image))


def names_devices(spec_obj: nova_types.RequestSpec) -> bool:
    """Return whether the instance has the scheduler hint for exact devices."""
    return spec_obj.get_scheduler_hint(request_mod.HINT) is not None


def read_exact(spec_obj: nova_types.RequestSpec,
               request: request_mod.Request) -> scheduling_obj.ExactRequest:
    """Return the request for devices that the scheduler hint names.

    :param request: of the instance's flavor
    :raises Invalid: as ``request.parse_hint``
    """
    return scheduling_obj.ExactRequest(
        instance_uuid=spec_obj.instance_uuid, project_id=spec_obj.project_id,
        devices=tuple(map(str, request_mod.devices_of_hint(
            spec_obj.get_scheduler_hint(request_mod.HINT)))),
        request=request)


# -- Results of one decision of GpuFilter, for GpuWeigher.
#
# A result is kept with Nova's request, so that a weigher sees what the filter
# saw, without another call.


_ATTRIBUTE = 'gpgpu_decision'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilterDecision:
    """A request, and the view against which it was checked.

    :ivar request: what it demands of the plugin's classes; may be empty
    :ivar view: None: it was never read, and the request has no GPUs
    :ivar guest_nodes: number of NUMA nodes of the guest; None: it has no NUMA
        topology
    """

    request: request_mod.Request
    view: scheduler_view.SchedulerView | None
    guest_nodes: int | None = None


def remember_decision(spec_obj: nova_types.RequestSpec,
                      decision: FilterDecision) -> None:
    """Keep the decision about a request."""
    setattr(spec_obj, _ATTRIBUTE, decision)


def forget_decision(spec_obj: nova_types.RequestSpec) -> None:
    """Forget an earlier decision about a request, if there was one."""
    spec_obj.__dict__.pop(_ATTRIBUTE, None)


def decision_of(spec_obj: nova_types.RequestSpec) -> FilterDecision | None:
    """Return the last decision about a request."""
    found: FilterDecision | None = getattr(spec_obj, _ATTRIBUTE, None)
    return found


def watch_host(host: nova_types.HostState) -> None:
    """Have it noted if Nova chooses a host.

    Nova tells neither filters nor weighers. It calls consume_from_request of
    the one HostState that it chose and has an allocation for.
    """
    # An attribute would be one more object for each host of each decision.
    kind = type(host)
    if not issubclass(kind, _Watched):
        host.__class__ = _watched(kind)


class _Watched:
    """Mixin of a HostState that notes that it was chosen."""

    uuid: str

    def consume_from_request(self, spec_obj: nova_types.RequestSpec) -> None:
        """Do what Nova does, and note the choice."""
        super().consume_from_request(spec_obj)  # type: ignore[misc]
        decision = decision_of(spec_obj)
        if decision is not None and decision.view is not None:
            decision.view.pending.add(
                self.uuid, spec_obj.instance_uuid, decision.request)


@functools.cache
def _watched(kind: type) -> type:
    """Return the class of hosts of a class of Nova that are watched."""
    return type(kind.__name__, (_Watched, kind), {})
