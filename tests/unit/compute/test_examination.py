# SPDX-License-Identifier: Apache-2.0
"""Tests of what a host finds about itself, and of its repairs."""

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import examination
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import host as host_drifts
from tests.fixtures import virt_driver
from tests.unit.virt import base

_Repair = drift.Repair


class ExaminerTest(base.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.spawn(1)
        [self.assignment] = self.tracker.assignments.all()
        self.domain = assignment_use.Domain.ACTIVE
        self.location = assignment_use.Location(host='h1')
        self.guests = None
        self.useFixture(fixtures.MonkeyPatch(
            f'{leftovers.__name__}.location_of', lambda uuid: self.location))
        self.tracker.driver = virt_driver.make(
            self.client, domain_of=lambda uuid: self.domain,
            domains=lambda: self.guests)
        self.examiner = examination.Examiner(self.tracker)

    def found(self):
        return [(one.name, one.repair) for one in self.examiner.drifts()]

    def repair(self, *repairs):
        self.examiner.repair(repairs, self.tracker.run_once)

    def unbind(self):
        self.tracker.backend.kernel.write(
            'bus/pci/drivers/vfio-pci/unbind', self.assignment.address)

    def test_host_with_a_guest_has_no_drift(self):
        self.assertEqual([], self.found())

    def test_assignment_of_a_deleted_instance_is_released(self):
        self.location, self.domain = None, assignment_use.Domain.ABSENT
        self.assertEqual([('instance_deleted', _Repair.COMPARE)],
                         self.found())
        self.gone.add('i1')
        self.repair(_Repair.COMPARE)
        self.assertEqual([], self.found())
        self.assertEqual([], self.tracker.assignments.all())

    def test_assignment_of_a_running_guest_is_not_released(self):
        self.location = None
        self.assertEqual([('instance_deleted', None)], self.found())

    def test_instance_that_is_being_built_is_left_out(self):
        self.location, self.domain = None, assignment_use.Domain.ABSENT
        with self.tracker.builds.running('i1'):
            self.assertEqual([], self.found())

    def test_guests_of_the_hypervisor_are_compared(self):
        self.guests = (host_drifts.GuestDevices(uuid='i2', name='other',
                                                functions=(
            self.assignment.address,)),)
        # The guest that it is assigned to lacks it.
        self.assertEqual([('guest_device_unassigned', None),
                          ('guest_device_missing', None)], self.found())

    def test_device_that_lost_vfio_is_prepared_unless_its_guest_runs(self):
        self.unbind()
        self.assertEqual([('assigned_device_not_on_vfio', None)],
                         self.found())
        self.repair(_Repair.PREPARE)
        self.assertEqual([('assigned_device_not_on_vfio', None)],
                         self.found())
        self.domain = assignment_use.Domain.INACTIVE
        self.assertEqual([('assigned_device_not_on_vfio', _Repair.PREPARE)],
                         self.found())
        self.repair(_Repair.PREPARE)
        self.assertEqual([], self.found())

    def test_restored_database_is_found_alone_and_gets_a_new_session(self):
        self.unbind()
        before = self.tracker.assignments.session()
        self.tracker.assignments.acknowledge(10 ** 6)
        self.assertEqual([('database_behind_book', _Repair.COMPARE)],
                         self.found())
        # Looking changed nothing.
        self.assertEqual(before, self.tracker.session.origin().session)
        self.repair(_Repair.COMPARE)
        self.assertNotIn('database_behind_book', dict(self.found()))
        self.assertEqual(before + 1, self.tracker.session.origin().session)

    def test_provider_is_read_before_it_is_written(self):
        self.client.fetches.clear()
        self.repair(_Repair.OFFER)
        [group] = self.tracker.offered.groups
        self.assertEqual([group.provider_uuid], self.client.fetches)

    def test_examination_keeps_changes_for_the_next_report(self):
        self.tracker.backend.scan()
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{self.assignment.address}/remove', '1')
        self.assertEqual([('assigned_device_missing', None)], self.found())
        self.assertTrue(self.tracker.backend.changed())

    def test_authority_that_does_not_answer_is_an_error(self):
        self.conductor.stop()
        self.conf.set_override('rpc_timeout', 1, 'gpgpu')
        self.tracker.api._timeout = 1
        self.assertRaises(
            exception.ConductorUnavailable, self.examiner.drifts)
