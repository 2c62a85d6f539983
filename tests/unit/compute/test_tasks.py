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
"""Tasks of an iteration, through the resource tracker that runs them."""

import dataclasses

import oslo_messaging

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.objects import claim as claim_obj
from tests.unit.compute import base


class AllocationsTest(base.ComputeTestCase):
    """Nova removed an allocation, and its devices stay assigned."""

    def compare(self):
        self.tracker.request_reconcile()
        self.tracker.run_once()

    def test_device_without_an_allocation_is_reserved(self):
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
        self.tracker.inventory.accept(
            self.api.host_inventory(context.admin(), 'h1')
        )
        self.assertEqual((8, 0), self.placement())
        del self.client.allocations['i1']
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 2), self.placement())

    def test_host_without_assignments_asks_nobody(self):
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


class ReconcileTest(base.ComputeTestCase):
    """Nova's threads go on while the worker compares."""

    def setUp(self):
        super().setUp()
        self.meanwhile = []

    def is_orphaned(self, assignment):
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().is_orphaned(assignment)

    def compare(self, *meanwhile):
        self.meanwhile = list(meanwhile)
        self.tracker.request_reconcile()
        self.tracker.run_once()
        self.assertEqual([], self.meanwhile)

    def book(self, instance):
        return self.tracker.assignments.uuids_of_instance(instance)

    def _fails(self, *args):
        raise oslo_messaging.RemoteError('DBConnectionError', 'away')

    def test_claim_of_a_build_that_began_meanwhile_stays_in_the_book(self):
        first, built = self.boot(2), []

        def build():
            # It goes on when the comparison ends.
            building.__enter__()
            built.extend(self.boot(2, 'i2'))
        building = self.tracker.building('i2')
        self.compare(build)
        self.assertEqual(set(built), self.book('i2'))
        self.assertEqual(set(first), self.book('i1'))
        building.__exit__(None, None, None)

    def test_release_of_an_instance_meanwhile_stays_out_of_the_book(self):
        self.boot(2)
        self.compare(lambda: self.tracker.release_instance('i1'))
        self.assertEqual(set(), self.book('i1'))
        # Another instance may have the devices by now.
        self.assertEqual({'available': 8}, self.states())

    def test_change_before_a_comparison_does_not_outlast_it(self):
        [first, second] = self.boot(2)
        self.api.release(context.admin(), [first])
        self.compare()
        self.assertEqual({second}, self.book('i1'))

    def test_release_that_the_conductor_failed_stays_out_of_the_book(self):
        uuids = self.boot(2)
        release, self.api.release = self.api.release, self._fails
        self.tracker.release_instance('i1')
        self.compare()
        self.assertEqual(uuids, self.tracker.assignments.pending())
        self.assertEqual(set(), self.book('i1'))
        self.api.release = release

    def test_confirmation_that_the_conductor_failed_stays_in_the_book(self):
        source = self.boot(2)
        granted = self.api.claim(
            context.admin(), dataclasses.replace(
                self.request(3), role=claim_obj.ClaimRole.DESTINATION,
                migration_uuid='m1'))
        destination = {
            assignment.uuid for assignment in granted.assignments}
        self.api.activate(context.admin(), list(destination))
        self.tracker.assignments.add('i1', granted.assignments)
        self.api.confirm_migration = self._fails
        self.tracker.confirm_migration(claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=tuple(source)))
        self.seconds += 100
        self.compare()
        self.assertEqual(
            {(uuid, claim_obj.ClaimRole.INSTANCE, None)
             for uuid in destination},
            {(assignment.uuid, assignment.role, assignment.migration_uuid)
             for assignment in self.tracker.assignments.of_instance('i1')})
