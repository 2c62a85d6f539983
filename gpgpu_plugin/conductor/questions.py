# SPDX-License-Identifier: Apache-2.0
"""Questions to hosts, which answer by a call to any conductor.

The database brings the answer to the conductor that asked.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Callable
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host_answer as host_answer_db
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import compute_api as compute_api_mod
from gpgpu_plugin.rpc import doctor_contract

LOG = logging.getLogger(__name__)

_INTERVALS = (0.1, 0.1, 0.2, 0.2, 0.5)
"""Seconds before each query for an answer; the last one is repeated."""


class Questions:
    """Questions of one conductor. Thread-safe.

    :param wait: waits for some seconds
    :param clock: returns seconds
    """

    def __init__(self, db: api.Database,
                 compute_api: compute_api_mod.ComputeAPI,
                 wait: Callable[[float], None] = time.sleep,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._compute_api = compute_api
        self._wait = wait
        self._clock = clock

    def usage(self, ctxt: gpgpu_context.RequestContext, host: str,
              assignments: Sequence[claim_obj.Assignment],
              ) -> tuple[claim_obj.Usage, ...] | None:
        """Ask a host which assignments are used; None: it does not answer.

        :raises BrokerUnavailable: it cannot be asked
        """
        return self._ask(ctxt, host, assignments,
                         compute_api_mod.USAGE_TIMEOUT)

    def is_answered(self, ctxt: gpgpu_context.RequestContext,
                    host: str) -> bool:
        """Return whether a nova-compute of the host answers in time.

        :raises BrokerUnavailable: the broker could not have carried the
            question or the answer
        """
        if self._ask(ctxt, host, (),
                     compute_api_mod.PING_TIMEOUT) is not None:
            return True
        self._compute_api.probe()
        return False

    def _ask(self, ctxt: gpgpu_context.RequestContext, host: str,
             assignments: Sequence[claim_obj.Assignment], timeout: float,
             ) -> tuple[claim_obj.Usage, ...] | None:
        question = str(uuid.uuid4())
        until = self._clock() + timeout
        self._db.write(lambda session: host_answer_db.ask(
            session, {question: host}))
        try:
            self._compute_api.ask(ctxt, host, question, assignments)
            for interval in itertools.chain(
                    _INTERVALS, itertools.repeat(_INTERVALS[-1])):
                found = self._answered(question)
                if found is not None or self._clock() >= until:
                    break
                self._wait(interval)
            return found
        finally:
            self._forget([question])

    def drifts(self, ctxt: gpgpu_context.RequestContext,
               hosts: Sequence[str], repairs: Sequence[drift.Repair] = (),
               ) -> tuple[view.HostAnswer, ...]:
        """Ask hosts for their drifts (Conductor.examine_hosts).

        :param repairs: what they repair first (Conductor.repair_hosts)
        :raises BrokerUnavailable: they cannot be asked
        """
        _check_examined(hosts, repairs)
        questions = {str(uuid.uuid4()): host for host in hosts}
        until = self._clock() + (
            doctor_contract.REPAIR_TIMEOUT if repairs
            else doctor_contract.EXAMINE_TIMEOUT)
        self._compute_api.probe()
        self._db.write(lambda session: host_answer_db.ask(
            session, questions))
        found: dict[str, str] = {}
        try:
            for question, host in questions.items():
                self._examine(ctxt, host, question, repairs)
            for interval in itertools.chain(
                    _INTERVALS, itertools.repeat(_INTERVALS[-1])):
                with self._db.reader() as session:
                    found = host_answer_db.all_answered(
                        session, list(questions))
                if len(found) == len(questions) or self._clock() >= until:
                    break
                self._wait(interval)
        finally:
            self._forget(list(questions))
        return tuple(view.HostAnswer(host=host, drifts=(
            codec.decode(tuple[drift.Drift, ...], found[question])
            if question in found else None))
            for question, host in questions.items())

    def _examine(self, ctxt: gpgpu_context.RequestContext, host: str,
                 question: str, repairs: Sequence[drift.Repair]) -> None:
        try:
            self._compute_api.examine(ctxt, host, question, repairs)
        except Exception:
            # Others answer; this one counts as silent.
            LOG.exception('Cannot ask %s for its drifts', host)

    def _answered(self,
                  question: str) -> tuple[claim_obj.Usage, ...] | None:
        with self._db.reader() as session:
            text = host_answer_db.answered(session, question)
        return None if text is None else codec.decode(
            tuple[claim_obj.Usage, ...], text)

    def _forget(self, questions: Sequence[str]) -> None:
        try:
            self._db.write(lambda session: host_answer_db.forget(
                session, questions))
        except exception.GPUPluginException as exc:
            # A later question deletes it.
            LOG.info('Cannot delete a request to a host and its answer: '
                     '%s', exc)

    def answer(self, host: str, question: str,
               usages: Sequence[claim_obj.Usage]) -> None:
        """Store the answer of a host (Conductor.answer)."""
        self._store(host, question, usages)

    def examined(self, host: str, question: str,
                 drifts: Sequence[drift.Drift]) -> None:
        """Store what a host found (Conductor.examined)."""
        for found in drifts:
            _check_found(host, found)
        self._store(host, question, drifts)

    def _store(self, host: str, question: str,
               answer: Sequence[object]) -> None:
        text = json.dumps(codec.to_primitive(answer))
        if not self._db.write(lambda session: host_answer_db.answer(
                session, question, host, text)):
            LOG.info('%s answered too late, or answered a request that was '
                     'not sent to it', host)


def _check_found(host: str, found: drift.Drift) -> None:
    """Refuse a drift that a host cannot have found on itself.

    "doctor --fix" executes repairs with the rights of the administrator.

    :raises Invalid: it is about another host, of a kind that others find, or
        asks for another repair than its kind has
    """
    kind = _FOUND_BY_HOST.get(found.name)
    if (found.host != host or kind is None
            or found.repair not in (None, kind.repair)):
        raise exception.Invalid(
            field='drifts',
            value=f'{found.name} on {found.host} with the repair '
                  f'{found.repair}',
            expected=f'what nova-compute finds on {host} itself, in the '
                     f'version of this gpgpu-conductor; the host counts as '
                     f'not examined')


_FOUND_BY_HOST = {kind.name: kind for kind in drift.FOUND_BY_HOST}


def _check_examined(hosts: Sequence[str],
                    repairs: Sequence[drift.Repair]) -> None:
    """Refuse a call that would ask too much.

    :raises Invalid: see Conductor.examine_hosts
    """
    if len(hosts) > doctor_contract.HOSTS_AT_ONCE:
        raise exception.Invalid(
            field='hosts', value=len(hosts),
            expected=f'{doctor_contract.HOSTS_AT_ONCE} at most')
    foreign = set(repairs).difference(drift.OF_HOST)
    if foreign:
        raise exception.Invalid(
            field='repairs', value=', '.join(sorted(foreign)),
            expected=f'some of {", ".join(drift.OF_HOST)}')
