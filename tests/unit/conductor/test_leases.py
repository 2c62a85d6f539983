# SPDX-License-Identifier: Apache-2.0
"""Tests of expired leases and of the hosts that are notified."""

import fixtures

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import host as host_db
from tests.unit.conductor import base
from tests.unit.conductor import test_manager

SILENT_AFTER = 700


class LeaseWatchTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.compute = test_manager.FakeComputeAPI()
        self.watch = service.LeaseWatch(
            self.db, self.compute, SILENT_AFTER)

    def expire_on_two_hosts(self):
        self.report_second_host()
        self.claim(1)
        self.claim(1, 'i2', host='h2')
        self.age(61)

    def test_host_is_notified_of_an_expired_lease_until_it_ends(self):
        granted = self.claim(2)
        self.assertEqual([], self.watch.run_once())
        self.age(61)
        self.assertEqual(['h1'], self.watch.run_once())
        self.assertEqual(['h1'], self.watch.run_once())
        self.assertEqual(['h1', 'h1'], self.compute.changed)
        releases.release(self.db, base.uuids(granted))
        self.assertEqual([], self.watch.run_once())

    def test_host_that_is_silent_is_not_notified(self):
        self.claim(1)
        with self.db.writer() as session:
            host_db.hear_if_free(session, 1)
        self.age(SILENT_AFTER - 60)
        self.assertEqual(['h1'], self.watch.run_once())
        self.age(60)
        self.assertEqual([], self.watch.run_once())

    def test_watch_that_stops_notifies_no_further_host(self):
        self.expire_on_two_hosts()
        notified = []

        def cast(ctxt, host):
            notified.append(host)
            self.watch.stop()
        self.compute.assignments_changed = cast
        self.watch.run_once()
        self.assertEqual(['h1'], notified)

    def test_activated_claim_has_no_lease(self):
        claims.activate(self.db, base.uuids(self.claim(2)))
        self.age(10**6)
        self.assertEqual([], self.watch.run_once())

    def test_host_that_cannot_be_notified_does_not_delay_others(self):
        self.expire_on_two_hosts()
        notified = []

        def cast(ctxt, host):
            if host == 'h1':
                raise RuntimeError('broker')
            notified.append(host)
        self.compute.assignments_changed = cast
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.service'))
        self.assertEqual(['h1', 'h2'], self.watch.run_once())
        self.assertEqual(['h2'], notified)
        self.assertIn('Cannot notify h1', log.output)

    def test_database_that_is_away_ends_nothing(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.assignment.hosts_with_expired_lease',
            side_effect=RuntimeError('away')))
        self.assertEqual([], self.watch.run_once())

    def test_search_for_expired_leases_is_one_statement(self):
        with self.statements() as found:
            self.watch.run_once()
        self.assertEqual(['BEGIN', 'SELECT'],
                         [statement.split()[0] for statement in found])
