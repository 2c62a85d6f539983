# SPDX-License-Identifier: Apache-2.0
"""Tests of drifts of one host."""

import dataclasses

from oslotest import base

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import host
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim
from tests.unit.compute import make

GPU = '/devices/pci0000:01/01.0/00.0'
ADDRESS = '0000:3b:00.0'
VF = f'{GPU}/vf1'
VF_ADDRESS = '0000:3b:00.5'
MDEV = 'a1'
FUNCTION = pci.PCIFunction(
    id=GPU, address=ADDRESS, class_code='030200', driver='vfio-pci',
    companions=('0000:3b:00.1',))
DEVICE = admin.DeviceInfo(
    uuid='d1', host='h1', stable_id=GPU, address=ADDRESS, variant='T4',
    state='assigned', shown_state='assigned', enabled=True, present=True,
    used_by='i1')
ASSIGNED = make.assignment(
    uuid='a1', stable_id=GPU, address=ADDRESS, state='assigned')
USED = host.InstanceUse(
    unused=frozenset(), is_deleted=False, is_active=False,
    may_run_with_unused=False, text='it is here')
SEEN = host.HostSnapshot(
    host='h1', listed=(ASSIGNED,), devices=(DEVICE,),
    book=host.BookRecords(assigned=(ASSIGNED,)), instances={'i1': USED},
    hardware=host.Hardware(functions=(FUNCTION,)),
    guests=(host.GuestDevices(uuid='i1', name='instance-1', functions=(
        ADDRESS, '0000:3b:00.1')),))


def vgpus(mechanism, *existing):
    return vgpu.VGPUCapability(
        mechanism=vgpu.VGPUMechanism(mechanism),
        existing_vgpus=existing)


def use(**changes):
    return {'i1': dataclasses.replace(USED, **changes)}


class HostCase(base.BaseTestCase):

    def found(self, seen=SEEN, **changes):
        return [(one.name, one.subject, one.repair)
                for one in host.compare(dataclasses.replace(seen, **changes))]

    def hardware(self, **changes):
        return host.Hardware(functions=(
            dataclasses.replace(FUNCTION, **changes),))


class AssignmentTest(HostCase):

    def test_host_that_agrees_has_no_drift(self):
        self.assertEqual([], self.found())

    def test_unused_assignment_has_the_name_of_its_cause(self):
        unused = {'unused': frozenset({'a1'})}
        destination = dataclasses.replace(
            ASSIGNED, role=claim.ClaimRole.DESTINATION, migration_uuid='m1')
        for name, listed, is_deleted in (
                ('instance_deleted', ASSIGNED, True),
                ('instance_elsewhere', ASSIGNED, False),
                ('destination_without_migration', destination, False)):
            self.assertEqual(
                [(name, 'a1', drift.Repair.COMPARE)],
                self.found(listed=(listed,), instances=use(
                    is_deleted=is_deleted, **unused)))

    def test_unused_assignment_of_a_running_guest_is_not_repaired(self):
        self.assertEqual(
            [('instance_elsewhere', 'a1', None)], self.found(
                instances=use(unused=frozenset({'a1'}), is_active=True,
                              may_run_with_unused=True)))

    def test_unused_assignment_that_no_guest_runs_with_is_repaired(self):
        self.assertEqual(
            [('instance_elsewhere', 'a1', drift.Repair.COMPARE)], self.found(
                instances=use(unused=frozenset({'a1'}), is_active=True)))

    def test_instance_of_which_nothing_is_known_is_used(self):
        self.assertEqual([], self.found(instances={}))

    def test_instance_that_is_being_built_has_no_drift(self):
        self.assertEqual([], self.found(
            building=frozenset({'i1'}), book=host.BookRecords(), guests=None,
            hardware=self.hardware(driver=None),
            instances=use(unused=frozenset({'a1'}))))


class BookTest(HostCase):

    def test_assignment_that_the_conductor_ended_is_compared(self):
        self.assertEqual(
            [('book_assignment_ended', 'a1', drift.Repair.COMPARE)],
            self.found(listed=()))

    def test_ended_assignment_of_a_guest_that_may_run_is_left(self):
        for instances in (use(is_active=True), {}):
            self.assertEqual([('book_assignment_ended', 'a1', None)],
                             self.found(listed=(), instances=instances))

    def test_assignment_that_the_book_lacks_is_compared(self):
        self.assertEqual(
            [('book_assignment_lacking', 'a1', drift.Repair.COMPARE)],
            self.found(book=host.BookRecords()))

    def test_pending_release_is_sent(self):
        self.assertEqual(
            [('release_pending', 'a9', drift.Repair.COMPARE)],
            self.found(book=host.BookRecords(assigned=(ASSIGNED,),
                                             pending=('a9',))))

    def test_pending_release_explains_what_the_book_lacks(self):
        self.assertEqual(['release_pending'], [
            name for name, *_ in self.found(
                book=host.BookRecords(pending=('a1',)),
                instances=use(unused=frozenset({'a1'})))])


class GuestTest(HostCase):

    def test_device_of_another_guest_is_never_taken(self):
        guest = host.GuestDevices(uuid='i2', name='other',
                                  functions=(ADDRESS,))
        self.assertEqual(
            [('guest_device_unassigned', f'i2 {ADDRESS}', None)],
            self.found(guests=(*SEEN.guests, guest)))

    def test_device_that_is_unmanaged_is_another_owners(self):
        self.assertEqual([], self.found(
            listed=(), book=host.BookRecords(),
            devices=(dataclasses.replace(DEVICE, variant=None),)))

    def test_mdev_without_assignment_in_a_guest_is_found(self):
        seen = mdev_host('a1', 'a2')
        guest = host.GuestDevices(uuid='i2', name='other', mdevs=('a2',))
        self.assertEqual(
            [('guest_device_unassigned', 'i2 a2', None),
             ('mdev_unassigned', 'a2', None)],
            self.found(seen, guests=(guest,)))


    def test_device_that_a_running_guest_lost_is_found(self):
        for guests in ((), (dataclasses.replace(
                SEEN.guests[0], functions=('0000:3c:00.0',)),)):
            self.assertEqual(
                [('guest_device_missing', 'a1', None)], self.found(
                    guests=guests, instances=use(is_active=True)))

    def test_guest_that_needs_no_device_now_has_lost_none(self):
        other = dataclasses.replace(
            ASSIGNED, uuid='a2', address='0000:3c:00.0',
            role=claim.ClaimRole.DESTINATION, migration_uuid='m1')
        active = use(is_active=True)
        for changes in (
                {'guests': ()}, {'guests': None, 'instances': active},
                {'guests': (), 'instances': {}},
                {'guests': (), 'instances': active,
                 'building': frozenset({'i1'})},
                # One of the two until the resize is confirmed.
                {'instances': active, 'listed': (ASSIGNED, other),
                 'book': host.BookRecords(assigned=(ASSIGNED, other))}):
            self.assertNotIn('guest_device_missing', [
                name for name, *_ in self.found(**changes)], changes)

    def test_whole_gpu_of_an_mdev_is_another_device(self):
        guest = host.GuestDevices(uuid='i1', name='instance-1', mdevs=('a1',),
                                  functions=(ADDRESS,))
        self.assertEqual(
            [('guest_device_unassigned', f'i1 {ADDRESS}', None)],
            self.found(mdev_host('a1'), guests=(guest,)))


class PassthroughTest(HostCase):

    def test_device_that_is_gone_is_left(self):
        self.assertEqual([('assigned_device_missing', 'a1', None)],
                         self.found(hardware=host.Hardware()))

    def test_device_of_the_hosts_driver_is_prepared(self):
        for driver in ('nvidia', None):
            self.assertEqual(
                [('assigned_device_not_on_vfio', 'a1',
                  drift.Repair.PREPARE)],
                self.found(hardware=self.hardware(driver=driver)))

    def test_device_of_the_hosts_driver_is_left_if_a_guest_may_have_it(self):
        driver = self.hardware(driver='nvidia')
        for instances in (use(is_active=True), {}):
            self.assertEqual(
                [('assigned_device_not_on_vfio', 'a1', None)],
                self.found(hardware=driver, instances=instances))
        self.assertIn(('assigned_device_not_on_vfio', 'a1', None), self.found(
            hardware=driver, book=host.BookRecords()))

    def test_claim_that_is_not_prepared_yet_is_no_drift(self):
        self.assertEqual([], self.found(
            listed=(dataclasses.replace(ASSIGNED, state='provisioning'),),
            hardware=self.hardware(driver=None)))


def mdev_host(*existing):
    """Return a host whose GPU has mdevs, of which a1 is assigned."""
    assigned = dataclasses.replace(
        ASSIGNED, stable_id=pci.mdev_row_id(GPU, 1), vgpu_type='T4-4Q')
    row = dataclasses.replace(
        DEVICE, uuid='d2', stable_id=assigned.stable_id, kind='mdev')
    return dataclasses.replace(
        SEEN, listed=(assigned,), book=host.BookRecords(assigned=(assigned,)),
        devices=(dataclasses.replace(
            DEVICE, state='available', used_by=None), row),
        hardware=host.Hardware(
            functions=(dataclasses.replace(FUNCTION, driver='nvidia'),),
            vgpus={GPU: vgpus('mdev', *existing)}), guests=None)


class MdevTest(HostCase):

    def test_mdev_of_an_assignment_is_no_drift(self):
        self.assertEqual([], self.found(mdev_host('a1')))

    def test_mdev_that_is_gone_is_prepared(self):
        self.assertEqual(
            [('assigned_mdev_missing', 'a1', drift.Repair.PREPARE)],
            self.found(mdev_host()))

    def test_mdev_of_nobody_is_left(self):
        self.assertEqual([('mdev_unassigned', 'a2', None)],
                         self.found(mdev_host('a1', 'a2')))

    def test_mdev_of_a_cleaning_is_no_drift(self):
        seen = mdev_host('a1', 'a0')
        dirty = dataclasses.replace(
            seen.devices[1], uuid='d3', stable_id=pci.mdev_row_id(GPU, 2),
            used_by=None)
        for state in ('dirty', 'cleaning', 'provisioning', 'quarantined'):
            self.assertEqual([], self.found(seen, devices=(
                *seen.devices, dataclasses.replace(dirty, state=state))))


class VFTest(HostCase):

    def setUp(self):
        super().setUp()
        self.pf = dataclasses.replace(FUNCTION, driver='nvidia')
        self.vf = pci.PCIFunction(
            id=VF, address=VF_ADDRESS, class_code='030200', pf=GPU,
            driver='nvidia')
        self.device = dataclasses.replace(
            DEVICE, uuid='d2', stable_id=VF, address=VF_ADDRESS,
            state='available', used_by=None)
        self.seen = dataclasses.replace(
            SEEN, listed=(), book=host.BookRecords(), guests=None,
            devices=(dataclasses.replace(
                DEVICE, state='available', used_by=None), self.device),
            hardware=host.Hardware(
                functions=(self.pf, self.vf),
                vgpus={VF: vgpus('vf', '1155')}))

    def test_type_of_a_free_vf_is_left(self):
        self.assertEqual([('vf_type_unassigned', VF_ADDRESS, None)],
                         self.found(self.seen))

    def test_type_of_an_assigned_or_dirty_vf_is_no_drift(self):
        assigned = dataclasses.replace(
            ASSIGNED, stable_id=VF, address=VF_ADDRESS, vgpu_type='L40S-4Q')
        self.assertEqual([], self.found(
            self.seen, listed=(assigned,),
            book=host.BookRecords(assigned=(assigned,))))
        self.assertEqual([], self.found(self.seen, devices=(
            dataclasses.replace(self.device, state='dirty'),)))

    def test_vf_without_a_type_is_no_drift(self):
        self.assertEqual([], self.found(self.seen, hardware=host.Hardware(
            functions=(self.pf, self.vf), vgpus={VF: vgpus('vf')})))


class DeviceTest(HostCase):

    def test_quarantined_device_without_a_driver_is_left(self):
        device = dataclasses.replace(
            DEVICE, state='quarantined', used_by=None)
        for driver, expected in (
                (None, [('quarantined_device_unbound', 'd1', None)]),
                ('vfio-pci', [])):
            self.assertEqual(expected, self.found(
                listed=(), book=host.BookRecords(), guests=None,
                devices=(device,), hardware=self.hardware(driver=driver)))

    def test_free_device_that_somebody_bound_is_left(self):
        free = (dataclasses.replace(
            DEVICE, state='available', used_by=None),)
        nobody = {'listed': (), 'book': host.BookRecords(), 'guests': ()}
        self.assertEqual(
            [('free_device_on_vfio', 'd1', None)],
            self.found(devices=free, **nobody))
        self.assertEqual([], self.found(
            devices=free, hardware=self.hardware(driver='nvidia'), **nobody))
        self.assertEqual([], self.found(
            devices=free, hardware=dataclasses.replace(
                SEEN.hardware, designated=frozenset({ADDRESS})), **nobody))
        self.assertEqual([], self.found(
            devices=(dataclasses.replace(free[0], state='dirty'),),
            **nobody))

    def test_designated_device_of_no_variant_is_left(self):
        hardware = dataclasses.replace(
            SEEN.hardware, designated=frozenset({ADDRESS}))
        self.assertEqual([], self.found(hardware=hardware))
        unmanaged = dataclasses.replace(
            DEVICE, variant=None, state='available', used_by=None)
        for devices in ((unmanaged,), ()):
            self.assertEqual(
                [('designated_device_unmanaged', ADDRESS, None)],
                self.found(listed=(), book=host.BookRecords(), guests=None,
                           devices=devices, hardware=hardware))
