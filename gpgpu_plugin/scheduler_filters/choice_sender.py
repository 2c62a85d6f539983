# SPDX-License-Identifier: Apache-2.0
"""Choices of this scheduler on their way to the conductors.

Other schedulers get them with the next call that they make anyway. Without
them two schedulers choose the same GPUs: each knows its own choices only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_api

LOG = logging.getLogger(__name__)

Start = Callable[[Callable[[], None]], object]
"""Function that starts another one and does not wait for it."""


def in_thread(work: Callable[[], None]) -> None:
    """Start a function in a thread of its own."""
    threading.Thread(target=work, name='gpgpu-choices', daemon=True).start()


class ChoiceSender:
    """Sender of choices, for which no decision waits. Thread-safe.

    While one message is under way, what is chosen waits for the next one. So
    a scheduler that decides quickly sends less than a message a decision.

    :param start: starts the sending
    """

    def __init__(self, api: conductor_api.ConductorAPI,
                 start: Start = in_thread) -> None:
        self._api = api
        self._start = start
        self._lock = threading.Lock()
        self._waiting: list[scheduling_obj.Choice] = []
        self._is_sending = False

    def send(self, choice: scheduling_obj.Choice) -> None:
        """Have a choice sent; never raises."""
        with self._lock:
            self._waiting.append(choice)
            if self._is_sending:
                return
            self._is_sending = True
        try:
            self._start(self._send_all)
        except Exception:
            # Such as a limit of threads: the next choice tries it again.
            LOG.exception('Cannot start to send choices to conductors')
            with self._lock:
                self._waiting.clear()
                self._is_sending = False

    def _send_all(self) -> None:
        while choices := self._next():
            try:
                self._api.chosen(gpgpu_context.current(), choices)
            except exception.ConductorUnavailable as exc:
                # Others may choose the same GPUs; the claim decides.
                LOG.debug('Cannot send choices to conductors: %s', exc)
            except Exception:
                # Else no later choice would ever be sent.
                LOG.exception('Cannot send choices to conductors')

    def _next(self) -> tuple[scheduling_obj.Choice, ...]:
        """Return what waits; empty: the sending ends."""
        with self._lock:
            choices, self._waiting = tuple(self._waiting), []
            self._is_sending = bool(choices)
            return choices
