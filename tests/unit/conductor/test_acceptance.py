# SPDX-License-Identifier: Apache-2.0
"""Tests of new devices that are accepted as clean."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.objects import admin
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.unit.conductor import base

OPERATOR = 'root@control'


class AcceptanceTest(base.ConductorTestCase):

    pf = base.function(2, used_by='vf', sriov_totalvfs=4, sriov_numvfs=1)
    functions = (*base.EIGHT[:2], pf, base.function(
        2, id=f'{pf.id}/vf0', address='0000:02:00.1', dsn=None, pf=pf.id,
        vf_index=0))
    cleaned_before = new_are_clean = False

    def uuids(self, **filters):
        return [device.uuid for device in device_admin.list_all(
            self.db, **filters)]

    def accept(self, *uuids, reason='burned in'):
        withdrawal.accept_clean(self.db, uuids, reason, OPERATOR)

    def refused(self, *uuids):
        before = self.states()
        exc = self.assertRaises(exception.Conflict, self.accept, *uuids)
        self.assertEqual(before, self.states())
        return str(exc)

    def test_new_devices_are_offered_at_once(self):
        first, second = self.uuids(state='dirty')[:2]
        self.assertRaises(exception.ClaimDenied, self.claim, 1)
        self.accept(first, second)
        self.assertEqual([], [
            task for task in cleaning.tasks(self.db, 'h1')
            if task.device_uuid in (first, second)])
        self.assertEqual({first, second}, {
            assignment.device_uuid for assignment in self.boot(2).assignments})

    def test_ledger_and_event_say_who_and_why(self):
        device = self.uuids(state='dirty')[0]
        self.accept(device)
        [record] = history.list_cleanings(self.db, device)
        self.assertEqual(
            ('accepted', 'burned in', OPERATOR), tuple(
                record.fields[name] for name in (
                    'verdict', 'reason', 'actor')))
        with self.db.reader() as session:
            self.assertEqual(['burned in'], session.scalars(
                sa.select(event_db.TABLE.c.detail).where(
                    event_db.TABLE.c.kind == 'accept')).all())

    def test_gpu_with_vfs_stands_for_these(self):
        gpu = next(device.uuid for device in device_admin.list_all(self.db)
                   if device.address == '0000:02:00.0')
        self.accept(gpu)
        self.assertEqual(['0000:02:00.0', '0000:02:00.1'], [
            device.address for device in device_admin.list_all(self.db)
            if device.state == 'available'])

    def test_all_or_none_are_accepted(self):
        first, second = self.uuids(state='dirty')[:2]
        self.accept(first)
        self.assertIn('it cannot be accepted, since it is available',
                      self.refused(second, first))

    def test_device_that_is_being_cleaned_is_refused(self):
        task = cleaning.tasks(self.db, 'h1')[0]
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        self.assertIn('since it is cleaning; its host cleans it: wait',
                      self.refused(task.device_uuid))

    def test_device_that_was_used_is_refused(self):
        self.clean_all()
        granted = self.boot(1)
        releases.release(self.db, base.uuids(granted))
        self.assertIn('"gpgpu-manage device release"', self.refused(
            granted.assignments[0].device_uuid))

    def test_device_that_failed_its_first_cleaning_is_refused(self):
        task = cleaning.tasks(self.db, 'h1')[0]
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.failed('no answer'))
        self.assertIn('since it is quarantined',
                      self.refused(task.device_uuid))
        released.release(self.db, task.device_uuid, OPERATOR)
        self.assertIn('not new', self.refused(task.device_uuid))

    def test_device_that_waits_for_another_policy_is_accepted(self):
        task = cleaning.tasks(self.db, 'h1')[0]
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.mute('canary', task.steps))
        shown = device_admin.show(self.db, task.device_uuid)
        self.assertIn('"gpgpu-manage device accept" takes it as clean',
                      shown.reason)
        self.accept(task.device_uuid)
        shown = device_admin.show(self.db, task.device_uuid)
        self.assertEqual(('available', None), (shown.state, shown.reason))

    def test_quarantined_new_device_is_refused_until_released(self):
        device = self.uuids(state='dirty')[0]
        withdrawal.quarantine(self.db, device, 'heat', OPERATOR)
        self.assertIn('since it is quarantined', self.refused(device))
        released.release(self.db, device, OPERATOR)
        self.accept(device)

    def test_stricter_policy_has_an_accepted_device_cleaned(self):
        device = self.uuids(state='dirty')[0]
        self.accept(device)
        shown = variant_admin.show(self.db, 'H100')
        variant_admin.set_(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330',
            cleaning_policy='scrub', resource_class=shown.resource_class))
        self.assertIn(device, self.uuids(state='dirty'))

    def test_reason_and_devices_are_required(self):
        device = self.uuids(state='dirty')[0]
        for reason in ('', ' ', 'a\nb'):
            self.assertRaises(exception.Invalid, self.accept, device,
                              reason=reason)
        self.assertRaises(exception.Invalid, self.accept)

    def test_device_of_another_host_is_not_found(self):
        hosts.store(self.db, base.scan(
            [base.replace(0, dsn='1')], host='h2',
            node_uuid=base.node_uuid('h2')))
        mine, = self.uuids(host='h1', state='dirty')[:1]
        [other] = self.uuids(host='h2')
        self.assertRaises(exception.NotFound, self.accept, mine, other)
        self.assertIn(mine, self.uuids(state='dirty'))


class UnknownCardTest(base.ConductorTestCase):
    """A card that did not show its number while a guest had it."""

    functions = (base.function(0, dsn='card'),)
    elsewhere = {'id': '/devices/pci0000:77/01.0/00.0',
                 'address': '0000:77:00.0'}

    def test_card_that_a_guest_had_is_not_new(self):
        hosts.store(self.db, base.scan((
            base.function(0, dsn=None, **self.elsewhere),)))
        self.clean_all()
        releases.release(self.db, base.uuids(self.boot()))
        hosts.store(self.db, base.scan((
            base.function(0, dsn='card', **self.elsewhere),)))
        [card] = [device for device in device_admin.list_all(self.db)
                  if device.present]
        self.assertEqual('dirty', card.state)
        self.assertIn('only a cleaning', str(self.assertRaises(
            exception.Conflict, withdrawal.accept_clean, self.db, [card.uuid],
            'new', OPERATOR)))
