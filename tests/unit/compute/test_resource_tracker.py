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

from nova import exception as nova_exception

from gpgpu_plugin import context
from gpgpu_plugin.compute import host_state
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
        self.tracker.tick()
        self.assertEqual(([], []), (self.client.writes, self.client.fetches))

    def test_change_is_reported_and_pushed(self):
        device = self.api.device_list(context.admin(), variant='H100')[0]
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{device.address}/remove', '1')
        self.tracker.tick()
        self.assertEqual((8, 1), self.placement())
        self.assertEqual({'available': 7, 'missing': 1}, self.states())

    def test_refresh(self):
        device = self.api.device_list(context.admin(), variant='H100')[0]
        self.api.device_set(context.admin(), device.uuid, enabled=False)
        self.tracker.tick()
        self.assertEqual((8, 0), self.placement())
        self.tracker.refresh()
        self.tracker.tick()
        self.assertEqual((8, 1), self.placement())

    def test_deleted_variant_offers_nothing(self):
        self.api.variant_delete(context.admin(), 'H100')
        self.tracker.refresh()
        self.tracker.tick()
        self.assertEqual((8, 8), self.placement())
        self.update_tree()
        self.assertEqual((8, 8), self.placement())

    def test_deleted_host_reports_anew(self):
        self.api.host_delete(context.admin(), 'h1')
        self.tracker.refresh()
        self.tracker.tick()
        self.tracker.tick()
        self.assertEqual({'available': 8}, self.states())

    def test_late_answer_does_not_overwrite_a_newer_one(self):
        old = self.api.host_inventory(context.admin(), 'h1')
        self.boot(3)
        self.tracker.learn(self.api.host_inventory(context.admin(), 'h1'))
        newest = self.tracker._inventory
        self.tracker.learn(old)
        self.assertEqual(newest, self.tracker._inventory)

    def test_conflict_in_placement_is_tried_again(self):
        uuids = self.boot(2)
        self.client.conflicts = 2
        self.tracker.end(uuids)
        self.tracker.push()
        self.assertEqual((8, 2), self.placement())

    def test_placement_error_is_tried_again_by_the_next_look(self):
        uuids = self.boot(2)
        self.client.error = nova_exception.ResourceProviderUpdateFailed(
            url='', error='')
        self.tracker.end(uuids)
        self.tracker.push()
        self.assertEqual((8, 0), self.placement())
        self.client.error = None
        self.tracker.tick()
        self.assertEqual((8, 0), self.placement())
        self.assertEqual({'available': 8}, self.states())

    def test_update_provider_tree_never_raises(self):
        self.tracker.update_provider_tree(None, 'h1')

    def test_without_a_conductor_everything_is_reserved(self):
        self.conductor.stop()
        self.tracker = self.make_tracker()
        self.tracker.tick()
        self.update_tree()
        self.assertEqual((8, 8), self.placement())
        self.conductor.start()
        self.tracker.tick()
        self.assertEqual((8, 0), self.placement())

    def test_failed_clean_is_quarantine(self):
        self.tracker.backend.kernel.faults['/reset'] = 5
        self.tracker.end(self.boot(2))
        self.tracker.tick()
        self.assertEqual({'available': 6, 'quarantined': 2}, self.states())
        self.assertEqual((8, 2), self.placement())


class DeadTest(base.ComputeTestCase):

    def claim(self, instance='i1'):
        return self.api.claim(
            context.admin(), self.request(2, instance)).assignments

    def test_claim_of_a_dead_process_ends_at_start(self):
        self.claim()
        self.make_tracker().tick()
        self.assertEqual({'available': 8}, self.states())

    def test_claim_of_a_running_build_stays(self):
        self.tracker.suspect()
        with self.tracker.building('i1'):
            self.claim()
            self.tracker.tick()
            self.assertEqual(
                {'provisioning': 2, 'available': 6}, self.states())

    def test_assignment_of_a_deleted_instance_ends(self):
        self.boot(2, 'i1')
        self.boot(1, 'i2')
        self.gone.add('i1')
        self.make_tracker().tick()
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())

    def test_assignment_of_an_instance_stays_over_a_restart(self):
        uuids = self.boot(2)
        tracker = self.make_tracker()
        tracker.tick()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.assertEqual(sorted(uuids), sorted(tracker.state.held('i1')))


class ReleaseTest(base.ComputeTestCase):

    def test_release_and_clean(self):
        self.boot(2)
        self.tracker.release('i1')
        self.tracker.tick()
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual([], self.tracker.state.held('i1'))

    def test_conductor_away_then_delivered_also_after_a_restart(self):
        for restart in (False, True):
            self.boot(2)
            self.conductor.stop()
            self.tracker.release('i1')
            if restart:
                self.tracker = self.make_tracker()
            self.assertEqual(2, len(self.tracker.state.pending()))
            self.conductor.start()
            self.tracker.tick()
            self.assertEqual({'available': 8}, self.states())
            self.assertEqual([], self.tracker.state.pending())

    def test_late_delivery_does_not_touch_the_next_owner(self):
        old = self.boot(8)
        self.tracker.end(old)
        self.tracker.tick()
        self.boot(8, 'i2')
        self.tracker.state.postpone(old)
        self.tracker.tick()
        self.assertEqual({'assigned': 8}, self.states())


class HostStateTest(base.ComputeTestCase):

    def test_garbage_on_disk_is_survived(self):
        path = f'{self.state_path}/x.json'
        with open(path, 'w') as file:
            file.write('{"held": {"i1": ["a"')
        state = host_state.HostState(path)
        self.assertEqual([], state.held('i1'))
        state.hold('i2', ['b'])
        self.assertEqual(['b'], host_state.HostState(path).held('i2'))
