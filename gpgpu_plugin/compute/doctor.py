# SPDX-License-Identifier: Apache-2.0
"""The RPC endpoint by which a conductor has its host examined."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence

import oslo_messaging
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import doctor_contract

LOG = logging.getLogger(__name__)

_TOO_OLD = 300
"""Seconds after which nobody waits for an answer; clocks differ by less."""

_Drifts = tuple[drift.Drift, ...]


@contract.serve(doctor_contract.Examined)
class DoctorManager(doctor_contract.Examined):
    """Version 2.0 of the per-host API, beside compute.manager.

    :param host: name of the nova-compute service
    :param examine: repairs what it is given, and returns the drifts
    :param answer: sends the answer to a question to the conductors
    """

    target = oslo_messaging.Target(version=compute_api.VERSION)

    def __init__(self, host: str,
                 examine: Callable[[Sequence[drift.Repair]], _Drifts],
                 answer: Callable[[str, _Drifts], None]) -> None:
        self._host = host
        self._examine = examine
        self._answer = answer

    def examine(self, ctxt: gpgpu_context.RequestContext, *, question: str,
                asked_at: float, repairs: Sequence[drift.Repair]) -> None:
        """Examine the host, after some repairs."""
        if time.time() - asked_at > _TOO_OLD:
            return
        try:
            self._answer(question, examined(
                self._host, lambda: self._examine(repairs)))
        except exception.GPUPluginException as exc:
            # Who asked learns that this host did not answer.
            LOG.warning('Cannot report the drifts of %s, for which '
                        'gpgpu-conductor asked: %s', self._host, exc)


def examined(host: str, examine: Callable[[], _Drifts]) -> _Drifts:
    """Return the drifts of a host; that they are unknown is one as well."""
    try:
        return examine()
    except Exception as exc:
        # Whatever it is, the operator must not take it for consistency.
        LOG.exception('Cannot compare what is known about %s', host)
        return (drift.of(
            'host_not_examined', host, host,
            host=f'{type(exc).__name__}: '
                 f'{str(exc).partition(chr(10))[0]}'),)
