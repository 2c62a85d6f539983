# SPDX-License-Identifier: Apache-2.0
"""How many calls one conductor handles at once.

The number of its threads decides. A thread without a connection to the
database would wait for one. Calls that wait for a thread are dropped once
their callers have given up (rpc.arrival).
"""

from __future__ import annotations

from collections.abc import Mapping

from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import transport as rpc_transport

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


def check(conf: cfg.ConfigOpts) -> None:
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
