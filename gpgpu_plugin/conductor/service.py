# SPDX-License-Identifier: Apache-2.0
"""The service gpgpu-conductor, and when it takes calls."""

from __future__ import annotations

import contextlib
import functools
import gc
import socket
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import callers
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.conductor import notifier
from gpgpu_plugin.conductor import refusals
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor import vendordata
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import purge
from gpgpu_plugin.domain import event
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import ping
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport

if typing.TYPE_CHECKING:
    from gpgpu_plugin.conductor import isolation


LOG = logging.getLogger(__name__)


def freeze_loaded() -> None:
    """Let the garbage collector leave out what exists now.

    For a program that begins to serve: its modules and options never become
    garbage. To look at them again and again takes almost half of the time in
    which many objects are created, as for the first view of a scheduler.
    """
    gc.collect()
    gc.freeze()


class ConductorService:
    """A conductor; several can share a database and a transport.

    :param database: its errors are not counted in the metrics
    :ivar choices: of all schedulers
    :raises ConfigInvalid: the database does not have the newest schema, calls
        are signed and there is no master key, this machine does not have the
        address of the metrics or of vendordata, notifications have no such
        driver, or nothing describes the cloud with the isolated aggregate
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport | None = None,
                 database: api.Database | None = None) -> None:
        self._monitoring = metrics.Monitoring(conf)
        self._vendordata = vendordata.Vendordata(conf)
        self._transport = transport or rpc_transport.get_transport(conf)
        self._owns_transport = transport is None
        self.database = database or api.Database(
            conf, limit=api.Limits(conf.gpgpu.rpc_timeout),
            observer=self._monitoring.counters.failed)
        migration.check_current(self.database.engine)
        self._sqlite_lock = api.SQLiteLock(self.database.engine.url)
        self._notifier = self._make_notifier(conf)
        masters = (
            signature.read_masters(conf) if signature.is_required(conf)
            else ())
        compute = compute_api.ComputeAPI(
            conf, self._transport, functools.partial(
                callers.of_session, self.database, masters))
        self._leases = LeaseWatch(
            self.database, compute, conf_gpgpu.silent_after(conf))
        self._variants = variant_sweep.VariantSweep(self.database, compute)
        self._isolation = self._make_isolation(conf)
        self._refused = refusals.RefusalRecorder(
            self.database,
            observer=self._monitoring.counters.request_refused)
        self._counts = threads.PeriodicThread(
            'gpgpu-refusals',
            (refusals.STORE_INTERVAL, self._refused.run_once))
        self._requests = scheduler_feed.CountedMix(self.database)
        self._no_candidate = refusals.NoCandidateListener(
            conf, self.database, self._refused, self._requests)
        self.choices = scheduler_feed.RecentChoices()
        self._mix = threads.PeriodicThread(
            'gpgpu-requests',
            (scheduler_feed.MIX_INTERVAL, self._requests.run_once),
            (purge.INTERVAL, lambda: purge.purge_old(
                self.database, conf.gpgpu_conductor.history_days)))
        endpoints = [manager.ConductorManager(
                         conf, self.database, compute, self._variants.wake,
                         self._refused, self._requests,
                         self._monitoring.counters.cleaned, self.choices)]
        verifier = guard.Verifier(
            masters, callers.CallerKeys(self.database),
            ) if masters else None
        if verifier is None and conf.gpgpu.sign_calls is False:
            LOG.warning(
                'Calls are not signed: whoever can send messages to the '
                'broker can take and release GPUs of any instance. Remove '
                '[gpgpu] sign_calls = false, and make keys with '
                '"gpgpu-manage key"')
        self._gate = FitnessGate(
            self.database, [master.id for master in masters], lambda: [
                self._make_server(
                    conf, kind, rpc_transport.conductor_topic(conf, kind),
                    conductor_contract.Conductor, endpoints, verifier)
                for kind in gpgpu_context.CallerKind])
        # It answers whatever the database does.
        self._pinged = self._make_server(
            conf, gpgpu_context.CallerKind.OPERATOR,
            rpc_transport.pinged_topic(conf), ping.Pinged,
            [ping.PingEndpoint(
                conf, self._transport, lambda: self._gate.reason)],
            guard.Verifier(masters, guard.AnyKey()) if masters else None)

    def _make_notifier(self, conf: cfg.ConfigOpts) -> notifier.Notifier | None:
        """Return the sender of notifications; None: they are off."""
        if not rpc_transport.notification_drivers(conf):
            return None
        self.database.publish_as(f'gpgpu-conductor:{socket.gethostname()}')
        period = conf.gpgpu_conductor.usage_audit_period
        return notifier.Notifier(
            self.database, rpc_transport.Publisher(conf),
            self._monitoring.counters,
            period=None if period == 'none' else event.AuditPeriod(period))

    def _make_isolation(
            self, conf: cfg.ConfigOpts) -> isolation.Isolation | None:
        """Return the keeper of the aggregate; None: there is to be none."""
        if not conf.gpgpu_conductor.isolation_aggregate:
            return None
        # It imports openstacksdk, which takes half a second of CPU time.
        from gpgpu_plugin.conductor import isolation  # noqa: PLC0415
        return isolation.Isolation(conf, self.database)

    def _make_server(self, conf: cfg.ConfigOpts,
                     kind: gpgpu_context.CallerKind, topic: str,
                     contract: type[object], endpoints: Sequence[object],
                     verifier: guard.Verifier | None,
                     ) -> rpc_transport.RPCServer:
        """Return the server for one kind of callers, with its own threads."""
        return rpc_transport.server(
            self._transport, topic,
            # No new name for each start: the broker keeps a queue of each name
            # for ever. Nobody calls one conductor by its name.
            socket.gethostname(), endpoints, conductor_client.lock_key,
            guard.Guard((contract,), kind, topic, verifier),
            threads.THREADS_OF.get(kind),
            self._monitoring.counters.handled, conductor_client.REPEATED)

    def start(self, replaced: ConductorService | None = None) -> None:
        """Begin to serve calls, and the work that no call waits for.

        :param replaced: conductor of this process that serves until this one
            does, and then stops, so that no call waits
        :raises ConfigInvalid: another process serves with the SQLite file, or
            listens on the port of the metrics or of vendordata
        """
        self._sqlite_lock.acquire()
        if replaced is not None:
            replaced.close_ports()
        self._monitoring.start(self.database, lambda: self._gate.reason)
        self._vendordata.start(self.database)
        self._pinged.start()
        self._gate.start()
        if replaced is not None:
            replaced.stop()
            # The other one gave back that of the process.
            self._sqlite_lock.acquire()
        self._leases.start()
        self._variants.start()
        if self._isolation is not None:
            self._isolation.start()
        self._counts.start()
        self._mix.start()
        if self._notifier is not None:
            self._notifier.start()
        self._no_candidate.start()

    def close_ports(self) -> None:
        """Serve neither metrics nor vendordata any more."""
        self._vendordata.stop()
        self._monitoring.stop()

    def stop(self) -> None:
        """Accept no new call, and wait until all that were taken are answered.

        Its connections are closed, so that it cannot start again. A transport
        that the caller passed stays open.
        """
        self._leases.stop()
        self._variants.stop()
        if self._isolation is not None:
            self._isolation.stop()
        self._no_candidate.stop()
        self._gate.stop()
        self._pinged.stop()
        self._pinged.wait()
        self._counts.stop()
        self._mix.stop()
        self._refused.run_once()
        if self._notifier is not None:
            self._notifier.stop()
        self.close_ports()
        self.database.engine.dispose()
        self._sqlite_lock.release()
        if self._owns_transport:
            self._transport.cleanup()


# -- The gate before the RPC servers: an unfit conductor takes no calls.
#
# Otherwise a conductor whose database does not answer, whose clock is wrong or
# whose database is another cloud's would take its share of all calls, and fail
# each of them. Other conductors serve them, or they wait in the broker until
# their callers give up.


FITNESS_INTERVAL = 1.0
"""Seconds between two checks."""

FITNESS_PATIENCE = 3.0
"""Seconds that the database may take to answer."""

MAX_APART = 30.0
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
    if apart > MAX_APART:
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


class FitnessGate:
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
        self._reading = threads.SingleFlightCache(
            'fitness', lambda: unfit(db, masters), 0.0, FITNESS_PATIENCE)
        self._thread = threads.PeriodicThread(
            'gpgpu-fitness', (FITNESS_INTERVAL, self.check))
        self.reason = ''

    def start(self) -> None:
        """Serve, unless the conductor is not fit, until ``stop``."""
        self.check()
        self._thread.start()

    def check(self) -> None:
        """Serve if the conductor is fit, otherwise do not."""
        reason = self._reading.get()
        if reason is None:
            reason = ('its database has not answered for '
                      f'{FITNESS_PATIENCE:.0f} s')
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


# -- Leases of claims that nobody activated.
#
# A claim is granted to a build. If its caller gave up before the answer, or
# died, only the host knows that nobody builds with it. It is notified until it
# has ended or activated the claim. A silent host is not notified, since the
# broker would keep the messages; when it returns, it sees from its digest that
# its book lacks the claim.


LEASE_INTERVAL = 60
"""Seconds between two searches for expired leases."""


class LeaseWatch:
    """Tells hosts of expired leases.

    :param silent_after: seconds without a call after which a host is silent
    """

    def __init__(self, db: api.Database, compute: compute_api.ComputeAPI,
                 silent_after: float) -> None:
        self._db = db
        self._compute = compute
        self._silent_after = silent_after
        self._stopping = threading.Event()
        self._searches = threads.PeriodicThread(
            'gpgpu-leases', (LEASE_INTERVAL, self.run_once))

    def run_once(self) -> list[str]:
        """Tell every host that has an expired lease; never raises.

        :returns: names of the hosts
        """
        try:
            with self._db.reader() as session:
                hosts = assignment_db.hosts_with_expired_lease(
                    session, self._silent_after)
        except Exception:
            # The database's driver has errors of its own.
            LOG.exception('Cannot search for expired leases; tried again '
                          'in %s s', LEASE_INTERVAL)
            return []
        for host in hosts:
            if self._stopping.is_set():
                break
            try:
                self._compute.assignments_changed(
                    gpgpu_context.admin(), host)
            except Exception:
                LOG.exception('Cannot notify %s of its expired leases; trying '
                              'again in %s s', host, LEASE_INTERVAL)
        return hosts

    def start(self) -> None:
        """Search in a thread of its own, until ``stop``."""
        self._stopping.clear()
        self._searches.start()

    def stop(self) -> None:
        """End the thread after the message under way."""
        self._stopping.set()
        self._searches.stop()
