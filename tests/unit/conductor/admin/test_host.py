# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators list and delete hosts."""


import fixtures
import oslo_messaging
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.objects import scheduling
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class HostTest(base.ConductorTestCase):

    def test_host_delete(self):
        granted = self.boot(1)
        self.assertRaises(
            exception.Conflict, host_admin.delete, self.db, 'h1')
        releases.release(self.db, base.uuids(granted))
        self.clean_all()
        host_admin.delete(self.db, 'h1')
        self.assertEqual((), host_admin.list_all(self.db))
        self.assertRaises(
            exception.NotFound, host_admin.delete, self.db, 'h1')
        # Set up anew, under another UUID too.
        hosts.store(self.db, base.scan(
            base.EIGHT, node_uuid='22222222-2222-2222-2222-222222222222'))
        self.assertEqual({'available': 8}, self.states())

    def unclean(self, state):
        """Have three devices that are not clean; return the first one."""
        releases.release(self.db, base.uuids(self.boot(3)))
        if state == 'cleaning':
            for task in cleaning.tasks(self.db, 'h1'):
                cleaning.started(
                    self.db, task.device_uuid, task.token, 'attempt')
        elif state == 'quarantined':
            self.clean_all(passed=False)
        return device_admin.list_all(self.db, state=state)[0]

    def refused(self, *words):
        exc = self.assertRaises(
            exception.Conflict, host_admin.delete, self.db, 'h1')
        for word in words:
            self.assertIn(word, str(exc))
        self.assertEqual(8, sum(self.states().values()))
        return str(exc)

    def test_host_with_a_gpu_that_was_used_is_deleted_by_force_alone(self):
        device = self.unclean('dirty')
        self.refused(f'{device.address} ({device.uuid}) is dirty', '--force')
        host_admin.delete(self.db, 'h1', force=True)
        self.assertEqual((), host_admin.list_all(self.db))

    def test_host_with_a_quarantined_device_is_deleted_by_force_alone(self):
        device = self.unclean('quarantined')
        self.refused(f'{device.address} ({device.uuid}) is quarantined',
                     'gpgpu-manage device release', '--force')
        host_admin.delete(self.db, 'h1', force=True)
        self.assertEqual((), host_admin.list_all(self.db))

    def test_refusal_names_some_devices_and_the_number_of_others(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.admin.host._MAX_NAMED', 1))
        self.unclean('quarantined')
        self.assertEqual(1, self.refused('2 more would be offered').count(
            'is quarantined'))

    def test_host_with_a_device_that_is_withheld_is_deleted_by_force_alone(
            self):
        disabled, retired = [
            device.uuid for device in device_admin.list_all(self.db)[:2]]
        device_admin.set_(self.db, disabled, 'op', enabled=False)
        retirement.retire(self.db, retired, 'fell off the bus twice', 'op')
        refused = str(self.assertRaises(
            exception.Conflict, host_admin.delete, self.db, 'h1'))
        self.assertIn(f'({disabled}) is disabled', refused)
        self.assertIn(f'({retired}) is retired', refused)
        host_admin.delete(self.db, 'h1', force=True)
        self.assertEqual((), host_admin.list_all(self.db))

    def test_retired_device_that_is_gone_does_not_keep_its_host(self):
        retired = device_admin.list_all(self.db)[0]
        retirement.retire(self.db, retired.uuid, None, 'op')
        hosts.store(self.db, base.scan(base.EIGHT[1:]))
        host_admin.delete(self.db, 'h1')
        self.assertEqual((), host_admin.list_all(self.db))

    def test_host_that_was_draining_is_draining_when_it_reports_again(self):
        host_admin.drain(self.db, 'h1', 'op', draining=True)
        host_admin.delete(self.db, 'h1')
        reported = hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual((8, 8), self.offered(reported))
        self.assertTrue(host_admin.show(self.db, 'h1').draining)
        host_admin.drain(self.db, 'h1', 'op', draining=False)
        host_admin.delete(self.db, 'h1')
        hosts.store(self.db, base.scan(base.EIGHT))
        self.assertFalse(host_admin.show(self.db, 'h1').draining)

    def test_host_with_another_name_does_not_inherit_draining(self):
        host_admin.drain(self.db, 'h1', 'op', draining=True)
        host_admin.delete(self.db, 'h1')
        hosts.store(self.db, base.scan(base.EIGHT, host='h2'))
        self.assertFalse(host_admin.show(self.db, 'h2').draining)

    def test_deleted_host_leaves_no_group(self):
        host_admin.delete(self.db, 'h1')
        with self.db.reader() as session:
            self.assertEqual([], session.scalars(
                sa.select(tables.GROUPS)).all())

    def test_host_made_again_begins_above_every_tombstone(self):
        # Trackers compare generations by host name, schedulers by node.
        other = '22222222-2222-2222-2222-222222222222'
        host_admin.delete(self.db, 'h1')
        for host, node_uuid in (
                ('h1', base.NODE), ('h1', base.NODE), ('h1', other),
                ('h2', other), ('h1', base.NODE), ('h2', base.NODE)):
            with self.db.reader() as session:
                before = [
                    row.generation for row
                    in session.execute(sa.select(tables.HOSTS))
                    if host == row.name or node_uuid == row.node_uuid]
            inventory = hosts.store(self.db, base.scan(
                base.EIGHT, host=host, node_uuid=node_uuid))
            with self.subTest(host=host, node_uuid=node_uuid):
                self.assertGreater(inventory.generation, max(before))
            # Changes, so that no two hosts have the same generation by chance.
            for device in device_admin.list_all(self.db, variant='H100'):
                device_admin.set_(self.db, device.uuid, 'op', enabled=False)
            host_admin.delete(self.db, host, force=True)

    def test_draining_host_gives_no_device_and_takes_none(self):
        kept = self.boot(2, 'kept')
        before = self.inventory()
        self.assertEqual((8, 0), self.offered(before))
        host_admin.drain(self.db, 'h1', 'op', draining=True)
        withdrawn = self.inventory()
        self.assertEqual((8, 6), self.offered(withdrawn))
        self.assertGreater(withdrawn.generation, before.generation)
        denied = self.assertRaises(
            exception.ClaimDenied, self.claim, 1, 'other')
        self.assertEqual('host_draining', denied.reason)
        self.assertIn('gpgpu-manage host undrain', str(denied))
        # What the instance has is repeated, activated and released as ever.
        self.assertEqual(base.uuids(kept), base.uuids(self.boot(2, 'kept')))
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        releases.release(self.db, base.uuids(kept))
        self.clean_all()
        self.assertEqual((8, 8), self.offered(self.inventory()))
        host_admin.drain(self.db, 'h1', 'op', draining=False)
        self.assertEqual((8, 0), self.offered(self.inventory()))
        self.claim(8, 'other')

    def test_schedulers_see_nothing_free_on_a_draining_host(self):
        host_admin.drain(self.db, 'h1', 'op', draining=True)
        [masks] = scheduling.unpack(scheduler_feed.SchedulerFeed(
            self.db).changes_since(0).packed)
        [group] = masks.groups
        self.assertEqual([0], [offered.free for offered in group.types])

    def test_report_leaves_a_host_draining(self):
        host_admin.drain(self.db, 'h1', 'op', draining=True)
        reported = hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual((8, 8), self.offered(reported))
        self.assertTrue(host_admin.show(self.db, 'h1').draining)

    def test_drain_of_a_draining_host_changes_nothing(self):
        for draining in (True, False):
            first = host_admin.drain(self.db, 'h1', 'op', draining=draining)
            self.assertEqual(first, host_admin.drain(
                self.db, 'h1', 'other', draining=draining, reason='x'))

    def test_hold_of_a_draining_host_tells_who_and_why_and_outlives_it(self):
        self.assertRaises(exception.Invalid, host_admin.drain, self.db, 'h1',
                          'op', draining=True, reason='a\nb')
        [shown] = host_admin.drain(
            self.db, 'h1', 'op', draining=True, reason='fans').holds
        self.assertIn('draining since ', shown)
        self.assertIn(' by op: fans', shown)
        host_admin.delete(self.db, 'h1')
        self.assertEqual((), device_admin.list_holds(self.db))
        hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual((shown,), host_admin.show(self.db, 'h1').holds)
        [held] = device_admin.list_holds(self.db, kind='draining')
        self.assertEqual(('h1', None, None, 'op', 'fans'), (
            held.host, held.address, held.device, held.actor, held.reason))

    def test_unknown_host_cannot_be_drained(self):
        self.assertRaises(exception.NotFound, host_admin.drain, self.db, 'h9',
                          'op', draining=True)

    def inventory(self):
        with self.db.reader() as session:
            return capacity.host_inventory(session, host_db.get(session, 'h1'))

    def test_host_that_does_not_answer_may_be_deleted(self):
        host_admin.check_not_running(self.db, 'h1', lambda: False)

    def test_host_that_answers_may_not_be_deleted(self):
        exc = self.assertRaises(
            exception.Conflict, host_admin.check_not_running, self.db, 'h1',
            lambda: True)
        self.assertIn('its nova-compute is running', str(exc))
        self.assertIn('--force', str(exc))

    def test_host_that_cannot_be_asked_may_not_be_deleted(self):
        for cause in (
                exception.BrokerUnavailable(hosts='b:5672', reason='refused'),
                oslo_messaging.MessageDeliveryFailure('no route\nto it'),
                OSError(5, 'what nobody foresaw')):
            def ask(cause=cause):
                raise cause
            with self.subTest(cause=cause):
                exc = self.assertRaises(
                    exception.Conflict, host_admin.check_not_running, self.db,
                    'h1', ask)
                self.assertIn(type(cause).__name__, str(exc))
                self.assertIn('--force', str(exc))
                self.assertNotIn('\n', str(exc))

    def test_unknown_host_is_not_asked(self):
        self.assertRaises(
            exception.NotFound, host_admin.check_not_running, self.db, 'h9',
            lambda: self.fail('asked'))


class NewHostTest(base.ConductorTestCase):
    """A host whose devices are cleaned for the first time."""

    cleaned_before = new_are_clean = False

    def cleaned(self, host='h1'):
        return host_admin.show(self.db, host).cleaned

    def clean(self, count, results=None, seconds=95):
        """Clean some devices of h1."""
        for task in cleaning.tasks(self.db, 'h1')[:count]:
            cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
            with self.db.writer() as session:
                ledger_db.start(
                    session, task.device_uuid, clock.utc(session, seconds))
            cleaning.finished(
                self.db, task.device_uuid, 'attempt', task.steps,
                results or cleaned.results(task.steps))

    def test_time_is_known_after_the_first_cleaning(self):
        self.assertEqual('0 of 8 cleaned', self.cleaned())
        self.clean(2)
        self.assertEqual('2 of 8 cleaned, about 10 min', self.cleaned())
        for task in cleaning.tasks(self.db, 'h1')[:3]:
            cleaning.started(self.db, task.device_uuid, task.token, 'other')
        self.assertEqual('2 of 8 cleaned, about 4 min', self.cleaned())

    def test_nothing_is_said_once_all_are_cleaned(self):
        self.clean(8)
        self.assertIsNone(self.cleaned())
        releases.release(self.db, base.uuids(self.boot(1)))
        self.assertIsNone(self.cleaned())

    def test_other_hosts_of_the_variant_tell_the_time(self):
        self.clean(8)
        self.report_second_host()
        self.assertEqual('0 of 8 cleaned, about 13 min', self.cleaned('h2'))
        self.assertEqual(
            [None, '0 of 8 cleaned, about 13 min'],
            [host.cleaned for host in host_admin.list_all(self.db)])

    def test_devices_that_cannot_pass_are_named(self):
        self.clean(3, cleaned.mute('canary'))
        self.assertEqual('0 of 8 cleaned, 3 need another cleaning policy',
                         self.cleaned())

    def test_device_that_failed_is_not_cleaned(self):
        self.clean(1, cleaned.failed('no answer'))
        self.assertEqual('0 of 8 cleaned', self.cleaned())


class VGPUHostTest(vgpu_base.VGPUTestCase):

    def test_host_with_mdev_rows_is_deleted(self):
        # MariaDB checks for rows of a deleted parent after each row.
        self.end(self.ask(Q4=2))
        self.clean_all()
        host_admin.delete(self.db, 'h1')
        self.assertEqual((), device_admin.list_all(self.db))
