# SPDX-License-Identifier: Apache-2.0
"""Tests of the service: its schema check, its start and its end."""

import gc
import socket
import threading

import fixtures
from oslo_messaging.notify import _impl_test
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import patience
from tests.unit.conductor import test_isolation
from tests.unit.db import test_outbox


class SchemaTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf

    def start(self, db):
        return service.ConductorService(self.conf, database=db)

    def test_database_without_schema_is_refused(self):
        empty = self.useFixture(database.Database(self.conf, sync=False)).db
        exc = self.assertRaises(exception.ConfigInvalid, self.start, empty)
        self.assertIn('is at revision None instead of '
                      f'{migration.revisions()[-1]}', str(exc))
        self.assertIn('gpgpu-manage db sync', str(exc))

    def test_schema_of_a_newer_plugin_is_refused(self):
        db = self.useFixture(database.Database(self.conf)).db
        with db.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE alembic_version SET version_num = '9999'")
        exc = self.assertRaises(exception.ConfigInvalid, self.start, db)
        self.assertIn('9999', str(exc))

    def test_configured_database_is_used(self):
        made = self.useFixture(database.Database(self.conf))
        self.conf.set_override('connection', made.connection, 'database')
        found = self.start(None).database
        self.addCleanup(found.engine.dispose)
        self.assertEqual(made.connection, str(found.engine.url))


class IsolationTest(base.BaseTestCase):

    def test_aggregate_is_kept_while_it_runs(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        conf.set_override('isolation_aggregate', 'gpus', 'gpgpu_conductor')
        cloud = test_isolation.FakeCloud()
        cloud.add('gpus', test_isolation.METADATA, ['gone'])
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.isolation.connect', lambda conf: cloud))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.isolation.LEAVE_AFTER', 0.0))
        conductor = service.ConductorService(conf, database=self.useFixture(
            database.Database(conf)).db)
        self.assertEqual([], cloud.calls)
        conductor.start()
        self.assertTrue(patience.wait_until(
            lambda: 'remove gone' in cloud.calls))
        conductor.stop()


class NotifierTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.db = self.useFixture(database.Database(self.conf)).db

    def make(self, *drivers):
        rpc_transport.register_notification_opts(self.conf)
        self.conf.set_override(
            'driver', list(drivers), 'oslo_messaging_notifications')
        return service.ConductorService(self.conf, database=self.db)

    def written(self):
        with self.db.writer() as session:
            return notification_db.is_enabled(session)

    def test_without_a_driver_nothing_is_written(self):
        conductor = service.ConductorService(self.conf, database=self.db)
        conductor.start()
        self.assertFalse(self.written())
        conductor.stop()

    def test_noop_writes_nothing(self):
        self.make('noop')
        self.assertFalse(self.written())

    def test_notifications_are_sent_while_it_runs(self):
        _impl_test.reset()
        self.addCleanup(_impl_test.reset)
        conductor = self.make('test')
        self.assertTrue(self.written())
        with self.db.writer() as session:
            event_db.store(session, [test_outbox.refusal()])
        conductor.start()
        self.assertTrue(patience.wait_until(
            lambda: len(_impl_test.NOTIFICATIONS) == 1))
        conductor.stop()
        [(_, message, _, _)] = _impl_test.NOTIFICATIONS
        self.assertEqual(f'gpgpu-conductor:{socket.gethostname()}',
                         message['publisher_id'])

    def test_unknown_driver_is_refused_at_start(self):
        self.assertRaises(exception.ConfigInvalid, self.make, 'mesaging')


class FreezeTest(base.BaseTestCase):

    def test_garbage_collector_leaves_out_what_is_loaded(self):
        self.addCleanup(gc.unfreeze)
        before = gc.get_freeze_count()
        service.freeze_loaded()
        self.assertGreater(gc.get_freeze_count(), before)
        self.assertFalse(any(found is service for found in gc.get_objects()))


class ServeTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        # The in-process transport keeps what other tests sent.
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        self.db = self.useFixture(database.Database(self.conf)).db
        self.api = conductor_client.ConductorAPI(self.conf)

    def serve(self):
        server = service.ConductorService(self.conf, database=self.db)
        server.start()
        self.addCleanup(server.stop)
        return server

    def test_call_to_a_service_that_runs_is_answered(self):
        self.serve()
        self.assertEqual((), self.api.host_list(context.admin()))

    def test_call_to_a_service_that_stopped_is_not_answered(self):
        self.serve().stop()
        self.assertRaises(exception.ConductorUnavailable, self.api.host_list,
                          context.admin())

    def test_expired_leases_are_searched_for_while_the_service_runs(self):
        searched = threading.Event()
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.assignment.hosts_with_expired_lease',
            side_effect=lambda *args: searched.set() or []))
        server = self.serve()
        self.assertTrue(searched.wait(300))
        server.stop()
        self.assertEqual([], [
            thread.name for thread in threading.enumerate()
            if thread.name == 'gpgpu-leases'])

    def test_calls_are_counted(self):
        server = self.serve()
        self.api.host_list(context.admin())
        self.assertRaises(exception.NotFound, self.api.host_show,
                          context.admin(), 'h9')
        registry = server._monitoring._registry
        self.assertEqual([1, 1], [
            registry.get_sample_value('gpgpu_rpc_calls_total', {
                'method': method, 'outcome': outcome})
            for method, outcome in (('host_list', 'ok'),
                                    ('host_show', 'rejected'))])

    def test_address_for_metrics_that_is_wrong_is_refused(self):
        self.conf.set_override('metrics_bind', 'localhost', 'gpgpu_conductor')
        exc = self.assertRaises(exception.ConfigInvalid, self.serve)
        self.assertIn('[gpgpu_conductor] metrics_bind', str(exc))

    def test_counts_of_refusals_are_written_while_it_runs_and_at_the_end(self):
        written = threading.Semaphore(0)
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.refusals.RefusalRecorder.run_once',
            side_effect=written.release))
        server = self.serve()
        self.assertTrue(written.acquire(timeout=patience.LONG))
        server.stop()
        self.assertTrue(written.acquire(blocking=False))

    def test_call_after_one_of_two_services_stopped_is_answered(self):
        first, _ = self.serve(), self.serve()
        first.stop()
        self.assertEqual((), self.api.host_list(context.admin()))

    def test_stop_waits_for_a_call_that_runs(self):
        server = self.serve()
        running, stopping = threading.Event(), threading.Event()
        ended = []

        def host_list(*args, **kwargs):
            running.set()
            stopping.wait(patience.LONG)
            ended.append('call')
            return ()
        self.useFixture(fixtures.MockPatchObject(
            manager.host_admin, 'list_all', host_list))
        stop = server._gate._servers[-1].stop

        def stop_accepting():
            stop()
            stopping.set()
        self.useFixture(fixtures.MockPatchObject(
            server._gate._servers[-1], 'stop', stop_accepting))
        caller = threading.Thread(
            target=self.api.host_list, args=[context.admin()])
        caller.start()
        self.assertTrue(running.wait(patience.LONG))
        server.stop()
        self.assertEqual(['call'], ended)
        caller.join()
