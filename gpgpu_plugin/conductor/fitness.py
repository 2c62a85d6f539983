# SPDX-License-Identifier: Apache-2.0
"""The gate before the RPC servers: a conductor that is not fit takes no calls.

Otherwise a conductor whose database does not answer, whose clock is wrong or
whose database is another cloud's would take its share of all calls, and fail
each of them. Other conductors serve them, or they wait in the broker until
their callers give up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_db import exception as db_exception
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cached_reading
from gpgpu_plugin.conductor import periodic
from gpgpu_plugin.db import api
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two checks."""

PATIENCE = 3.0
"""Seconds that the database may take to answer."""

MOST_APART = 30.0
"""Seconds by which the clocks of a conductor and its database may differ."""


def unfit(db: api.Database, masters: Collection[str],
          own: Callable[[], float] = time.time) -> str:
    """Return why nothing can be served from a database; empty: it can.

    :param masters: IDs of the master keys; empty: calls are not signed
    :param own: returns the seconds since the epoch by our own clock
    """
    try:
        with db.reader() as session:
            began = own()
            now = session.execute(sa.select(clock.now())).scalar_one()
            ended = own()
            made_with = caller_key_db.masters(session) if masters else set()
    except (exception.GPUPluginException, db_exception.DBError,
            sa.exc.SQLAlchemyError) as exc:
        reason = str(exc).partition('\n')[0]
        return f'its database cannot be used: {reason}'
    apart = max(began - now, now - ended)
    if apart > MOST_APART:
        return (f'its clock and that of its database are {apart:.0f} s apart; '
                f'synchronise both')
    if masters and not made_with:
        return ('no caller has a key in its database: it is empty, or another '
                'one than [database] connection should name; see '
                '"gpgpu-manage key create"')
    if masters and made_with.isdisjoint(masters):
        return (f'the keys in its database were made with master key '
                f'{", ".join(sorted(made_with))}, which is not in [gpgpu] '
                f'keys_path: the database or the key is that of another cloud')
    return ''


class Gate:
    """RPC servers that serve as long as their conductor is fit.

    :param masters: see ``unfit``
    :param make: returns new servers. Those that were stopped may have calls
        to answer while others serve already
    :ivar reason: why they do not serve; empty: they do
    """

    def __init__(self, db: api.Database, masters: Collection[str],
                 make: Callable[[], Sequence[rpc_transport.RPCServer]],
                 ) -> None:
        self._db = db
        self._make = make
        self._servers: Sequence[rpc_transport.RPCServer] = ()
        self._ending: list[threading.Thread] = []
        self._reading = cached_reading.CachedReading(
            'fitness', lambda: unfit(db, masters), 0.0, PATIENCE)
        self._thread = periodic.Periodic(
            'gpgpu-fitness', (INTERVAL, self.check))
        self.reason = ''

    def start(self) -> None:
        """Serve, unless the conductor is not fit, until ``stop``."""
        self.check()
        self._thread.start()

    def check(self) -> None:
        """Serve if the conductor is fit, otherwise do not."""
        reason = self._reading.get()
        if reason is None:
            reason = f'its database has not answered for {PATIENCE:.0f} s'
            # Connections that nobody uses may be dead as well.
            self._db.engine.dispose()
        if reason:
            if not self.reason:
                LOG.error('This gpgpu-conductor takes no calls: %s', reason)
            self._close()
        elif not self._servers:
            self._open()
            if self.reason:
                LOG.info('This gpgpu-conductor takes calls again')
        self.reason = reason

    def _open(self) -> None:
        with contextlib.ExitStack() as started:
            servers = self._make()
            for server in servers:
                server.start()
                started.callback(_end, [server])
            started.pop_all()
        self._servers = servers

    def _close(self) -> None:
        if self._servers:
            ending = threading.Thread(
                target=_end, args=[self._servers], name='gpgpu-ending')
            self._servers = ()
            self._ending = [
                *filter(threading.Thread.is_alive, self._ending), ending]
            ending.start()

    def stop(self) -> None:
        """Take no more calls, and wait until all that were taken are answered.
        """
        self._thread.stop()
        # Hosts, whose server is the first, answer what operators wait for.
        for servers in (self._servers[1:], self._servers[:1]):
            _end(servers)
        self._servers = ()
        for ending in self._ending:
            ending.join()
        self._reading.stop()


def _end(servers: Sequence[rpc_transport.RPCServer]) -> None:
    for server in servers:
        server.stop()
    for server in servers:
        server.wait()
