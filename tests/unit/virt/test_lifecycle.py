# SPDX-License-Identifier: Apache-2.0
"""Tests of a guest's operations on one host."""

import dataclasses
import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states

from gpgpu_plugin import exception
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import numa
from tests.fixtures import patience
from tests.unit.virt import base


class LifecycleTest(base.DriverTestCase):

    def test_spawn_assigns_and_delete_releases(self):
        instance = self.spawn(2)
        self.assertEqual(['i1'], self.driver.list_instance_uuids())
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        instance.task_state = task_states.DELETING
        self.driver.destroy(None, instance, None)
        self.assertEqual([], self.driver.list_instance_uuids())
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_guest_without_gpus_makes_no_call(self):
        self.conductor.stop()
        self.driver.spawn(None, self.make_instance(0), None, [], None, {})
        self.assertEqual(['i1'], self.driver.list_instance_uuids())

    def test_denied_claim_makes_no_guest(self):
        self.boot(7, 'other')
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.denial'))
        self.useFixture(fixtures.MockPatchObject(denial, 'record'))
        exc = self.assertRaises(virt_exception.GPUClaimDenied, self.spawn, 2)
        self.assertEqual([], self.driver.list_instance_uuids())
        # Nova logs the error with its traceback: without the causes.
        self.assertIsNone(exc.__cause__)
        self.assertTrue(exc.__suppress_context__)
        self.assertEqual(1, log.output.count('Claim of i1 on h1 denied'))

    def spawn_allocated(self, **kwargs):
        """Spawn a flavor that requests nothing; Placement gave a GPU."""
        self.driver.spawn(
            None, self.make_instance(0, **kwargs), None, [], None,
            {self.provider: {'resources': {'CUSTOM_GPU_H100': 1}}})

    def test_allocation_that_the_flavor_does_not_request_makes_no_guest(self):
        exc = self.assertRaises(
            virt_exception.GPUClaimDenied, self.spawn_allocated)
        self.assertIn('allocation_not_requested', str(exc))
        self.assertEqual([], self.driver.list_instance_uuids())

    def test_rebuild_of_a_guest_with_unrequested_units_is_not_denied(self):
        self.spawn_allocated(task_state=task_states.REBUILD_SPAWNING)
        self.assertEqual(['i1'], self.driver.list_instance_uuids())

    def test_allocation_is_asked_about_while_no_provider_is_known(self):
        self.tracker.inventory._newest = None
        self.assertRaises(
            virt_exception.GPUClaimDenied, self.spawn_allocated)
        self.driver.spawn(
            None, self.make_instance(0), None, [], None,
            {self.provider: {'resources': {'VCPU': 1}}})
        self.assertEqual(['i1'], self.driver.list_instance_uuids())

    def test_denial_is_an_event_of_the_user_s_action(self):
        denied = self.useFixture(fixtures.MockPatchObject(
            objects, 'InstanceActionEvent')).mock
        self.boot(7, 'other')
        for build, expected in (
                ({}, virt_exception.GPUClaimDenied),
                ({'host': 'h9', 'task_state': task_states.REBUILD_SPAWNING},
                 nova_exception.ComputeResourcesUnavailable)):
            denied.reset_mock()
            self.assertRaises(expected, self.spawn, 2, **build)
            [event] = [call.kwargs for call in denied.call_args_list]
            self.assertEqual('h1', event['host'])
            self.assertRegex(
                event['details'], '^Claim of i1 .*not_enough_available')

    def test_hardware_that_fails_is_no_denial(self):
        denied = self.useFixture(fixtures.MockPatchObject(
            objects, 'InstanceActionEvent')).mock
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare', side_effect=exception.HostError(
                path='/sys/x', reason='broken')))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable,
                          self.spawn, 1)
        self.assertFalse(denied.called)
        self.assertEqual([], self.client.deleted)

    def test_denied_build_has_no_allocation_before_nova_knows(self):
        self.boot(7, 'other')
        self.assertRaises(virt_exception.GPUClaimDenied, self.spawn, 2)
        self.assertEqual(['i1'], self.client.deleted)

    def test_allocation_of_what_exists_elsewhere_stays(self):
        self.boot(7, 'other')
        for instance in (
                # Evacuation, unshelve.
                {'host': 'h9', 'task_state': task_states.REBUILD_SPAWNING},
                {'host': None, 'task_state': task_states.SPAWNING,
                 'vm_state': vm_states.SHELVED_OFFLOADED}):
            instance = self.make_instance(2, **instance)
            self.assertRaises(
                nova_exception.NovaException, self.driver.spawn, None,
                instance, None, [], None, {})
        self.assertEqual([], self.client.deleted)

    def test_denial_is_raised_though_placement_is_away(self):
        self.boot(7, 'other')
        log = self.useFixture(fixtures.FakeLogger())
        self.client.error = RuntimeError('503')
        self.assertRaises(virt_exception.GPUClaimDenied, self.spawn, 2)
        self.assertIn('Cannot remove the allocation of instance i1',
                      log.output)

    def test_denied_evacuation_leaves_the_instance_where_it_is(self):
        self.boot(7, 'other')
        self.assertRaises(
            nova_exception.ComputeResourcesUnavailable, self.spawn, 2,
            host='h9', task_state=task_states.REBUILD_SPAWNING)

    def test_rebuild_that_fails_reconciles_when_the_allocation_is_gone(self):
        instance = self.spawn(2)
        instance.task_state = task_states.REBUILD_SPAWNING
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare', side_effect=exception.HostError(
                path='/sys/x', reason='broken')))
        self.assertRaises(
            nova_exception.InstanceDeployFailure, self.driver.spawn,
            None, instance, None, [], None, {})
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        # Nova removes the allocation next.
        self.driver._gpu_rebuild_failed(instance)
        self.assertTrue(self.tracker.allocation_removal)
        self.client.allocations.clear()
        self.tracker.run_once()
        self.assertEqual((8, 2), self.placement())

    def test_allocation_without_devices_on_this_host_is_left_to_nova(self):
        self.driver._gpu_rebuild_failed(self.make_instance(2))
        self.assertFalse(self.tracker.allocation_removal)
        # An evacuation to here: it is on its source still.
        self.spawn(2)
        self.driver._gpu_rebuild_failed(self.make_instance(2, host='h9'))
        self.assertFalse(self.tracker.allocation_removal)

    def test_reboot_keeps_the_devices_though_nova_destroys_the_guest(self):
        instance = self.spawn(2)
        instance.task_state = task_states.REBOOT_STARTED_HARD

        def destroys(context, instance, *args):
            self.driver.destroy(context, instance, None)
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.reboot', side_effect=destroys))
        self.driver.reboot(None, instance, None, 'HARD')
        self.assertEqual([], self.driver.list_instance_uuids())
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_reboot_that_powers_the_guest_on_keeps_the_devices(self):
        instance = self.spawn(2)
        for kind in ('SOFT', 'HARD'):
            self.driver.reboot(None, instance, None, kind)
            self.assertEqual({'assigned': 2, 'available': 6}, self.states())
            self.assertEqual({}, self.driver._gpu_at_work.selectors)

    def test_power_on_makes_the_devices_ready_again(self):
        instance = self.spawn(2)
        for assignment in self.tracker.assignments.of_instance('i1'):
            self.tracker.backend.kernel.write(
                'bus/pci/drivers/vfio-pci/unbind', assignment.address)
        self.assertEqual({None}, self.drivers())
        self.driver.power_on(None, instance, None)
        self.assertEqual({None, 'vfio-pci'}, self.drivers())

    def test_power_on_without_a_device_fails(self):
        instance = self.spawn(1)
        [assignment] = self.tracker.assignments.of_instance('i1')
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{assignment.address}/remove', '1')
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.exception'))
        exc = self.assertRaises(
            virt_exception.GPUOperationFailed, self.driver.power_on, None,
            instance, None)
        # What users read, which names neither host nor path.
        self.assertEqual(
            'The GPUs of instance i1 could not be made ready. Its operator '
            'finds the reason in the log of nova-compute; try again when it '
            'is mended', compute_utils.exception_to_dict(exc)['message'])
        self.assertIn(assignment.address, log.output)

    def test_attachments_are_in_the_order_of_the_devices(self):
        instance = self.spawn(3)
        assigned = sorted(
            self.tracker.assignments.of_instance('i1'),
            key=lambda assignment: assignment.stable_id)
        book = self.tracker.assignments
        book.replace({'i1': tuple(reversed(assigned))}, book.changes())
        self.assertEqual(
            [assignment.address for assignment in assigned],
            [attachment.functions[0] for attachment
             in self.driver.gpu_attachments(instance)])

    def test_suspend_of_a_guest_with_gpus_is_refused(self):
        exc = self.assertRaises(
            nova_exception.InstanceFaultRollback, self.driver.suspend,
            None, self.make_instance(1))
        self.assertIn('Suspend is not supported', str(exc.inner_exception))
        self.driver.suspend(None, self.make_instance(0))

    def test_delete_without_retry_leaves_placement_alone(self):
        for reclaim, host in ((0, 'h9'), (60, 'h1')):
            with self.subTest(reclaim=reclaim, host=host):
                instance = self.spawn(1)
                self.useFixture(fixtures.MonkeyPatch(
                    'gpgpu_plugin.virt.lifecycle.CONF', types.SimpleNamespace(
                        reclaim_instance_interval=reclaim)))
                instance.host = host
                instance.task_state = task_states.DELETING
                self.driver.destroy(None, instance, None)
                self.assertTrue(self.tracker.allocation_removal)
                self.seconds += 100

    def test_claim_is_for_the_numa_nodes_of_the_guest(self):
        claim = self.useFixture(fixtures.MockPatchObject(
            self.api, 'claim', wraps=self.api.claim)).mock
        cells = [types.SimpleNamespace(id=number) for number in (1, 0, 1)]
        for topology, nodes in ((types.SimpleNamespace(cells=cells), (0, 1)),
                                (None, None)):
            self.spawn(1, uuid=f'i-{nodes}', numa_topology=topology)
            request = claim.call_args.args[2]
            self.assertEqual(
                (nodes, 'h1', claim_obj.ClaimRole.INSTANCE, None, 'p', 'u',
                 'gpu.large'),
                (request.numa_nodes, request.host, request.role,
                 request.migration_uuid, request.project_id,
                 request.user_id, request.flavor))

    def test_rebuild_in_place_keeps_the_devices_without_a_call(self):
        instance = self.spawn(2)
        before = self.tracker.assignments.of_instance('i1')
        self.conductor.stop()
        instance.task_state = task_states.REBUILD_SPAWNING
        self.driver.spawn(None, instance, None, [], None, {})
        self.assertEqual(before, self.tracker.assignments.of_instance('i1'))

    def test_failed_evacuation_leaves_placement_to_nova(self):
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare', side_effect=exception.HostError(
                path='/sys/x', reason='broken')))
        for host, state, frozen in (
                ('h1', None, False),
                ('h9', task_states.REBUILD_SPAWNING, True)):
            self.assertRaises(
                nova_exception.ComputeResourcesUnavailable, self.spawn, 1,
                host=host, task_state=state)
            self.assertIs(frozen, bool(self.tracker.allocation_removal))

    def test_claim_of_a_build_under_way_is_no_orphan(self):
        def compare(*args, **kwargs):
            self.tracker.request_reconcile()
            self.tracker.run_once()
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.spawn', compare))
        self.spawn(2)
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())


class WorkingTest(base.DriverTestCase):
    """Tests of calls in which the driver itself creates a guest."""

    def setUp(self):
        super().setUp()
        self.instance = self.spawn(2)
        self.instance.flavor = self.make_instance(1).flavor
        self.tracker.wake = mock.Mock()
        self.useFixture(fixtures.MockPatchObject(
            assignment_selector, 'current',
            return_value=self.first))
        self.attached = []

    def first(self, assignment):
        assigned = self.tracker.assignments.of_instance('i1')
        return assignment.uuid == assigned[0].uuid

    def watch(self, method):
        def attach(*args, **kwargs):
            self.attached = self.driver.gpu_attachments(self.instance)
        self.useFixture(fixtures.MockPatch(
            f'nova.virt.fake.FakeDriver.{method}', attach))

    def test_guest_gets_the_devices_of_its_current_role_alone(self):
        for method, args in (
                ('power_on', (None,)), ('reboot', (None, 'SOFT')),
                ('resume_state_on_host_boot', (None,)),
                ('rescue', ()), ('unrescue', ())):
            self.attached = []
            self.watch(method)
            getattr(self.driver, method)(None, self.instance, *args)
            self.assertEqual(1, len(self.attached), method)

    def test_attachments_at_rest_are_of_the_current_role(self):
        self.assertEqual(1, len(self.driver.gpu_attachments(self.instance)))

    def test_guest_made_anew_is_compared(self):
        compare = self.useFixture(fixtures.MockPatchObject(
            self.driver, '_gpu_compare')).mock
        # Nova's fake driver reboots by power_on; libvirt's does not.
        self.useFixture(fixtures.MockPatch('nova.virt.fake.FakeDriver.reboot'))
        for calls, method, args in ((0, 'reboot', (None, 'SOFT')),
                                    (1, 'reboot', (None, 'HARD')),
                                    (2, 'power_on', (None,))):
            getattr(self.driver, method)(None, self.instance, *args)
            self.assertEqual(calls, compare.call_count)

    def test_comparison_is_due_if_a_move_left_devices(self):
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        self.driver.power_on(None, self.instance, None)
        self.assertFalse(reconcile.called)
        book = self.tracker.assignments
        book.replace({'i1': tuple(
            dataclasses.replace(assignment, migration_uuid='m1')
            for assignment in book.of_instance('i1'))}, book.changes())
        self.driver.power_on(None, self.instance, None)
        reconcile.assert_called_once_with()
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.reboot',
            side_effect=RuntimeError('x')))
        self.assertRaises(RuntimeError, self.driver.reboot, None,
                          self.instance, None, 'SOFT')
        self.assertEqual(2, reconcile.call_count)
        self.assertEqual({}, self.driver._gpu_at_work.selectors)

    def test_reboot_and_power_on_make_devices_of_the_role_ready(self):
        for method, args in (('power_on', (None,)),
                             ('reboot', (None, 'HARD'))):
            restored = []
            self.watch(method)
            with fixtures.MockPatchObject(
                    self.tracker, 'prepare', restored.extend):
                getattr(self.driver, method)(None, self.instance, *args)
            self.assertEqual(1, len(restored), method)

    def test_reboot_without_a_device_leaves_the_guest_alone(self):
        reboot = self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.reboot')).mock
        [assignment, _] = self.tracker.assignments.of_instance('i1')
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{assignment.address}/remove', '1')
        self.assertRaises(virt_exception.GPUOperationFailed,
                          self.driver.reboot, None,
                          self.instance, None, 'HARD')
        self.assertFalse(reboot.called)

    def test_guest_that_nova_destroys_to_start_it_keeps_its_devices(self):
        def destroys(*args, **kwargs):
            self.driver.destroy(None, self.instance, None)
        for method, args in (('power_on', (None,)),
                             ('resume_state_on_host_boot', (None,))):
            with fixtures.MockPatch(
                    f'nova.virt.fake.FakeDriver.{method}', destroys):
                getattr(self.driver, method)(None, self.instance, *args)
            self.assertEqual({'assigned': 2, 'available': 6}, self.states())
            # The guest is there again for the next method.
            self.driver.instances['i1'] = self.instance

    def test_end_of_the_work_wakes_the_worker(self):
        self.driver.power_on(None, self.instance, None)
        self.tracker.wake.assert_called_once_with()


class DestroyTest(base.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.instance = self.spawn(2)
        self.tracker.wake = mock.Mock()

    def destroy(self, **kwargs):
        for name, value in kwargs.items():
            setattr(self.instance, name, value)
        self.driver.destroy(None, self.instance, None)

    def test_released_devices_wake_the_worker(self):
        self.destroy(task_state=task_states.DELETING)
        self.tracker.wake.assert_called_once_with()

    def test_delete_with_retries_does_not_freeze_placement(self):
        self.destroy(task_state=task_states.DELETING)
        self.assertFalse(self.tracker.allocation_removal)

    def test_revert_releases_the_claim_of_the_destination_alone(self):
        granted = self.tracker.session.call(
            self.api.claim, dataclasses.replace(
            self.request(3), role=claim_obj.ClaimRole.DESTINATION,
            migration_uuid='m1'))
        self.tracker.assignments.add('i1', granted.assignments)
        self.instance.task_state = task_states.RESIZE_REVERTING
        self.destroy_with(
            status='reverting', dest_compute='h1', migration_type='resize')
        self.assertEqual(['instance'] * 2, [
            str(assignment.role) for assignment
            in self.tracker.assignments.of_instance('i1')])

    def destroy_with(self, **kwargs):
        """Destroy as Nova's _destroy_evacuated_instances does, by default.

        :returns: devices of the instance then
        """
        migration = types.SimpleNamespace(**{
            'id': 1, 'created_at': 1, 'uuid': 'm1', 'status': 'accepted',
            'source_compute': 'h1', 'dest_compute': 'h2',
            'migration_type': 'evacuation', 'new_instance_type_id': 1,
            **kwargs})
        with fixtures.MockPatchObject(
                objects.MigrationList, 'get_by_filters',
                return_value=[migration]):
            self.destroy()
        return len(self.tracker.assignments.of_instance('i1'))

    def test_source_of_an_evacuation_that_is_not_over_keeps_its_devices(self):
        for status in ('accepted', 'pre-migrating'):
            self.assertEqual(2, self.destroy_with(status=status))
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_delete_that_lost_its_task_releases_after_other_migrations(self):
        for other in ({'status': 'failed'}, {'source_compute': 'h2'},
                      {'migration_type': 'resize'}):
            self.assertEqual(0, self.destroy_with(**other))
            self.tracker.run_once()
            self.instance = self.spawn(2)

    def test_destroy_while_nova_does_not_answer_keeps_the_devices(self):
        self.useFixture(fixtures.MockPatchObject(
            objects.MigrationList, 'get_by_filters',
            side_effect=RuntimeError('no database')))
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        self.destroy()
        self.assertEqual(
            2, len(self.tracker.assignments.of_instance('i1')))
        self.assertTrue(reconcile.called)

    def test_driver_that_was_not_started_releases_nothing(self):
        self.driver._gpu_tracker = None
        self.destroy(task_state=task_states.DELETING)
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())


class DeleteMeetsStartTest(base.MeetingCase):

    def setUp(self):
        super().setUp()
        self.instance = self.spawn(2)

    def power_on(self):
        self.driver.power_on(None, self.instance, None)

    def test_delete_waits_for_a_start_then_releases(self):
        self.assertTrue(self.delete_during('power_on', self.power_on))
        self.assertEqual(['power_on', 'destroy'], self.calls)
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_start_that_waited_for_a_delete_makes_no_guest(self):
        [error] = self.call_during_delete(self.power_on)
        self.assertIsInstance(error, virt_exception.GPUAssignmentsEnded)
        self.assertIn('i1', str(error))
        self.assertEqual(['destroy'], self.calls)

    def test_rebuild_that_waited_for_a_delete_makes_no_guest(self):
        self.watch('spawn')
        self.instance.task_state = task_states.REBUILD_SPAWNING
        [error] = self.call_during_delete(lambda: self.driver.spawn(
            None, self.instance, None, [], None, {}))
        self.assertIsInstance(error, virt_exception.GPUAssignmentsEnded)
        self.assertEqual(['destroy'], self.calls)

    def test_rebuild_whose_devices_a_delete_released_claims_none(self):
        self.watch('spawn')
        rebuilt = self.make_instance(
            2, task_state=task_states.REBUILD_SPAWNING)
        extend = numa.GuestFit.extend

        def delete(fit, request):
            # It waits for Nova's lock of the host's resources.
            self.delete()
            return extend(fit, request)
        self.useFixture(fixtures.MockPatchObject(
            numa.GuestFit, 'extend', delete))
        self.assertRaises(
            virt_exception.GPUAssignmentsEnded, self.driver.spawn,
            None, rebuilt, None, [], None,
            {self.provider: {'resources': {'CUSTOM_GPU_H100': 2}}})
        self.assertEqual(['destroy'], self.calls)
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_start_that_waited_for_another_call_goes_on(self):
        with self.paused('power_on') as entered:
            self.start(self.power_on)
            self.assertTrue(entered.wait(patience.LONG))
            self.assertTrue(self.meet(self.start(self.power_on)))
        self.assertEqual(
            ([], ['power_on'] * 2), (self.errors, self.calls))
