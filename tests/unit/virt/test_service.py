# SPDX-License-Identifier: Apache-2.0
"""Tests of the start and end of nova-compute, with mocks."""

import os
import time
import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.compute import power_state
from nova.virt import driver as nova_driver
from nova.virt import hardware
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import liveness
from gpgpu_plugin.compute import orphans
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.virt import service
from tests.unit.compute import make


class NovaDriver(nova_driver.ComputeDriver):
    """Driver of Nova that records calls.

    :ivar calls: mock of everything that the mixin calls
    """

    def __init__(self, virtapi):
        super().__init__(virtapi)
        self.calls = mock.Mock()

    def init_host(self, host):
        self.calls.nova.init_host(host)

    def cleanup_host(self, host):
        self.calls.nova.cleanup_host(host)

    def get_nodenames_by_uuid(self, refresh=False):
        return {'node-uuid': 'node'}

    def get_info(self, instance, use_cache=True):
        state = {'i1': power_state.RUNNING, 'i2': power_state.SHUTDOWN,
                 'i3': power_state.NOSTATE, 'i4': power_state.PAUSED,
                 'i5': power_state.CRASHED}.get(instance.uuid)
        if state is None:
            raise nova_exception.InstanceNotFound(instance_id=instance.uuid)
        return hardware.InstanceInfo(state=state)

    def update_provider_tree(self, tree, nodename, allocations=None):
        self.calls.nova.update_provider_tree(tree, nodename, allocations)


class Driver(service.ServiceMixin, NovaDriver):

    gpu_host = 'fake'


class ServiceTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.nova_tracker = types.SimpleNamespace(
            tracked_instances=set(), tracked_migrations={})
        self.driver = Driver(types.SimpleNamespace(
            reportclient='client',
            _compute=types.SimpleNamespace(rt=self.nova_tracker)))
        self.calls = self.driver.calls
        self.tracker = self.calls.tracker
        self.tracker.host = 'h1'
        self.book = []
        self.tracker.assignments = types.SimpleNamespace(
            all=lambda: list(self.book))
        self.tracker.builds.current = set
        self.worker = self.calls.worker
        self.conflicts = mock.MagicMock()
        self.conflicts.__bool__.return_value = False
        self.records = mock.Mock()
        self.records.changed.return_value = False
        self.load = mock.Mock()
        self.examiner = mock.Mock()
        self.examiner.drifts.return_value = ()
        for name, value in (
                ('examination.Examiner', lambda *args: self.examiner),
                ('resource_tracker.ResourceTracker', self.tracker_class),
                ('worker.Worker', self.worker_class),
                ('book_lock.acquire', self.calls.lock),
                ('extensions.load', self.load),
                ('rpc_transport.get_transport', mock.Mock()),
                ('conductor_api.ConductorAPI', self.calls.api),
                ('rpc_transport.probe', self.calls.probe),
                ('rpc_transport.server', self.calls.server),
                ('nova_managed_devices.NovaManagedDevices',
                 lambda conf: self.conflicts),
                ('nova_pci_records.NovaPCIRecords',
                 lambda node_uuid: self.records)):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.virt.service.{name}', value))
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.service'))
        self.ends = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.configured'))

    def ended(self):
        """Check that nova-compute ends with one line that has a reason."""
        exc = self.assertRaises(SystemExit, self.driver.init_host, 'h1')
        self.assertEqual(1, exc.code)
        self.assertRegex(
            self.ends.output,
            r'\Anova-compute cannot start: Option [^\n]+\n\Z')

    def tracker_class(self, conf, host, backend, api, client, find_orphans):
        self.made_for = (host, client)
        self.backend = backend
        self.find_orphans = find_orphans
        return self.tracker

    def worker_class(self, work, interval, name):
        self.work = work
        return self.worker

    def names(self):
        """Return the names of the calls so far, in their order."""
        return [name for name, _, _ in self.calls.mock_calls
                if not name.startswith('tracker.inventory')]


class InitHostTest(ServiceTestCase):

    def test_calls_are_those_of_the_host(self):
        self.driver.init_host('h1')
        [call] = self.calls.api.call_args_list
        self.assertEqual(
            {'caller': context.CallerKind.HOST, 'name': 'h1'}, call.kwargs)

    def test_host_gets_what_boots_guests_for_cleanings(self):
        for guests in (None, object()):
            if guests is not None:
                self.driver._gpu_guests = lambda found=guests: found
            self.driver.init_host('h1')
            for_host = self.load.return_value.for_host
            for_host.assert_called_with(service.CONF, 'h1', guests)
            self.assertIs(for_host.return_value, self.backend)

    def test_host_without_a_key_does_not_start(self):
        self.calls.api.side_effect = exception.ConfigInvalid(
            option='[gpgpu] keys_path', reason='no key')
        self.ended()
        self.assertFalse(self.worker.start.called)

    def test_tracker_begins_and_restores_when_nova_knows_its_node(self):
        self.tracker.session.is_fenced = False
        self.driver.init_host('h1')
        self.assertEqual([
            'lock', 'api', 'nova.init_host', 'tracker.set_node',
            'tracker.exclude',
            'worker.run_once', 'tracker.restore', 'worker.start',
            'worker.wake'], self.names())
        self.tracker.set_node.assert_called_once_with('node', 'node-uuid')
        self.assertEqual(('h1', 'client'), self.made_for)
        self.assertIs(self.tracker, self.driver.gpu_tracker)
        self.tracker.wake()
        self.assertEqual('worker.wake', self.names()[-1])

    def test_second_process_with_the_book_does_not_start(self):
        self.calls.lock.side_effect = exception.ConfigInvalid(
            option='[gpgpu] state_path', reason='it is in use')
        self.ended()
        self.assertEqual(['lock'], self.names())
        [call] = self.calls.lock.call_args_list
        self.assertEqual(
            (os.path.join(service.CONF.gpgpu.state_path, 'h1.json'),),
            call.args)

    def test_fenced_host_restores_nothing(self):
        self.tracker.session.is_fenced = True
        self.driver.init_host('h1')
        self.assertFalse(self.tracker.restore.called)

    def test_tracker_is_missing_before_init_host(self):
        self.assertRaises(RuntimeError, lambda: self.driver.gpu_tracker)

    def test_nova_that_does_not_start_leaves_no_thread(self):
        self.calls.nova.init_host.side_effect = RuntimeError('libvirt')
        self.assertRaises(RuntimeError, self.driver.init_host, 'h1')
        self.assertFalse(self.worker.start.called)

    def test_nova_is_asked_which_instances_are_here(self):
        self.driver.init_host('h1')
        with fixtures.MockPatch(
                'gpgpu_plugin.compute.orphans.location_of',
                lambda instance: liveness.Location(
                    host='h1' if instance == 'i1' else 'h2')):
            self.assertTrue(self.tracker.is_here('i1'))
            self.assertFalse(self.tracker.is_here('i2'))

    def test_guest_that_may_run_uses_its_assignments(self):
        self.driver.init_host('h1')
        with fixtures.MockPatch(
                'gpgpu_plugin.compute.orphans.record_of',
                return_value=types.SimpleNamespace(deleted=True)):
            for instance, runs in (
                    ('i1', True), ('i2', False), ('i3', True), ('i4', True),
                    ('i5', False), ('i6', False)):
                self.assertEqual(
                    set() if runs else {'a1'}, self.find_orphans(
                        [make.assignment(instance_uuid=instance)]))
                self.assertEqual(set() if runs else {'a1'}, self.find_orphans(
                    [make.assignment(instance_uuid=instance)],
                    operation=liveness.Operation(liveness.Kind.BUILD)))
                self.assertIs(runs, self.tracker.runs(instance))


class ConflictTest(ServiceTestCase):

    def setUp(self):
        super().setUp()
        self.conflicts.__bool__.return_value = True

    def test_device_of_nova_and_a_variant_stops_the_start(self):
        self.conflicts.check.side_effect = exception.ConfigInvalid(
            option='x', reason='y')
        self.ended()
        self.assertFalse(self.worker.start.called)
        self.assertTrue(self.worker.stop.called)

    def test_devices_are_compared_with_a_scan_and_the_classes(self):
        self.driver.init_host('h1')
        self.conflicts.check.assert_called_once_with(
            self.tracker.api.device_list.return_value,
            self.tracker.backend.scan.return_value,
            self.tracker.inventory.resource_classes.return_value)
        self.assertEqual(
            {'host': 'h1'}, self.tracker.api.device_list.call_args.kwargs)

    def excluded(self):
        return self.tracker.exclude.call_args.args[0]('scan')

    def test_variant_that_comes_later_does_not_get_them(self):
        self.records.owners.return_value = {'a': 'record', 'b': 'record'}
        self.conflicts.options.return_value = {'b': 'option', 'c': 'option'}
        self.driver.init_host('h1')
        self.assertEqual(
            {'a': 'record', 'b': 'Nova (option)', 'c': 'Nova (option)'},
            self.excluded())
        self.conflicts.options.assert_called_once_with('scan')

    def test_host_starts_also_if_they_cannot_be_compared(self):
        for exc in (exception.ConductorUnavailable(method='x', timeout=1),
                    exception.NotFound(kind='host', name='h1')):
            self.tracker.reset_mock()
            self.tracker.api.device_list.side_effect = exc
            self.driver.init_host('h1')
            self.assertIn('Cannot check whether', self.log.output)
            self.assertFalse(self.conflicts.check.called)
            self.conflicts.options.return_value = {'c': 'option'}
            self.records.owners.return_value = {}
            self.assertEqual({'c': 'Nova (option)'}, self.excluded())
            self.assertTrue(self.worker.start.called)

    def test_nova_without_devices_of_its_own_asks_nobody(self):
        self.conflicts.__bool__.return_value = False
        self.driver.init_host('h1')
        self.assertFalse(self.tracker.api.device_list.called)
        self.records.owners.return_value = {'a': 'record'}
        self.assertEqual({'a': 'record'}, self.excluded())


class ServeTest(ServiceTestCase):

    def setUp(self):
        super().setUp()
        self.driver.init_host('h1')
        self.calls.reset_mock()

    def test_iteration_serves_once_and_runs_the_tracker(self):
        self.assertIs(self.tracker.run_once.return_value, self.work())
        self.work()
        self.assertEqual(
            ['probe', 'server', 'server().start', 'tracker.run_once',
             'tracker.run_once'], self.names())
        self.assertEqual('h1', self.calls.server.call_args.args[2])

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

    def test_call_of_the_conductor_wakes_the_worker(self):
        self.work()
        [manager] = self.calls.server.call_args.args[3]
        for name in ('refresh', 'assignments_changed'):
            self.calls.reset_mock()
            getattr(manager, name)(None)
            self.assertEqual([f'tracker.{name}', 'worker.wake'], self.names())

    def test_drifts_that_are_left_at_the_start_are_logged_once(self):
        self.examiner.drifts.return_value = (
            drift.of('mdev_unassigned', 'h1', 'm1', sysfs='it is there'),)
        self.tracker.session.is_reported = False
        self.work()
        self.assertNotIn('Drift', self.log.output)
        self.tracker.session.is_reported = True
        for _ in range(2):
            self.work()
        self.assertEqual(1, self.log.output.count(
            'Drift mdev_unassigned on h1: m1: sysfs: it is there'))
        self.assertFalse(self.examiner.repair.called)

    def test_host_that_cannot_be_examined_at_the_start_stays_usable(self):
        self.examiner.drifts.side_effect = RuntimeError('no libvirt')
        self.assertIs(self.tracker.run_once.return_value, self.work())
        self.assertIn('RuntimeError: no libvirt', self.log.output)

    def test_question_is_answered_after_the_repairs(self):
        found = drift.of('mdev_unassigned', 'h1', 'm1')
        self.examiner.drifts.return_value = (found,)
        self.work()
        [compute] = self.calls.server.call_args.args[3]
        compute.examine(None, question='q1', asked_at=time.time(),
                        repairs=['offer'])
        self.examiner.repair.assert_called_once_with(
            ['offer'], self.worker.run_once)
        [answer] = self.tracker.api.answer.call_args_list
        self.assertEqual('h1', answer.args[1])
        self.assertEqual(('q1', (found,)), (
            answer.kwargs['question'], answer.kwargs['drifts']))

    def test_host_that_cannot_repair_itself_is_not_consistent(self):
        self.work()
        self.examiner.repair.side_effect = RuntimeError('no Placement\nx')
        [found] = self.driver._gpu_examine(['offer'])
        self.assertEqual(
            ('host_not_examined', {'host': 'RuntimeError: no Placement'}),
            (found.name, found.says))

    def test_question_that_names_another_instance_gets_no_other_answer(self):
        mine = make.assignment(uuid='a1', instance_uuid='i1')
        self.tracker.assignments.all = lambda: [mine]
        usage = self.useFixture(fixtures.MockPatchObject(
            orphans, 'usage', return_value=())).mock
        self.work()
        [compute] = self.calls.server.call_args.args[3]
        named = [make.assignment(uuid=uuid, instance_uuid='deleted')
                 for uuid in ('a1', 'a9')]
        compute.ask(None, question='q1', asked_at=time.time(),
                    assignments=codec.to_primitive(named))
        # The host lost the other one, whose instance only the caller knows.
        self.assertEqual([mine, named[1]], usage.call_args.args[0])

    def test_topic_is_that_of_computes(self):
        self.work()
        self.assertEqual(rpc_transport.compute_topic(service.CONF),
                         self.calls.server.call_args.args[1])


class ProviderTreeTest(ServiceTestCase):

    def update(self):
        self.driver.update_provider_tree('tree', 'node', 'allocations')

    def test_tree_before_init_host_is_nova_s_alone(self):
        self.update()
        self.assertEqual(['nova.update_provider_tree'], self.names())

    def test_groups_come_after_nova_s_own_resources(self):
        self.driver.init_host('h1')
        for change, wakes in ((True, ['worker.wake']), (False, [])):
            self.calls.reset_mock()
            self.tracker.update_provider_tree.return_value = change
            self.update()
            self.assertEqual(
                ['nova.update_provider_tree', 'tracker.update_provider_tree',
                 *wakes], self.names())
            self.tracker.update_provider_tree.assert_called_once_with(
                'tree', 'node')

    def test_assignment_that_nova_does_not_expect_makes_a_comparison_due(
            self):
        self.driver.init_host('h1')
        self.tracker.update_provider_tree.return_value = False
        self.book = [make.assignment()]
        compared = []
        for seconds in (0, 60, 120):
            self.driver._gpu_unexpected._clock = lambda now=seconds: now
            self.calls.reset_mock()
            self.update()
            compared.append(self.names()[2:])
        self.assertEqual(
            [[], ['tracker.request_reconcile', 'worker.wake'], []], compared)
        self.assertIn('i1, which Nova does not expect', self.log.output)

    def test_other_tracker_of_nova_leaves_the_host_usable(self):
        self.driver.init_host('h1')
        self.tracker.update_provider_tree.return_value = False
        self.book = [make.assignment()]
        del self.nova_tracker.tracked_migrations
        self.update()
        self.assertIn('Cannot compare the assignments of h1',
                      self.log.output)

    def test_guest_of_nova_that_is_gone_makes_a_report_due(self):
        self.driver.init_host('h1')
        self.tracker.update_provider_tree.return_value = False
        self.records.changed.return_value = True
        self.calls.reset_mock()
        self.update()
        self.assertEqual(
            ['nova.update_provider_tree', 'tracker.update_provider_tree',
             'tracker.exclude', 'worker.wake'], self.names())

    def test_records_that_cannot_be_read_leave_the_host_usable(self):
        self.driver.init_host('h1')
        self.tracker.update_provider_tree.return_value = False
        self.records.changed.side_effect = RuntimeError('no database')
        self.calls.reset_mock()
        self.update()
        self.assertIn('these GPUs stay unmanaged', self.log.output)
        self.assertFalse(self.tracker.exclude.called)


class CleanupHostTest(ServiceTestCase):

    def test_server_and_worker_end_before_nova(self):
        self.driver.init_host('h1')
        self.work()
        self.calls.reset_mock()
        self.driver.cleanup_host('h1')
        self.assertEqual(
            ['server().stop', 'server().wait', 'worker.stop',
             'nova.cleanup_host'], self.names())

    def test_second_cleanup_stops_nothing_again(self):
        self.driver.init_host('h1')
        self.driver.cleanup_host('h1')
        self.calls.reset_mock()
        self.driver.cleanup_host('h1')
        self.assertEqual(['nova.cleanup_host'], self.names())

    def test_iteration_under_way_serves_no_more(self):
        self.driver.init_host('h1')
        self.driver.cleanup_host('h1')
        self.calls.reset_mock()
        self.work()
        self.assertEqual(['tracker.run_once'], self.names())

    def test_host_that_never_started_is_cleaned_up(self):
        self.driver.cleanup_host('h1')
        self.assertEqual(['nova.cleanup_host'], self.names())
