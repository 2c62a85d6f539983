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
"""The look of nova-compute: what it does, and that it does nothing."""

import dataclasses
import os
import uuid

import fixtures
import oslo_messaging
from nova import exception as nova_exception

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import allocation_removal
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import moves
from tests.unit.compute import base


class TickTest(base.ComputeTestCase):

    def test_groups_are_in_nova_s_tree(self):
        data = self.client.tree.data(self.provider)
        self.assertEqual((8, 0), self.placement())
        self.assertEqual(base.NODE, data.parent_uuid)
        self.assertEqual(
            {'CUSTOM_GPU', 'CUSTOM_GPU_H100', 'OWNER_NOVA'}, data.traits)

    def test_quiet(self):
        self.client.writes.clear()
        self.client.fetches.clear()
        self.conductor.stop()
        # A call would wait for the conductor and warn.
        for name in ('report', 'host_inventory', 'clean_tasks',
                     'host_assignments', 'release'):
            setattr(self.api, name, lambda *args: self.fail('called'))
        self.tracker.run_once()
        self.assertEqual(([], []), (self.client.writes, self.client.fetches))

    def test_change_is_reported_and_pushed(self):
        device = self.api.device_list(context.admin(), variant='H100')[0]
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{device.address}/remove', '1')
        self.tracker.run_once()
        self.assertEqual((8, 1), self.placement())
        self.assertEqual({'available': 7, 'missing': 1}, self.states())

    def test_scan_that_fails_half_way_changes_nothing(self):
        before = self.states(), self.placement()
        scan = self.tracker.backend.scan

        def half():
            scan()
            raise exception.HostError(path='/sys/x', reason='vanished')
        self.tracker.backend.scan = half
        self.tracker.backend.changed = lambda: True
        self.tracker.run_once()
        self.assertEqual(before, (self.states(), self.placement()))
        self.tracker.backend.scan = scan
        self.tracker.run_once()
        self.assertEqual(before, (self.states(), self.placement()))

    def test_refresh(self):
        device = self.api.device_list(context.admin(), variant='H100')[0]
        self.api.device_set(context.admin(), device.uuid, enabled=False)
        self.tracker.run_once()
        self.assertEqual((8, 0), self.placement())
        self.tracker.refresh()
        self.tracker.run_once()
        self.assertEqual((8, 1), self.placement())

    def test_deleted_variant_offers_nothing(self):
        self.api.variant_delete(context.admin(), 'H100')
        self.tracker.refresh()
        self.tracker.run_once()
        self.assertEqual((8, 8), self.placement())
        self.update_tree()
        self.assertEqual((8, 8), self.placement())

    def test_deleted_host_reports_anew(self):
        self.api.host_delete(context.admin(), 'h1')
        self.tracker.refresh()
        self.tracker.run_once()
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_late_answer_does_not_overwrite_a_newer_one(self):
        old = self.api.host_inventory(context.admin(), 'h1')
        self.boot(3)
        self.tracker.accept_inventory(
            self.api.host_inventory(context.admin(), 'h1')
        )
        newest = self.tracker._inventory
        self.tracker.accept_inventory(old)
        self.assertEqual(newest, self.tracker._inventory)

    def test_conflict_in_placement_is_tried_again(self):
        uuids = self.boot(2)
        self.client.conflicts = 2
        self.tracker.release(uuids)
        self.tracker.push()
        self.assertEqual((8, 2), self.placement())

    def test_placement_error_is_tried_again_by_the_next_look(self):
        uuids = self.boot(2)
        self.client.error = nova_exception.ResourceProviderUpdateFailed(
            url='', error='')
        self.tracker.release(uuids)
        self.tracker.push()
        self.assertEqual((8, 0), self.placement())
        self.client.error = None
        self.tracker.run_once()
        self.assertEqual((8, 0), self.placement())
        self.assertEqual({'available': 8}, self.states())

    def test_update_provider_tree_never_raises(self):
        self.tracker.update_provider_tree(None, 'h1')

    def test_without_a_conductor_everything_is_reserved(self):
        self.conductor.stop()
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.update_tree()
        self.assertEqual((8, 8), self.placement())
        self.conductor.start()
        self.tracker.run_once()
        self.assertEqual((8, 0), self.placement())

    def test_failed_clean_is_quarantine(self):
        self.tracker.backend.kernel.faults['/reset'] = 5
        self.tracker.release(self.boot(2))
        self.tracker.run_once()
        self.assertEqual({'available': 6, 'quarantined': 2}, self.states())
        self.assertEqual((8, 2), self.placement())


class DeadTest(base.ComputeTestCase):

    def claim(self, instance='i1'):
        return self.api.claim(
            context.admin(), self.request(2, instance)).assignments

    def test_claim_of_a_dead_process_ends_at_start(self):
        self.claim()
        self.make_tracker().run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_claim_of_a_running_build_stays(self):
        self.tracker.request_reconcile()
        with self.tracker.building('i1'):
            self.claim()
            self.tracker.run_once()
            self.assertEqual(
                {'provisioning': 2, 'available': 6}, self.states())

    def test_assignment_of_a_deleted_instance_ends(self):
        self.boot(2, 'i1')
        self.boot(1, 'i2')
        self.gone.add('i1')
        self.make_tracker().run_once()
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())

    def test_assignment_of_an_instance_stays_over_a_restart(self):
        uuids = self.boot(2)
        tracker = self.make_tracker()
        tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.assertEqual(uuids, [
            each.uuid for each in tracker.assignments.held('i1')])


    def test_compared_again_after_a_lease(self):
        self.boot(2)
        self.gone.add('i1')
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.seconds += self.conf.gpgpu.claim_lease
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_where_nothing_is_held_nothing_is_compared(self):
        self.seconds += self.conf.gpgpu.claim_lease
        self.tracker.run_once()
        self.api.host_assignments = lambda *args: self.fail('called')
        self.seconds += self.conf.gpgpu.claim_lease
        self.tracker.run_once()

    def test_who_cannot_be_asked_about_stays_and_is_asked_again(self):
        self.boot(2)
        self.gone.add('i1')
        tracker = self.make_tracker()
        is_orphaned, tracker._is_orphaned = tracker._is_orphaned, self._away
        tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        tracker._is_orphaned = is_orphaned
        tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def _away(self, each):
        raise RuntimeError('Nova does not answer')

    def test_claim_for_a_migration_that_never_comes_ends(self):
        # The conductor told this host of a claim by another one.
        self.claim()
        self.tracker.refresh()
        self.tracker.run_once()
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.seconds += self.conf.gpgpu.claim_lease
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_answer_about_another_host_is_not_ours(self):
        before = self.tracker._inventory
        self.tracker.accept_inventory(dataclasses.replace(
            before, host='h2', generation=before.generation + 1))
        self.assertIs(before, self.tracker._inventory)

    def test_claim_that_is_granted_after_the_comparison_ends(self):
        self.tracker.request_reconcile()
        self.tracker.run_once()
        # The call that timed out was under way all the time.
        self.claim()
        self.tracker.run_once()
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.seconds += self.conf.gpgpu.claim_lease
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())


class RestoreTest(base.ComputeTestCase):

    def test_devices_of_instances_are_ready_after_a_reboot(self):
        self.boot(2, 'i1')
        self.assertEqual({None}, self.drivers())
        for _ in range(2):
            self.make_tracker().restore()
            self.assertEqual({None, 'vfio-pci'}, self.drivers())

    def test_one_that_is_broken_does_not_stop_the_others(self):
        self.boot(2, 'i1')
        held = self.tracker.assignments.held('i1')
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{held[0].address}/remove', '1')
        self.tracker.restore()
        self.assertIn('vfio-pci', self.drivers())


class RestartedDestinationTest(base.ComputeTestCase):

    machine = 'nvidia-t4-2'

    def mdevs(self):
        return os.listdir(f'{self.state_path}/sys/bus/mdev/devices')

    def test_a_claim_of_a_migration_that_fails_after_it(self):
        self.api.variant_create(context.admin(), admin.VariantInfo(
            name='T4', vendor='10de', device='1eb8'))
        self.tracker.run_once()
        self.api.vgpu_type_set(
            context.admin(), 'T4', 'T4-8Q', None, enabled=True)
        claim = self.api.claim(context.admin(), claim_obj.ClaimRequest(
            instance_uuid=str(uuid.uuid4()), host='h1', slot='migration',
            request=request.Request(demands=(request.Demand(
                resource_class='CUSTOM_VGPU_T4_T4_8Q', count=1),))))
        # Its guest is still on the source.
        self.useFixture(fixtures.MockPatchObject(
            self, 'is_orphaned', return_value=False))
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.tracker.restore()
        self.assertEqual([claim.assignments[0].uuid], self.mdevs())
        # The source knows nothing of a restart; the host is told to look.
        self.tracker.run_once()
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.compute_api.ComputeAPI.refresh',
            lambda api, ctxt, host: self.tracker.refresh()))
        moves.unclaim(self.tracker, claim)
        self.tracker.run_once()
        self.assertEqual([], self.mdevs())
        self.assertEqual({'available'}, {
            each.shown_state for each in self.api.device_list(
                context.admin())})


class ReleaseTest(base.ComputeTestCase):

    def test_release_and_clean(self):
        self.boot(2)
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual((), self.tracker.assignments.held('i1'))

    def test_conductor_away_then_delivered_also_after_a_restart(self):
        for restart in (False, True):
            self.boot(2)
            self.conductor.stop()
            self.tracker.release_instance('i1')
            if restart:
                self.tracker = self.make_tracker()
            self.assertEqual(2, len(self.tracker.assignments.pending()))
            self.conductor.start()
            self.tracker.run_once()
            self.assertEqual({'available': 8}, self.states())
            self.assertEqual([], self.tracker.assignments.pending())

    def test_conductor_with_trouble_of_its_own(self):
        self.boot(2)
        release = self.api.release
        self.api.release = self._database_is_away
        # Nova's delete goes on.
        self.tracker.release_instance('i1')
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.tracker.run_once()
        self.api.release = release
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def _database_is_away(self, *args):
        raise oslo_messaging.RemoteError('DBConnectionError', 'away')

    def test_late_delivery_does_not_touch_the_next_owner(self):
        old = self.boot(8)
        self.tracker.release(old)
        self.tracker.run_once()
        self.boot(8, 'i2')
        self.tracker.assignments.postpone(old)
        self.tracker.run_once()
        self.assertEqual({'assigned': 8}, self.states())


class DepartingTest(base.ComputeTestCase):
    """Nova takes an allocation back while the devices are cleaned."""

    def setUp(self):
        super().setUp()
        # Placement is to show three devices less, at once or later.
        for device in self.api.device_list(
                context.admin(), variant='H100')[5:]:
            self.api.device_set(context.admin(), device.uuid, enabled=False)
        self.boot(2)
        self.client.allocations['m1'] = {self.provider: {}}
        self.tracker.refresh()
        self.tracker.release_instance('i1', allocation_removal='m1')

    def test_placement_is_left_alone_until_the_allocation_is_gone(self):
        for _ in range(3):
            self.assertIsNotNone(self.tracker.run_once())
            # Nova's own cycle writes what we put into the tree.
            self.update_tree()
            self.assertEqual((8, 0), self.placement())
        self.assertEqual({'available': 5, 'disabled': 3}, self.states())
        del self.client.allocations['m1']
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 3), self.placement())

    def test_allocations_elsewhere_do_not_matter(self):
        self.client.allocations['m1'] = {'another host': {}}
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 3), self.placement())

    def test_one_that_stays_is_waited_for_in_vain_only_so_long(self):
        self.tracker.run_once()
        self.seconds += allocation_removal.PATIENCE
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 3), self.placement())

    def test_placement_that_does_not_say_is_asked_again(self):
        self.client.error = nova_exception.ConsumerAllocationRetrievalFailed(
            consumer_uuid='m1', error='')
        self.assertIsNotNone(self.tracker.run_once())
        self.client.error = None
        del self.client.allocations['m1']
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 3), self.placement())


class AllocationsTest(base.ComputeTestCase):
    """Nova took an allocation back, and what it was for is held."""

    def compare(self):
        self.tracker.request_reconcile()
        self.tracker.run_once()

    def test_what_is_held_without_an_allocation_is_reserved(self):
        self.boot(2, 'i1')
        self.boot(3, 'i2')
        self.compare()
        self.assertEqual((8, 0), self.placement())
        del self.client.allocations['i1']
        self.compare()
        self.assertEqual((8, 2), self.placement())
        # Found again, as after a heal.
        self.client.allocations['i1'] = {
            self.provider: {'CUSTOM_GPU_H100': 2}}
        self.compare()
        self.assertEqual((8, 0), self.placement())

    def test_migration_has_the_allocation_of_the_side_it_leaves(self):
        self.boot(2, 'i1')
        self.client.allocations['m1'] = self.client.allocations.pop('i1')
        self.compare()
        self.assertEqual((8, 0), self.placement())
        # Of it half is left.
        self.client.allocations['m1'][self.provider]['CUSTOM_GPU_H100'] = 1
        self.compare()
        self.assertEqual((8, 1), self.placement())

    def test_compared_when_nova_is_done(self):
        self.boot(2, 'i1')
        self.tracker.allocation_removed('i1')
        self.tracker.run_once()
        self.tracker.accept_inventory(
            self.api.host_inventory(context.admin(), 'h1')
        )
        self.assertEqual((8, 0), self.placement())
        del self.client.allocations['i1']
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 2), self.placement())

    def test_nothing_held_asks_nobody(self):
        self.client.get_allocations_for_resource_provider = (
            lambda *args: self.fail('asked'))
        self.compare()

    def test_provider_that_placement_does_not_have(self):
        self.boot(2, 'i1')
        self.client.tree.remove(self.provider)
        self.compare()
        self.update_tree()
        self.assertEqual((8, 0), self.placement())

    def test_host_that_never_reported(self):
        self.assertRaises(
            exception.NotFound, self.api.compare_allocations,
            context.admin(), 'h9', {}, [])

    def test_claim_that_was_granted_after_placement_answered(self):
        self.boot(1, 'i1')
        ask = self.client.get_allocations_for_resource_provider

        def late(*args):
            answer = ask(*args)
            self.boot(2, 'i2')
            return answer
        self.client.get_allocations_for_resource_provider = late
        self.compare()
        self.assertEqual((8, 0), self.placement())


class HostStateTest(base.ComputeTestCase):

    def test_garbage_on_disk_is_survived(self):
        path = f'{self.state_path}/x.json'
        with open(path, 'w') as file:
            file.write('{"held": {"i1": ["a"')
        state = assignments.HostAssignments(path)
        self.assertEqual((), state.held('i1'))
        claim = self.api.claim(context.admin(), self.request(2))
        state.hold('i2', claim.assignments)
        self.assertEqual(claim.assignments,
                         assignments.HostAssignments(path).held('i2'))
