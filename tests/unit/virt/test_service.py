# SPDX-License-Identifier: Apache-2.0
"""Tests of the start and end of nova-compute, with mocks."""

import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.compute import power_state
from nova.virt import driver as nova_driver
from nova.virt import hardware
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.virt import service


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
        self.driver = Driver(types.SimpleNamespace(reportclient='client'))
        self.calls = self.driver.calls
        self.tracker = self.calls.tracker
        self.calls.make.return_value = self.tracker
        self.load = self.useFixture(fixtures.MockPatchObject(
            extensions, 'load', return_value=self.calls.make)).mock
        self.ends = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.service'))

    def ended(self):
        """Check that nova-compute ends with one line that has a reason."""
        exc = self.assertRaises(SystemExit, self.driver.init_host, 'h1')
        self.assertEqual(1, exc.code)
        self.assertRegex(
            self.ends.output,
            r'\Anova-compute cannot start: Option [^\n]+\n\Z')

    def names(self):
        """Return the names of the calls so far, in their order."""
        return [name for name, _, _ in self.calls.mock_calls]


class InitHostTest(ServiceTestCase):

    def test_tracker_is_there_before_nova_and_starts_after_it(self):
        self.driver.init_host('h1')
        self.assertEqual(
            ['make', 'nova.init_host', 'tracker.start'], self.names())
        self.assertEqual(('node', 'node-uuid'),
                         self.tracker.start.call_args.args[:2])
        self.assertIs(self.tracker, self.driver.gpu_tracker)

    def test_tracker_gets_the_driver_s_functions(self):
        guests = object()
        self.driver._gpu_guests = lambda: guests
        self.driver.init_host('h1')
        conf, host, driver = self.calls.make.call_args.args
        self.assertEqual((service.CONF, 'h1', 'fake', self.driver.virtapi),
                         (conf, host, driver.host_type, driver.virtapi))
        self.assertIs(guests, driver.guests())
        self.assertIsNone(driver.domains())

    def test_option_names_the_tracker(self):
        self.driver.init_host('h1')
        self.load.assert_called_once_with(
            'gpgpu_plugin.resource_trackers', 'conductor',
            '[gpgpu_compute] resource_tracker')

    def test_nova_compute_ends_without_its_tracker(self):
        for call in (self.load, self.calls.make, self.tracker.start):
            self.ends = self.useFixture(fixtures.FakeLogger(
                'gpgpu_plugin.virt.service'))
            call.side_effect = exception.ConfigInvalid(
                option='[gpgpu_compute] state_path', reason='it is in use')
            self.ended()
            call.side_effect = None

    def test_tracker_is_missing_before_init_host(self):
        self.assertRaises(RuntimeError, lambda: self.driver.gpu_tracker)

    def test_nova_that_does_not_start_leaves_no_thread(self):
        self.calls.nova.init_host.side_effect = RuntimeError('libvirt')
        self.assertRaises(RuntimeError, self.driver.init_host, 'h1')
        self.assertFalse(self.tracker.start.called)

    def test_guest_is_active_unless_it_is_known_to_be_off(self):
        self.assertEqual([
            assignment_use.Domain.ACTIVE, assignment_use.Domain.INACTIVE,
            assignment_use.Domain.ACTIVE, assignment_use.Domain.ACTIVE,
            assignment_use.Domain.INACTIVE, assignment_use.Domain.ABSENT],
            [self.driver._gpu_domain(f'i{n}') for n in range(1, 7)])


class OtherOwnersTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.records = mock.Mock()
        self.records.changed.return_value = False
        self.records.owners.return_value = {'a': 'record', 'b': 'record'}
        self.nova = mock.MagicMock()
        self.nova.options.return_value = {'b': 'option', 'c': 'option'}
        self.owners = service.OtherOwners((self.records,), self.nova)

    def check(self):
        self.owners.check(lambda: 'devices', lambda: 'scan', {'VGPU'})

    def test_records_are_the_owners_at_first(self):
        self.assertEqual({'a': 'record', 'b': 'record'},
                         self.owners.owners('scan'))
        self.assertFalse(self.owners.changed())

    def test_record_that_changed_is_a_change(self):
        self.records.changed.return_value = True
        self.assertTrue(self.owners.changed())

    def test_device_of_nova_and_a_variant_is_refused(self):
        self.nova.check.side_effect = exception.ConfigInvalid(
            option='x', reason='y')
        self.assertRaises(exception.ConfigInvalid, self.check)
        self.nova.check.assert_called_once_with('devices', 'scan', {'VGPU'})

    def test_variant_that_comes_later_does_not_get_nova_s_devices(self):
        self.check()
        self.assertTrue(self.owners.changed())
        self.assertEqual(
            {'a': 'record', 'b': 'Nova (option)', 'c': 'Nova (option)'},
            self.owners.owners('scan'))
        self.nova.options.assert_called_once_with('scan')
        self.assertFalse(self.owners.changed())

    def test_nor_does_one_if_nobody_answered(self):
        def fail():
            raise exception.ConductorUnavailable(method='x', timeout=1)
        self.assertRaises(exception.ConductorUnavailable, self.owners.check,
                          fail, lambda: 'scan', set())
        self.assertFalse(self.nova.check.called)
        self.assertIn('c', self.owners.owners('scan'))

    def test_nova_without_devices_of_its_own_asks_nobody(self):
        self.nova.__bool__.return_value = False
        self.owners.check(self.fail, self.fail, set())
        self.assertFalse(self.owners.changed())
        self.assertNotIn('c', self.owners.owners('scan'))


class ProviderTreeTest(ServiceTestCase):

    def update(self):
        self.driver.update_provider_tree('tree', 'node', 'allocations')

    def test_tree_before_init_host_is_nova_s_alone(self):
        self.update()
        self.assertEqual(['nova.update_provider_tree'], self.names())

    def test_groups_come_after_nova_s_own_resources(self):
        self.driver.init_host('h1')
        self.calls.reset_mock()
        self.update()
        self.assertEqual(
            ['nova.update_provider_tree', 'tracker.update_provider_tree'],
            self.names())
        self.tracker.update_provider_tree.assert_called_once_with(
            'tree', 'node')


class CleanupHostTest(ServiceTestCase):

    def test_tracker_ends_before_nova(self):
        self.driver.init_host('h1')
        self.calls.reset_mock()
        self.driver.cleanup_host('h1')
        self.assertEqual(['tracker.stop', 'nova.cleanup_host'], self.names())

    def test_host_that_never_started_is_cleaned_up(self):
        self.driver.cleanup_host('h1')
        self.assertEqual(['nova.cleanup_host'], self.names())
