# SPDX-License-Identifier: Apache-2.0
"""Messages to hosts, and questions that hosts answer."""

from __future__ import annotations

import collections
import queue
import time
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import compute_api as compute_api_mod
from gpgpu_plugin.rpc import conductor_contract

LOG = logging.getLogger(__name__)


def notify_hosts(cast: Callable[[gpgpu_context.RequestContext, str], None],
                 ctxt: gpgpu_context.RequestContext, host: str) -> None:
    """Notify a host; it makes up for a message that is lost.

    If the database differs from the host's book, the host notices at its
    next digest. An instance that is deleted on another host makes no such
    difference; the host notices it with Nova's periodic update. An error is
    only logged: the caller's change is done, and other hosts wait for their
    messages.
    """
    try:
        cast(ctxt, host)
    except Exception:
        LOG.exception('Cannot notify %s of a change; it finds the '
                      'difference itself later', host)


# -- Questions of a conductor to hosts.
#
# Every conductor gets the answer (Conductor.answer), and the one that asked
# knows the question.


_Answer = tuple[Sequence[claim_obj.Usage], Sequence[drift.Drift]]
_Answers = queue.SimpleQueue[tuple[str, _Answer]]
"""Answers as they arrive, each with the name of its host."""


class HostQuery:
    """Questions that wait for their answers. Thread-safe."""

    def __init__(self, compute_api: compute_api_mod.ComputeAPI) -> None:
        self._compute_api = compute_api
        # The host that was asked and its asker, by the question's UUID.
        self._waiting: dict[str, tuple[str, _Answers]] = {}

    def usages(self, ctxt: gpgpu_context.RequestContext,
               assignments: Iterable[claim_obj.Assignment],
               ) -> Mapping[str, Sequence[claim_obj.Usage]]:
        """Ask hosts, all at the same time, which assignments are used.

        :returns: by the host; one that does not answer is left out
        :raises BrokerUnavailable: no host can be asked
        """
        by_host = collections.defaultdict[
            str, list[claim_obj.Assignment]](list)
        for assignment in assignments:
            by_host[assignment.host].append(assignment)
        return {host: usages for host, (usages, _) in self._ask(
            by_host, compute_api_mod.USAGE_TIMEOUT,
            lambda host, question: self._compute_api.ask(
                ctxt, host, question, by_host[host])).items()}

    def is_answered(self, ctxt: gpgpu_context.RequestContext,
                    host: str) -> bool:
        """Return whether a nova-compute of the host answers in time.

        :raises BrokerUnavailable: the broker could not have carried the
            question or the answer
        :raises Exception: the question could not be sent
        """
        failures = []

        def send(host: str, question: str) -> None:
            try:
                self._compute_api.ask(ctxt, host, question, ())
            except Exception as exc:
                failures.append(exc)
                raise
        if self._ask([host], compute_api_mod.PING_TIMEOUT, send):
            return True
        if failures:
            raise failures[0]
        self._compute_api.probe()
        return False

    def drifts(self, ctxt: gpgpu_context.RequestContext,
               hosts: Sequence[str], repairs: Sequence[drift.Repair],
               ) -> tuple[drift.Drift, ...]:
        """Ask hosts for their drifts (Conductor.examine_hosts)."""
        _check_examined(hosts, repairs)
        timeout = (compute_api_mod.REPAIR_TIMEOUT if repairs
                   else compute_api_mod.EXAMINE_TIMEOUT)
        answers = self._ask(
            hosts, timeout, lambda host, question: self._compute_api.examine(
                ctxt, host, question, repairs))
        return tuple(
            found for host in hosts
            for found in (_believed(host, answers[host][1])
                          if host in answers else [drift.of(
                              'host_not_examined', host, host,
                              host=f'nova-compute did not answer within '
                                   f'{timeout} s')]))

    def _ask(self, hosts: Collection[str], timeout: float,
             send: Callable[[str, str], None]) -> dict[str, _Answer]:
        """Return the answers of hosts that arrive in time, by host.

        :param send: sends a question, by its UUID, to a host
        :raises BrokerUnavailable: no host can be asked
        """
        until = time.monotonic() + timeout
        self._compute_api.probe()
        arrived: _Answers = queue.SimpleQueue()
        asked = {str(uuid.uuid4()): (host, arrived) for host in hosts}
        self._waiting.update(asked)
        found: dict[str, _Answer] = {}
        try:
            for question, (host, _) in asked.items():
                _send(send, host, question)
            while len(found) < len(asked):
                host, answer = arrived.get(
                    timeout=max(0, until - time.monotonic()))
                found[host] = answer
        except queue.Empty:
            LOG.info('%d of %d hosts did not answer within %s s',
                     len(asked) - len(found), len(asked), timeout)
        finally:
            for question in asked:
                self._waiting.pop(question, None)
        return found

    def answer(self, host: str, question: str,
               usages: Sequence[claim_obj.Usage],
               drifts: Sequence[drift.Drift]) -> None:
        """Take the answer of a host (Conductor.answer)."""
        waiting = self._waiting.get(question)
        # Another host must not answer, nor this one twice.
        if (waiting is not None and waiting[0] == host
                and self._waiting.pop(question, None) is not None):
            waiting[1].put((host, (usages, drifts)))


def _send(send: Callable[[str, str], None], host: str, question: str) -> None:
    try:
        send(host, question)
    except Exception:
        # Others answer; this one counts as silent.
        LOG.exception('Cannot send a question to %s', host)


def _believed(host: str, drifts: Sequence[drift.Drift],
              ) -> Sequence[drift.Drift]:
    """Return what a host found, unless it cannot have found it on itself.

    "doctor --fix" executes repairs with the rights of the administrator.
    """
    for found in drifts:
        kind = _FOUND_BY_HOST.get(found.name)
        if (found.host != host or kind is None
                or found.repair not in (None, kind.repair)):
            LOG.warning('%s names a drift that it cannot find on itself: %s',
                        host, found)
            return [drift.of(
                'host_not_examined', host, host,
                host=f'its answer is refused: {found.name} of '
                     f'{found.subject} on {found.host} is none that a host '
                     f'finds on itself, in the version of gpgpu-conductor')]
    return drifts


_FOUND_BY_HOST = {kind.name: kind for kind in drift.FOUND_BY_HOST}


def _check_examined(hosts: Sequence[str],
                    repairs: Sequence[drift.Repair]) -> None:
    """Refuse a call that would ask too much.

    :raises Invalid: see Conductor.examine_hosts
    """
    if len(hosts) > conductor_contract.HOSTS_AT_ONCE:
        raise exception.Invalid(
            field='hosts', value=len(hosts),
            expected=f'{conductor_contract.HOSTS_AT_ONCE} at most')
    foreign = set(repairs).difference(drift.OF_HOST)
    if foreign:
        raise exception.Invalid(
            field='repairs', value=', '.join(sorted(foreign)),
            expected=f'some of {", ".join(drift.OF_HOST)}')
