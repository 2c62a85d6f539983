# SPDX-License-Identifier: Apache-2.0
"""Worker thread and RPC server of a resource tracker in nova-compute."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import examination
from gpgpu_plugin.compute import manager
from gpgpu_plugin.compute import orphans
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.compute import worker
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import compute_api
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
    """

    def __init__(self, tracker: resource_tracker.ResourceTracker,
                 transport: rpc_transport.Transport | None = None) -> None:
        self._tracker = tracker
        self._transport = transport
        self._server: rpc_transport.RPCServer | None = None
        self._stopping = False
        # Whether the host has not been examined since it started.
        self._starts = False
        self.worker = worker.Worker(
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
            tracker.host, [manager.ComputeManager(
                tracker.refresh, tracker.assignments_changed, self._usage,
                self._examine, functools.partial(
                    tracker.api.answer, gpgpu_context.admin(),
                    tracker.host))],
            guard=compute_api.guard_of(tracker.conf, tracker.host))
        server.start()
        self._server = server

    def _usage(self, assignments: Iterable[claim_obj.Assignment],
               ) -> tuple[claim_obj.Usage, ...]:
        """Judge assignments as this host's book has them, if it has them.

        Whoever can send a message could name another instance for them.
        """
        own = {assignment.uuid: assignment
               for assignment in self._tracker.assignments.all()}
        return orphans.usage(
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
