# SPDX-License-Identifier: Apache-2.0
"""The RPC endpoint that nova-compute serves for its host."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence

import oslo_messaging
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract

LOG = logging.getLogger(__name__)

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
