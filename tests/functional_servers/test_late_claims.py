# SPDX-License-Identifier: Apache-2.0
"""Claims that wait for a lock until their callers have given up."""

from __future__ import annotations

import concurrent.futures
import threading
import types
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import service
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import service as service_mod
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.virt import steps
from tests.fixtures import database
from tests.fixtures import known_machine
from tests.fixtures import orphans
from tests.fixtures import patience
from tests.fixtures import services
from tests.fixtures import virt_driver
from tests.unit.conductor import base

BUILDS = 8
CLIENT_TIMEOUT = 3


class LateClaimsMixin:
    """Builds of eight instances, whose claims wait for the host's row.

    :ivar now: seconds of the clock by which the conductor judges whether a
        claim is still wanted
    """

    server = ''
    functions = ()

    def setUp(self):
        services.require(self, self.server, services.RABBITMQ)
        super().setUp()
        self.now = 0.0
        for name, value in (
                ('transport_url', services.RABBITMQ),
                ('topic_prefix', f'test-{uuid.uuid4().hex[:8]}')):
            self.conf.set_override(name, value, 'gpgpu')
        self.conf.set_override(
            'state_path', self.useFixture(fixtures.TempDir()).path,
            'gpgpu_compute')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.server.time',
            types.SimpleNamespace(monotonic=lambda: self.now)))
        self.count_claims()
        conductor = service_mod.ConductorService(
            self.conf, self.new_transport(), self.db)
        conductor.start()
        self.addCleanup(conductor.stop)
        # For the calls of hosts.
        self.bulkhead = conductor._gate._servers[0]._bulkhead
        self.start_host()

    def database(self):
        return database.ServerDatabase(
            self.conf, self.server, content=self.content)

    def new_transport(self):
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        return transport

    def count_claims(self):
        """Count what the conductor took off the broker, and what it did."""
        self.arrived, self.handled = [], []
        claim = claims.claim

        def counted(*args):
            self.arrived.append(args)
            try:
                return claim(*args)
            finally:
                self.handled.append(args)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.claims.claim', counted))

    def start_host(self):
        """Start a nova-compute with eight GPUs, and the topic it serves."""
        transport = self.new_transport()
        placement = types.SimpleNamespace(
            get_allocations_for_resource_provider=lambda *args: (
                types.SimpleNamespace(allocations={})))
        self.tracker = resource_tracker.ResourceTracker(
            self.conf, 'h1', known_machine.KnownMachine('h1', base.EIGHT),
            conductor_client.ConductorAPI(
                self.conf, transport, timeout=CLIENT_TIMEOUT),
            virt_driver.make(placement),
            orphans.search(lambda assignment: True),
            # It never compares by itself: the message must make it.
            clock=lambda: 0.0)
        self.tracker.set_node('h1', base.NODE)
        self.asked = threading.Event()

        def assignments_changed():
            self.tracker.assignments_changed()
            self.asked.set()
        server = rpc_transport.server(
            transport, rpc_transport.compute_topic(self.conf), 'h1',
            [service.ComputeManager(
                self.tracker.refresh, assignments_changed,
                lambda assignments: (), lambda repairs: (),
                lambda **answer: None)])
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        self.iterate_until(lambda: self.states() == {'available': BUILDS})

    def iterate_until(self, condition):
        """Run iterations: on a busy machine an answer may come too late."""
        def iterate():
            self.tracker.run_once()
            return condition()
        self.assertTrue(patience.wait_until(iterate))

    def build(self, number):
        instance = f'i{number}'
        with self.tracker.builds.running(instance):
            steps.execute(steps.Spawn(
                tracker=self.tracker, request=self.request(1, instance),
                spawn=lambda: None, destroy=lambda: None))

    def give_up_while_locked(self, seconds):
        """Let claims go on after all their callers have given up.

        :param seconds: that pass for the conductor meanwhile
        """
        with self.db.writer() as session:
            host_db.lock(session, 'h1')
            with concurrent.futures.ThreadPoolExecutor(BUILDS) as pool:
                builds = [pool.submit(self.build, number)
                          for number in range(BUILDS)]
            for build in builds:
                self.assertIsInstance(
                    build.exception(), exception.ConductorUnavailable)
            # What the host looks for at once is not there yet.
            self.tracker.run_once()
            self.assertNotEqual([], self.arrived)
            self.assertEqual([], self.handled)
            self.now += seconds
        # Each claim was sent several times, and its repeats come last.
        self.assertTrue(patience.wait_until(
            lambda: not self.bulkhead._repeats
            and len(self.handled) == len(self.arrived)))

    def test_claims_whose_callers_gave_up_are_not_granted(self):
        self.give_up_while_locked(CLIENT_TIMEOUT + 1)
        self.assertEqual({'available': BUILDS}, self.states())

    def test_claims_granted_in_the_last_moment_end_after_their_leases(self):
        self.give_up_while_locked(0)
        granted = len({
            request.instance_uuid for _, request, *_ in self.arrived})
        self.assertEqual(
            {'available': BUILDS - granted, 'provisioning': granted},
            {'available': 0, **self.states()})
        watch = service_mod.LeaseWatch(
            self.db, compute_api.ComputeAPI(self.conf, self.new_transport()),
            conf_gpgpu.silent_after(self.conf))
        self.tracker.run_once()
        with self.db.writer() as session:
            session.execute(sa.update(tables.ASSIGNMENTS).values(
                lease_expires_at=0))
        self.assertEqual(['h1'], watch.run_once())
        self.assertTrue(self.asked.wait(patience.LONG))
        self.iterate_until(lambda: self.states() == {'available': BUILDS})
        self.assertEqual([], self.tracker.assignments.all())
        self.assertEqual([], watch.run_once())


class PostgreSQLLateClaimsTest(LateClaimsMixin, base.ConductorTestCase):

    server = services.POSTGRESQL


class MariaDBLateClaimsTest(LateClaimsMixin, base.ConductorTestCase):

    server = services.MARIADB
