# SPDX-License-Identifier: Apache-2.0
"""Tests of GPUs that leave the cloud, and of those in their place."""

import dataclasses
import uuid

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import history as history_obj
from tests.fixtures import hosts
from tests.fixtures import released
from tests.unit.conductor import base
from tests.unit.conductor import test_withdrawal
from tests.unit.conductor import vgpu_base

OPERATOR = test_withdrawal.OPERATOR
NEW = {'dsn': '11-11-11-11-11-11-11-11', 'serial': 'new'}
OLD = {'dsn': '22-22-22-22-22-22-22-22', 'serial': 'old'}


class RetirementCase(test_withdrawal.WithdrawalCase):

    functions = (base.function(0, **OLD), base.function(1))
    new_are_clean = False

    def setUp(self):
        super().setUp()
        self.old = self.first().uuid

    def report(self, **facts):
        """Report both GPUs, the first one with other facts."""
        hosts.store(self.db, base.scan((
            base.replace(0, **{**OLD, **facts}), base.function(1))))

    def listed(self, **filters):
        return [device.uuid for device in device_admin.list_all(
            self.db, **filters)]

    def everything(self):
        """Return (serial, state) of all devices at the place of the GPU."""
        return sorted(
            (device.serial, device.state)
            for device in device_admin.list_all(self.db, include_retired=True)
            if device.address == '0000:00:00.0')

    def at_place(self):
        """Return the device that is at the place of the GPU."""
        [device] = [device for device in device_admin.list_all(self.db)
                    if device.address == '0000:00:00.0' and device.present]
        return device

    def retire(self, uuid=None, reason=None):
        retirement.retire(self.db, uuid or self.old, reason, 'op')

    def replace(self, uuid=None):
        return device_admin.show(self.db, retirement.replace(
            self.db, uuid or self.old, OPERATOR))


class RetireTest(RetirementCase):

    def test_retired_gpu_leaves_lists_offers_and_counts(self):
        self.retire(reason='fell off the bus twice')
        self.assertNotIn(self.old, self.listed())
        self.assertEqual([self.old], self.listed(state='retired'))
        self.assertIn(self.old, self.listed(include_retired=True))
        shown = self.shown(self.old)
        self.assertEqual((
            'retired', None, 'retired by op: fell off the bus twice'), (
            shown.shown_state, shown.variant, shown.reason))
        [group] = group_admin.list_all(self.db)
        self.assertEqual((1, 0, 1), (
            group.total, group.reserved, group.remaining))
        [host] = host_admin.list_all(self.db)
        self.assertEqual({'available': 1}, host.devices)
        self.boot(1)
        self.assertRaises(exception.ClaimDenied, self.claim, 1, 'i2')
        self.assertEqual([(self.old, 'fell off the bus twice')],
                         self.events('retire'))

    def test_last_gpu_of_a_variant_takes_the_group_along(self):
        self.retire()
        self.retire(self.listed()[0])
        self.assertEqual((), group_admin.list_all(self.db))
        self.assertEqual((), device_admin.list_all(self.db))

    def test_history_ledger_and_usage_stay(self):
        releases.release(self.db, base.uuids(self.boot(2)))
        self.clean_all()
        self.retire()
        self.assertEqual(['passed'], self.verdicts(self.old))
        self.assertIn(self.old, [
            usage.device_uuid for usage in history.list_usage(
                self.db, history_obj.UsageQuery(), 10, None)])

    def test_device_that_is_reported_again_stays_retired(self):
        self.retire()
        for facts in ({}, {'driver': 'nvidia'}, {'serial': None}):
            self.report(**facts)
            self.assertEqual('retired', self.shown(self.old).shown_state)
        hosts.store(self.db, base.scan((base.function(1),)))
        self.report()
        self.assertEqual([('old', 'retired')], self.everything())
        self.assertEqual([], self.events('missing'))
        self.assertEqual([], self.events('returned'))
        self.assertRaises(exception.ClaimDenied, self.claim, 2)

    def test_retired_card_is_not_offered_in_another_slot(self):
        self.retire()
        moved = base.function(0, id='/devices/pci0000:77/01.0/00.0',
                              address='0000:77:00.0', **OLD)
        hosts.store(self.db, base.scan((moved, base.function(1))))
        device = self.shown(self.old)
        self.assertEqual((moved.id, 'retired', 'retired by op'), (
            device.stable_id, device.state, device.reason))

    def test_assigned_gpu_is_refused_with_its_instance(self):
        self.boot(2)
        self.assertIn('instance i1 has it',
                      self.refused(retirement.retire, self.old, None, 'op'))
        self.assertEqual('assigned', self.shown(self.old).state)

    def test_gpu_in_any_other_state_is_retired(self):
        releases.release(self.db, base.uuids(self.boot(2)))
        tasks = cleaning.tasks(self.db, 'h1')
        for task in tasks:
            self.start(task)
            self.retire(task.device_uuid)
            self.assertRaises(exception.Conflict, self.finish, task)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))

    def test_second_time_and_empty_reason_are_refused(self):
        self.assertRaises(exception.Invalid, retirement.retire, self.db,
                          self.old, '', 'op')
        self.retire()
        self.assertIn('retired already',
                      self.refused(retirement.retire, self.old, None, 'op'))

    def test_long_reason_is_shortened_as_any_database_stores_it(self):
        self.retire(reason='x' * 100000)
        self.assertIn('(100000 characters)', self.shown(self.old).reason)
        self.assertLess(len(self.shown(self.old).reason), 5000)

    def test_release_brings_it_back_after_a_cleaning(self):
        self.retire()
        released.release(self.db, self.old, OPERATOR)
        self.assertEqual(('dirty', 'H100'), (
            self.shown(self.old).shown_state, self.shown(self.old).variant))
        self.clean_all()
        self.boot(2)
        self.assertEqual(['released', 'passed'], self.verdicts(self.old))


class MachineTest(RetirementCase):
    """The host boots with another card while its session is young."""

    def begin(self, serial):
        self.session = hosts.begin(
            self.db, 'h1', base.NODE, start_uuid=str(uuid.uuid4()),
            expected=self.session,
            identity=host_rules.MachineIdentity(
                boot_id=str(uuid.uuid4()), machine_id='m1', gpus={
                    '/devices/pci0000:00/01.0/00.0': serial,
                    '/devices/pci0000:01/01.0/00.0': 'second'})).number

    def setUp(self):
        super().setUp()
        self.session = 1
        sessions.allow_takeover(self.db, 'h1')
        self.begin('old')

    def test_card_that_was_retired_does_not_tell_machines_apart(self):
        self.assertRaises(exception.Fenced, self.begin, 'new')
        self.replace()
        self.begin('new')
        self.assertRaises(exception.Fenced, self.begin, 'third')


class ReplaceTest(RetirementCase):

    def assert_replaced(self):
        """Check that both devices show what happened at the place."""
        new = self.at_place()
        self.assertEqual(
            ('dirty', 'H100', 'new'),
            (new.state, new.variant, new.serial))
        # None: it was quarantined before.
        self.assertIn(new.reason, (None, 'this host has not cleaned it yet'))
        self.assertEqual(
            [('new', 'dirty'), ('old', 'retired')], self.everything())
        old = self.shown(self.old)
        self.assertEqual((new.uuid, '/devices/pci0000:00/01.0/00.0'),
                         (old.replaced_by, old.stable_id))
        self.assertEqual(self.old, self.shown(new.uuid).replaces)
        self.assertEqual(
            {self.old, new.uuid},
            {uuid for uuid, _ in self.events('replace')})
        self.clean_all()
        self.assertEqual('available', self.at_place().state)
        # A cleaning of each has a ledger of its own.
        self.assertEqual('passed', self.verdicts(new.uuid)[-1])
        self.assertNotIn('passed', self.verdicts(self.old))
        self.report(**NEW)
        self.boot(2)

    def test_card_that_is_exchanged_later_is_accepted(self):
        shown = self.replace()
        self.assertEqual((self.old, 'retired'), (shown.uuid, shown.state))
        self.assertIn('next card', shown.reason)
        # Nothing new: once is enough.
        self.replace()
        self.assertEqual(1, len(self.events('replace')))
        hosts.store(self.db, base.scan((base.function(1),)))
        self.report(**NEW)
        self.assert_replaced()

    def test_reason_of_the_operator_stays_with_the_old_card(self):
        withdrawal.quarantine(
            self.db, self.old, 'the fan is loud', OPERATOR)
        self.assertIn('the fan is loud', self.replace().reason)
        self.report(**NEW)
        self.assertEqual('quarantined by root@control: the fan is loud; '
                         'retired by root@control',
                         self.shown(self.old).reason)
        self.assertEqual('this host has not cleaned it yet',
                         self.at_place().reason)

    def test_card_that_was_exchanged_before_is_accepted(self):
        self.report(**NEW)
        self.assertEqual('missing', self.shown(self.old).shown_state)
        self.assertEqual('quarantined', self.at_place().state)
        self.assertNotEqual(self.old, self.replace().uuid)
        self.assert_replaced()

    def test_card_in_the_place_of_a_retired_one_waits_for_the_operator(self):
        self.retire()
        self.report(**NEW)
        new = self.at_place()
        self.assertEqual('quarantined', new.state)
        self.assertIn('serial was old, is new', new.reason)
        self.assertIn('device replace', new.reason)
        self.replace()
        self.assert_replaced()

    def test_new_card_itself_may_be_named(self):
        self.retire()
        self.report(**NEW)
        self.replace(self.at_place().uuid)
        self.assert_replaced()

    def test_replacement_is_accepted_once(self):
        self.replace()
        self.report(**NEW)
        self.assertIn('has replaced it already', self.refused(
            retirement.replace, self.old, OPERATOR))

    def test_place_has_any_number_of_cards_one_after_the_other(self):
        self.report(**NEW)
        first = self.replace().uuid
        self.clean_all()
        self.report(dsn='third', serial='third')
        second = self.replace(first).uuid
        self.assertEqual(
            [('new', 'retired'), ('old', 'retired'), ('third', 'dirty')],
            self.everything())
        self.assertEqual((first, second), (
            self.shown(second).replaces, self.shown(first).replaced_by))

    def test_retired_card_that_returns_to_its_place_is_retired(self):
        self.report(**NEW)
        new = self.replace().uuid
        self.clean_all()
        self.report()
        self.assertEqual('missing', self.shown(new).shown_state)
        shown = self.shown(self.old)
        self.assertEqual(('retired', None, True), (
            shown.state, shown.replaced_by, shown.present))

    def test_release_of_what_was_replaced_is_refused(self):
        self.report(**NEW)
        new = self.replace().uuid
        self.assertIn(f'device {new} is in its place', self.refused(
            released.release, self.old, OPERATOR))

    def test_assigned_gpu_is_refused(self):
        granted = self.boot(2)
        self.assertIn('instance i1', self.refused(
            retirement.replace, self.old, OPERATOR))
        self.report(**NEW)
        self.assertIn('instance i1', self.refused(
            retirement.replace, self.old, OPERATOR))
        releases.release(self.db, base.uuids(granted))
        self.replace()
        self.report(**NEW)
        self.assertEqual(
            [('new', 'dirty'), ('old', 'retired')], self.everything())

    def test_usage_and_assignments_stay_with_the_old_card(self):
        releases.release(self.db, base.uuids(self.boot(2)))
        self.clean_all()
        self.report(**NEW)
        new = self.replace().uuid
        usages = [usage.device_uuid for usage in history.list_usage(
            self.db, history_obj.UsageQuery(), 10, None)]
        self.assertIn(self.old, usages)
        self.assertNotIn(new, usages)
        # The first cleaning of the new card need not follow a guest.
        self.assertEqual(
            [(False, True)], [
                (task.had_guest, task.replaces) for task in cleaning.tasks(
                    self.db, 'h1') if task.device_uuid == new])

    def test_first_cleaning_alone_is_of_a_replacement(self):
        self.report(**NEW)
        new = self.replace().uuid
        for expected in (True, False):
            self.assertEqual([expected], [
                task.replaces for task in cleaning.tasks(self.db, 'h1')
                if task.device_uuid == new])
            self.clean_all()
            releases.release(self.db, base.uuids(self.boot(2)))

    def test_replacement_whose_first_cleaning_failed_is_still_one(self):
        self.report(**NEW)
        new = self.replace().uuid
        self.clean_all(passed=False)
        released.release(self.db, new, OPERATOR)
        [task] = cleaning.tasks(self.db, 'h1')
        # The baseline of its place is that of the old card until then.
        self.assertEqual((True, False), (task.replaces, task.had_guest))

    def test_card_that_is_accepted_alone_leaves_the_other_one_missing(self):
        self.report(**NEW)
        released.release(self.db, self.at_place().uuid, OPERATOR)
        # The baseline of its place is that of the old card.
        self.assertEqual([(self.at_place().uuid, True)], [
            (task.device_uuid, task.replaces)
            for task in cleaning.tasks(self.db, 'h1')])
        self.clean_all()
        self.assertEqual('available', self.at_place().state)
        self.assertEqual('missing', self.shown(self.old).shown_state)


class ReturnedTest(RetirementCase):
    """A retired card that is put into a place once more."""

    def test_replacing_does_not_bring_it_back(self):
        self.retire(reason='fell off the bus')
        self.report(**NEW)
        new = self.replace().uuid
        self.clean_all()
        self.report()
        self.clean_all()
        self.assertEqual('retired', self.shown(self.old).state)
        self.assertIn('fell off the bus', self.shown(self.old).reason)
        # Nobody retired the other one for that.
        self.assertIsNone(self.shown(new).reason)
        self.assertEqual('missing', self.shown(new).shown_state)

    def test_card_that_was_exchanged_waits_after_its_retirement_too(self):
        self.report(**NEW)
        self.retire()
        self.assertIn('is in its place', self.refused(
            released.release, self.old, OPERATOR))
        self.assertEqual('quarantined', self.at_place().state)

    def test_card_that_left_again_is_not_accepted(self):
        self.report(**NEW)
        hosts.store(self.db, base.scan((base.function(1),)))
        self.assertIn('does not find the other card', self.refused(
            retirement.replace, self.old, OPERATOR))


class VFTest(RetirementCase):
    """A GPU with VFs, and a GPU that makes mdevs."""

    variant = False
    functions = ()

    def setUp(self):
        test_withdrawal.WithdrawalCase.setUp(self)
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X-VF', vendor='10de', device='74b5'))
        self.report()
        self.clean_all()
        self.old, *self.vfs = self.listed()

    def report(self, **facts):
        pf = base.function(0, **{
            'device': '74a1', 'used_by': 'vf', 'sriov_totalvfs': 4,
            'sriov_numvfs': 2, **OLD, **facts})
        hosts.store(self.db, base.scan((pf, *(base.function(
            0, id=f'{pf.id}/vf{number}', device='74b5', dsn=None,
            address=f'0000:00:00.{number + 1}', pf=pf.id,
            vf_index=number) for number in range(pf.sriov_numvfs)))))

    def states(self):
        return [device.state for device in device_admin.list_all(self.db)]

    def test_vfs_are_retired_with_their_gpu(self):
        self.assertIn(self.old, self.refused(
            retirement.retire, self.vfs[0], None, 'op'))
        self.retire()
        self.report(driver='mxgpu')
        self.assertEqual([], self.states())
        self.assertEqual(3, len(self.listed(state='retired')))

    def test_assigned_vf_keeps_its_gpu(self):
        claims.activate(self.db, base.uuids(self.claim(variant='MI300X-VF')))
        self.assertIn('instance i1', self.refused(
            retirement.retire, self.old, None, 'op'))

    def test_release_of_a_retired_gpu_has_its_vfs_cleaned(self):
        granted = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(granted))
        releases.release(self.db, base.uuids(granted))
        self.retire()
        released.release(self.db, self.old, OPERATOR)
        # A host never resets a GPU that has VFs.
        self.assertEqual(['available', 'dirty', 'dirty'], self.states())
        self.assertEqual(set(self.vfs), {
            task.device_uuid for task in cleaning.tasks(self.db, 'h1')})
        self.clean_all()
        self.claim(2, 'i2', variant='MI300X-VF')
        self.assertEqual(['released'], self.verdicts(self.old))

    def test_gpu_that_a_guest_had_whole_is_not_offered_below_its_vfs(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X', vendor='10de', device='74a1'))
        whole = base.function(1, device='74a1', dsn='5')
        hosts.store(self.db, base.scan((whole,)))
        self.clean_all()
        granted = self.claim(variant='MI300X')
        claims.activate(self.db, base.uuids(granted))
        gpu = granted.assignments[0].device_uuid
        releases.release(self.db, base.uuids(granted))
        self.retire(gpu)
        hosts.store(self.db, base.scan((dataclasses.replace(
            whole, used_by='vf', sriov_numvfs=1),)))
        released.release(self.db, gpu, OPERATOR)
        shown = self.shown(gpu)
        self.assertEqual('dirty', shown.state)
        self.assertIn('remove the VFs of 0000:01:00.0 on host h1',
                      shown.reason)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertIn('remove the VFs of ', self.refused(
            released.clean, gpu, OPERATOR))
        hosts.store(self.db, base.scan((whole,)))
        self.clean_all()
        self.retire(gpu)
        hosts.store(self.db, base.scan((dataclasses.replace(
            whole, used_by='vf', sriov_numvfs=1),)))
        released.release(self.db, gpu, OPERATOR)
        self.assertEqual('available', self.shown(gpu).state)

    def test_vf_of_a_retired_gpu_is_released_with_it_alone(self):
        self.retire()
        self.assertIn(f'name the GPU itself: 0000:00:00.0 ({self.old})',
                      self.refused(released.release, self.vfs[0],
                                   OPERATOR))
        self.assertEqual(3, len(self.listed(state='retired')))

    def test_vf_that_appears_on_a_retired_gpu_is_retired(self):
        self.retire()
        self.report(sriov_numvfs=3)
        self.assertEqual([], self.states())
        self.assertEqual(4, len(self.listed(state='retired')))
        released.release(self.db, self.old, OPERATOR)
        self.assertEqual(['available', *['dirty'] * 3], self.states())

    def test_vfs_of_the_new_card_are_cleaned(self):
        for exchanged in ('before', 'after', 'unannounced'):
            with self.subTest(exchanged):
                facts = {'dsn': exchanged, 'serial': exchanged}
                if exchanged == 'before':
                    self.report(**facts)
                elif exchanged == 'unannounced':
                    self.retire()
                    self.report(**facts)
                self.replace()
                if exchanged == 'after':
                    self.report(**facts)
                self.assertEqual(['available', 'dirty', 'dirty'],
                                 self.states())
                self.assertEqual([True] * 2, [
                    task.replaces
                    for task in cleaning.tasks(self.db, 'h1')])
                self.clean_all()
                self.assertEqual(['available'] * 3, self.states())
                self.old = self.listed()[0]
        self.assertEqual(9, len(self.listed(state='retired')))


class MdevTest(vgpu_base.VGPUTestCase):

    functions = (vgpu_base.t4(0, **OLD),)

    def test_new_card_takes_vgpus(self):
        claim = self.ask(Q4=1)
        [gpu, _] = device_admin.list_all(self.db)
        exc = self.assertRaises(
            exception.Conflict, retirement.retire, self.db, gpu.uuid, None,
            'op')
        self.assertIn('instance i1', str(exc))
        self.end(claim)
        retirement.replace(self.db, gpu.uuid, OPERATOR)
        self.assertEqual((), device_admin.list_all(self.db))
        hosts.store(self.db, base.scan((vgpu_base.t4(0, **NEW),)))
        self.clean_all()
        self.ask(Q4=1)
        self.assertEqual(2, len(device_admin.list_all(self.db)))

    def test_released_gpu_is_cleaned_after_its_vgpus(self):
        claim = self.ask(Q4=1)
        [gpu, row] = device_admin.list_all(self.db)
        releases.release(self.db, base.uuids(claim))
        retirement.retire(self.db, gpu.uuid, None, 'op')
        released.release(self.db, gpu.uuid, OPERATOR)
        for device in (row, gpu):
            # The mdev may still be there: its host cleans no such GPU.
            self.assertEqual([device.uuid], [
                task.device_uuid for task in cleaning.tasks(self.db, 'h1')])
            self.clean_all()
        self.ask(Q4=1)
