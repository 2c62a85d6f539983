# SPDX-License-Identifier: Apache-2.0
"""Tests of the gate that keeps calls from an unfit conductor."""

import threading
import time
import types

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.conductor import callers
from gpgpu_plugin.conductor import service
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import signature
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import keys
from tests.fixtures import patience


class UnfitTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.db = self.useFixture(database.Database(self.conf)).db
        self.master = signature.new_master()

    def make_key(self, master):
        callers.make_keys(self.db, master, context.CallerKind.HOST,
                          'h1')

    def unfit(self, *masters):
        return service.unfit(self.db, [master.id for master in masters])

    def test_database_of_this_cloud_is_fit(self):
        self.assertEqual('', self.unfit())
        self.make_key(self.master)
        self.assertEqual('', self.unfit(self.master))

    def test_clock_that_differs_is_unfit(self):
        for ahead in (3600, -3600):
            self.assertRegex(
                service.unfit(self.db, (), lambda ahead=ahead:
                              time.time() + ahead),
                r'its clock .* 3[56]\d\d s')

    def test_database_without_schema_is_unfit(self):
        database.empty(self.db.engine)
        self.assertIn('its database cannot be used', self.unfit(self.master))

    def test_database_without_any_key_is_unfit_if_calls_are_signed(self):
        self.assertEqual('', self.unfit())
        self.assertIn('gpgpu-manage key create', self.unfit(self.master))

    def test_database_of_another_cloud_is_unfit(self):
        self.make_key(signature.new_master())
        self.assertIn('that of another cloud', self.unfit(self.master))
        # While a master key is being replaced, there are two.
        other = signature.new_master()
        self.make_key(other)
        self.assertEqual('', self.unfit(self.master, other))


class _Server:
    """RPC server whose calls are noted, and whose last call may take long."""

    def __init__(self, calls):
        self._calls = calls
        self.breaks = self.is_stopped = False
        self.answered = threading.Event()
        self.answered.set()

    def start(self):
        if self.breaks:
            raise OSError('the broker is away')
        self._calls.append('start')

    def stop(self):
        self.is_stopped = True
        self._calls.append('stop')

    def wait(self):
        self.answered.wait(patience.LONG)
        self._calls.append('wait')


class GateTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.service.FITNESS_INTERVAL', 3600))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.service.unfit',
            lambda db, masters: self.found()))
        self.found = lambda: ''
        self.calls, self.disposed = [], []
        self.logged = self.useFixture(fixtures.FakeLogger())
        self.gate = service.FitnessGate(
            types.SimpleNamespace(engine=types.SimpleNamespace(
                dispose=lambda: self.disposed.append(True))),
            (), self.make)
        self.made = []

    def make(self):
        self.made.append([_Server(self.calls), _Server(self.calls)])
        return self.made[-1]

    def ended(self, count=2):
        """Wait until servers have answered all that they took."""
        self.assertTrue(patience.wait_until(
            lambda: self.calls.count('wait') == count))

    def test_servers_serve_while_the_conductor_is_fit(self):
        self.gate.start()
        self.assertEqual(['start'] * 2, self.calls)
        self.gate.check()
        self.gate.stop()
        self.assertEqual(['start'] * 2 + ['stop', 'wait'] * 2, self.calls)
        self.assertEqual('', self.logged.output)

    def test_hosts_are_served_until_the_calls_of_others_are_answered(self):
        self.gate.start()
        hosts, operators = self.made[0]
        served = []
        operators.wait = lambda: served.append(hosts.is_stopped)
        self.gate.stop()
        self.assertEqual([False], served)
        self.assertTrue(hosts.is_stopped)

    def test_conductor_that_is_unfit_stops_and_starts_again(self):
        self.gate.check()
        self.found = lambda: 'the moon is full'
        for _ in range(3):
            self.gate.check()
        self.assertEqual('the moon is full', self.gate.reason)
        self.ended()
        self.assertEqual(
            ['start'] * 2 + ['stop'] * 2 + ['wait'] * 2, self.calls)
        self.assertEqual(1, self.logged.output.count('the moon is full'))
        self.found = lambda: ''
        self.gate.check()
        self.assertEqual('', self.gate.reason)
        self.assertEqual(['start'] * 2, self.calls[6:])
        self.assertIn('takes calls again', self.logged.output)
        self.gate.stop()

    def test_calls_are_taken_while_old_ones_run(self):
        self.gate.check()
        self.made[0][0].answered.clear()
        self.found = lambda: 'the moon is full'
        self.gate.check()
        self.found = lambda: ''
        self.gate.check()
        self.assertEqual(4, self.calls.count('start'))
        self.assertNotIn('wait', self.calls)
        self.made[0][0].answered.set()
        self.gate.stop()
        self.ended(4)

    def test_servers_that_cannot_start_are_tried_again(self):
        def make():
            servers = self.make()
            servers[1].breaks = len(self.made) == 1
            return servers
        self.gate._make = make
        self.gate.reason = 'the moon is full'
        self.assertRaises(OSError, self.gate.check)
        # Nobody reads that it serves.
        self.assertEqual('the moon is full', self.gate.reason)
        self.assertEqual(['start', 'stop', 'wait'], self.calls)
        self.gate.check()
        self.assertEqual(['start'] * 2, self.calls[3:])
        self.assertEqual('', self.gate.reason)
        self.gate.stop()

    def test_conductor_that_starts_unfit_serves_nothing(self):
        self.found = lambda: 'the moon is full'
        self.gate.start()
        self.gate.stop()
        self.assertEqual([], self.calls)

    def test_database_that_hangs_is_noticed(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.service.FITNESS_PATIENCE', 0.01))
        gate = service.FitnessGate(
            self.gate._db, (), lambda: [_Server(self.calls)])
        gate.check()
        answered = threading.Event()
        self.found = lambda: answered.wait(patience.LONG) and ''
        self.assertTrue(patience.wait_until(
            lambda: gate.check() or gate.reason))
        self.assertIn('has not answered', gate.reason)
        self.ended(1)
        self.assertEqual(['start', 'stop', 'wait'], self.calls)
        # A connection that is dead is not used again.
        self.assertTrue(self.disposed)
        answered.set()
        self.assertTrue(patience.wait_until(
            lambda: gate.check() or not gate.reason))
        gate.stop()


class ServiceTest(base.BaseTestCase):

    def test_calls_are_served_after_the_first_key_was_made(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        db = self.useFixture(database.Database(conf)).db
        made = self.useFixture(keys.Keys(conf, db))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.service.FITNESS_INTERVAL', 0.01))
        conductor = service.ConductorService(conf, database=db)
        conductor.start()
        self.addCleanup(conductor.stop)
        self.assertIn('no caller has a key', conductor._gate.reason)
        made.make(context.CallerKind.OPERATOR, 'root')
        self.assertTrue(patience.wait_until(
            lambda: conductor._gate._servers))
        self.assertEqual((), conductor_client.ConductorAPI(
            conf, caller=context.CallerKind.OPERATOR).host_list(
                context.admin()))
