# SPDX-License-Identifier: Apache-2.0
"""Tests of GPUs that a guest had whole, and that have VFs afterwards."""

import dataclasses
import datetime

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import card_places
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import moved_cards
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import variant_changes
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import card as card_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.objects import admin
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import test_moved_cards

DSN = test_moved_cards.DSN
OTHER = test_moved_cards.OTHER
OPERATOR = test_moved_cards.OPERATOR
WHOLE = base.function(0, device='74a1', dsn=DSN, sriov_totalvfs=2)
GPU = base.replace(0, device='74a1', dsn=DSN, sriov_totalvfs=2,
                   used_by='vf', sriov_numvfs=2)
VFS = tuple(base.function(
    0, id=f'{GPU.id}/vf{number}', device='74b5', dsn=None,
    address=f'0000:00:00.{number + 1}', pf=GPU.id, vf_index=number)
    for number in range(2))


class WholeCase(test_moved_cards.MovedCase):
    """A guest has the whole card on h1."""

    variant = False
    functions = ()

    def setUp(self):
        super().setUp()
        for name, device in (('MI300X', '74a1'), ('MI300X-VF', '74b5')):
            variant_admin.create(self.db, admin.VariantInfo(
                name=name, vendor='10de', device=device))
        self.report('h1', WHOLE)

    def clean_all(self, passed=True):
        self.later()
        super().clean_all(passed)

    def use(self, host='h1', instance='i1'):
        """Have an instance use the whole card of a host, and end."""
        releases.release(self.db, base.uuids(self.boot(
            variant='MI300X', host=host, instance=instance)))

    def move_whole(self, host):
        self.switch_off()
        self.report(host, WHOLE)

    def use_vf(self, host):
        # As long as their GPU has a variant, its VFs have it.
        variant_admin.delete(self.db, 'MI300X', variant_changes.PATIENT)
        releases.release(self.db, base.uuids(self.boot(
            variant='MI300X-VF', host=host, instance='i4')))

    def devices(self, host):
        return device_admin.list_all(self.db, host, include_retired=True)

    def states(self, host):
        return [device.state for device in self.devices(host)]

    def assert_withheld(self, host, *texts):
        """Check that neither the card nor its VFs are offered or cleaned."""
        gpu, *vfs = self.devices(host)
        self.assertEqual(['quarantined'] * 3, self.states(host))
        self.assertEqual((), cleaning.tasks(self.db, host))
        for device in (gpu, *vfs):
            for text in (*texts, f'gpgpu-manage device release {host} '
                                 f'{gpu.address}'):
                self.assertIn(text, device.reason)
        for vf in vfs:
            for call in (withdrawal.clean, cleaning.operator_release):
                self.assertIn('had the whole GPU', self.refused(
                    call, vf.uuid, OPERATOR))
        for call in (withdrawal.clean, cleaning.operator_release):
            self.assertIn('Remove the VFs of ', self.refused(
                call, gpu.uuid, OPERATOR))
        self.assertEqual(['quarantined'] * 3, self.states(host))

    def assert_withheld_for(self, reason, host):
        self.assertEqual(['quarantined'] * 3, self.states(host))
        for device in self.devices(host):
            self.assertIn(reason, device.reason)
        self.assertIn(reason, self.refused(
            cleaning.operator_release, self.on(host).uuid, OPERATOR))
        self.assert_cleaned_whole(host)

    def assert_cleaned_whole(self, host):
        """Check that the card is offered once it was cleaned as a whole."""
        self.report(host, WHOLE)
        gpu = self.on(host)
        cleaning.operator_release(self.db, gpu.uuid, OPERATOR)
        self.assertEqual([gpu.uuid], [
            task.device_uuid for task in cleaning.tasks(self.db, host)])
        self.clean_all()
        self.report(host, GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states(host))
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states(host))


class ArrivalTest(WholeCase):
    """The card has VFs on its new host."""

    def test_card_that_a_guest_had_whole_is_quarantined_with_its_vfs(self):
        self.use()
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU',
                             '0000:00:00.0 of h1')
        self.assert_cleaned_whole('h2')

    def test_card_whose_guest_was_lost_with_its_host_is_quarantined(self):
        self.boot(variant='MI300X')
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_quarantined_card_is_not_released_with_vfs(self):
        self.use()
        self.quarantine(self.on('h1').uuid)
        self.assert_not_released('quarantined')

    def test_retired_card_is_not_released_with_vfs(self):
        self.use()
        retirement.retire(self.db, self.on('h1').uuid, None)
        self.assert_not_released('retired')

    def assert_not_released(self, state):
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assertEqual([state] * 3, self.states('h2'))
        for device in self.devices('h2'):
            self.assertRaises(
                exception.Conflict, cleaning.operator_release, self.db,
                device.uuid, OPERATOR)
        self.assert_cleaned_whole('h2')

    def test_vfs_that_the_new_host_makes_before_the_cleaning_wait(self):
        self.use()
        self.move_whole('h2')
        self.assertEqual(['dirty'], self.states('h2'))
        self.report('h2', GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU',
                             '0000:00:00.0 of h1')
        self.assert_cleaned_whole('h2')

    def test_card_that_was_not_cleaned_on_either_host_is_quarantined(self):
        self.use()
        self.move_whole('h2')
        self.switch_off('h2')
        self.report('h3', GPU, *VFS)
        self.assert_withheld('h3', 'instance i1 had the whole GPU',
                             '0000:00:00.0 of h1')

    def test_vfs_of_a_card_that_was_cleaned_whole_are_offered(self):
        self.use()
        self.move_whole('h2')
        self.clean_all()
        self.report('h2', GPU, *VFS)
        self.assertEqual(['available'] * 3, self.states('h2'))
        self.use_vf('h2')
        self.switch_off('h2')
        # What a guest had whole on h1 was cleaned on h2.
        self.report('h3', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h3'))

    def test_card_that_was_used_again_where_it_was_before_is_quarantined(self):
        self.use()
        self.move_whole('h2')
        self.clean_all()
        self.switch_off('h2')
        self.report('h1')
        self.report('h1', WHOLE)
        self.clean_all()
        self.use('h1', 'i2')
        self.switch_off('h1')
        self.report('h3', GPU, *VFS)
        self.assert_withheld('h3', 'instance i2 had the whole GPU')

    def test_card_that_waits_for_its_host_is_quarantined_if_it_was_moved(self):
        self.use()
        self.heard('h1', 300)
        self.report('h2', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))
        for device in self.devices('h2'):
            self.assertIn('waits until h1 reports', device.reason)
            self.assertIn('had the whole GPU', self.refused(
                withdrawal.clean, device.uuid, OPERATOR))
        self.report('h1')
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_other_card_with_the_number_is_not_withheld(self):
        self.use()
        self.heard('h1', 300)
        self.report('h2', GPU, *VFS)
        self.heard('h1', -100)
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states('h2'))
        self.quarantine(self.on('h2').uuid)
        cleaning.operator_release(self.db, self.on('h2').uuid, OPERATOR)

    def test_vfs_that_return_after_their_card_are_cleaned(self):
        self.report('h1', GPU, *VFS)
        self.report('h1')
        self.report('h2', GPU, *VFS)
        self.use_vf('h2')
        self.report('h2')
        self.report('h1', GPU, VFS[0])
        self.report('h1', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h1'))

    def test_card_that_is_cleaned_when_it_leaves_is_quarantined(self):
        self.use()
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')
        # What it was is known now, but the operator decides.
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.results(task.steps))
        self.assertEqual(['quarantined'] * 3, self.states('h2'))
        cleaning.operator_release(self.db, self.on('h2').uuid, OPERATOR)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))

    def test_card_that_is_claimed_when_it_leaves_is_quarantined(self):
        self.claim(variant='MI300X')
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_card_in_another_slot_of_its_host_is_quarantined(self):
        self.use()
        self.report('h1', dataclasses.replace(
            GPU, id='/devices/pci0000:77/01.0/00.0', address='0000:77:00.0'),
            *(dataclasses.replace(
                vf, id=f'/devices/pci0000:77/01.0/00.0/vf{number}',
                pf='/devices/pci0000:77/01.0/00.0',
                address=f'0000:77:00.{number + 1}')
              for number, vf in enumerate(VFS)))
        self.assertEqual({
            '0000:00:00.0': 'dirty', '0000:77:00.0': 'quarantined',
            '0000:77:00.1': 'quarantined', '0000:77:00.2': 'quarantined',
        }, {device.address: device.state for device in self.devices('h1')})

    def other_on_h2(self):
        """Have another card be in the slot of h2, with VFs."""
        self.report('h2', base.replace(
            0, device='74a1', dsn=test_moved_cards.OTHER, used_by='vf',
            sriov_totalvfs=2, sriov_numvfs=2), *VFS)
        return self.on('h2').uuid

    def assert_present_quarantined(self, host):
        self.assertEqual({'quarantined'}, {
            device.state for device in self.devices(host) if device.present})

    def test_card_whose_place_was_prepared_is_quarantined(self):
        retirement.replace(self.db, self.other_on_h2(), OPERATOR)
        self.use()
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_present_quarantined('h2')

    def test_card_that_is_accepted_in_another_place_is_quarantined(self):
        other = self.other_on_h2()
        self.use()
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assertIn('Remove the VFs of ', self.refused(
            cleaning.operator_release, other, OPERATOR))
        retirement.replace(self.db, other, OPERATOR)
        self.assert_present_quarantined('h2')

    def test_cleaning_of_the_card_before_does_not_count(self):
        self.use()
        self.later()
        other = dataclasses.replace(WHOLE, dsn=OTHER)
        self.report('h2', other)
        withdrawal.clean(self.db, self.on('h2').uuid, OPERATOR)
        [task] = cleaning.tasks(self.db, 'h2')
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.results(task.steps))
        self.later()
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assertIn('Remove the VFs of ', self.refused(
            cleaning.operator_release, self.on('h2').uuid, OPERATOR))

    def test_card_whose_vfs_guests_had_is_cleaned_as_a_whole(self):
        self.report('h1', GPU, *VFS)
        self.use_vf('h1')
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X', vendor='10de', device='74a1'))
        self.move_whole('h2')
        self.assertEqual(['dirty'], self.states('h2'))
        [task] = cleaning.tasks(self.db, 'h2')
        self.assertIn('reset', task.steps)
        self.assertEqual(0, self.free('h2'))
        self.clean_all()
        self.boot(variant='MI300X', host='h2', instance='i3')

    def free(self, host):
        return sum(device.shown_state == 'available'
                   for device in self.devices(host))


class SameHostTest(WholeCase):
    """The host of a card makes VFs of it before it was cleaned."""

    def test_vfs_of_a_card_that_a_guest_had_whole_are_quarantined(self):
        self.use()
        self.report('h1', GPU, *VFS)
        self.assert_withheld('h1', 'instance i1 had the whole GPU')
        self.assert_cleaned_whole('h1')

    def test_vfs_that_appear_while_the_whole_card_is_cleaned_wait(self):
        self.use()
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        self.report('h1', GPU, *VFS)
        self.assertEqual(['cleaning', 'dirty', 'dirty'], self.states('h1'))
        self.assertEqual([task.device_uuid], [
            other.device_uuid for other in cleaning.tasks(self.db, 'h1')])
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.failed('looked at'))
        self.assertEqual(['quarantined'] * 3, self.states('h1'))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assert_cleaned_whole('h1')

    def test_cleaning_of_another_card_with_the_number_later_is_none(self):
        with self.db.reader() as session:
            [here] = card_places._places(
                session, device_db.get(session, self.on('h1').uuid))
            other = dataclasses.replace(here, device=models.Device(uuid='x'))
            for name, value in (
                    ('_places', lambda *_: [here, other]),
                    ('_use', lambda session, place, here, cleanings: (
                        None if cleanings else (1, 'used')))):
                self.useFixture(fixtures.MockPatchObject(
                    card_places, name, value))
            for hours, expected in ((1, 'used'), (0, None), (-1, None)):
                passed = here.found_at + datetime.timedelta(hours=hours)
                self.useFixture(fixtures.MockPatchObject(
                    card_places.ledger, 'last_passed',
                    lambda session, uuid, passed=passed: (
                        ledger.Passed(passed, passed) if uuid == 'x'
                        else None)))
                self.assertEqual(expected, card_places.last_whole(
                    session, here.device))

    def test_vfs_of_a_card_that_passes_are_cleaned_after_it(self):
        self.use()
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        self.report('h1', GPU, *VFS)
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.results(task.steps))
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h1'))
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states('h1'))


class ForeignNumberTest(WholeCase, test_moved_cards.ForeignNumberCase):
    """Another host says that it cleaned the card that h1 has."""

    def use(self, host='h1'):
        super().use(host)
        self.later()

    def forge(self):
        super().forge(WHOLE)

    def boot_with_vfs(self):
        """Boot h1, whose driver makes the VFs after the first report."""
        self.boot_h1('boot 2')
        for number, functions in enumerate(([WHOLE], [GPU, *VFS]), 1):
            reports.report(self.db, base.scan(functions, number=number))

    def test_card_that_stayed_on_its_host_is_quarantined(self):
        self.use()
        self.forge()
        self.boot_with_vfs()
        self.assert_withheld('h1', 'instance i1 had the whole GPU')

    def test_card_that_another_service_had_is_quarantined(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.later()
        self.forge()
        self.boot_with_vfs()
        self.assertEqual(['quarantined'] * 3, self.states('h1'))
        self.assertIn('managed by Cyborg', self.on('h1').reason)

    def test_card_that_was_moved_is_quarantined(self):
        self.use()
        self.forge()
        self.move_now(GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_card_of_which_a_vf_was_dirty_elsewhere_is_quarantined(self):
        self.use()
        self.forge()
        self.report('m', GPU, *VFS)
        self.clean_on('m')
        self.use_vf('m')
        self.report('m')
        self.move_now(GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_card_that_is_quarantined_elsewhere_is_not_waited_for(self):
        self.use()
        self.forge()
        self.report('m', WHOLE)
        self.quarantine(self.on('m').uuid)
        self.heard('m', -100)
        self.move_now(GPU, *VFS)
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_card_whose_host_was_deleted_is_cleaned(self):
        self.use()
        self.forge()
        self.heard('h1', 0)
        host_admin.delete(self.db, 'h1', force=True)
        self.report('h2', WHOLE)
        self.assertEqual(['dirty'], self.states('h2'))
        self.report('h2', GPU, *VFS)
        self.assertEqual(['quarantined'] * 3, self.states('h2'))

    def wait_beside_m(self, *shown):
        """Let h2 have the card before h1 is silent, while m shows some."""
        self.use()
        self.forge()
        self.report('m', *shown)
        self.heard('m', 0)
        self.heard('h1', 300)
        self.report('h2', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))
        self.assertEqual((), cleaning.tasks(self.db, 'h2'))
        self.assertIn('waits until h1 reports', self.on('h2').reason)

    def become_silent(self):
        """Let h1 have called until now, which counts as long ago."""
        self.heard('h1', 0)
        moved_cards.decide(self.db, 0)

    def test_card_waits_for_its_host_though_another_showed_the_number(self):
        self.wait_beside_m()
        self.become_silent()
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_card_waits_for_its_host_though_another_shows_the_number(self):
        self.wait_beside_m(WHOLE)
        self.become_silent()
        self.assert_withheld('h2', 'instance i1 had the whole GPU')

    def test_vfs_of_another_card_with_the_number_are_cleaned(self):
        self.wait_beside_m(WHOLE)
        self.heard('h1', -100)
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.assertEqual(2, len(cleaning.tasks(self.db, 'h2')))

    def test_card_that_failed_elsewhere_and_is_back_with_vfs(self):
        self.move_whole('h2')
        self.use('h2')
        self.clean_all(passed=False)
        self.switch_off('h2')
        self.boot_h1('boot 2')
        reports.report(self.db, base.scan([GPU, *VFS], number=1))
        self.assertEqual(['quarantined'] * 3, self.states('h1'))
        self.assertIn('had the whole GPU', self.refused(
            cleaning.operator_release, self.on('h1').uuid, OPERATOR))

    def test_card_that_was_missing_when_it_was_cleaned_has_vfs(self):
        self.use()
        self.report('h1')
        self.later()
        self.report('m', WHOLE)
        self.clean_on('m')
        self.heard('h1', 0)
        self.report('m')
        self.report('h1', WHOLE)
        self.report('h1', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h1'))


class DeletedHostTest(WholeCase):
    """The host of a card is deleted while the card is not clean."""

    def delete(self, host='h1'):
        host_admin.delete(self.db, host, force=True)
        self.later()

    def test_dirty_card_is_cleaned_on_its_new_host(self):
        self.use()
        self.delete()
        self.report('h2', WHOLE)
        self.assertEqual(['dirty'], self.states('h2'))
        self.assertIn('host that was deleted', self.details()[0])
        self.clean_all()
        # What it became there counts from then on.
        self.switch_off('h2')
        self.report('h3', GPU, *VFS)
        self.assertEqual(['available'] * 3, self.states('h3'))

    def test_card_that_a_guest_had_whole_is_quarantined_with_its_vfs(self):
        self.use()
        self.delete()
        self.report('h2', GPU, *VFS)
        self.assert_withheld_for('the whole GPU was not clean', 'h2')

    def test_vfs_that_the_new_host_makes_before_the_cleaning_wait(self):
        self.use()
        self.delete()
        self.report('h2', WHOLE)
        self.report('h2', GPU, *VFS)
        self.assert_withheld_for('the whole GPU was not clean', 'h2')

    def test_vfs_of_a_card_with_a_dirty_vf_are_cleaned(self):
        self.report('h1', GPU, *VFS)
        self.use_vf('h1')
        self.delete()
        self.report('h2', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))

    def test_card_that_was_there_before_the_table_is_remembered(self):
        self.use()
        with self.db.writer() as session:
            session.execute(sa.update(models.Card).values(found_at=None))
        self.delete()
        self.report('h2', WHOLE)
        self.assertEqual(['dirty'], self.states('h2'))

    def test_no_card_of_a_restored_host_counts_as_clean(self):
        sessions.mark_restored(self.db)
        exc = self.assertRaises(
            exception.Conflict, host_admin.delete, self.db, 'h1')
        self.assertIn('restored from a backup', str(exc))
        self.delete()
        self.report('h2', GPU, *VFS)
        self.assert_withheld_for('the whole GPU was not clean', 'h2')

    def test_card_that_waited_for_another_host_counts_as_not_clean(self):
        self.use()
        self.heard('h1', 300)
        self.report('h2', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))
        self.delete('h2')
        self.delete('h1')
        self.report('h3', GPU, *VFS)
        self.assert_withheld_for('the whole GPU was not clean', 'h3')

    def test_card_that_came_in_the_place_of_another_counts_as_not_clean(self):
        self.use()
        # Nobody accepted it on h2, and h1 is gone: no row has its number.
        self.report('h2', base.function(0, device='74a1', dsn=OTHER))
        self.switch_off()
        self.report('h2', WHOLE)
        self.assertEqual(['quarantined'], self.states('h2'))
        self.delete()
        self.delete('h2')
        with self.db.writer() as session:
            # What h1 knew of it is older.
            session.execute(sa.delete(models.Card).where(
                models.Card.found_at < sa.select(
                    sa.func.max(models.Card.found_at)).scalar_subquery()))
        self.report('h3', GPU, *VFS)
        self.assert_withheld_for('the whole GPU was not clean', 'h3')

    def test_clean_card_is_offered(self):
        self.delete()
        self.report('h2', WHOLE)
        self.assertEqual(['available'], self.states('h2'))

    def test_retired_card_that_left_is_cleaned(self):
        self.use()
        retirement.retire(self.db, self.on('h1').uuid, None)
        self.report('h1')
        host_admin.delete(self.db, 'h1')
        self.report('h2', WHOLE)
        self.assertEqual(['dirty'], self.states('h2'))

    def test_card_that_was_elsewhere_since_is_what_it_was_there(self):
        self.use()
        self.move_whole('h2')
        self.clean_all()
        self.delete()
        self.switch_off('h2')
        self.report('h3', WHOLE)
        self.assertEqual(['available'], self.states('h3'))

    def test_card_that_stayed_with_a_number_of_very_many_hosts_is_offered(
            self):
        self.useFixture(fixtures.MockPatchObject(card_db, 'MOST', 2))
        self.report('h1', GPU, *VFS)
        for host in ('h2', 'h3', 'h4'):
            self.report(host, WHOLE)
        self.clean_all()
        self.use('h2')
        self.later()
        self.heard('h2', 0)
        host_admin.delete(self.db, 'h2', force=True)
        self.boot_h1('boot 2')
        reports.report(self.db, base.scan([GPU, *VFS], number=1))
        self.assertEqual(['available'] * 3, self.states('h1'))
        # It is not where it was any more.
        self.report('h5', GPU, *VFS)
        self.assertEqual(['quarantined'] * 3, self.states('h5'))

    def test_card_that_waits_for_the_host_is_not_offered_in_parts(self):
        self.use()
        self.heard('h1', 300)
        self.report('h2', GPU, *VFS)
        self.delete()
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.assert_withheld_for('the whole GPU was not clean', 'h2')


class UnknownUseTest(WholeCase):
    """Nobody knows who had the whole card, and it gets VFs."""

    def report_again(self, host='h1'):
        """Report the whole card, which is dirty now, then with VFs."""
        self.report(host, WHOLE)
        self.assertEqual(['dirty'], self.states(host))
        self.report(host, GPU, *VFS)

    def test_gpu_that_another_service_managed(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.report_again()
        self.assert_withheld_for('managed by Cyborg', 'h1')

    def test_number_tells_that_a_gpu_that_did_not_answer_is_the_same(self):
        self.fail_then_answer(WHOLE)
        self.assertEqual(['dirty'], self.states('h1'))
        self.report('h1', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h1'))

    def test_gpu_without_a_number_that_did_not_answer(self):
        gpu = dataclasses.replace(WHOLE, dsn=None)
        self.report('h3', gpu)
        self.fail_then_answer(gpu, 'h3')
        self.report('h3', dataclasses.replace(GPU, dsn=None), *VFS)
        self.assertIn('may have been replaced', self.on('h3').reason)
        self.assertEqual(['quarantined'] * 3, self.states('h3'))

    def test_gpu_whose_number_is_not_shown_again(self):
        self.fail_then_answer(WHOLE, now=dataclasses.replace(WHOLE, dsn=None))
        self.report('h1', GPU, *VFS)
        self.assertIn('may have been replaced', self.on('h1').reason)

    def test_gpu_without_a_number_that_answers_with_vfs(self):
        gpu = dataclasses.replace(WHOLE, dsn=None)
        self.report('h3', gpu)
        self.fail_then_answer(
            gpu, 'h3', dataclasses.replace(GPU, dsn=None), *VFS)
        self.assertIn('may have been replaced', self.on('h3').reason)
        self.assertEqual(['quarantined'] * 3, self.states('h3'))

    def test_gpu_without_a_number_that_had_vfs(self):
        gpu = dataclasses.replace(GPU, dsn=None)
        self.report('h3', gpu, *VFS)
        self.fail_then_answer(gpu, 'h3', gpu, *VFS)
        self.assertEqual(['available'] * 3, self.states('h3'))

    def fail_then_answer(self, gpu, host='h1', now=None, *vfs):
        for fault in ('reads all ones', None):
            found = (health.Health.OK if fault is None
                     else health.Health.FAILED)
            hosts.store(self.db, base.scan(
                [dataclasses.replace(gpu if fault else now or gpu,
                                     fault=fault), *vfs], host=host,
                node_uuid=base.NODE if host == 'h1' else base.node_uuid(host),
                health={gpu.id: health.Condition(
                    health=found, reason=fault, errors={})}))

    def test_gpu_of_a_restored_database(self):
        sessions.mark_restored(self.db)
        granted = hosts.begin(self.db, 'h1', base.NODE, expected=90)
        origin = hosts.origin('h1', base.NODE, session=granted.number)
        reports.report(self.db, base.scan(
            [WHOLE], number=1, assignments=()), origin)
        self.assertEqual(['dirty'], self.states('h1'))
        reports.report(self.db, base.scan(
            [GPU, *VFS], number=2, assignments=()), origin)
        self.assertEqual(['quarantined'] * 3, self.states('h1'))
        self.assertIn('since the backup', self.on('h1').reason)

    def test_gpu_that_got_its_vfs_after_the_backup(self):
        sessions.mark_restored(self.db)
        granted = hosts.begin(self.db, 'h1', base.NODE, expected=90)
        reports.report(
            self.db, base.scan([GPU, *VFS], number=1, assignments=()),
            hosts.origin('h1', base.NODE, session=granted.number))
        self.assertEqual(['quarantined'] * 3, self.states('h1'))
        self.assertIn('since the backup', self.on('h1').reason)

    def test_gpu_that_had_vfs_before_the_backup_is_cleaned_by_vf(self):
        self.restored_with_vfs([GPU, *VFS])

    def test_gpu_that_had_vfs_before_the_backup_gets_them_later(self):
        self.restored_with_vfs([WHOLE])

    def restored_with_vfs(self, first):
        self.report('h1', GPU, *VFS)
        sessions.mark_restored(self.db)
        granted = hosts.begin(self.db, 'h1', base.NODE, expected=90)
        for number, functions in enumerate((first, [GPU, *VFS]), 1):
            reports.report(
                self.db, base.scan(
                    functions, number=number, assignments=()),
                hosts.origin('h1', base.NODE, session=granted.number))
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h1'))

    def test_card_of_a_restored_host_that_has_not_reported(self):
        sessions.mark_restored(self.db)
        self.switch_off()
        self.report_again('h2')
        self.assert_withheld_for('it was at 0000:00:00.0 of h1', 'h2')

    def lend(self):
        """Have another service use the whole GPU, and give it back."""
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.report('h1', WHOLE)

    def test_gpu_that_another_service_gives_back_with_vfs(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.report('h1', GPU, *VFS)
        self.assert_withheld_for('managed by Cyborg', 'h1')

    def test_gpu_that_is_given_back_with_vfs_that_the_driver_reports(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.report('h1', dataclasses.replace(
            GPU, vgpu_mechanism=capability.VGPUMechanism.VF), *VFS)
        self.assert_withheld_for('managed by Cyborg', 'h1')

    def test_gpu_that_another_service_had_whole_and_then_in_parts(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.report('h1', dataclasses.replace(GPU, owner='Cyborg'), *(
            dataclasses.replace(vf, owner='Cyborg') for vf in VFS))
        self.report('h1', GPU, *VFS)
        self.assert_withheld_for('managed by Cyborg', 'h1')

    def test_gpu_that_is_moved_while_another_service_has_it(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_withheld_for('managed by Cyborg', 'h2')

    def test_gpu_whose_host_is_deleted_while_another_service_has_it(self):
        self.report('h1', dataclasses.replace(WHOLE, owner='Cyborg'))
        host_admin.delete(self.db, 'h1', force=True)
        self.later()
        self.report('h2', GPU, *VFS)
        self.assert_withheld_for('the whole GPU was not clean', 'h2')

    def test_replaced_gpu(self):
        self.report('h1', dataclasses.replace(WHOLE, dsn=OTHER))
        for owner in ('Cyborg', None):
            self.report('h1', dataclasses.replace(
                WHOLE, dsn=OTHER, owner=owner))
        retirement.replace(self.db, self.on('h1').uuid, OPERATOR)
        self.report('h1', dataclasses.replace(GPU, dsn=OTHER), *VFS)
        self.assertEqual('quarantined', self.on('h1').state)
        self.assertIn('managed by Cyborg', self.on('h1').reason)

    def test_vfs_that_another_service_managed_are_made_again(self):
        self.report('h1', dataclasses.replace(GPU, owner='Cyborg'), *(
            dataclasses.replace(vf, owner='Cyborg') for vf in VFS))
        self.report('h1', WHOLE)
        self.report('h1', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h1'))

    def test_gpu_that_was_withdrawn_before_it_was_lent(self):
        for withdraw in (self.quarantine,
                         lambda uuid: retirement.retire(self.db, uuid, None)):
            withdraw(self.on('h1').uuid)
            self.lend()
            self.report('h1', GPU, *VFS)
            self.assertIn('managed by Cyborg', self.refused(
                cleaning.operator_release, self.on('h1').uuid, OPERATOR))
            self.assert_cleaned_whole('h1')
            self.report('h1')
            self.report('h1', WHOLE)

    def test_moved_gpu(self):
        self.lend()
        self.switch_off()
        self.report('h2', GPU, *VFS)
        self.assert_withheld_for('managed by Cyborg', 'h2')

    def test_moved_gpu_that_was_quarantined(self):
        self.lend()
        self.quarantine(self.on('h1').uuid)
        self.switch_off()
        for functions in ([GPU, *VFS], [WHOLE]):
            host = f'h{2 + len(functions)}'
            self.report(host, *functions)
            self.assertEqual('quarantined', self.on(host).state)
            if functions == [WHOLE]:
                cleaning.operator_release(
                    self.db, self.on(host).uuid, OPERATOR)
                self.report(host, GPU, *VFS)
            self.assertIn('managed by Cyborg', self.refused(
                cleaning.operator_release, self.on(host).uuid, OPERATOR))
            self.switch_off(host)

    def test_moved_gpu_that_waits_for_its_host(self):
        self.lend()
        self.heard('h1', 300)
        self.report('h2', GPU, *VFS)
        self.assertIn('managed by Cyborg', self.refused(
            withdrawal.clean, self.on('h2').uuid, OPERATOR))

    def test_cleaning_of_another_card_with_the_number_says_nothing(self):
        for functions in ([WHOLE], [GPU, *VFS]):
            self.lend()
            self.later()
            self.heard('h1', 300)
            self.report('h2', WHOLE)
            self.heard('h1', -100)
            moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
            self.clean_on('h2')
            self.heard('h2', -100)
            self.report('h1')
            self.report('h1', *functions)
            self.report('h1', GPU, *VFS)
            self.assertEqual(['quarantined'] * 3, self.states('h1'))
            self.assert_cleaned_whole('h1')
            self.report('h2')

    def clean_on(self, host):
        self.later()
        for task in cleaning.tasks(self.db, host):
            cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
            cleaning.finished(self.db, task.device_uuid, 'attempt',
                              task.steps, cleaned.results(task.steps))

    def test_gpu_that_was_cleaned_elsewhere_is_offered_in_parts(self):
        self.lend()
        self.later()
        self.move_whole('h2')
        self.clean_on('h2')
        self.switch_off('h2')
        self.later()
        for host, functions in (('h1', [GPU, *VFS]), ('h3', [WHOLE])):
            self.report(host)
            self.report(host, *functions)
            self.report(host, GPU, *VFS)
            self.assertNotIn('quarantined', self.states(host))
            self.switch_off(host)

    def test_gpu_that_an_operator_had_cleaned_when_it_was_moved(self):
        withdrawal.clean(self.db, self.on('h1').uuid, OPERATOR)
        self.move_whole('h2')
        self.assertEqual(['dirty'], self.states('h2'))
        self.report('h2', GPU, *VFS)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))

    def test_operator_that_accepts_an_exchanged_gpu_as_the_same(self):
        self.lend()
        self.report('h1', dataclasses.replace(WHOLE, dsn=OTHER))
        cleaning.operator_release(self.db, self.on('h1').uuid, OPERATOR)
        self.report('h1', dataclasses.replace(GPU, dsn=OTHER), *VFS)
        self.assertEqual(['quarantined'] * 3, self.states('h1'))

    def test_gpu_without_a_group_is_not_cleaned_in_vain(self):
        variant_admin.delete(self.db, 'MI300X', variant_changes.PATIENT)
        self.lend()
        self.assertIn('is unmanaged', self.refused(
            withdrawal.clean, self.on('h1').uuid, OPERATOR))

    def test_gpu_that_was_cleaned_since_is_offered_in_parts(self):
        self.lend()
        self.clean_all()
        self.report('h1', GPU, *VFS)
        self.assertEqual(['available'] * 3, self.states('h1'))
        self.use_vf('h1')
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states('h1'))

    def test_gpu_whose_cleaning_failed(self):
        self.lend()
        self.clean_all(passed=False)
        self.report('h1', GPU, *VFS)
        self.assertIn('managed by Cyborg', self.refused(
            cleaning.operator_release, self.on('h1').uuid, OPERATOR))
        self.assert_cleaned_whole('h1')
