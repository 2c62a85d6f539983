# SPDX-License-Identifier: Apache-2.0
"""Tests of the start, the server and the end of a tracker, with mocks."""

import time
import types
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import service
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import virt_driver
from tests.unit.compute import make


class ServiceTestCase(base.BaseTestCase):
    """Base class of tests with a service of a tracker that is a mock.

    :ivar calls: mock of everything that the service calls
    """

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.calls = mock.Mock()
        self.tracker = self.calls.tracker
        self.tracker.configure_mock(
            conf=self.conf, host='h1', driver=virt_driver.make(),
            builds=types.SimpleNamespace(current=set),
            assignments=types.SimpleNamespace(all=list),
            offered=make.host_inventory(make.group()))
        self.worker = self.calls.worker
        self.examiner = mock.Mock()
        self.examiner.drifts.return_value = ()
        for name, value in (
                ('examination.Examiner', lambda tracker: self.examiner),
                ('Worker', self.worker_class),
                ('rpc_transport.probe', self.calls.probe),
                ('rpc_transport.server', self.calls.server)):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.compute.service.{name}', value))
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.service'))
        self.owners = mock.Mock()
        self.service = service.HostService(self.tracker, 'transport')

    def worker_class(self, work, interval, name):
        self.work = work
        return self.worker

    def names(self):
        """Return the names of the calls so far, in their order."""
        return [name for name, _, _ in self.calls.mock_calls]


class StartTest(ServiceTestCase):

    def test_session_begins_and_devices_are_restored_before_the_thread(self):
        self.tracker.session.is_fenced = False
        self.service.start(self.owners)
        self.assertEqual(['worker.run_once', 'tracker.restore',
                          'worker.start', 'worker.wake'], self.names())

    def test_fenced_host_restores_nothing(self):
        self.tracker.session.is_fenced = True
        self.service.start(self.owners)
        self.assertFalse(self.tracker.restore.called)

    def test_owners_are_checked_with_what_the_tracker_knows(self):
        self.service.start(self.owners)
        devices, scan, classes = self.owners.check.call_args.args
        self.assertIs(self.tracker.api.device_list.return_value, devices())
        self.assertEqual(
            {'host': 'h1'}, self.tracker.api.device_list.call_args.kwargs)
        self.assertIs(self.tracker.backend.scan.return_value, scan())
        self.assertEqual({'CUSTOM_GPU_H100'}, classes)

    def test_device_of_another_owner_stops_the_start(self):
        self.owners.check.side_effect = exception.ConfigInvalid(
            option='x', reason='y')
        self.assertRaises(
            exception.ConfigInvalid, self.service.start, self.owners)
        self.assertFalse(self.worker.start.called)
        self.assertTrue(self.worker.stop.called)

    def test_host_starts_also_if_owners_cannot_be_checked(self):
        self.tracker.offered = None
        for exc in (exception.ConductorUnavailable(method='x', timeout=1),
                    exception.NotFound(kind='host', name='h1')):
            self.worker.reset_mock()
            self.owners.check.side_effect = exc
            self.service.start(self.owners)
            self.assertIn('Cannot check whether', self.log.output)
            self.assertTrue(self.worker.start.called)


class ServeTest(ServiceTestCase):

    def setUp(self):
        super().setUp()
        self.tracker.session.is_reported = False
        self.service.start(self.owners)
        self.calls.reset_mock()

    def test_iteration_serves_once_and_runs_the_tracker(self):
        self.assertIs(self.tracker.run_once.return_value, self.work())
        self.work()
        self.assertEqual(
            ['probe', 'server', 'server().start', 'tracker.run_once',
             'tracker.run_once'], self.names())
        self.assertEqual(
            ('transport', rpc_transport.compute_topic(self.conf), 'h1'),
            self.calls.server.call_args.args[:3])

    def test_tracker_without_a_transport_serves_nothing(self):
        self.service = service.HostService(self.tracker)
        self.work()
        self.assertEqual(['tracker.run_once'], self.names())

    def test_missing_broker_is_asked_again_and_does_not_stop_the_tracker(self):
        self.calls.probe.side_effect = exception.BrokerUnavailable(
            hosts='b1', reason='refused')
        self.work()
        self.assertEqual(['probe', 'tracker.run_once'], self.names())
        self.assertIn('b1', self.log.output)
        self.calls.probe.side_effect = None
        self.work()
        self.assertTrue(self.calls.server.return_value.start.called)

    def test_server_that_does_not_start_is_tried_again(self):
        self.calls.server.return_value.start.side_effect = RuntimeError('x')
        self.assertRaises(RuntimeError, self.work)
        self.calls.server.return_value.start.side_effect = None
        self.work()
        self.assertEqual(2, self.calls.server.call_count)

    def endpoints(self):
        self.work()
        self.calls.tracker.reset_mock()
        return self.calls.server.call_args.args[3]

    def test_call_of_the_conductor_reaches_the_tracker(self):
        [manager] = self.endpoints()
        for name in ('refresh', 'assignments_changed'):
            getattr(manager, name)(None)
            getattr(self.tracker, name).assert_called_once_with()

    def test_drifts_that_are_left_at_the_start_are_logged_once(self):
        self.examiner.drifts.return_value = (
            drift.of('mdev_unassigned', 'h1', 'm1', sysfs='it is there'),)
        self.work()
        self.assertNotIn('Drift', self.log.output)
        self.tracker.session.is_reported = True
        for _ in range(2):
            self.work()
        self.assertEqual(1, self.log.output.count(
            'Drift mdev_unassigned on h1: m1: sysfs: it is there'))
        self.assertFalse(self.examiner.repair.called)

    def test_host_that_cannot_be_examined_at_the_start_stays_usable(self):
        self.tracker.session.is_reported = True
        self.examiner.drifts.side_effect = RuntimeError('no libvirt')
        self.assertIs(self.tracker.run_once.return_value, self.work())
        self.assertIn('RuntimeError: no libvirt', self.log.output)

    def test_question_is_answered_after_the_repairs(self):
        found = drift.of('mdev_unassigned', 'h1', 'm1')
        self.examiner.drifts.return_value = (found,)
        [compute] = self.endpoints()
        compute.examine(None, question='q1', asked_at=time.time(),
                       repairs=['offer'])
        self.examiner.repair.assert_called_once_with(
            ['offer'], self.worker.run_once)
        [answer] = self.tracker.api.answer.call_args_list
        self.assertEqual('h1', answer.args[1])
        self.assertEqual(('q1', (found,)), (
            answer.kwargs['question'], answer.kwargs['drifts']))

    def test_host_that_cannot_repair_itself_is_not_consistent(self):
        [compute] = self.endpoints()
        self.examiner.repair.side_effect = RuntimeError('no Placement\nx')
        compute.examine(None, question='q1', asked_at=time.time(),
                        repairs=['offer'])
        [answer] = self.tracker.api.answer.call_args_list
        [found] = answer.kwargs['drifts']
        self.assertEqual(
            ('host_not_examined', {'host': 'RuntimeError: no Placement'}),
            (found.name, found.says))

    def test_question_that_names_another_instance_gets_no_other_answer(self):
        mine = make.assignment(uuid='a1', instance_uuid='i1')
        self.tracker.assignments.all = lambda: [mine]
        usage = self.useFixture(fixtures.MockPatchObject(
            leftovers, 'usage', return_value=())).mock
        [compute] = self.endpoints()
        named = [make.assignment(uuid=uuid, instance_uuid='deleted')
                 for uuid in ('a1', 'a9')]
        compute.ask(None, question='q1', asked_at=time.time(),
                    assignments=codec.to_primitive(named))
        # The host lost the other one, whose instance only the caller knows.
        self.assertEqual([mine, named[1]], usage.call_args.args[0])
        [answer] = self.tracker.api.answer.call_args_list
        self.assertEqual('q1', answer.kwargs['question'])


class StopTest(ServiceTestCase):

    def setUp(self):
        super().setUp()
        self.service.start(self.owners)

    def test_server_ends_before_the_worker(self):
        self.work()
        self.calls.reset_mock()
        self.service.stop()
        self.assertEqual(['server().stop', 'server().wait', 'worker.stop'],
                         self.names())

    def test_second_stop_stops_no_server_again(self):
        self.work()
        self.service.stop()
        self.calls.reset_mock()
        self.service.stop()
        self.assertEqual(['worker.stop'], self.names())

    def test_iteration_under_way_serves_no_more(self):
        self.service.stop()
        self.calls.reset_mock()
        self.work()
        self.assertEqual(['tracker.run_once'], self.names())
