# SPDX-License-Identifier: Apache-2.0
"""Tests of cards and of the places in which a scan found them."""

import collections
import dataclasses
import pathlib

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import history as history_obj
from gpgpu_plugin.objects import report
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.fixtures import unprivileged
from tests.unit.conductor import base
from tests.unit.conductor import test_cleaning

DSN = '00-00-00-00-00-00-00-01'
OTHER = 'ff-ff-ff-ff-ff-ff-ff-fe'
_EVENT = device_rules.DeviceEvent


class CardCase(test_cleaning.CleaningCase):

    functions = (base.function(0),)

    def report(self, **facts):
        """Report the only GPU, with other facts."""
        hosts.store(self.db, base.scan((base.replace(0, **facts),)))

    def device(self):
        """Return the device that is at the place of the GPU."""
        [device] = [device for device in device_admin.list_all(self.db)
                    if device.present]
        return device

    def verdicts(self):
        return [record.fields['verdict'] for record in history.list_cleanings(
            self.db, self.device().uuid)]

    def assert_quarantined(self, *words):
        device = self.device()
        self.assertEqual('quarantined', device.state)
        for word in words:
            self.assertIn(word, device.reason)

    def accept(self):
        """Have the operator release the device, and the host clean it."""
        released.release(self.db, self.device().uuid, 'op')
        self.clean_all()
        self.assertEqual(('available', None), (
            self.device().state, self.device().reason))


class MovedTest(CardCase):
    """A card that is in another slot now."""

    NUMBER = '1f'
    functions = (base.function(0, dsn=NUMBER),)
    new_are_clean = False

    def move(self, *others, **facts):
        """Report the GPU at another place; return the device there."""
        moved = base.function(
            0, id='/devices/pci0000:77/01.0/00.0', address='0000:77:00.0',
            **{'dsn': self.NUMBER, **facts})
        hosts.store(self.db, base.scan((moved, *others)))
        [device] = [device for device in device_admin.list_all(self.db)
                    if device.stable_id == moved.id]
        return device

    def setUp(self):
        super().setUp()
        self.clean_all()
        self.before = self.device()

    def test_card_with_a_number_is_the_same_and_cleaned_anew(self):
        device = self.move()
        self.assertEqual(
            (self.before.uuid, '0000:77:00.0', 'dirty'),
            (device.uuid, device.address, device.state))
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertEqual(
            (device.uuid, device.stable_id), (task.device_uuid,
                                              task.stable_id))
        self.assertRaises(exception.ClaimDenied, self.claim)
        self.clean_all()
        self.claim()

    def test_assignment_and_holds_move_with_the_card(self):
        [assignment] = self.boot().assignments
        device_admin.add_hold(self.db, self.before.uuid, 'quarantined', 'fan',
                              'op')
        device = self.move()
        [moved] = claims.of_host(self.db, 'h1')
        self.assertEqual(
            (assignment.uuid, device.stable_id, '0000:77:00.0', 'assigned'),
            (moved.uuid, moved.stable_id, moved.address, moved.state))
        releases.release(self.db, [moved.uuid])
        self.assert_quarantined('fan')

    def test_two_cards_that_exchange_their_slots_keep_their_rows(self):
        other = base.function(0, id='/devices/pci0000:77/01.0/00.0',
                              address='0000:77:00.0', dsn='2f')
        hosts.store(self.db, base.scan((
            base.replace(0, dsn=self.NUMBER), other)))
        self.clean_all()
        before = self.rows()
        self.move(base.replace(0, dsn='2f'))
        after = self.rows()
        self.assertEqual(
            {dsn: uuid for dsn, (uuid, _, _) in before.items()},
            {dsn: uuid for dsn, (uuid, _, _) in after.items()})
        self.assertEqual(before['2f'][1], after[self.NUMBER][1])
        self.assertEqual({'dirty'}, {state for _, _, state in after.values()})

    def rows(self):
        return {device.dsn: (device.uuid, device.address, device.state)
                for device in device_admin.list_all(self.db)}

    def test_card_without_a_number_is_another_one(self):
        self.assertNotEqual(self.before.uuid, self.move(dsn=None).uuid)

    def test_card_that_cannot_come_keeps_no_other_place(self):
        # a is assigned and away, b in its place, and c in that of b.
        places = [base.function(number).id for number in range(3)]

        def scan(*found):
            hosts.store(self.db, base.scan([
                base.function(number, dsn=card)
                for number, card in enumerate(found) if card]))
        scan('1f', '2f', '3f')
        self.clean_all()
        [assignment] = self.boot().assignments
        self.assertEqual(places[0], assignment.stable_id)
        before = self.rows()
        scan('2f', '3f')
        present = {device.stable_id: device for device
                   in device_admin.list_all(self.db) if device.present}
        self.assertEqual([places[1]], list(present))
        self.assertEqual((before['3f'][0], 'dirty'), (
            present[places[1]].uuid, present[places[1]].state))
        releases.release(self.db, [assignment.uuid])
        scan('2f', '4f')
        present = {device.stable_id: device for device
                   in device_admin.list_all(self.db) if device.present}
        self.assertEqual(before['2f'][0], present[places[0]].uuid)
        self.assertEqual('quarantined', present[places[1]].state)

    def test_guest_may_hide_the_number_of_its_card(self):
        hosts.store(self.db, base.scan([
            base.replace(0, dsn=None, serial='S')]))
        device = self.device()
        self.clean_all()
        [assignment] = self.boot().assignments
        # Two GPUs of one board; VPD is not read while a guest has a GPU.
        hosts.store(self.db, base.scan([
            base.replace(0, dsn=None),
            base.function(1, dsn=None, serial='S')]))
        [moved] = claims.of_host(self.db, 'h1')
        self.assertEqual((assignment.uuid, assignment.stable_id),
                         (moved.uuid, moved.stable_id))
        self.assertEqual('assigned', device_admin.show(
            self.db, device.uuid).state)

    def test_host_forgets_how_another_card_was_in_the_place(self):
        [assignment] = self.boot().assignments
        device = self.move(base.replace(0, dsn='2f'))
        self.assertEqual(self.before.uuid, device.uuid)
        releases.release(self.db, [assignment.uuid])
        self.assertEqual({True}, {
            (task.replaces and not task.had_guest)
            for task in cleaning.tasks(self.db, 'h1')})
        self.assertEqual(2, len(cleaning.tasks(self.db, 'h1')))
        self.clean_all()
        releases.release(self.db, base.uuids(self.boot(2)))
        self.assertEqual({(False, True)}, {
            (task.replaces, task.had_guest)
            for task in cleaning.tasks(self.db, 'h1')})

    def test_number_that_two_cards_show_tells_nothing(self):
        third = base.function(0, id='/devices/pci0000:78/01.0/00.0',
                              address='0000:78:00.0', dsn=self.NUMBER)
        device = self.move(third)
        self.assertNotEqual(self.before.uuid, device.uuid)
        self.assertEqual('dirty', device.state)
        # It is at the place of neither.
        self.assertFalse(self.old().present)

    def test_card_comes_to_the_place_of_one_that_left(self):
        # Each knows its place again when it returns.
        self.report(dsn='2f')
        self.assert_quarantined('dsn was 1f, is 2f')
        second = self.device().uuid
        self.report(dsn=self.NUMBER)
        self.assertEqual((self.before.uuid, 'dirty'),
                         (self.device().uuid, self.device().state))
        self.report(dsn='2f')
        self.assert_quarantined('dsn was')
        self.assertEqual(second, self.device().uuid)
        self.assertEqual(2, len(device_admin.list_all(self.db)))

    def test_place_whose_card_is_used_is_given_to_no_other(self):
        [assignment] = self.boot().assignments
        self.report(dsn='2f')
        self.report(dsn='2f')
        [device] = device_admin.list_all(self.db)
        self.assertEqual((self.before.uuid, 'assigned', False), (
            device.uuid, device.state, device.present))
        releases.release(self.db, [assignment.uuid])
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.report(dsn='2f')
        self.assertNotEqual(self.before.uuid, self.device().uuid)
        self.assert_quarantined('another device was in its place')
        self.assertEqual('missing', self.old().shown_state)
        self.assertIsNone(self.old().reason)

    def old(self):
        return device_admin.show(self.db, self.before.uuid)


class AssignedTest(CardCase):
    """A card that is found in the place of one that a guest has."""

    def setUp(self):
        super().setUp()
        self.old_uuid = self.device().uuid

    def old(self):
        return device_admin.show(self.db, self.old_uuid)

    def swapped(self, **facts):
        granted = self.boot()
        self.report(**(facts or {'dsn': OTHER}))
        self.assertEqual(('assigned', False), (
            self.old().state, self.old().present))
        return base.uuids(granted)

    def events(self, kind):
        return [event.detail for event in history.list_events(
            self.db, history_obj.EventFilter(kind=kind))]

    def test_card_has_its_row_when_the_guest_has_left(self):
        uuids = self.swapped()
        for _ in range(3):
            self.report(dsn=OTHER)
        [reason] = self.events('swapped')
        self.assertIn(f'another device is in its place: dsn was '
                      f'48-b0-2d-00-00-00-00-00, is {OTHER}', reason)
        self.assertEqual(1, len(device_admin.list_all(self.db)))
        releases.release(self.db, uuids)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.report(dsn=OTHER)
        self.assert_quarantined('dsn was', f'is {OTHER}')
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertEqual(['quarantined'], self.verdicts())
        self.assertEqual(self.device().uuid, self.old().replaced_by)

    def test_operator_accepts_the_gpu_once(self):
        releases.release(self.db, self.swapped())
        self.report(dsn=OTHER)
        self.accept()
        self.assertEqual(['quarantined', 'released', 'passed'],
                         self.verdicts())
        # What it accepted is what is known now.
        self.report(dsn=OTHER, driver='nvidia')
        releases.release(self.db, base.uuids(self.boot()))
        self.assertEqual('dirty', self.device().state)

    def test_card_that_returns_is_that_of_the_guest(self):
        uuids = self.swapped()
        self.report()
        self.assertEqual(('assigned', True), (
            self.old().state, self.old().present))
        releases.release(self.db, uuids)
        self.clean_all()
        self.assertEqual('available', self.device().state)
        self.assertEqual(self.old_uuid, self.device().uuid)

    def test_fault_stays_with_the_card_of_the_claim(self):
        granted = base.uuids(self.claim())
        self.report(dsn=OTHER)
        releases.abort(self.db, granted, touched=True, fault='bind failed')
        self.report(dsn=OTHER)
        self.assert_quarantined('dsn was')
        self.assertIn('bind failed', self.old().reason)


class BetweenGuestsTest(CardCase):

    def test_dirty_gpu_is_quarantined_and_not_cleaned(self):
        self.dirty()
        self.report(dsn=OTHER)
        self.assert_quarantined('dsn was')
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertEqual(['quarantined'], self.verdicts())
        self.accept()

    def test_cleaning_that_runs_has_no_verdict_any_more(self):
        [task] = self.dirty()
        self.start(task)
        self.report(dsn=OTHER)
        # Its driver of the host does not get it.
        self.assertRaises(
            exception.Conflict, cleaning.failure, self.db, task.device_uuid,
            task.token, cleaned.results(task.steps))
        self.assertRaises(exception.Conflict, self.finish, task)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertRaises(exception.Conflict, self.start, task)
        self.assert_quarantined('dsn was')
        self.assertEqual(['quarantined'], self.verdicts())
        self.accept()

    def test_available_gpu_is_never_offered(self):
        self.report(dsn=OTHER)
        self.assert_quarantined('dsn was')
        self.assertRaises(exception.ClaimDenied, self.claim)
        self.accept()

    def test_gpu_that_was_exchanged_while_the_host_was_off(self):
        # Nothing was reported meanwhile, or it was missing.
        for number, meanwhile in (('2', None), ('3', ())):
            if meanwhile is not None:
                hosts.store(self.db, base.scan(meanwhile))
            self.report(dsn=number)
            self.assert_quarantined('dsn was')
            self.accept()

    def test_quarantined_gpu_that_is_exchanged_stays_so(self):
        [task] = self.dirty()
        self.clean_all(passed=False)
        self.report(dsn=OTHER)
        self.assert_quarantined('dsn was')
        before = device_admin.show(self.db, task.device_uuid)
        self.assertIn('cleaning failed', before.reason)
        self.assertEqual(self.device().uuid, before.replaced_by)


class UnknownTest(CardCase):

    functions = (base.function(0, dsn=None),)

    def test_number_that_becomes_known_is_no_exchange(self):
        self.report(dsn='1', serial='2')
        self.assertEqual('available', self.device().state)

    def test_number_that_becomes_unknown_is_remembered(self):
        names = ('serial', 'dsn', 'vendor', 'device', 'subsystem',
                 'subsystem_vendor')
        known = {'serial': '1', 'dsn': '2', 'vendor': '10de',
                 'device': '2330', 'subsystem': '16c1',
                 'subsystem_vendor': '10de'}
        for name in names:
            with self.subTest(name):
                self.report(**known)
                self.report(**known | {name: None})
                self.assertEqual('available', self.device().state)
                self.report(**known)
                self.assertEqual('available', self.device().state)
                self.report(**known | {name: None})
                self.report(**known | {name: 'abcd'})
                self.assert_quarantined(
                    f'{name} was {known[name]}, is abcd')
                self.report(**known)
                self.clean_all()

    def test_hive_is_remembered_while_a_vfio_driver_has_the_gpu(self):
        def hive():
            with self.db.reader() as session:
                [row] = [device for device in host_rows.load_one(
                    session, host_db.get(session, 'h1')).devices
                    if device.present]
                return device_db.pci_function(row).hive
        self.report(driver='amdgpu', hive='7', dsn='1')
        self.report(driver='vfio-pci', dsn='1')
        self.assertEqual('7', hive())
        self.report(driver='amdgpu', dsn='1')
        self.assertIsNone(hive())
        self.report(driver='amdgpu', hive='7', dsn='1')
        self.report(driver='vfio-pci', dsn='2')
        self.assertIsNone(hive())

    def test_known_serial_number_is_shown_while_it_cannot_be_read(self):
        self.report(dsn='1', serial='2')
        self.report(driver='vfio-pci', dsn=None, serial=None)
        self.assertEqual(('1', '2', 'vfio-pci'), (
            self.device().dsn, self.device().serial, self.device().driver))

    def test_other_card_does_not_inherit_a_number(self):
        self.report(dsn='1', serial='2')
        self.report(dsn='3', serial=None)
        self.assertEqual(('3', None), (
            self.device().dsn, self.device().serial))
        self.accept()
        self.report(dsn='3', serial='4')
        self.assertEqual('available', self.device().state)


class VFTest(CardCase):

    variant = False
    functions = ()

    def setUp(self):
        super().setUp()
        self.pf = base.function(
            0, device='74a1', used_by='vf', sriov_totalvfs=2, sriov_numvfs=2)
        self.vfs = [base.function(
            0, id=f'{self.pf.id}/vf{number}', device='74b5', dsn=None,
            address=f'0000:00:00.{number + 1}', pf=self.pf.id,
            vf_index=number) for number in range(2)]
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X-VF', vendor='10de', device='74b5'))
        hosts.store(self.db, base.scan((self.pf, *self.vfs)))

    def counted(self):
        return dict(collections.Counter(
            device.state for device in device_admin.list_all(self.db)))

    def test_vfs_of_an_exchanged_pf_are_quarantined_too(self):
        granted = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(granted))
        hosts.store(self.db, base.scan((
            dataclasses.replace(self.pf, dsn=OTHER), *self.vfs)))
        self.assertEqual({'assigned': 1, 'available': 2},
                         self.counted())
        self.assertRaises(exception.ClaimDenied, self.claim,
                          instance='i2', variant='MI300X-VF')
        releases.release(self.db, base.uuids(granted))
        hosts.store(self.db, base.scan((
            dataclasses.replace(self.pf, dsn=OTHER), *self.vfs)))
        present = [device for device in device_admin.list_all(self.db)
                   if device.present]
        self.assertEqual(3, len(present))
        for device in present:
            self.assertEqual('quarantined', device.state)
            self.assertIn(f'is {OTHER}', device.reason)


    def test_vfs_follow_their_pfs_that_exchange_slots(self):
        self.pf = dataclasses.replace(self.pf, dsn='1f')
        place = '/devices/pci0000:77/01.0/00.0'
        other = [dataclasses.replace(
            function, id=function.id.replace(self.pf.id, place),
            address=function.address.replace('0000:00', '0000:77'),
            pf=function.pf and place, dsn=None if function.pf else '2f')
            for function in (self.pf, *self.vfs)]
        hosts.store(self.db, base.scan((self.pf, *self.vfs, *other)))
        before = self.uuids()
        hosts.store(self.db, base.scan((
            dataclasses.replace(self.pf, dsn='2f'), *self.vfs,
            dataclasses.replace(other[0], dsn='1f'), *other[1:])))
        self.assertEqual(
            {place: before[self.pf.id], self.pf.id: before[place]},
            self.uuids())

    def uuids(self):
        """Return the UUIDs of a GPU and of its VFs, by its place."""
        found = collections.defaultdict(list)
        for device in device_admin.list_all(self.db):
            if device.present:
                found[device.stable_id.partition('/vf')[0]].append(device.uuid)
        return dict(found)


class MdevTest(CardCase):

    def test_gpu_with_an_assigned_mdev_keeps_its_place(self):
        def add(session):
            before = host_rows.load_one(session, host_db.get(session, 'h1'))
            after, [gpu] = before, before.devices
            for number, state in enumerate(('assigned', 'available')):
                after = after.put(dataclasses.replace(
                    device_rows.new_mdev_row(after, gpu, pci.mdev_row_id(
                        gpu.stable_id, number)), state=state))
            host_rows.store(session, before, after)
        self.db.write(add)
        self.report(dsn=OTHER)
        gpu, *mdevs = device_admin.list_all(self.db)
        self.assertFalse(gpu.present)
        self.assertEqual(['assigned', 'available'],
                         [mdev.state for mdev in mdevs])
        with self.db.writer() as session:
            rows.apply(session, mdevs[0].uuid, _EVENT.RELEASE, _EVENT.CLEAN,
                       _EVENT.CLEAN_PASSED)
        self.report(dsn=OTHER)
        [device] = [device for device in device_admin.list_all(self.db)
                    if device.present and device.kind == 'pci']
        self.assertEqual('quarantined', device.state)
        self.assertEqual({gpu.uuid}, {
            device.parent for device in device_admin.list_all(self.db)
            if device.kind == 'mdev'})


class FakeMachineTest(CardCase):
    """The real scanner, as the user of nova-compute runs it."""

    variant = False
    functions = ()

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake_host.FakeHost.for_machine('pcie-l40s-4', self.root)
        self.gpu = next(function for function in self.host.scan().functions
                        if pci.can_be_gpu(function.class_code)
                        and function.vendor == '10de')
        self.folder = pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address).resolve()
        unprivileged.show(self.folder, dsn=DSN, serial=b'1320')
        self.useFixture(unprivileged.Unprivileged())
        variant_admin.create(self.db, admin.VariantInfo(
            name='L40S', vendor='10de', device='26b9'))
        self.start_host()

    def start_host(self):
        """Start nova-compute, as after a boot of the host."""
        self.host = fake_host.FakeHost(self.root)
        self.scan_host()

    def scan_host(self):
        scan = self.host.scan()
        hosts.store(self.db, report.HostReport(
            host='h1', node='h1', node_uuid=base.NODE,
            functions=self.host.discover(scan)))

    def device(self):
        return next(device for device in device_admin.list_all(self.db)
                    if device.stable_id == self.gpu.id)

    def test_card_of_the_same_model_is_noticed_after_a_boot(self):
        uuids = base.uuids(self.boot(4, variant='L40S'))
        self.start_host()
        self.assertIsNone(self.device().reason)
        unprivileged.show(self.folder, dsn=OTHER, serial=b'1320')
        self.start_host()
        self.assertEqual(('assigned', False), (
            self.device().state, self.device().present))
        releases.release(self.db, uuids)
        self.scan_host()
        self.assert_quarantined('dsn was')

    def test_card_that_differs_by_its_vpd_only_is_noticed(self):
        unprivileged.show(self.folder, dsn=DSN, serial=b'1321')
        self.start_host()
        self.assert_quarantined('serial was 1320, is 1321')


class BoardTest(CardCase):
    """A board with a switch, whose GPUs are below the slot of another card."""

    functions = (base.function(0, dsn='card'),)
    board = base.function(5, id=f'{base.EIGHT[0].id}/08.0/00.0',
                          address='0000:05:00.0', dsn='board')
    elsewhere = {'id': '/devices/pci0000:77/01.0/00.0',
                 'address': '0000:77:00.0'}

    def setUp(self):
        super().setUp()
        hosts.store(self.db, base.scan((self.board,)))
        self.clean_all()
        self.boot()

    def assert_board_is_used(self):
        [assigned] = claims.of_host(self.db, 'h1')
        self.assertEqual((self.board.id, 'i1'), (
            assigned.stable_id, assigned.instance_uuid))
        self.clean_all()
        granted = [row.stable_id for row in self.claim(
            1, 'i2').assignments] if self.free() else []
        self.assertNotIn(self.board.id, granted)

    def free(self):
        return [device for device in device_admin.list_all(self.db)
                if device.shown_state == 'available']

    def test_card_that_comes_elsewhere_leaves_the_board_alone(self):
        card = base.function(0, dsn='card', **self.elsewhere)
        hosts.store(self.db, base.scan((self.board, card)))
        self.assert_board_is_used()

    def test_card_in_the_slot_leaves_the_board_alone(self):
        self.report(dsn='another')
        hosts.store(self.db, base.scan((
            dataclasses.replace(self.board, dsn=None),)))
        self.assert_board_is_used()


class SharedNumberTest(CardCase):
    """Two GPUs of a board that show one serial number, not always both."""

    functions = (base.function(0, dsn=None, serial='S'),
                 base.function(1, dsn=None, serial=None))

    def test_gpu_that_may_be_a_withdrawn_one_is_held(self):
        device_admin.add_hold(self.db, self.at(0).uuid, 'quarantined', 'loud',
                              'op')
        hosts.store(self.db, base.scan((
            base.replace(0, dsn=None, serial=None),
            base.function(1, dsn=None, serial='S'))))
        self.clean_all()
        self.assertEqual(['quarantined'] * 2, [
            self.at(number).state for number in range(2)])
        self.assertIn('this one shows no number', self.at(0).reason)

    def at(self, number):
        [device] = [
            device for device in device_admin.list_all(self.db)
            if device.present
            and device.stable_id == base.function(number).id]
        return device


class CleaningTest(CardCase):
    """Cards that are elsewhere while they are cleaned."""

    functions = (base.function(0, dsn='a'), base.function(1, dsn='b'))

    def running(self):
        tasks = self.dirty(2)
        for task in tasks:
            self.start(task)
        return tasks

    def test_cleaning_in_the_former_place_proves_nothing(self):
        tasks = self.running()
        hosts.store(self.db, base.scan((
            base.replace(0, dsn='b'), base.function(1, dsn='a'))))
        for task in tasks:
            self.assertRaises(exception.Conflict, self.finish, task)
        self.assertEqual({'dirty': 2}, self.states())

    def test_cleaning_that_began_before_an_absence_proves_nothing(self):
        tasks = self.running()
        hosts.store(self.db, base.scan(()))
        hosts.store(self.db, base.scan(self.functions))
        for task in tasks:
            self.assertRaises(exception.Conflict, self.finish, task)
        # The request is that of the guest still.
        self.assertEqual(
            {task.request for task in tasks},
            {task.request for task in cleaning.tasks(self.db, 'h1')})
