# SPDX-License-Identifier: Apache-2.0
"""Connections to RabbitMQ that wait neither too briefly nor too long.

After each message, oslo.messaging 18 waits for the next one for 1 ms, then for
2 ms, 4 ms and so on, and each wait that ends without a message costs as much
as a small message. It does so for consumers whose messages another thread
acknowledges, as for notifications. Calls and answers are acknowledged when
they are read (RpcAMQPListener, ReplyWaiter), so nothing is late if each wait
is longer: a message that arrives ends it. Its longest wait is 5 s, for which a
server that stops would have to wait, and the calls in its queues with it.

A broker may accept a connection and answer nothing. No caller waits for it
longer than for the answer to a call.

oslo.messaging repeats an attempt to connect, but not to open the channel of a
connection that was made and then lost. Whoever needs the connection would get
an OSError, and gpgpu-conductor would not start.
"""

from __future__ import annotations

import typing

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

WAIT = 0.25
"""Seconds for which a connection waits for a message at once.

The stop of a server waits for the thread that reads.
"""

ATTEMPTS = 5
"""Connections that are tried, if each is lost before its channel is open."""


class _Connection(typing.Protocol):
    """oslo_messaging._drivers.impl_rabbit.Connection, as far as used here."""

    def ensure_connection(self) -> None:
        """Connect to the broker; the constructor calls it."""

    def consume(self, timeout: float | None = ...) -> None:
        """Handle the messages that arrive first."""


def apply(transport: object, limit: float) -> None:
    """Set how long connections that a transport of RPC will open wait.

    Other transports of the process stay as they are, and so does one whose
    driver has no such connections.

    :param limit: seconds that a broker which accepts a connection may be
        silent, if that is less than kombu's five
    """
    pool = getattr(getattr(transport, '_driver', None),
                   '_connection_pool', None)
    made = getattr(pool, 'connection_cls', None)
    if isinstance(made, type) and hasattr(made, 'consume'):
        setattr(pool, 'connection_cls', _patient(made, limit))  # noqa: B010


def _patient(made: type[_Connection], limit: float) -> type[_Connection]:
    class PatientConnection(made):  # type: ignore[valid-type,misc]
        """Connection whose waits are neither too short nor too long."""

        def ensure_connection(self) -> None:
            """Connect, unless the broker is silent for too long."""
            self.connection.connect_timeout = min(
                self.connection.connect_timeout, limit)
            for _ in range(ATTEMPTS - 1):
                try:
                    super().ensure_connection()
                # If no connection can be made, kombu has an error of its own.
                except self.connection.recoverable_connection_errors as exc:
                    LOG.info('A new connection to the broker was lost (%s), '
                             'connecting again', exc)
                else:
                    return
            super().ensure_connection()

        def consume(self, timeout: float | None = None) -> None:
            """Handle the messages that arrive first."""
            super().consume(timeout=timeout and WAIT)
    return PatientConnection
