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

from gpgpu_plugin import context
from gpgpu_plugin import exception
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
