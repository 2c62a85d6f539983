# SPDX-License-Identifier: Apache-2.0
"""The service gpgpu-conductor, which any process can start and stop."""

from __future__ import annotations

import functools
import gc
import socket
import typing
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.conductor import caller_keys
from gpgpu_plugin.conductor import choices
from gpgpu_plugin.conductor import concurrency
from gpgpu_plugin.conductor import fitness
from gpgpu_plugin.conductor import leases
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import monitoring
from gpgpu_plugin.conductor import no_candidate
from gpgpu_plugin.conductor import notifier
from gpgpu_plugin.conductor import periodic
from gpgpu_plugin.conductor import refusal_events
from gpgpu_plugin.conductor import request_mix
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor import vendordata
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import limits
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import purge
from gpgpu_plugin.db import sqlite_lock
from gpgpu_plugin.domain import audit
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import conductor_locks
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import key_files
from gpgpu_plugin.rpc import ping
from gpgpu_plugin.rpc import publisher
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
        self._monitoring = monitoring.Monitoring(conf)
        self._vendordata = vendordata.Vendordata(conf)
        self._transport = transport or rpc_transport.get_transport(conf)
        self._owns_transport = transport is None
        self.database = database or api.Database(
            conf, limit=limits.Limits(conf.gpgpu.rpc_timeout),
            observer=self._monitoring.counters.failed)
        migration.check_current(self.database.engine)
        self._sqlite_lock = sqlite_lock.SQLiteLock(self.database.engine.url)
        self._notifier = self._make_notifier(conf)
        masters = (
            key_files.masters(conf) if key_files.is_required(conf) else ())
        compute = compute_api.ComputeAPI(
            conf, self._transport, functools.partial(
                caller_keys.of_session, self.database, masters))
        self._leases = leases.LeaseWatch(
            self.database, compute, conf_gpgpu.silent_after(conf))
        self._variants = variant_sweep.VariantSweep(self.database, compute)
        self._isolation = self._make_isolation(conf)
        self._refused = refusal_events.RefusalEvents(
            self.database,
            observer=self._monitoring.counters.request_refused)
        self._counts = periodic.Periodic(
            'gpgpu-refusals',
            (refusal_events.INTERVAL, self._refused.run_once))
        self._requests = request_mix.Requests(self.database)
        self._no_candidate = no_candidate.Listener(
            conf, self.database, self._refused, self._requests)
        self.choices = choices.Choices()
        self._mix = periodic.Periodic(
            'gpgpu-requests',
            (request_mix.INTERVAL, self._requests.run_once),
            (purge.INTERVAL, lambda: purge.purge_old(
                self.database, conf.gpgpu_conductor.history_days)))
        endpoints = [manager.ConductorManager(
                         conf, self.database, compute, self._variants.wake,
                         self._refused, self._requests,
                         self._monitoring.counters.cleaned, self.choices)]
        verifier = guard.Verifier(
            masters, caller_keys.CallerKeys(self.database),
            ) if masters else None
        if verifier is None and conf.gpgpu.sign_calls is False:
            LOG.warning(
                'Calls are not signed: whoever can send messages to the '
                'broker can take and release GPUs of any instance. Remove '
                '[gpgpu] sign_calls = false, and make keys with '
                '"gpgpu-manage key"')
        self._gate = fitness.Gate(
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
        if not publisher.drivers(conf):
            return None
        self.database.publish_as(f'gpgpu-conductor:{socket.gethostname()}')
        period = conf.gpgpu_conductor.usage_audit_period
        return notifier.Notifier(
            self.database, publisher.Publisher(conf),
            self._monitoring.counters,
            period=None if period == 'none' else audit.AuditPeriod(period))

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
            socket.gethostname(), endpoints, conductor_locks.key,
            guard.Guard((contract,), kind, topic, verifier),
            concurrency.THREADS_OF.get(kind),
            self._monitoring.counters.handled, conductor_locks.REPEATED)

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
