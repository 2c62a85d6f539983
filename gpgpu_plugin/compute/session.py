# SPDX-License-Identifier: Apache-2.0
"""This start's session: the right to speak for the host to the conductors."""

from __future__ import annotations

import threading
import typing
import uuid
from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import inventory
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import report
from gpgpu_plugin.rpc import conductor_client

LOG = logging.getLogger(__name__)

_Result = typing.TypeVar('_Result')
_Arguments = typing.ParamSpec('_Arguments')


class HostSession:
    """Session of one start of nova-compute with the conductors.

    Thread-safe. Calls go through ``call``, which adds who speaks, and notes
    when a conductor refuses it.

    :param host: name of the nova-compute service
    :param start_uuid: of this start; default a new one
    """

    def __init__(self, host: str, api: conductor_client.ConductorAPI,
                 book: assignment_file.AssignmentFile,
                 offered: inventory.OfferedInventory,
                 start_uuid: str | None = None) -> None:
        self.start_uuid = start_uuid or str(uuid.uuid4())
        self._host = host
        self._api = api
        self._book = book
        self._offered = offered
        self._lock = threading.Lock()
        self._number = 0
        self._node_uuid = ''
        self._reported = False
        self._restored = False
        self._superseded = False
        self._doubted = False
        self._refused: str | None = None
        self._fenced = False
        self._reports = 0
        self._comparisons = 0

    # -- state --------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Return whether a conductor gave this start a session."""
        return bool(self._number)

    @property
    def is_fenced(self) -> bool:
        """Return whether another nova-compute speaks for the host."""
        return self._fenced

    @property
    def is_reported(self) -> bool:
        """Return whether a report of this session was accepted."""
        return self.is_active and self._reported

    @property
    def is_restored(self) -> bool:
        """Return whether the session began with a restored database."""
        return self.is_active and self._restored

    def generation(self) -> int:
        """Return the highest generation that a conductor acknowledged."""
        newest = self._offered.newest
        return max(self._book.generation(),
                   newest.generation if newest is not None else 0)

    def next_report(self) -> int:
        """Return the number of the next report of this session."""
        with self._lock:
            self._reports += 1
            return self._reports

    def next_comparison(self) -> int:
        """Return the number of the next comparison with Placement."""
        with self._lock:
            self._comparisons += 1
            return self._comparisons

    def accept_report(self) -> None:
        """Note that a report of this session was accepted."""
        self._reported = True

    # -- begin and end ------------------------------------------------------

    def begin(self, node: str, node_uuid: str,
              identity: host_rules.MachineIdentity) -> report.Session:
        """Begin a session, whatever the newest one is.

        :raises Fenced: another machine may speak for the host
        :raises Conflict: the host or the node belongs to another one
        """
        expected = self._book.session()
        while True:
            request = report.SessionRequest(
                host=self._host, node=node, node_uuid=node_uuid,
                start_uuid=self.start_uuid, identity=identity,
                expected=expected, generation=self.generation(),
                superseded=self._superseded, doubted=self._doubted,
                version=version.VERSION, cloud=self._book.cloud())
            try:
                granted = self._api.begin_session(
                    gpgpu_context.admin(), request)
            except exception.SessionOutdated as exc:
                expected = int(str(exc.kwargs['current']))
                continue
            except (exception.Fenced, exception.Conflict) as exc:
                self._log_refusal(exc)
                raise
            self._accept(granted, node_uuid)
            return granted

    def _accept(self, granted: report.Session, node_uuid: str) -> None:
        with self._lock:
            if granted.number != self._book.session():
                self._reports = self._comparisons = 0
            self._number, self._node_uuid = granted.number, node_uuid
            self._reported = self._superseded = self._doubted = False
            self._restored = granted.restored
            self._refused = None
            self._fenced = False
        self._book.begin(granted.number, granted.generation, granted.cloud)
        LOG.info('Session %s of host %s has begun%s', granted.number,
                 self._host, '; the conductor\'s database was restored'
                 if granted.restored else '')

    def _log_refusal(self, exc: exception.GPUPluginException) -> None:
        """Say once why this host does no GPU work."""
        self._fenced = isinstance(exc, exception.Fenced)
        reason = exc.msg_fmt % exc.kwargs
        if self._refused is None:
            LOG.error('%s. No GPU of %s is offered, assigned or cleaned by '
                      'this nova-compute until it is accepted', reason,
                      self._host)
        self._refused = reason

    def lose(self, *, doubted: bool = False) -> None:
        """Begin a new session before anything else is done.

        :param doubted: the database contradicts the host's book
        """
        with self._lock:
            self._number = 0
            self._reported = False
            self._doubted = self._doubted or doubted

    # -- calls --------------------------------------------------------------

    def origin(self) -> report.Origin:
        """Return who speaks.

        :raises NoSession: no conductor has given this start a session
        """
        with self._lock:
            if not self._number:
                raise exception.NoSession(
                    host=self._host, reason=self._refused or (
                        'no gpgpu-conductor has given it one yet'))
            return report.Origin(
                host=self._host, node_uuid=self._node_uuid,
                start_uuid=self.start_uuid, session=self._number,
                generation=self.generation())

    def call(
        self,
        method: Callable[
            typing.Concatenate[gpgpu_context.RequestContext,
                               report.Origin, _Arguments], _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Call a method of the conductor as this session.

        :raises Fenced: another session speaks for the host now
        :raises SessionLost: a new session must begin first
        :raises NoSession: the call was not sent
        """
        origin = self.origin()
        try:
            return method(gpgpu_context.current(), origin, *args, **kwargs)
        except exception.Fenced as exc:
            if self._is_current(origin):
                self._superseded = True
                self.lose()
                self._log_refusal(exc)
            raise
        except exception.SessionLost:
            if self._is_current(origin):
                self.lose()
            raise

    def _is_current(self, origin: report.Origin) -> bool:
        """Return whether an answer is about the present session."""
        return origin.session == self._number
