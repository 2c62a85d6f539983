# SPDX-License-Identifier: Apache-2.0
"""Tests of devices that operators quarantine and have cleaned."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import admin
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import test_cleaning
from tests.unit.conductor import vgpu_base

OPERATOR = 'root@control'


class WithdrawalCase(test_cleaning.CleaningCase):

    def first(self):
        return device_admin.list_all(self.db)[0]

    def shown(self, uuid):
        return device_admin.show(self.db, uuid)

    def quarantine(self, uuid, reason='fan is loud'):
        withdrawal.quarantine(self.db, uuid, reason, OPERATOR)
        return self.shown(uuid)

    def clean(self, uuid):
        released.clean(self.db, uuid, OPERATOR)
        return self.shown(uuid)

    def refused(self, call, *arguments):
        return str(self.assertRaises(
            exception.Conflict, call, self.db, *arguments))

    def events(self, kind):
        with self.db.reader() as session:
            return [(row.device_uuid, row.detail)
                    for row in session.execute(
                        sa.select(event_db.TABLE)
                        .where(event_db.TABLE.c.kind == kind)
                        .order_by(event_db.TABLE.c.id))]

    def verdicts(self, uuid):
        return [record.fields['verdict']
                for record in history.list_cleanings(self.db, uuid)]


class QuarantineTest(WithdrawalCase):

    functions = (base.function(0),)

    def test_free_device_is_quarantined_at_once(self):
        before = self.generation()
        shown = self.quarantine(self.first().uuid)
        self.assertEqual(
            ('quarantined', 'quarantined by root@control: fan is loud'),
            (shown.shown_state, shown.reason))
        self.assertGreater(self.generation(), before)
        self.assertRaises(exception.ClaimDenied, self.claim)
        [group] = group_admin.list_all(self.db)
        self.assertEqual((1, 1, 0), (
            group.total, group.reserved, group.remaining))
        self.assertEqual([(shown.uuid, 'fan is loud')],
                         self.events('quarantine'))
        [record] = history.list_cleanings(self.db, shown.uuid)
        self.assertEqual(('quarantined', OPERATOR), (
            record.fields['verdict'], record.fields['actor']))

    def test_dirty_device_is_not_cleaned_any_more(self):
        [task] = self.dirty()
        self.assertEqual('quarantined',
                         self.quarantine(task.device_uuid).state)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))

    def test_cleaning_that_runs_ends_without_a_verdict(self):
        [task] = self.dirty()
        self.start(task)
        self.quarantine(task.device_uuid)
        self.assertIn('it is quarantined', str(self.assertRaises(
            exception.Conflict, self.finish, task)))
        self.assertEqual('quarantined', self.first().state)

    def test_assigned_device_is_quarantined_when_it_is_released(self):
        granted = self.boot()
        shown = self.quarantine(self.first().uuid)
        self.assertEqual('assigned', shown.state)
        self.assertIn('fan is loud', shown.reason)
        self.assertIn('when its assignment ends',
                      self.events('quarantine')[0][1])
        releases.release(self.db, base.uuids(granted))
        shown = self.first()
        self.assertEqual('quarantined', shown.state)
        self.assertIn('fan is loud', shown.reason)
        self.assertEqual(['quarantined'], self.verdicts(shown.uuid))
        [record] = history.list_cleanings(self.db, shown.uuid)
        self.assertEqual(OPERATOR, record.fields['actor'])
        # It counts once: what is cleaned then has another instance.
        self.clean(shown.uuid)
        self.clean_all()
        releases.release(self.db, base.uuids(self.boot()))
        self.assertEqual('dirty', self.first().state)

    def test_claim_that_is_aborted_untouched_is_quarantined_too(self):
        granted = self.claim()
        self.quarantine(self.first().uuid)
        releases.abort(self.db, base.uuids(granted), touched=False,
                       fault=None)
        self.assertEqual('quarantined', self.first().state)

    def test_quarantine_that_is_yet_to_come_is_taken_back(self):
        granted = self.boot()
        uuid = self.quarantine(self.first().uuid).uuid
        released.release(self.db, uuid, OPERATOR)
        self.assertEqual(('assigned', None), (
            self.shown(uuid).state, self.shown(uuid).reason))
        releases.release(self.db, base.uuids(granted))
        self.assertEqual('dirty', self.first().state)
        self.assertIn('it is dirty', self.refused(
            released.release, uuid, OPERATOR))

    def test_device_that_is_released_while_it_is_claimed_is_cleaned(self):
        granted = self.claim()
        self.quarantine(self.first().uuid)
        released.release(self.db, self.first().uuid, OPERATOR)
        releases.abort(self.db, base.uuids(granted), touched=False,
                       fault=None)
        self.assertEqual('dirty', self.first().state)

    def test_second_quarantine_is_refused_and_names_the_first_reason(self):
        uuid = self.quarantine(self.first().uuid).uuid
        self.assertIn('fan is loud', self.refused(
            withdrawal.quarantine, uuid, 'smoke', OPERATOR))
        self.assertEqual(1, len(self.events('quarantine')))

    def test_reason_must_be_one_line(self):
        for reason in ('', '  ', 'one\ntwo', 'bell\a'):
            self.assertRaises(
                exception.Invalid, withdrawal.quarantine, self.db,
                self.first().uuid, reason, OPERATOR)

    def test_reports_keep_the_reason(self):
        self.quarantine(self.first().uuid)
        hosts.store(self.db, base.scan((base.replace(0, driver='nvidia'),)))
        self.assertIn('fan is loud', self.first().reason)


class MovedTest(WithdrawalCase):

    functions = (base.function(0, serial='X'), base.function(1, serial='Y'))

    def test_quarantine_follows_a_card_whose_place_another_one_takes(self):
        self.quarantine(self.first().uuid)
        known = self.first().dsn
        hosts.store(self.db, base.scan((
            base.replace(0, serial='N', dsn='new'),
            base.replace(1, serial='Y'),
            base.replace(2, serial='X', dsn=known))))
        [new, other, moved] = device_admin.list_all(self.db)
        self.assertEqual(
            ['available', 'available', 'quarantined'],
            [device.state for device in (new, other, moved)])
        self.assertIn('fan is loud', moved.reason)


class CleanTest(WithdrawalCase):

    functions = (base.function(0),)

    def test_free_device_is_cleaned_and_offered_again(self):
        uuid = self.first().uuid
        self.assertEqual('dirty', self.clean(uuid).state)
        self.assertRaises(exception.ClaimDenied, self.claim)
        self.clean_all()
        self.assertEqual('available', self.first().state)
        self.assertEqual(['passed'], self.verdicts(uuid))
        self.assertEqual([(uuid, None)], self.events('clean'))

    def test_device_that_was_never_assigned_had_no_guest(self):
        uuid = self.first().uuid
        for passed in (False, True, True):
            self.clean(uuid)
            [task] = cleaning.tasks(self.db, 'h1')
            self.assertFalse(task.had_guest)
            self.clean_all(passed=passed)

    def test_quarantined_device_is_cleaned(self):
        uuid = self.quarantine(self.first().uuid).uuid
        shown = self.clean(uuid)
        self.assertEqual(('dirty', None), (shown.state, shown.reason))
        self.clean_all()
        self.assertEqual(['quarantined', 'released', 'passed'],
                         self.verdicts(uuid))

    def test_device_that_waits_for_its_cleaning_keeps_waiting(self):
        [task] = self.dirty()
        self.assertEqual('dirty', self.clean(task.device_uuid).state)
        self.start(task)
        self.assertEqual('cleaning', self.clean(task.device_uuid).state)
        self.assertEqual([], self.events('clean'))
        self.finish(task)

    def test_device_that_waits_for_another_policy_is_tried_again(self):
        [task] = self.dirty()
        self.start(task)
        self.finish(task, results=cleaned.mute('canary'))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertIsNone(self.clean(task.device_uuid).reason)
        self.assertEqual(1, len(self.events('clean')))
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertEqual(task.request, again.request)

    def test_cleaning_that_an_operator_ended_is_not_believed_later(self):
        [task] = self.dirty()
        self.start(task)
        self.quarantine(task.device_uuid)
        self.clean(task.device_uuid)
        [again] = cleaning.tasks(self.db, 'h1')
        self.start(again)
        self.assertRaises(exception.Conflict, self.finish, task)
        self.finish(again)

    def test_assigned_device_is_refused_with_its_instance(self):
        self.boot()
        message = self.refused(
            released.clean, self.first().uuid, OPERATOR)
        self.assertIn('device h1 0000:00:00.0', message)
        self.assertIn('it is assigned: instance i1 has it', message)

    def test_unmanaged_device_is_refused(self):
        variant_admin.delete(self.db, 'H100')
        self.assertIn('the host may use it', self.refused(
            released.clean, self.first().uuid, OPERATOR))


class VFTest(WithdrawalCase):
    """A GPU whose VFs are assigned."""

    variant = False
    functions = ()

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X-VF', vendor='10de', device='74b5'))
        self.report(2)
        self.gpu, *self.vfs = device_admin.list_all(self.db)

    def report(self, count):
        """Report the GPU with a number of VFs."""
        pf = base.function(
            0, device='74a1', used_by='vf' if count else None,
            sriov_totalvfs=4, sriov_numvfs=count)
        hosts.store(self.db, base.scan((pf, *(base.function(
            0, id=f'{pf.id}/vf{number}', device='74b5', dsn=None,
            address=f'0000:00:00.{number + 1}', pf=pf.id,
            vf_index=number) for number in range(count)))))

    def states(self):
        return [device.state for device in device_admin.list_all(self.db)]

    def test_gpu_with_vfs_stands_for_these(self):
        granted = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(granted))
        self.quarantine(self.gpu.uuid)
        self.assertEqual(['assigned', 'quarantined', 'quarantined'],
                         sorted(self.states()))
        releases.release(self.db, base.uuids(granted))
        self.assertEqual(['quarantined'] * 3, self.states())
        self.clean(self.gpu.uuid)
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states())

    def used_vf(self):
        """Let a guest have a VF; return the task of its cleaning."""
        granted = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(granted))
        releases.release(self.db, base.uuids(granted))
        [task] = cleaning.tasks(self.db, 'h1')
        return task

    def test_dirty_vf_of_a_quarantined_gpu_is_not_cleaned(self):
        self.used_vf()
        self.quarantine(self.gpu.uuid)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))

    def test_quarantine_of_the_gpu_ends_the_cleaning_of_its_vf(self):
        task = self.used_vf()
        self.start(task)
        self.quarantine(self.gpu.uuid)
        self.assertRaises(exception.Conflict, self.finish, task)

    def test_vf_of_a_quarantined_gpu_is_cleaned_with_its_gpu_alone(self):
        self.quarantine(self.gpu.uuid)
        self.assertIn(
            f'its GPU {self.gpu.address} is quarantined; name the GPU',
            self.refused(released.clean, self.vfs[0].uuid, OPERATOR))

    def test_release_of_the_gpu_takes_back_its_quarantine(self):
        granted = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(granted))
        self.quarantine(self.gpu.uuid)
        released.release(self.db, self.gpu.uuid, OPERATOR)
        self.assertEqual(['assigned', 'available', 'dirty'],
                         sorted(self.states()))
        self.assertEqual(
            [f'by {OPERATOR}: it was quarantined'],
            [detail for _, detail in self.events('operator_release')])
        releases.release(self.db, base.uuids(granted))
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states())

    def test_vfs_that_are_away_are_quarantined_with_their_gpu(self):
        """The host was rebooted, and its driver has made no VFs yet."""
        granted = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(granted))
        self.report(0)
        self.quarantine(self.gpu.uuid)
        # And a third one, which was never there before.
        self.report(3)
        self.assertRaises(exception.ClaimDenied, self.claim, 1, 'other',
                          variant='MI300X-VF')
        releases.release(self.db, base.uuids(granted))
        self.assertEqual(['quarantined'] * 4, self.states())
        self.assertIn('fan is loud', device_admin.list_all(
            self.db)[-1].reason)
        released.release(self.db, self.gpu.uuid, OPERATOR)
        self.assertEqual(['available', *['dirty'] * 3], self.states())

    def test_vfs_that_are_away_are_cleaned_when_they_return(self):
        self.report(0)
        self.quarantine(self.gpu.uuid)
        self.clean(self.gpu.uuid)
        self.clean_all()
        self.report(2)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states())

    def test_gpu_whose_vfs_are_away_is_got_whole_after_its_release(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X', vendor='10de', device='74a1'))
        self.report(0)
        self.clean_all()
        for call in (released.clean, released.release):
            self.quarantine(self.gpu.uuid)
            call(self.db, self.gpu.uuid, OPERATOR)
            self.clean_all()
            granted = self.claim(variant='MI300X')
            releases.abort(self.db, base.uuids(granted), touched=True,
                           fault=None)
            self.clean_all()
        # A GPU that somebody had is not accepted as new.
        self.quarantine(self.gpu.uuid)
        released.release(self.db, self.gpu.uuid, OPERATOR)
        self.assertIn('only a cleaning', self.refused(
            withdrawal.accept_clean, [self.gpu.uuid], 'known', OPERATOR))
        self.report(2)
        self.assertEqual(['dirty', 'dirty'], self.states()[1:])

    def test_new_vfs_that_leave_uncleaned_do_not_keep_the_gpu(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X', vendor='10de', device='74a1'))
        with self.db.writer() as session:
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.parent_id.is_not(None)).values(
                    state='dirty', cleaned_steps=None))
        self.report(0)
        self.clean_all()
        self.claim(variant='MI300X')
        self.report(2)
        self.assertEqual(['provisioning', 'dirty', 'dirty'], self.states())

    def test_vfs_that_appear_on_a_quarantined_gpu_are_quarantined(self):
        self.quarantine(self.gpu.uuid)
        self.report(3)
        self.assertEqual(['quarantined'] * 4, self.states())
        self.assertIn('fan is loud', device_admin.list_all(
            self.db)[-1].reason)

    def test_gpu_that_was_quarantined_without_vfs_is_never_reset(self):
        for call in (released.clean, released.release):
            self.report(0)
            self.quarantine(self.gpu.uuid)
            self.report(2)
            call(self.db, self.gpu.uuid, OPERATOR)
            self.assertEqual(['available', 'dirty', 'dirty'], self.states())
            self.clean_all()
            self.assertEqual(['available'] * 3, self.states())

    def test_release_of_a_gpu_with_clean_vfs_is_refused(self):
        self.assertIn(
            'cannot be released, since it is available',
            self.refused(released.release, self.gpu.uuid, OPERATOR))

    def test_vf_of_a_disabled_gpu_is_enabled_with_its_gpu_alone(self):
        device_admin.set_(self.db, self.gpu.uuid, 'op', enabled=False)
        self.assertIn(f'name the GPU, {self.gpu.uuid}', str(
            self.assertRaises(
                exception.Conflict, device_admin.set_, self.db,
                self.vfs[0].uuid, 'op', enabled=True)))

    def test_vfs_are_disabled_and_enabled_with_their_gpu(self):
        for enabled in (False, True):
            device_admin.set_(self.db, self.gpu.uuid, 'op', enabled=enabled)
            # And a third one, which was never there before.
            self.report(3)
            self.assertEqual([enabled] * 4, [
                device.enabled for device in device_admin.list_all(self.db)])
            if not enabled:
                self.assertRaises(exception.ClaimDenied, self.claim,
                                  variant='MI300X-VF')
        self.claim(3, variant='MI300X-VF')
        device_admin.set_(self.db, self.vfs[0].uuid, 'op', enabled=False)
        self.assertEqual([True, False, True, True], [
            device.enabled for device in device_admin.list_all(self.db)])

    def test_one_vf_is_quarantined_by_itself(self):
        self.quarantine(self.vfs[0].uuid)
        self.assertEqual(['available', 'quarantined', 'available'],
                         self.states())


class MdevTest(vgpu_base.VGPUTestCase):

    functions = (vgpu_base.t4(0),)

    def test_quarantined_gpu_gets_no_further_vgpu(self):
        claim = self.ask(Q4=1)
        [gpu, row] = device_admin.list_all(self.db)
        withdrawal.quarantine(self.db, gpu.uuid, 'heat', OPERATOR)
        self.denied('not_enough_available', Q4=1)
        self.assertEqual('provisioning', device_admin.show(
            self.db, row.uuid).state)
        exc = self.assertRaises(
            exception.Conflict, released.clean, self.db, gpu.uuid, OPERATOR)
        self.assertIn('instance i1', str(exc))
        releases.release(self.db, base.uuids(claim))
        self.clean_all()
        released.clean(self.db, gpu.uuid, OPERATOR)
        self.clean_all()
        self.ask(Q4=1)

    def test_quarantined_gpu_is_not_cleaned_below_its_vgpus(self):
        claim = self.ask(Q4=1)
        claims.activate(self.db, base.uuids(claim))
        gpu = device_admin.list_all(self.db)[0].uuid
        withdrawal.quarantine(self.db, gpu, 'heat', OPERATOR)
        exc = self.assertRaises(
            exception.Conflict, released.release, self.db, gpu,
            OPERATOR)
        self.assertIn('instance i1 has it', str(exc))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        releases.release(self.db, base.uuids(claim))
        self.clean_all()
        released.release(self.db, gpu, OPERATOR)
        self.clean_all()
        self.ask(Q4=1)

    def test_release_of_a_gpu_releases_a_vgpu_that_failed(self):
        claim = self.ask(Q4=1)
        releases.abort(self.db, base.uuids(claim), touched=True,
                       fault='no such type')
        gpu, row = device_admin.list_all(self.db)
        self.assertEqual('quarantined', row.state)
        released.clean(self.db, gpu.uuid, OPERATOR)
        self.clean_all()
        self.ask(Q4=1)

    def test_vgpu_that_fails_below_a_gpu_that_failed_is_held_too(self):
        claim = self.ask(Q4=1)
        claims.activate(self.db, base.uuids(claim))
        gpu, mdev = device_admin.list_all(self.db)

        def hold_gpu(session):
            rows.hold(session, device_db.get(session, gpu.uuid).id,
                      device_rules.HoldKind.FAILED, 'why')
        self.db.write(hold_gpu)
        releases.release(self.db, base.uuids(claim))
        self.clean_all(passed=False)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertEqual({gpu.uuid, mdev.uuid}, {
            found.device for found in device_admin.list_holds(self.db)})

    def test_mdev_row_is_refused(self):
        claim = self.ask(Q4=1)
        for call in (
                lambda uuid: withdrawal.quarantine(
                    self.db, uuid, 'heat', OPERATOR),
                lambda uuid: released.clean(self.db, uuid, OPERATOR)):
            exc = self.assertRaises(
                exception.Conflict, call, claim.assignments[0].device_uuid)
            self.assertIn('name the GPU 0000:00:00.0', str(exc))
