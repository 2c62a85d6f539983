# SPDX-License-Identifier: Apache-2.0
"""Tests of adopting a host's assignments into a restored database."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import history as history_obj
from gpgpu_plugin.objects import report as report_obj
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class AdoptionMixin:

    def restored(self, book, functions=None, marked=True):
        """Report after a restore with the assignments in the host's book."""
        if marked:
            sessions.mark_restored(self.db)
        granted = hosts.begin(self.db, 'h1', base.NODE, expected=90)
        origin = hosts.origin('h1', base.NODE, session=granted.number)
        reports.report(self.db, base.scan(
            self.functions if functions is None else functions, number=1,
            assignments=tuple(book)), origin)
        return origin

    def users(self):
        return {device.address: device.used_by
                for device in device_admin.list_all(self.db)
                if device.used_by}

    def book(self, *claimed):
        return [assignment for claim in claimed
                for assignment in claim.assignments]

    def forget(self, claim):
        """Bring the database back to before a claim."""
        with self.db.writer() as session:
            rows.forget(session, base.uuids(claim))


class AdoptionTest(AdoptionMixin, base.ConductorTestCase):

    def test_book_of_another_host_releases_nothing(self):
        """Identical hosts have the same ids of devices."""
        granted = self.boot(2)
        book = tuple(
            dataclasses.replace(assignment, uuid='forged', host='h2',
                                instance_uuid='i2')
            for assignment in granted.assignments)
        self.assertRaises(
            exception.Invalid, codec.received, report_obj.HostReport, {
                **codec.to_primitive(base.scan(self.functions)),
                'assignments': codec.to_primitive(book)})

    def test_unknown_assignment_is_adopted(self):
        granted = self.boot(2)
        self.forget(granted)
        self.assertEqual({}, self.users())
        self.restored(self.book(granted))
        self.assertEqual(
            {assignment.address: 'i1' for assignment in granted.assignments},
            self.users())
        self.assertEqual({'assigned': 2, 'dirty': 6}, self.states())

    def test_unknown_assignment_shows_a_restore_that_nobody_marked(self):
        granted = self.boot(2)
        self.forget(granted)
        hosts.begin(self.db, 'h1', base.NODE)
        origin = hosts.origin('h1', base.NODE)
        reports.report(self.db, base.scan(
            self.functions, number=2, assignments=tuple(self.book(granted))),
            origin)
        self.assertEqual({'assigned': 2, 'dirty': 6}, self.states())

    def test_adopted_assignment_is_released_like_any_other(self):
        granted = self.boot(2)
        self.forget(granted)
        self.restored(self.book(granted))
        releases.release(self.db, base.uuids(granted))
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_adopted_assignment_answers_any_request_of_its_instance(self):
        granted = self.boot(2)
        self.forget(granted)
        self.restored(self.book(granted))
        self.assertEqual(base.uuids(granted), base.uuids(self.claim(2)))

    def test_usage_of_an_adopted_assignment_is_complete(self):
        granted = self.boot(1)
        self.forget(granted)
        [assignment] = granted.assignments
        self.restored([dataclasses.replace(
            assignment, project_id='p1', user_id='u1', flavor='gpu.large',
            used_seconds=3600)])
        [usage] = history.list_usage(self.db, history_obj.UsageQuery())
        self.assertEqual(
            ('p1', 'u1', 'gpu.large', 'H100', None),
            (usage.project_id, usage.user_id, usage.flavor, usage.variant,
             usage.ended_at))
        self.assertGreaterEqual(usage.seconds, 3599)
        self.assertLess(usage.seconds, 3700)

    def test_usage_on_a_device_that_is_newer_than_the_backup_is_complete(
            self):
        granted = self.boot(1)
        self.forget(granted)
        new = base.function(9)
        self.restored([dataclasses.replace(
            granted.assignments[0], stable_id=new.id, address=new.address)],
            [*self.functions, new])
        [usage] = history.list_usage(self.db, history_obj.UsageQuery())
        self.assertEqual('H100', usage.variant)

    def test_known_assignment_stays_as_it_is(self):
        granted = self.boot(2)
        self.restored(self.book(granted))
        self.assertEqual({'assigned': 2, 'dirty': 6}, self.states())
        self.assertEqual(base.uuids(granted), [
            row.uuid for row in claims.of_instance(self.db, 'i1')])

    def test_assignment_that_ended_while_its_host_was_away_stays_ended(self):
        granted = self.boot(2)
        releases.end(self.db, base.uuids(granted), 'by root')
        # The host's book has it still.
        hosts.begin(self.db, 'h1', base.NODE)
        reports.report(self.db, base.scan(
            self.functions, number=1, assignments=tuple(self.book(granted))),
            hosts.origin('h1', base.NODE))
        self.assertEqual({}, self.users())
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())

    def test_assignment_that_ended_stays_ended_though_the_host_doubts(self):
        ended, forgotten = self.boot(2), self.boot(2, 'i2')
        releases.release(self.db, base.uuids(ended))
        self.clean_all()
        self.forget(forgotten)
        current = hosts.begin(self.db, 'h1', base.NODE)
        # The book has both still.
        granted = hosts.begin(
            self.db, 'h1', base.NODE, expected=current.number, doubted=True)
        self.assertTrue(granted.restored)
        reports.report(self.db, base.scan(
            self.functions, number=1,
            assignments=tuple(self.book(ended, forgotten))),
            hosts.origin('h1', base.NODE, session=granted.number))
        self.assertEqual({'i2'}, set(self.users().values()))
        self.assertEqual({'assigned': 2, 'dirty': 6}, self.states())

    def test_new_user_of_a_device_keeps_it_though_the_book_is_outdated(self):
        ended = self.boot(8)
        releases.release(self.db, base.uuids(ended))
        self.clean_all()
        after = self.boot(8, 'i2')
        self.restored(self.book(after, ended))
        self.assertEqual({'i2'}, set(self.users().values()))

    def test_gpu_with_mdevs_was_given_to_nobody_whole(self):
        """One that got its VFs since the backup may have been."""
        functions = [
            dataclasses.replace(function, used_by=used_by)
            for function, used_by in zip(
                self.functions[:3], (
                    device_rules.DeviceUser.VF, device_rules.DeviceUser.MDEV,
                    None), strict=True)]
        self.restored([], functions)
        self.assertEqual(
            ['dirty', 'available', 'dirty'],
            [row.shown_state for row in device_admin.list_all(self.db)
             if row.present])

    def test_assignment_that_only_the_database_has_stays(self):
        # Its host finds out from Nova whether the instance still has it.
        granted = self.boot(2)
        self.restored([])
        self.assertEqual(base.uuids(granted), [
            row.uuid for row in claims.of_instance(self.db, 'i1')])

    def test_device_of_another_instance_since_the_backup_is_adopted(self):
        before = self.boot(8, 'i1')
        releases.release(self.db, base.uuids(before))
        self.clean_all()
        after = self.boot(8, 'i2')
        self.forget(after)
        with self.db.writer() as session:
            session.execute(sa.update(tables.ASSIGNMENTS).values(
                active=1, ended_at=None))
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.id.in_(sa.select(
                    tables.ASSIGNMENTS.c.device_id))).values(state='assigned'))
        self.assertEqual({'i1'}, set(self.users().values()))
        self.restored(self.book(after))
        self.assertEqual({'i2'}, set(self.users().values()))

    def test_same_instance_with_other_devices_since_the_backup(self):
        before = self.boot(2)
        after = dataclasses.replace(before, assignments=tuple(
            dataclasses.replace(
                assignment, uuid=f'new-{number}',
                stable_id=base.function(6 + number).id,
                address=base.function(6 + number).address)
            for number, assignment in enumerate(before.assignments)))
        self.restored(self.book(after))
        self.assertEqual(
            {base.function(6).address: 'i1', base.function(7).address: 'i1'},
            self.users())
        self.assertEqual({'assigned': 2, 'dirty': 6}, self.states())

    def test_role_and_migration_are_adopted(self):
        granted = self.claim_destination(2, 'm1')
        self.forget(granted)
        self.restored(self.book(granted))
        self.assertEqual(
            {(claim_obj.ClaimRole.DESTINATION, 'm1')},
            {(row.role, row.migration_uuid)
             for row in claims.of_instance(self.db, 'i1')})

    def test_claim_after_a_restore_is_later_than_what_is_adopted(self):
        granted = self.boot(1)
        self.forget(granted)
        [assignment] = [dataclasses.replace(
            assignment, host_generation=500)
            for assignment in granted.assignments]
        sessions.mark_restored(self.db)
        # The host has acknowledged the generation of its newest claim.
        begun = hosts.begin(
            self.db, 'h1', base.NODE, expected=90, generation=500)
        reports.report(
            self.db, base.scan(self.functions, number=1,
                               assignments=(assignment,)),
            hosts.origin('h1', base.NODE, session=begun.number))
        [adopted] = claims.of_instance(self.db, 'i1')
        self.assertEqual(500, adopted.host_generation)
        self.clean_all()
        [later] = self.claim_destination(1, 'm1').assignments
        self.assertGreater(later.host_generation, 500)

    def test_device_that_the_book_has_twice_is_kept_and_logged(self):
        granted = self.boot(1)
        [known] = granted.assignments
        origin = self.restored([known, dataclasses.replace(
            known, uuid='second', instance_uuid='i2')])
        self.assertEqual({known.address: 'i1'}, self.users())
        # The comparison does not find the database restored once more.
        self.assertEqual([known.uuid], [row.uuid for row in claims.of_origin(
            self.db, origin, [known.uuid, 'second'])])

    def test_device_that_the_scan_did_not_find_is_adopted_as_absent(self):
        granted = self.boot(1)
        self.forget(granted)
        [assignment] = granted.assignments
        gone = dataclasses.replace(
            assignment, stable_id='/devices/pci0000:ff/01.0/00.0',
            address='0000:ff:00.0')
        origin = self.restored([gone])
        self.assertEqual({'0000:ff:00.0': 'i1'}, self.users())
        # The comparison does not find the database restored once more.
        self.assertEqual([gone.uuid], [row.uuid for row in claims.of_origin(
            self.db, origin, [gone.uuid])])

        # It returns, and stays the instance's; then it is released.
        hosts.store(self.db, base.scan((*base.EIGHT, base.function(
            9, id=gone.stable_id, address='0000:fe:00.0'))))
        self.assertEqual({'0000:fe:00.0': 'i1'}, self.users())
        releases.release(self.db, [gone.uuid])
        self.assertEqual({}, self.users())
        self.assertEqual({'dirty': 9}, self.states())

    def test_quarantined_device_that_a_guest_has_is_adopted(self):
        granted = self.claim(1)
        releases.abort(
            self.db, base.uuids(granted), touched=True, fault='broken')
        self.assertEqual({'available': 7, 'quarantined': 1}, self.states())
        [assignment] = granted.assignments
        self.restored([dataclasses.replace(assignment, uuid='later')])
        self.assertEqual({'assigned': 1, 'dirty': 7}, self.states())


class UnmanagedAdoptionTest(AdoptionMixin, base.ConductorTestCase):
    """Devices that nobody can get after a restore."""

    new_are_clean = False

    functions = (
        base.function(0),
        base.function(1, used_by=device_rules.DeviceUser.BOOT_VGA),
        base.function(2, device='9999', iommu_group=2))

    def setUp(self):
        super().setUp()
        self.restored([])
        self.clean_all()

    def state(self, number):
        [device] = [device for device in device_admin.list_all(self.db)
                    if device.stable_id == self.functions[number].id]
        return device.state

    def test_display_and_gpu_without_variant_do_not_become_dirty(self):
        self.assertEqual(['available'] * 3, [
            self.state(number) for number in range(3)])
        self.assertEqual({'available': 1, 'unmanaged': 2}, self.states())

    def test_their_host_can_be_deleted(self):
        host_admin.delete(self.db, 'h1')

    def test_display_that_was_quarantined_is_released_without_a_cleaning(
            self):
        [uuid] = [device.uuid for device in device_admin.list_all(self.db)
                  if device.stable_id == self.functions[1].id]
        withdrawal.quarantine(self.db, uuid, 'by mistake', 'op')
        released.release(self.db, uuid, 'op')
        self.assertEqual('available', self.state(1))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        exc = self.assertRaises(exception.Conflict, released.release,
                                self.db, uuid, 'op')
        self.assertIn('unmanaged (it is the display that the host booted '
                      'with); nothing cleans it', str(exc))
        host_admin.delete(self.db, 'h1')

    def test_one_that_gets_a_variant_is_cleaned_before_it_is_offered(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='NEW', vendor='10de', device='9999'))
        self.assertEqual('dirty', self.state(2))
        self.clean_all()
        self.assertEqual('available', self.state(2))

    def test_display_that_no_longer_is_one_is_cleaned_before_it_is_offered(
            self):
        hosts.store(self.db, base.scan((
            self.functions[0], base.function(1), self.functions[2])))
        self.assertEqual('dirty', self.state(1))

    def test_card_that_moves_to_a_host_where_it_has_a_variant_is_cleaned(
            self):
        host_admin.delete(self.db, 'h1')
        variant_admin.create(self.db, admin.VariantInfo(
            name='NEW', vendor='10de', device='9999'))
        hosts.store(self.db, base.scan(
            [self.functions[2]], host='h2', node_uuid='h2'))
        self.assertEqual('dirty', self.state(2))


class VGPUAdoptionTest(AdoptionMixin, vgpu_base.VGPUTestCase):

    functions = (vgpu_base.t4(0, iommu_group=1),)

    def tasks(self):
        """Return what the host is to clean, by whether it is a whole GPU."""
        return [task.stable_id == self.functions[0].id
                for task in cleaning.tasks(self.db, 'h1')]

    def test_vgpu_on_an_mdev_row_is_adopted(self):
        granted = self.ask(Q4=2)
        self.forget(granted)
        self.restored(self.book(granted))
        self.assertEqual(
            base.uuids(granted),
            [row.uuid for row in claims.of_instance(
                self.db, granted.assignments[0].instance_uuid)])

    def test_gpu_whose_vgpu_only_the_backup_has_is_cleaned_after_it(self):
        """Since then another instance may have had the whole GPU."""
        before = self.ask(Q4=1)
        claims.activate(self.db, base.uuids(before))
        self.restored([])
        # Whether the instance still has it is not known yet.
        self.assertEqual([], self.tasks())
        releases.release(self.db, base.uuids(before))
        self.assertEqual([False], self.tasks())
        self.clean_all()
        self.assertEqual([True], self.tasks())
        self.denied('not_enough_available', whole=1)
        self.denied('not_enough_available', Q1=1)
        self.clean_all()
        self.ask('i2', whole=1)

    def test_rest_of_a_gpu_with_adopted_mdevs_is_offered(self):
        granted = self.ask(Q4=2)
        self.forget(granted)
        self.restored(self.book(granted), [dataclasses.replace(
            self.functions[0], used_by=device_rules.DeviceUser.MDEV,
            existing_vgpus=tuple(base.uuids(granted)))])
        self.assertEqual(2, self.remaining()['4Q'])

    def test_rest_of_a_gpu_that_is_newer_than_the_backup_is_offered(self):
        granted = self.ask(Q4=1)
        [assignment] = granted.assignments
        self.forget(granted)
        new = vgpu_base.t4(
            5, iommu_group=2, used_by=device_rules.DeviceUser.MDEV,
            existing_vgpus=(assignment.uuid,))
        self.restored([dataclasses.replace(
            assignment, stable_id=f'{new.id}/mdev0', address=new.address)],
            [new])
        self.assertEqual(3, self.remaining()['4Q'])

    def test_adopted_vf_is_offered_after_its_assignment(self):
        pf = dataclasses.replace(vgpu_base.PF, iommu_group=1)
        vfs = [vgpu_base.vf(pf, index, iommu_group=2 + index)
               for index in range(3)]
        hosts.store(self.db, base.scan((pf, *vfs), number=2))
        granted = self.ask(Q4=1)
        self.forget(granted)
        [assignment] = granted.assignments
        self.restored(self.book(granted), [pf, *(
            dataclasses.replace(vf, existing_vgpus=('233',))
            if vf.id == assignment.stable_id else vf for vf in vfs)])
        self.clean_all()
        self.assertEqual(2, self.remaining()['4Q'])
        self.end(granted)
        self.assertEqual(3, self.remaining()['4Q'])

    def test_types_of_a_gpu_that_an_adopted_guest_has_whole_are_kept(self):
        granted = self.ask(whole=1)
        self.forget(granted)
        self.restored(self.book(granted), [dataclasses.replace(
            self.functions[0], vgpu_mechanism=None, vgpu_types=(),
            driver='vfio-pci')])
        names = {info.vgpu_type for info in group.list_types(self.db)}
        self.assertLessEqual({listed.name for listed in vgpu_base.TYPES},
                             names)

    def test_gpu_with_a_vgpu_in_the_book_is_not_cleaned(self):
        granted = self.ask(Q4=1)
        claims.activate(self.db, base.uuids(granted))
        self.restored(self.book(granted))
        self.end(granted)
        self.assertEqual([], self.tasks())
        self.ask('i2', whole=1)

    def test_gpu_whose_adopted_vgpu_is_in_the_book_is_not_cleaned(self):
        granted = self.ask(Q4=1)
        self.forget(granted)
        self.restored(self.book(granted))
        self.end(granted)
        self.assertEqual([], self.tasks())

    def test_gpu_that_the_backup_does_not_offer_whole_is_cleaned(self):
        """It may have been offered since then."""
        self.enable('passthrough', enabled=False)
        self.restored([])
        self.denied('not_enough_available', Q1=1)
        self.assertEqual([True], self.tasks())
        self.clean_all()
        self.enable('passthrough')
        self.ask(whole=1)

    def test_gpus_that_no_guest_can_get_whole_are_not_cleaned(self):
        """Their cleaning would fail."""
        self.enable('passthrough', enabled=False)
        self.restored([], [
            vgpu_base.t4(number, vfio_refusal='there is no driver')
            for number in range(2)])
        self.assertEqual({'available': 2}, self.states())

    def test_gpu_whose_vf_is_in_the_book_is_not_cleaned(self):
        """Its VFs are gone since the host was rebooted."""
        gpu = dataclasses.replace(vgpu_base.PF, iommu_group=1)
        vf = vgpu_base.vf(gpu, 0, iommu_group=2, vgpu_types=vgpu_base.TYPES)
        hosts.store(self.db, base.scan((gpu, vf), number=2))
        granted = self.ask(Q4=1)
        claims.activate(self.db, base.uuids(granted))
        self.restored(self.book(granted), [
            dataclasses.replace(gpu, sriov_numvfs=0)])
        self.assertEqual([], self.tasks())
