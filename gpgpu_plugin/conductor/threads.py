# SPDX-License-Identifier: Apache-2.0
"""Threads of a conductor: periodic, limited, and never blocked."""

from __future__ import annotations

import functools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping
from concurrent import futures

from futurist import periodics
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)


class PeriodicThread:
    """Calls functions in a thread of its own, at once and then repeatedly.

    :param name: of the thread
    :param calls: seconds between two calls of each function; none of them
        raises
    """

    def __init__(self, name: str,
                 *calls: tuple[float, Callable[[], object]]) -> None:
        self._name = name
        self._calls = calls
        self._worker: periodics.PeriodicWorker | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to call the functions."""
        self._worker = periodics.PeriodicWorker([
            (periodics.periodic(seconds, run_immediately=True)(
                functools.partial(run)), (), {})
            for seconds, run in self._calls])
        self._thread = threading.Thread(
            target=self._worker.start, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call under way."""
        if self._worker is not None and self._thread is not None:
            self._worker.stop()
            self._thread.join()
            self._worker = self._thread = None


# -- How many calls one conductor handles at once.
#
# The number of its threads decides. A thread without a connection to the
# database would wait for one. Calls that wait for a thread are dropped once
# their callers have given up (rpc.server).


CONNECTIONS = 48
"""Connections to the database that a conductor has at most by default.

Two conductors have fewer than PostgreSQL allows by default: 100, of which 3
are an administrator's. What other threads do not need is the default of
[DEFAULT] executor_thread_pool_size: the threads that serve hosts.
"""

THREADS_OF: Mapping[gpgpu_context.CallerKind, int] = {
    gpgpu_context.CallerKind.SCHEDULER: 4,
    gpgpu_context.CallerKind.OPERATOR: 4}
"""Threads for callers who must not wait for hosts."""

PREFETCH = 10
"""Default of [oslo_messaging_rabbit] rabbit_qos_prefetch_count of a conductor.

For each of the three queues of each kind of caller, the broker sends this many
calls to a conductor that does not read them, as its process is stopped. One
that runs reads them within one round trip to the broker, so a higher count
would not make it faster.
"""

HEARTBEAT = 20
"""Default of [oslo_messaging_rabbit] heartbeat_timeout_threshold, in seconds.

As long as the broker does not notice that a connection is silent, it sends
calls there.
"""

_OTHERS = 2 + sum(THREADS_OF.values())
"""Threads that do not serve hosts. Two of them serve nobody: those for leases
and changes of variants."""

_READERS = 8
"""Connections of threads that use the database, but do not answer calls: one
each for fitness, metrics, refusals, requests, moved cards and notifications,
and two for the isolated aggregate, whose lock is a session."""

VENDORDATA_THREADS = 8
"""Further ones that use the database, if Nova asks for vendordata."""


def set_defaults(conf: cfg.ConfigOpts) -> None:
    """Set the limits that the configuration files do not have."""
    rpc_transport.register_server_opts(conf)
    api.register_opts(conf)
    conf.set_default('executor_thread_pool_size',
                     CONNECTIONS - _OTHERS - _readers(conf))
    threads = conf.executor_thread_pool_size
    conf.set_default('rabbit_qos_prefetch_count', min(PREFETCH, threads),
                     'oslo_messaging_rabbit')
    conf.set_default('heartbeat_timeout_threshold', HEARTBEAT,
                     'oslo_messaging_rabbit')
    # For answers and casts. A thread that finds none free logs a warning and
    # waits.
    conf.set_default('rpc_conn_pool_size', threads + _OTHERS,
                     'oslo_messaging_rabbit')
    conf.set_default(
        'max_overflow',
        max(0, _needed(conf) - conf.database.max_pool_size), 'database')


def _readers(conf: cfg.ConfigOpts) -> int:
    return _READERS + (
        VENDORDATA_THREADS if conf.gpgpu_conductor.vendordata_bind else 0)


def _needed(conf: cfg.ConfigOpts) -> int:
    """Return how many connections all threads need at the same time."""
    threads: int = conf.executor_thread_pool_size
    return threads + _OTHERS + _readers(conf)


def check_threads(conf: cfg.ConfigOpts) -> None:
    """Refuse limits that do not fit each other.

    :raises ConfigInvalid: it names the options
    """
    threads = conf.executor_thread_pool_size
    prefetched = conf.oslo_messaging_rabbit.rabbit_qos_prefetch_count
    if not 0 < prefetched <= threads:
        raise exception.ConfigInvalid(
            option='[oslo_messaging_rabbit] rabbit_qos_prefetch_count',
            reason=f'it is {prefetched} (0 is no limit), but must be between '
                   f'1 and {threads}, the number of threads ([DEFAULT] '
                   f'executor_thread_pool_size); set it in this range, or '
                   f'remove it')
    connections = _connections(conf)
    needed = _needed(conf)
    if connections is not None and connections < needed:
        raise exception.ConfigInvalid(
            option='[database] max_pool_size and max_overflow',
            reason=f'together they allow {connections} connections, but the '
                   f'{threads} threads of [DEFAULT] '
                   f'executor_thread_pool_size need {needed}; '
                   f'raise max_overflow, or set fewer threads')


def _connections(conf: cfg.ConfigOpts) -> int | None:
    """Return how many connections the pool allows; None: any number."""
    size, overflow = conf.database.max_pool_size, conf.database.max_overflow
    return None if not size or overflow < 0 else size + overflow


# -- A value whose reading may be slow or hang, for callers who must not.


T = typing.TypeVar('T')


class SingleFlightCache(typing.Generic[T]):
    """A value that one thread of its own reads when somebody asks for it.

    However many ask, there is one reading at a time, and at most one in
    ``lifetime``. One that failed counts as well.

    :param name: of the value, for the log and the thread
    :param read: may raise anything
    :param lifetime: seconds for which a value is not read again
    :param patience: seconds for which a caller waits for a reading
    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, name: str, read: Callable[[], T], lifetime: float,
                 patience: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._read = read
        self._lifetime = lifetime
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._executor = futures.ThreadPoolExecutor(
            1, thread_name_prefix=f'gpgpu-{name}')
        self._reading: futures.Future[T | None] | None = None
        self._ended_at = float('-inf')

    def get(self) -> T | None:
        """Return the value; None if it cannot be read in time."""
        with self._lock:
            if self._reading is None or self._is_old(self._reading):
                self._reading = self._executor.submit(self._run)
            reading = self._reading
        try:
            return reading.result(self._patience)
        except futures.TimeoutError:
            return None

    def _is_old(self, reading: futures.Future[T | None]) -> bool:
        return (reading.done()
                and self._clock() - self._ended_at > self._lifetime)

    def _run(self) -> T | None:
        try:
            return self._read()
        # The database's driver has errors of its own.
        except Exception as exc:  # noqa: BLE001
            LOG.warning('Cannot read the %(name)s: %(error)s', {
                'name': self._name, 'error': str(exc).partition('\n')[0]})
            return None
        finally:
            self._ended_at = self._clock()

    def stop(self) -> None:
        """Wait until the reading under way has ended, and begin none."""
        self._executor.shutdown()
