# SPDX-License-Identifier: Apache-2.0
"""Iterations of the resource tracker: what they do, and when nothing."""

import dataclasses
import functools
import os
import pathlib
import threading
import time
import types
import uuid
from unittest import mock

import fixtures
import oslo_messaging
from nova import exception as nova_exception
from nova.compute import provider_tree
from oslotest import base as test_base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import disk
from tests.fixtures import patience
from tests.fixtures import tenant
from tests.fixtures import virt_driver
from tests.unit.compute import base
from tests.unit.compute import make


class RunOnceTest(base.ComputeTestCase):

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

    def test_dirty_device_that_was_away_is_cleaned(self):
        self.boot(1)
        [device] = [device for device in self.api.device_list(
            context.admin()) if device.used_by]
        backend = self.tracker.backend
        backend.changed = lambda: True
        scan = backend.scan

        def without():
            found = scan()
            return dataclasses.replace(found, functions=tuple(
                function for function in found.functions
                if function.address != device.address))
        backend.scan = without
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.assertEqual({'available': 7, 'missing': 1}, self.states())
        backend.scan = scan
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

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
        self.api.hold_add(context.admin(), device.uuid, 'disabled')
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
        self.api.host_delete(context.admin(), 'h1', force=True)
        self.tracker.refresh()
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual((8, 0), self.placement())

    def test_host_that_reported_anew_goes_on_to_update_placement(self):
        for number in (1, 2):
            self.api.host_delete(context.admin(), 'h1', force=True)
            self.tracker.refresh()
            self.tracker.run_once()
            device = self.api.device_list(context.admin(), variant='H100')[0]
            for call, kind, reserved in (
                    (self.api.hold_add, 'disabled', 1),
                    (self.api.hold_remove, ['disabled'], 0)):
                with self.subTest(deletion=number, kind=kind):
                    call(context.admin(), device.uuid, kind)
                    self.tracker.refresh()
                    self.tracker.run_once()
                    self.assertEqual((8, reserved), self.placement())

    def test_conflict_in_placement_is_tried_again(self):
        uuids = self.boot(2)
        self.client.conflicts = 2
        self.tracker.release(uuids)
        self.tracker.inventory.push()
        self.assertEqual((8, 2), self.placement())

    def test_placement_error_is_tried_again_by_the_next_iteration(self):
        self.boot(2)
        self.client.error = nova_exception.ResourceProviderUpdateFailed(
            url='', error='')
        self.tracker.release_instance('i1')
        self.tracker.inventory.push()
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
        self.boot(2)
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.assertEqual({'available': 6, 'quarantined': 2}, self.states())
        self.assertEqual((8, 2), self.placement())


class LongCleaningTest(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.in_reset = threading.Event()
        self.go = threading.Event()
        self.addCleanup(self.go.set)
        vfio = self.tracker.backend.kernel.vfio
        hot_reset = vfio.hot_reset

        def reset(*args):
            self.in_reset.set()
            self.assertTrue(self.go.wait(60))
            hot_reset(*args)
        vfio.hot_reset = reset
        self.tracker._cleanings._moment = 0

    def run_until(self, states):
        deadline = time.monotonic() + 60
        while self.states() != states:
            self.assertLess(time.monotonic(), deadline, self.states())
            self.tracker.run_once()

    def test_host_reports_and_releases_meanwhile(self):
        self.boot(2)
        self.boot(1, 'i2')
        self.tracker.release_instance('i1')
        self.assertEqual(5.0, self.tracker.run_once())
        self.assertTrue(self.in_reset.wait(60))
        self.tracker._schedule.require(tasks.Task.REPORT)
        self.tracker.release_instance('i2')
        self.assertEqual(5.0, self.tracker.run_once())
        self.run_until({'available': 5, 'cleaning': 3})
        self.assertEqual((8, 3), self.placement())
        self.go.set()
        self.run_until({'available': 8})
        # The last cleaning has a verdict, and perhaps no answer yet.
        self.assertTrue(patience.wait_until(lambda: (
            self.tracker.run_once(), self.placement())[1] == (8, 0)))
        self.assertTrue(patience.wait_until(
            lambda: self.tracker.run_once() is None))

    def test_restarted_host_begins_anew(self):
        self.boot(1)
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.assertTrue(self.in_reset.wait(60))
        late = self.tracker
        self.tracker = self.make_tracker()
        self.tracker.backend = late.backend
        self.go.set()
        self.run_until({'available': 8})
        # The verdict on the first attempt was refused.
        self.assertEqual({'available': 8}, self.states())


class OrphanTest(base.ComputeTestCase):

    def claim(self, instance='i1'):
        return self.tracker.session.call(
            self.api.claim, self.request(2, instance)).assignments

    def test_claim_of_a_dead_process_ends_at_start(self):
        self.claim()
        self.make_tracker().run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_claim_of_a_running_build_stays(self):
        self.tracker.request_reconcile()
        with self.tracker.builds.running('i1'):
            self.claim()
            self.tracker.run_once()
            self.assertEqual(
                {'provisioning': 2, 'available': 6}, self.states())

    def test_build_that_a_comparison_left_out_is_compared_afterwards(self):
        self.boot(2)
        self.gone.add('i1')
        with self.tracker.builds.running('i1'):
            self.tracker.request_reconcile()
            self.tracker.run_once()
            self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_build_without_a_comparison_makes_none_due(self):
        self.boot(2)
        with self.tracker.builds.running('i1'):
            self.tracker.run_once()
        self.gone.add('i1')
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

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
            assignment.uuid for assignment
            in tracker.assignments.of_instance('i1')])

    def test_compared_again_after_a_lease(self):
        self.boot(2)
        self.gone.add('i1')
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.seconds += conf_gpgpu.claim_lease(self.conf)
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_where_nothing_is_assigned_nothing_is_compared(self):
        self.seconds += conf_gpgpu.claim_lease(self.conf)
        self.tracker.run_once()
        self.api.host_assignments = lambda *args: self.fail('called')
        self.seconds += conf_gpgpu.claim_lease(self.conf)
        self.tracker.run_once()

    def test_assignment_whose_user_is_unknown_is_asked_about_again(self):
        self.boot(2)
        self.gone.add('i1')
        tracker = self.make_tracker()
        find, tracker.find_orphans = tracker.find_orphans, self._away
        tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        tracker.find_orphans = find
        tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def _away(self, assignment):
        raise RuntimeError('Nova does not answer')

    def test_claim_for_a_migration_that_never_comes_ends(self):
        # The conductor told this host of a claim by another one.
        self.claim()
        self.tracker.refresh()
        self.tracker.run_once()
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.seconds += conf_gpgpu.claim_lease(self.conf)
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_claim_that_is_granted_after_the_comparison_ends(self):
        self.tracker.request_reconcile()
        self.tracker.run_once()
        # The call that timed out was under way all the time.
        self.claim()
        self.tracker.run_once()
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.seconds += conf_gpgpu.claim_lease(self.conf)
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())


class GuestOfDeadProcessTest(base.ComputeTestCase):
    """nova-compute was killed between a guest and its activation."""

    def setUp(self):
        super().setUp()
        self.claim()
        # Its guest runs.
        self.useFixture(fixtures.MockPatchObject(
            self, 'is_orphaned', return_value=False))
        self.runs = mock.Mock(return_value=True)
        self.tracker = self.make_tracker()
        self.tracker.runs = self.runs

    def claim(self, **changes):
        return self.tracker.session.call(self.api.claim, dataclasses.replace(
            self.request(2), **changes)).assignments

    def compare(self):
        self.tracker.request_reconcile()
        self.tracker.run_once()
        return self.states()

    def test_claim_is_activated_at_start(self):
        self.assertEqual({'assigned': 2, 'available': 6}, self.compare())
        self.assertEqual(
            [('assigned', None)] * 2,
            [(assignment.state, assignment.lease_expires_at) for assignment
             in self.tracker.assignments.of_instance('i1')])
        self.runs.assert_called_once_with('i1')
        # Nobody is asked about a claim that is active.
        self.compare()
        self.runs.assert_called_once_with('i1')

    def test_claim_without_a_running_guest_is_not_activated(self):
        self.runs.return_value = False
        self.assertEqual({'provisioning': 2, 'available': 6}, self.compare())

    def test_claim_of_an_instance_elsewhere_is_not_activated(self):
        self.tracker.is_here = lambda instance_uuid: False
        self.assertEqual({'provisioning': 2, 'available': 6}, self.compare())

    def test_claim_of_a_build_under_way_is_not_activated(self):
        with self.tracker.builds.running('i1'):
            self.assertEqual(
                {'provisioning': 2, 'available': 6}, self.compare())
        self.assertFalse(self.runs.called)

    def test_usage_begins_of_a_guest_whose_migration_is_over(self):
        self.compare()
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.claim(
            role=claim_obj.ClaimRole.DESTINATION, migration_uuid='m1')
        for arrived, role in ((None, 'destination'), ('m2', 'destination'),
                              ('m1', 'instance')):
            self.tracker.arrived_with = lambda uuid, arrived=arrived: arrived
            self.compare()
            self.assertEqual({role}, {
                str(assignment.role) for assignment
                in self.tracker.assignments.of_instance('i1')})
        self.assertEqual({'assigned': 2}, {
            state: count for state, count in self.states().items()
            if state == 'assigned'})

    def test_guest_of_two_claims_is_not_confirmed(self):
        self.compare()
        self.claim(
            role=claim_obj.ClaimRole.DESTINATION, migration_uuid='m1')
        self.tracker.arrived_with = lambda instance_uuid: 'm1'
        self.compare()
        self.assertEqual(4, len(
            self.tracker.assignments.of_instance('i1')))

    def test_claim_of_a_migration_under_way_is_not_activated(self):
        # The guest that runs has the other devices, as in a resize here.
        self.compare()
        self.claim(
            role=claim_obj.ClaimRole.DESTINATION, migration_uuid='m1')
        self.assertEqual(
            {'assigned': 2, 'provisioning': 2, 'available': 4},
            self.compare())

    def test_activation_that_fails_is_repeated(self):
        with fixtures.MockPatchObject(
                self.api, 'activate',
                side_effect=oslo_messaging.RemoteError()):
            self.assertEqual(
                {'provisioning': 2, 'available': 6}, self.compare())
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())


class RestoreTest(base.ComputeTestCase):

    def test_devices_of_instances_are_ready_after_a_reboot(self):
        self.boot(2, 'i1')
        binder = self.tracker.backend.binder
        for function in self.tracker.backend.scan().functions:
            if function.driver == 'vfio-pci':
                binder.unbind(function)
        self.assertEqual({None}, self.drivers())
        for _ in range(2):
            self.make_tracker().restore()
            self.assertEqual({None, 'vfio-pci'}, self.drivers())

    def baselines(self):
        """Return the files of the baselines."""
        return list(pathlib.Path(self.state_path).glob('**/cards/*'))

    def test_baseline_that_was_lost_before_a_restart_is_lost(self):
        self.boot(1, 'i1')
        for path in self.baselines():
            path.unlink()
        self.tracker.restore()
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.assertEqual({'quarantined': 1, 'available': 7}, self.states())
        [device] = self.api.device_list(
            context.admin(), variant='H100', state='quarantined')
        self.assertIn('it is lost', device.reason)

    def test_claim_whose_guest_has_not_begun_gets_its_baseline(self):
        claim = self.tracker.session.call(self.api.claim, self.request(1))
        self.tracker.assignments.add('i1', claim.assignments)
        self.tracker.restore()
        [path] = self.baselines()
        self.assertIn('"lost": false', path.read_text())

    def test_one_that_is_broken_does_not_stop_the_others(self):
        self.boot(2, 'i1')
        assigned = self.tracker.assignments.of_instance('i1')
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{assigned[0].address}/remove', '1')
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
        claim = self.tracker.session.call(
            self.api.claim, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=str(uuid.uuid4()), host='h1',
            role=claim_obj.ClaimRole.DESTINATION, migration_uuid='migration',
            request=request.Request(demands=(request.Demand(
                resource_class='CUSTOM_VGPU_T4_T4_8Q', count=1),))))
        # Its guest is still on the source.
        self.useFixture(fixtures.MockPatchObject(
            self, 'is_orphaned', return_value=False))
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.tracker.restore()
        self.assertEqual([claim.assignments[0].uuid], self.mdevs())
        # The source knows nothing of a restart.
        self.tracker.run_once()
        self.tracker.release_instance(
            claim.assignments[0].instance_uuid, host='h1')
        self.tracker.run_once()
        self.assertEqual([], self.mdevs())
        self.assertEqual({'available'}, {
            device.shown_state for device in self.api.device_list(
                context.admin())})


class EndedByOperatorTest(base.ComputeTestCase):

    def end(self):
        """End what an instance has while the host does not look."""
        self.boot(2)
        self.tracker.backend.prepare(host_base.HostDevice.of(
            self.tracker.assignments.all()[0]))
        self.api.assignment_end(
            context.admin(), [assignment.uuid for assignment
                              in self.tracker.assignments.all()],
            force=True, actor='root@ctl1')
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())

    def assert_ended(self):
        self.assertEqual([], self.tracker.assignments.all())
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual({None}, self.drivers())

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.USAGE_TIMEOUT', 0.2))

    def test_notified_host_drops_ended_assignments_and_cleans(self):
        self.end()
        self.tracker.assignments_changed()
        self.tracker.run_once()
        self.assert_ended()

    def test_returning_host_drops_ended_assignments_and_cleans(self):
        self.end()
        self.tracker = self.make_tracker()
        self.assertEqual(2, len(self.tracker.assignments.all()))
        self.tracker.run_once()
        self.assert_ended()


class ReleaseTest(base.ComputeTestCase):

    def test_release_and_clean(self):
        self.boot(2)
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))

    def test_release_without_a_conductor_is_sent_also_after_restart(self):
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

    def test_release_that_is_sent_late_leaves_the_next_owner_alone(self):
        old = self.boot(8)
        self.tracker.release_instance('i1')
        self.tracker.run_once()
        self.boot(8, 'i2')
        self.tracker.assignments.add_pending(old)
        self.tracker.run_once()
        self.assertEqual({'assigned': 8}, self.states())


class FullDiskTest(base.ComputeTestCase):
    """The state folder of a host cannot be written."""

    def test_release_goes_to_the_conductor(self):
        self.boot(2)
        with disk.full_disk():
            self.tracker.release_instance('i1')
            self.tracker.run_once()
            self.assertEqual({'available': 8}, self.states())
            self.assertEqual([], self.tracker.assignments.all())

    def test_restart_finds_what_was_released(self):
        self.boot(2)
        with disk.full_disk():
            self.tracker.release_instance('i1')
            self.tracker.run_once()
            self.tracker = self.make_tracker()
            # The file is as it was before.
            self.assertEqual(2, len(self.tracker.assignments.all()))
            self.tracker.run_once()
            self.assertTrue(self.tracker.session.is_active)
            self.assertEqual([], self.tracker.assignments.all())
            self.assertEqual({'available': 8}, self.states())
        self.tracker.run_once()
        self.tracker = self.make_tracker()
        self.assertEqual([], self.tracker.assignments.all())
        self.assertEqual(2, self.tracker.assignments.session())

    def test_release_without_a_conductor_can_be_repeated(self):
        self.boot(2)
        self.conductor.stop()
        with disk.full_disk():
            self.assertRaises(exception.HostError,
                              self.tracker.release_instance, 'i1')
            self.conductor.start()
            self.tracker.release_instance('i1')
            self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_release_that_was_done_without_an_answer_is_compared(self):
        self.boot(2)
        release = self.api.release

        def lost(*args):
            release(*args)
            raise exception.ConductorUnavailable(method='x', timeout=1)
        with disk.full_disk():
            with fixtures.MockPatchObject(self.api, 'release', lost):
                self.assertRaises(exception.HostError,
                                  self.tracker.release_instance, 'i1')
            self.tracker.run_once()
        self.assertEqual([], self.tracker.assignments.all())
        self.assertEqual({'available': 8}, self.states())


class ConfirmationTest(base.ComputeTestCase):
    """Nova confirms a resize on one host."""

    def setUp(self):
        super().setUp()
        self.source = self.boot(2)
        granted = self.tracker.session.call(
            self.api.claim, dataclasses.replace(
                self.request(3), role=claim_obj.ClaimRole.DESTINATION,
                migration_uuid='m1'))
        self.destination = [
            assignment.uuid for assignment in granted.assignments]
        self.tracker.assignments.add('i1', granted.assignments)
        self.tracker.session.call(
            self.api.activate, self.destination)
        self.confirmation = claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=tuple(self.source))

    def assert_confirmed(self, assignments):
        self.assertEqual(
            {(uuid, 'instance', None) for uuid in self.destination},
            {(assignment.uuid, assignment.role, assignment.migration_uuid)
             for assignment in assignments})

    def assert_sent(self):
        self.assertEqual([], self.tracker.assignments.confirmations())
        self.assert_confirmed(
            self.api.instance_assignments(context.admin(), 'i1'))
        self.assertEqual({'assigned': 3, 'available': 5}, self.states())

    def test_destination_becomes_the_instances(self):
        self.tracker.confirm_migration(self.confirmation)
        self.tracker.run_once()
        self.assert_confirmed(self.tracker.assignments.of_instance('i1'))
        self.assert_sent()

    def test_confirmation_without_a_conductor_is_sent_after_restart(self):
        self.conductor.stop()
        self.tracker.confirm_migration(self.confirmation)
        # Guests are started anew meanwhile.
        self.assert_confirmed(self.tracker.assignments.of_instance('i1'))
        self.tracker = self.make_tracker()
        self.assert_confirmed(self.tracker.assignments.of_instance('i1'))
        self.conductor.start()
        self.tracker.run_once()
        self.assert_sent()

    def test_changed_assignments_are_fetched(self):
        self.tracker.session.call(
            self.api.confirm_migration, self.confirmation)
        self.tracker.assignments_changed()
        self.tracker.run_once()
        self.assert_confirmed(self.tracker.assignments.of_instance('i1'))


class DueTasksTest(base.ComputeTestCase):
    """What fails stays due, and what happens meanwhile is not lost."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.resource_tracker'))
        self.calls = []

    def watch(self, name, effect=None):
        """Record calls of a method of the conductor."""
        real = getattr(self.api, name)

        def call(*args):
            self.calls.append(name)
            if effect is not None:
                effect()
            return real(*args)
        self.useFixture(fixtures.MockPatchObject(self.api, name, call))

    def run_once(self):
        """Names of the conductor's methods that an iteration calls."""
        self.calls.clear()
        self.tracker.run_once()
        return self.calls

    def failing_once(self, exc):
        errors = [exc]

        def fail():
            if errors:
                raise errors.pop()
        return fail

    def test_conductor_that_is_away_ends_the_iteration(self):
        self.watch('host_inventory', self.failing_once(
            exception.ConductorUnavailable(method='x', timeout=1)))
        self.watch('clean_tasks')
        self.tracker.refresh()
        self.assertEqual(['host_inventory'], self.run_once())
        self.assertEqual(['host_inventory', 'clean_tasks'], self.run_once())
        self.assertEqual([], self.run_once())

    def test_host_that_is_not_ready_does_not_stop_the_other_tasks(self):
        scan = self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'scan',
            side_effect=exception.HostNotReady(path='/sys', reason='away')))
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'changed', return_value=True))
        self.watch('host_inventory')
        self.watch('clean_tasks')
        self.tracker.refresh()
        self.assertEqual(['host_inventory', 'clean_tasks'], self.run_once())
        self.assertEqual(1, scan.mock.call_count)
        self.assertIn('Host h1 is not set up, and task report waits for it: '
                      '/sys: away', self.log.output)

    def test_task_that_fails_is_tried_once_an_iteration(self):
        self.watch('host_assignments', self.failing_once(RuntimeError('x')))
        self.watch('clean_tasks')
        self.tracker.request_reconcile()
        self.tracker.refresh()
        self.assertEqual(['host_assignments', 'clean_tasks'], self.run_once())
        self.assertIn('Task reconcile of h1 failed', self.log.output)
        self.assertEqual(['host_assignments'], self.run_once())
        self.assertEqual([], self.run_once())

    def test_change_while_a_task_runs_is_not_lost(self):
        again = [self.tracker.refresh]
        self.watch('host_inventory', lambda: again and again.pop()())
        self.tracker.refresh()
        self.assertEqual(['host_inventory'], self.run_once())
        self.assertEqual(['host_inventory'], self.run_once())
        self.assertEqual([], self.run_once())

    def test_reconcile_requested_while_it_runs_is_not_lost(self):
        again = [self.tracker.request_reconcile]
        self.watch('host_assignments', lambda: again and again.pop()())
        self.tracker.request_reconcile()
        self.assertEqual(['host_assignments'], self.run_once())
        self.assertEqual(['host_assignments'], self.run_once())
        self.assertEqual([], self.run_once())

    def test_device_at_another_address_is_compared_in_the_same_iteration(self):
        self.boot(1)
        [assigned] = self.tracker.assignments.all()
        self.tracker.assignments.add('i1', [dataclasses.replace(
            assigned, address='0000:ff:00.0')])
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'changed', return_value=True))
        self.watch('report')
        self.watch('host_assignments')
        self.assertEqual(['report', 'host_assignments'], self.run_once())
        self.assertEqual([assigned.address], [
            assignment.address
            for assignment in self.tracker.assignments.all()])

    def test_no_node_no_report(self):
        self.watch('report')
        tracker = self.make_tracker()
        tracker._node = None
        tracker.run_once()
        self.assertEqual([], self.calls)
        tracker.set_node('h1', base.NODE)
        tracker.run_once()
        self.assertEqual(['report'], self.calls)


class DecisionTest(test_base.BaseTestCase):
    """What happened decides which tasks are due; the tasks are mocks."""

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.seconds = 0.0
        self.backend = mock.create_autospec(host_base.ComputeHost,
                                            instance=True)
        self.backend.changed.return_value = False
        self.api = mock.Mock()
        self.tracker = resource_tracker.ResourceTracker(
            types.SimpleNamespace(
                gpgpu=types.SimpleNamespace(digest_interval=300),
                gpgpu_compute=types.SimpleNamespace(
                    state_path=folder, max_cleanings=4)),
            'h1', self.backend, self.api,
            virt_driver.make(base.FakeReportClient()),
            lambda assignment: False, clock=lambda: self.seconds)
        self.tracker.set_node('h1', base.NODE)
        self.ran = []
        self.tracker._run = {
            task: functools.partial(self.ran.append, str(task))
            for task in self.tracker._run}
        self.tracker.session = mock.Mock(is_active=True, is_reported=True)
        self.tracker.session.call.side_effect = (
            lambda method, *args, **kwargs: method(*args, **kwargs))

    def run_once(self):
        """Names of the tasks that an iteration runs."""
        self.ran.clear()
        self.pause = self.tracker.run_once()
        return self.ran

    def test_question_about_builds_makes_no_comparison_due(self):
        self.tracker.assignments.add('i1', [make.assignment()])
        with self.tracker.builds.running('i1'):
            self.assertEqual({'i1'}, self.tracker.builds.current())
        self.assertFalse(self.tracker._schedule.is_due(tasks.Task.RECONCILE))

    def test_quiet_host_runs_nothing(self):
        self.seconds = 1000
        self.assertEqual([], self.run_once())

    def test_event_makes_its_tasks_due(self):
        schedule = self.tracker._schedule
        for event, due, later in (
                (self.tracker.refresh, ['fetch', 'clean'], False),
                (self.tracker.request_reconcile, ['reconcile'], True),
                (self.tracker.assignments_changed,
                 ['reconcile', 'fetch', 'clean'], True)):
            event()
            self.assertEqual(due, self.run_once())
            # It may have been too early.
            self.assertIs(
                later, schedule.is_due(tasks.Task.RECONCILE_LATER))
            schedule.take(tasks.Task.RECONCILE_LATER)
            self.assertEqual([], self.run_once())

    def test_session_comes_before_everything_else(self):
        self.tracker.session.is_active = False
        self.tracker.request_reconcile()
        self.tracker.assignments.add_pending(['a1'])
        self.assertEqual(['begin'], self.run_once())

    def test_report_comes_before_what_needs_it(self):
        self.tracker.session.is_reported = False
        self.tracker.assignments_changed()
        self.tracker.assignments.add_pending(['a1'])
        self.tracker._schedule.require(tasks.Task.REPORT)
        self.assertEqual(['release', 'report'], self.run_once())
        self.tracker.session.is_reported = True
        self.assertEqual(
            ['release', 'reconcile', 'fetch', 'clean'], self.run_once())

    def test_change_of_the_host_is_reported(self):
        self.backend.changed.return_value = True
        self.assertEqual(['report'], self.run_once())

    def test_removal_of_an_allocation_is_awaited_soon(self):
        self.tracker.request_reconcile('i1')
        self.assertEqual(['await_allocation_removal'], self.run_once())
        self.assertIsNotNone(self.pause)
        self.seconds += 60
        self.assertEqual(['reconcile'], self.run_once())
        self.assertIsNone(self.pause)

    def test_confirmation_freezes_placement_where_devices_are_released(self):
        for source, frozen in (((), False), (('a1',), True)):
            self.tracker.confirm_migration(claim_obj.MigrationConfirmation(
                instance_uuid='i1', migration_uuid='m1',
                source_assignments=source))
            self.assertIs(frozen, bool(self.tracker.allocation_removal))

    def test_selected_assignments_alone_are_released(self):
        self.tracker.assignments.add('i1', [
            make.assignment(uuid=uuid) for uuid in ('a1', 'a2')])
        self.api.release.side_effect = exception.ConductorUnavailable(
            method='release', timeout=1)
        self.tracker.release_instance(
            'i1', lambda assignment: assignment.uuid == 'a2')
        self.assertEqual(['a2'], self.tracker.assignments.pending())
        self.assertEqual(
            {'a1'}, make.uuids(self.tracker.assignments.of_instance('i1')))

    def test_release_of_nothing_makes_no_call_and_freezes_nothing(self):
        self.tracker.release_instance('i1', allocation_removal='i1')
        self.assertEqual([], self.api.mock_calls)
        self.assertFalse(self.tracker.allocation_removal)

    def test_devices_of_nova_and_cyborg_have_owners(self):
        self.tracker._managed_by_cyborg = {'0000:01:00.0': 'Cyborg'}
        self.tracker._owners = types.SimpleNamespace(
            owners=lambda scan: {'0000:02:00.0': 'Nova'})
        self.assertEqual(
            {'0000:01:00.0': 'Cyborg', '0000:02:00.0': 'Nova'},
            self.tracker._managed_elsewhere(None))

    def test_open_device_is_looked_at_again_until_it_is_closed(self):
        reported = [tasks.Reported(inventory=None, moved=False, in_use=in_use)
                    for in_use in (True, True, False)]
        self.useFixture(fixtures.MockPatchObject(
            tasks, 'report', side_effect=reported))
        self.tracker._schedule.require(tasks.Task.REPORT)
        self.tracker._node = tasks.NodeUUIDs(name='h1', uuid=base.NODE)
        for _ in reported:
            self.assertTrue(self.tracker._schedule.is_due(tasks.Task.REPORT))
            self.tracker._schedule.take(tasks.Task.REPORT)
            self.tracker._report()
        self.assertFalse(self.tracker._schedule.is_due(tasks.Task.REPORT))

    def is_woken_by(self, tree=None):
        """Return whether an update of Nova's tree wakes the worker."""
        if tree is None:
            tree = provider_tree.ProviderTree()
            tree.new_root('h1', base.NODE)
        self.tracker.wake = mock.Mock()
        self.tracker.update_provider_tree(tree, 'h1')
        return self.tracker.wake.called

    def test_new_device_of_cyborg_is_reported_before_the_tree_changes(self):
        tree = provider_tree.ProviderTree()
        tree.new_root('h1', base.NODE)
        tree.new_child('h1_0000:3b:00.0', 'h1', uuid='c1')
        tree.update_traits('c1', ['OWNER_CYBORG'])
        apply = self.useFixture(fixtures.MockPatchObject(
            self.tracker.inventory, 'apply')).mock
        self.assertTrue(self.is_woken_by(tree))
        self.assertFalse(apply.called)
        self.assertEqual(['report'], self.run_once())
        self.assertFalse(self.is_woken_by(tree))
        apply.assert_called_once_with(tree, 'h1')

    def test_service_that_nova_disables_is_reported(self):
        tree = provider_tree.ProviderTree()
        tree.new_root('h1', base.NODE)
        self.assertFalse(self.is_woken_by(tree))
        for traits in (['COMPUTE_STATUS_DISABLED'], []):
            tree.update_traits('h1', traits)
            self.assertTrue(self.is_woken_by(tree))
            self.assertEqual(['report'], self.run_once())
            self.assertFalse(self.is_woken_by(tree))

    def nova_expects(self, **kwargs):
        """Have Nova's resource tracker expect no instance on the host."""
        self.tracker.driver.virtapi._compute.rt = types.SimpleNamespace(**{
            'tracked_instances': set(), 'tracked_migrations': {}, **kwargs})

    def test_assignment_that_nova_does_not_expect_makes_a_comparison_due(
            self):
        log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin.compute'))
        self.tracker.assignments.add('i1', [make.assignment()])
        self.nova_expects()
        compared = []
        for self.seconds in (0, 60, 120):
            woken = self.is_woken_by()
            compared.append((woken, list(self.run_once())))
        self.assertEqual([(False, []), (True, ['reconcile']), (False, [])],
                         compared)
        self.assertIn('i1, which Nova does not expect', log.output)

    def test_other_tracker_of_nova_leaves_the_host_usable(self):
        log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin.compute'))
        self.tracker.assignments.add('i1', [make.assignment()])
        self.tracker.driver.virtapi._compute.rt = types.SimpleNamespace()
        self.assertFalse(self.is_woken_by())
        self.assertIn('Cannot compare the assignments of h1', log.output)

    def test_gpu_that_another_owner_gave_up_makes_a_report_due(self):
        self.tracker._owners = mock.Mock()
        for changed, due in ((False, []), (True, ['report'])):
            self.tracker._owners.changed.return_value = changed
            self.assertIs(changed, self.is_woken_by())
            self.assertEqual(due, self.run_once())

    def test_records_that_cannot_be_read_leave_the_host_usable(self):
        log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin.compute'))
        self.tracker._owners = mock.Mock()
        self.tracker._owners.changed.side_effect = RuntimeError('no database')
        self.assertFalse(self.is_woken_by())
        self.assertIn('these GPUs stay unmanaged', log.output)
        self.assertEqual([], self.run_once())

    def test_cleaning_that_ends_later_wakes_the_worker(self):
        self.tracker._schedule.take(tasks.Task.CLEAN)
        woken = []
        self.tracker.wake = lambda: woken.append(
            self.tracker._schedule.is_due(tasks.Task.CLEAN))
        self.tracker._cleanings._notify()
        self.assertEqual([True], woken)

    def test_device_that_another_cleaning_has_is_looked_at_again(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.compute.tasks.clean', return_value=[None]))
        self.tracker._schedule.take(tasks.Task.CLEAN)
        self.tracker._clean()
        self.assertTrue(self.tracker._schedule.is_due(tasks.Task.CLEAN))

    def test_gpu_without_vfs_is_reported_once_something_changed(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.compute.tasks.clean', return_value=['d1']))
        self.tracker.inventory = mock.Mock()
        for lacks in (False, True):
            self.useFixture(fixtures.MockPatchObject(
                self.tracker.backend, 'lacks_vfs', return_value=lacks))
            for work in (self.tracker._clean, self.tracker._fetch):
                self.tracker._schedule.take(tasks.Task.REPORT)
                work()
                self.assertIs(
                    lacks, self.tracker._schedule.is_due(tasks.Task.REPORT))

    def test_cleaned_device_is_pushed_before_the_next_one(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.compute.tasks.clean', return_value=['d1', 'd2']))
        calls = self.tracker.inventory = mock.Mock()
        self.tracker._clean()
        self.assertEqual(
            [mock.call.accept('d1'), mock.call.push(),
             mock.call.accept('d2'), mock.call.push()], calls.mock_calls)


class ForHostTest(test_base.BaseTestCase):
    """Tests of the entry point."""

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.set_override(
            'state_path', self.useFixture(fixtures.TempDir()).path,
            'gpgpu_compute')
        self.api = self.useFixture(fixtures.MockPatchObject(
            conductor_client, 'ConductorAPI')).mock
        self.guests = object()
        self.domain = assignment_use.Domain.ACTIVE

    def make(self):
        return resource_tracker.for_host(
            self.conf, 'h1', virt_driver.make(
                'client', guests=lambda: self.guests,
                domain_of=lambda uuid: self.domain))

    def test_calls_are_those_of_the_host(self):
        self.make()
        [call] = self.api.call_args_list
        self.assertEqual(
            {'caller': context.CallerKind.HOST, 'name': 'h1'}, call.kwargs)

    def test_host_is_the_driver_s_and_boots_its_guests(self):
        host = self.useFixture(fixtures.MockPatchObject(
            fake_host.FakeHost, 'for_host')).mock
        self.assertIs(host.return_value, self.make().backend)
        host.assert_called_once_with(self.conf, 'h1', self.guests)

    def test_second_process_with_the_book_is_refused_before_all_else(self):
        lock = self.useFixture(fixtures.MockPatchObject(
            assignment_file, 'acquire_lock',
            side_effect=exception.ConfigInvalid(
                option='[gpgpu_compute] state_path',
                reason='it is in use'))).mock
        self.assertRaises(exception.ConfigInvalid, self.make)
        self.assertFalse(self.api.called)
        lock.assert_called_once_with(
            os.path.join(self.conf.gpgpu_compute.state_path, 'h1.json'))

    def test_nova_and_the_hypervisor_say_who_uses_what(self):
        tracker = self.make()
        with fixtures.MockPatchObject(
                leftovers, 'location_of', side_effect=lambda uuid:
                assignment_use.Location(host='h1' if uuid == 'i1' else 'h2')):
            self.assertTrue(tracker.is_here('i1'))
            self.assertFalse(tracker.is_here('i2'))
            self.assertIsNone(tracker.arrived_with('i1'))
        with fixtures.MockPatchObject(
                leftovers, 'record_of',
                return_value=types.SimpleNamespace(deleted=True)):
            for self.domain, used in (
                    (assignment_use.Domain.ACTIVE, True),
                    (assignment_use.Domain.INACTIVE, False),
                    (assignment_use.Domain.ABSENT, False)):
                self.assertIs(used, tracker.runs('i1'))
                for operation in (None, assignment_use.Operation(
                        assignment_use.OperationKind.BUILD)):
                    self.assertEqual(
                        set() if used else {'a1'}, tracker.find_orphans(
                            [make.assignment()], operation=operation))


class StartTest(base.ComputeTestCase):

    def test_start_reports_what_other_owners_have(self):
        owners = mock.Mock()
        owners.owners.return_value = {
            device.address: 'Nova' for device in self.api.device_list(
                context.admin(), variant='H100')[:1]}
        tracker = self.make_tracker()
        tracker.start('h1', base.NODE, owners)
        self.addCleanup(tracker.stop)
        self.assertEqual({'available': 7}, self.states())
