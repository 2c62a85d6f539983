# SPDX-License-Identifier: Apache-2.0
"""Tests that Placement is not written while Nova removes an allocation."""

from nova import exception as nova_exception

from gpgpu_plugin import context
from gpgpu_plugin.compute import placement
from tests.unit.compute import base


class AllocationRemovalTest(base.ComputeTestCase):
    """Tests of a removal while the devices are being cleaned."""

    def setUp(self):
        super().setUp()
        # Placement is to show three devices less, at once or later.
        for device in self.api.device_list(
                context.admin(), variant='H100')[5:]:
            self.api.hold_add(context.admin(), device.uuid, 'disabled')
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
        self.seconds += placement.REMOVAL_PATIENCE
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
