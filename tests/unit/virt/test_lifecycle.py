#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""What a guest's life on one host does to its devices."""

import types

import fixtures
from nova import exception as nova_exception
from nova.compute import task_states

from gpgpu_plugin import exception
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import lifecycle
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
        self.assertRaises(virt_exception.GPUClaimDenied, self.spawn, 2)
        self.assertEqual([], self.driver.list_instance_uuids())

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
        self.assertTrue(self.tracker.allocation_removal)
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

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
            self.assertEqual({}, self.driver._gpu_at_work)

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
        self.assertRaises(exception.HostError, self.driver.power_on,
                          None, instance, None)

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

    def test_extra_specs_that_cannot_be_read_may_mean_gpus(self):
        for specs, asks in (({}, False),
                            ({'resources:CUSTOM_GPU_H100': '1'}, True),
                            ({'gpgpu:topology': 'linked'}, True)):
            self.assertIs(asks, lifecycle.asks_for_gpus(
                types.SimpleNamespace(extra_specs=specs)))
