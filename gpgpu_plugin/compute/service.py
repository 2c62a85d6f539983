# SPDX-License-Identifier: Apache-2.0
"""Worker thread and RPC server of a resource tracker."""

from __future__ import annotations

import functools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import oslo_messaging
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import examination
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import transport as rpc_transport

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import resource_tracker


LOG = logging.getLogger(__name__)

SCAN_INTERVAL = 60
"""Seconds between two iterations that nothing has asked for. One without a
change makes no call."""


class HostService:
    """Service of one host, from the start of nova-compute to its end.

    :param transport: on which it serves calls of conductors; None: none
    :raises ConfigInvalid: messages are signed, and the host has no key
    """

    def __init__(self, tracker: resource_tracker.ResourceTracker,
                 transport: rpc_transport.Transport | None = None) -> None:
        self._tracker = tracker
        self._transport = transport
        # With the key that the calls of this start are signed with.
        self._guard = (None if transport is None else
                       compute_api.guard_of(tracker.conf, tracker.host))
        self._server: rpc_transport.RPCServer | None = None
        self._stopping = False
        # Whether the host has not been examined since it started.
        self._starts = False
        self.worker = Worker(
            self._iterate, SCAN_INTERVAL,
            f'gpgpu-{tracker.host}')

    def start(self, owners: tracker_api.Owners) -> None:
        """Begin a session, restore the devices of guests, and start to work.

        :raises ConfigInvalid: Nova itself assigns devices of a variant
        """
        # Claims of a dead predecessor end before anything is built.
        self.worker.run_once()
        if not self._tracker.session.is_fenced:
            # Nova starts guests next, as after a reboot of the host.
            self._tracker.restore()
        try:
            self._check(owners)
        except exception.ConfigInvalid:
            self.stop()
            raise
        self._starts = True
        self.worker.start()
        self.worker.wake()

    def _check(self, owners: tracker_api.Owners) -> None:
        tracker = self._tracker
        try:
            owners.check(
                lambda: tracker.api.device_list(
                    gpgpu_context.admin(), host=tracker.host),
                tracker.backend.scan, set() if tracker.offered is None
                else tracker.offered.resource_classes())
        except (exception.ConductorUnavailable, exception.NotFound) as exc:
            # It starts all the same, and its groups offer nothing until the
            # conductor answers.
            LOG.warning('Cannot check whether Nova itself assigns GPUs of '
                        '%s: %s', tracker.host, exc)

    def stop(self) -> None:
        """Stop serving and working."""
        # Nova gives little time for this; an iteration may take long.
        self._stopping = True
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            server.wait()
        self.worker.stop()

    # -- the worker's thread ------------------------------------------------

    def _iterate(self) -> float | None:
        self._serve()
        pause = self._tracker.run_once()
        self._examine_once()
        return pause

    def _serve(self) -> None:
        """Serve the host's RPC topic as soon as there is a broker."""
        tracker, transport = self._tracker, self._transport
        if (transport is None or self._server is not None
                or self._stopping):
            return
        try:
            rpc_transport.probe(tracker.conf, transport)
        except exception.BrokerUnavailable as exc:
            LOG.warning('%s; will be retried later', exc)
            return
        server = rpc_transport.server(
            transport, rpc_transport.compute_topic(tracker.conf),
            tracker.host, [ComputeManager(
                tracker.refresh, tracker.assignments_changed, self._usage,
                self._examine, functools.partial(
                    tracker.api.answer, gpgpu_context.admin(),
                    tracker.host))],
            guard=self._guard)
        server.start()
        self._server = server

    def _usage(self, assignments: Iterable[claim_obj.Assignment],
               ) -> tuple[claim_obj.Usage, ...]:
        """Judge assignments as this host's book has them, if it has them.

        Whoever can send a message could name another instance for them.
        """
        own = {assignment.uuid: assignment
               for assignment in self._tracker.assignments.all()}
        return leftovers.usage(
            [own.get(assignment.uuid, assignment)
             for assignment in assignments],
            self._tracker.driver.domain_of, self._tracker.builds.current())

    def _examine(self, repairs: Sequence[drift.Repair] = (),
                 ) -> tuple[drift.Drift, ...]:
        """Return the drifts of this host, after some repairs.

        That they are unknown is one as well.
        """
        host = self._tracker.host
        examiner = examination.Examiner(self._tracker)
        try:
            if repairs:
                examiner.repair(repairs, self.worker.run_once)
            return examiner.drifts()
        except Exception as exc:
            # Whatever it is, the operator must not take it for consistency.
            LOG.exception('Cannot compare what is known about %s', host)
            reason = str(exc).partition('\n')[0]
            return (drift.of('host_not_examined', host, host,
                             host=f'{type(exc).__name__}: {reason}'),)

    def _examine_once(self) -> None:
        """Log the drifts that are left when nova-compute has started."""
        host = self._tracker.host
        if not self._starts or not self._tracker.session.is_reported:
            return
        self._starts = False
        for found in self._examine():
            LOG.warning(
                'Drift %s on %s: %s: %s. %s. See "gpgpu-manage doctor --host '
                '%s"', found.name, host, found.subject,
                '; '.join(f'{name}: {text}'
                          for name, text in found.says.items()),
                found.reason, host)


# -- The thread in nova-compute that runs the plugin's tasks.
#
# It runs an iteration every interval, and at once when it is woken. Any number
# of wakes during an iteration cause one more iteration, so they cannot queue
# up. futurist's periodic worker cannot be woken, so it is not used here.


class Worker:
    """Thread that calls ``work`` periodically and when it is woken.

    :param work: one iteration; returns the seconds until the next one, None:
        the interval
    :param interval: seconds between two iterations
    """

    def __init__(self, work: Callable[[], float | None], interval: float,
                 name: str) -> None:
        self._work = work
        self._interval = interval
        self._name = name
        self._wake = threading.Event()
        self._stopping = False
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which waits for the interval or a wake."""
        self._thread = threading.Thread(
            target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next iteration now."""
        self._wake.set()

    def run_once(self) -> float | None:
        """Run one iteration in the calling thread, never beside another.

        :returns: what ``work`` returned
        """
        with self._busy:
            return self._work()

    def _loop(self) -> None:
        pause: float | None = None
        while True:
            self._wake.wait(self._interval if pause is None else pause)
            self._wake.clear()
            if self._stopping:
                return
            try:
                pause = self.run_once()
            except Exception:
                pause = None
                LOG.exception('An iteration of %s failed; the next one comes '
                              'after the interval', self._name)

    def stop(self, timeout: float = 10) -> None:
        """End the thread after the current iteration.

        :param timeout: seconds to wait for it
        """
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None


# -- The RPC endpoint that nova-compute serves for its host.


_TOO_OLD = 300
"""Seconds after which nobody waits for an answer; clocks differ by less."""


@contract.serve(compute_api.Compute)
class ComputeManager(compute_api.Compute):
    """Version 2.0 of the per-host API.

    :param usage: returns whether assignments are used
    :param examine: repairs what it is given, and returns the drifts
    :param answer: sends the answer to a question to the conductors, with the
        arguments of Conductor.answer but for the host
    """

    target = oslo_messaging.Target(version=compute_api.VERSION)

    def __init__(self, refresh: Callable[[], None],
                 assignments_changed: Callable[[], None],
                 usage: Callable[[Sequence[claim_obj.Assignment]],
                                 tuple[claim_obj.Usage, ...]],
                 examine: Callable[[Sequence[drift.Repair]],
                                   tuple[drift.Drift, ...]],
                 answer: Callable[..., None]) -> None:
        self._refresh = refresh
        self._assignments_changed = assignments_changed
        self._usage = usage
        self._examine = examine
        self._answer = answer

    def refresh(self, ctxt: gpgpu_context.RequestContext) -> None:
        """Fetch the host's inventory: the conductor changed it."""
        self._refresh()

    def assignments_changed(self, ctxt: gpgpu_context.RequestContext) -> None:
        """Fetch the host's assignments: the conductor changed them."""
        self._assignments_changed()

    def ask(self, ctxt: gpgpu_context.RequestContext, *, question: str,
            asked_at: float, assignments: Sequence[claim_obj.Assignment],
            ) -> None:
        """Answer whether the host's instances use their assignments."""
        if _is_waited_for(asked_at):
            self._send(question, usages=(
                self._usage(assignments) if assignments else ()))

    def examine(self, ctxt: gpgpu_context.RequestContext, *, question: str,
                asked_at: float, repairs: Sequence[drift.Repair]) -> None:
        """Answer with the drifts of the host, after some repairs."""
        if _is_waited_for(asked_at):
            self._send(question, drifts=self._examine(repairs))

    def _send(self, question: str, *, usages: Sequence[claim_obj.Usage] = (),
              drifts: Sequence[drift.Drift] = ()) -> None:
        try:
            self._answer(question=question, usages=usages, drifts=drifts)
        except exception.GPUPluginException as exc:
            # Who asked learns that this host did not answer.
            LOG.warning('Cannot answer a question of gpgpu-conductor: %s',
                        exc)


def _is_waited_for(asked_at: float) -> bool:
    return time.time() - asked_at <= _TOO_OLD
