# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators change variants."""

import dataclasses
import uuid

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.objects import admin
from tests.unit.conductor import base


class VariantTest(base.ConductorTestCase):

    variant = False

    def create(self, name='H100', **ids):
        return variant_admin.create(self.db, admin.VariantInfo(
            **{'name': name, 'vendor': '10de', 'device': '2330', **ids}),
            self.caller())

    def caller(self):
        self.refreshed = []
        return variant_sweep.SweepCaller(tell=self.refreshed.append)

    def inventory(self):
        with self.db.reader() as session:
            return capacity.host_inventory(session, host_db.get(session, 'h1'))

    def test_created_at_run_time(self):
        self.assertEqual({'unmanaged': 8}, self.states())
        self.assertEqual((), self.inventory().groups)
        created = self.create()
        self.assertEqual((8, ['h1']), (created.devices, self.refreshed))
        self.assertEqual(('ready', 0), (
            created.status, created.hosts_pending))
        self.assertEqual((8, 0), self.offered(self.inventory()))
        [group] = self.inventory().groups
        self.assertEqual(
            ('CUSTOM_GPU', 'CUSTOM_GPU_H100', 'OWNER_NOVA'), group.traits)

    def test_each_host_costs_few_statements(self):
        def counts():
            with self.statements() as created:
                self.create()
            with self.statements() as deleted:
                variant_admin.delete(self.db, 'H100')
            # SQLite begins with a statement of its own.
            return [sum(statement != 'BEGIN' for statement in found)
                    for found in (created, deleted)]
        before = counts()
        for number in range(2, 12):
            base.hosts.store(self.db, base.scan(
                base.EIGHT, host=f'h{number}',
                node_uuid=str(uuid.uuid4())))
        created, deleted = (
            now - then for now, then in zip(counts(), before, strict=True))
        # Lock, rows (2), variants, changes, group, devices, type, host.
        self.assertEqual(10 * 9, created)
        # Devices, types (2), group, host.
        self.assertEqual(10 * 9, deleted)
        with self.statements() as listed:
            self.assertEqual(11, len(host_admin.list_all(self.db)))
        self.assertLessEqual(len(listed), 5)

    def test_boot_display_is_not_managed(self):
        base.hosts.store(self.db, base.scan((
            *base.EIGHT[1:], base.replace(0, used_by='boot_vga'))))
        self.create()
        self.assertEqual({'available': 7, 'unmanaged': 1}, self.states())
        [device] = device_admin.list_all(self.db, state='unmanaged')
        self.assertIn('booted with', device.reason)

    def test_more_specific_one_takes_over(self):
        self.create()
        self.create('H100_BOARD', subsystem_vendor='10de', subsystem='16c1')
        self.assertEqual({'H100_BOARD'}, {
            device.variant for device in device_admin.list_all(self.db)})

    def test_refused_and_nothing_written(self):
        self.create()
        for wrong, kind, words in (
                ({'name': 'H100'}, exception.Conflict, 'exists already'),
                ({'name': 'h100'}, exception.Conflict, 'same name'),
                ({'name': 'TWIN'}, exception.Conflict, 'ties with variant '
                                                       'H100'),
                ({'name': 'X', 'device': '1111',
                  'resource_class': 'CUSTOM_GPU_H100'}, exception.Conflict,
                 'resource class'),
                ({'name': 'X', 'device': 'zz'}, exception.Invalid, "'zz'")):
            exc = self.assertRaises(kind, self.create, **wrong)
            self.assertIn(words, str(exc))
        self.assertEqual(['H100'], [
            variant.name for variant in variant_admin.list_all(self.db)])

    def test_matching_nothing_is_said(self):
        created = self.create(device='1111')
        self.assertEqual((0, []), (created.devices, self.refreshed))

    def test_in_use_is_neither_changed_nor_deleted(self):
        created = self.create()
        self.boot(1)
        self.assertRaises(exception.Conflict, variant_admin.delete, self.db,
                          'H100')
        self.assertRaises(
            exception.Conflict, variant_admin.set_, self.db,
            dataclasses.replace(created, device='1111'))
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())

    def test_changed(self):
        created = self.create()
        before = self.inventory().generation
        changed = variant_admin.set_(
            self.db, dataclasses.replace(created, traits=('CUSTOM_X',)),
            self.caller())
        self.assertEqual((('CUSTOM_X',), ['h1']),
                         (changed.traits, self.refreshed))
        self.assertGreater(self.inventory().generation, before)
        self.assertIn('CUSTOM_X', self.inventory().groups[0].traits)
        variant_admin.set_(
            self.db, dataclasses.replace(changed, device='1111'),
            self.caller())
        self.assertEqual(['h1'], self.refreshed)
        self.assertEqual({'unmanaged': 8}, self.states())

    def test_stricter_policy_of_a_variant_in_use_is_for_the_next_tenant(self):
        created = self.create()
        claimed = self.boot(1)
        variant_admin.set_(self.db, dataclasses.replace(
            created, cleaning_policy='scrub', mix_policy='any_mix',
            traits=('CUSTOM_X',), allocation_policy='breadth_first'),
            self.caller())
        self.assertEqual(['h1'], self.refreshed)
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())
        releases.release(self.db, base.uuids(claimed))
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())

    def test_change_of_what_another_operator_changed_is_refused(self):
        read = self.create()
        variant_admin.set_(
            self.db, dataclasses.replace(read, traits=('CUSTOM_X',)))
        exc = self.assertRaises(
            exception.Conflict, variant_admin.set_, self.db,
            dataclasses.replace(read, memory_mib=1), read=read)
        self.assertIn('somebody else changed it', str(exc))
        shown = variant_admin.show(self.db, 'H100')
        self.assertEqual((('CUSTOM_X',), None),
                         (shown.traits, shown.memory_mib))

    def test_hosts_that_match_only_after_the_change_are_named(self):
        created = self.create()
        self.report_second_host([base.function(0, device='1111')])
        variant_admin.set_(
            self.db, dataclasses.replace(created, device='1111'),
            self.caller())
        self.assertEqual(['h1', 'h2'], self.refreshed)

    def test_deleted(self):
        self.create()
        variant_admin.delete(self.db, 'H100', self.caller())
        self.assertEqual(['h1'], self.refreshed)
        self.assertEqual({'unmanaged': 8}, self.states())
        self.assertEqual((), self.inventory().groups)
        self.assertRaises(
            exception.NotFound, variant_admin.show, self.db, 'H100')
        self.create()
        self.assertEqual({'available': 8}, self.states())


class PendingTest(base.ConductorTestCase):
    """A variant whose last change did not reach all hosts."""

    H100 = admin.VariantInfo(name='H100', vendor='10de', device='2330')

    def setUp(self):
        super().setUp()
        self.report_second_host()
        self.late = variant_sweep.SweepCaller(is_over=lambda: True)

    def shown(self, name='H100'):
        info = variant_admin.show(self.db, name)
        return info.status, info.hosts_pending

    def test_change_after_the_callers_time_is_left_to_others(self):
        variant_admin.delete(self.db, 'H100', self.late)
        self.assertEqual(('deleting', 2), self.shown())
        self.assertEqual({'available': 8}, self.states())
        variant_admin.create(self.db, dataclasses.replace(
            self.H100, name='X', device='1111'))
        self.assertEqual(('ready', 0), self.shown('X'))

    def test_further_change_may_follow_at_once(self):
        variant_admin.set_(self.db, dataclasses.replace(
            self.H100, revision='a1'), self.late)
        self.assertEqual(('applying', 2), self.shown())
        variant_admin.set_(self.db, self.H100)
        self.assertEqual(('ready', 0), self.shown())
        self.claim()

    def test_change_whose_caller_has_given_up_is_not_made(self):
        def given_up():
            raise exception.RequestExpired(
                method='variant_delete', subject='H100', wanted=1, waited=2)
        caller = variant_sweep.SweepCaller(check_wanted=given_up)
        for change in (
                lambda: variant_admin.create(self.db, dataclasses.replace(
                    self.H100, name='X', device='1111'), caller),
                lambda: variant_admin.set_(self.db, self.H100, caller),
                lambda: variant_admin.delete(self.db, 'H100', caller)):
            self.assertRaises(exception.RequestExpired, change)
        self.assertEqual(['H100'], [
            info.name for info in variant_admin.list_all(self.db)])
        self.assertEqual(('ready', 0), self.shown())

    def test_error_after_the_change_was_made_is_not_the_callers(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.variant_matching.apply',
            side_effect=RuntimeError('away')))
        log = self.useFixture(fixtures.FakeLogger())
        variant_admin.delete(self.db, 'H100')
        self.assertEqual(('deleting', 2), self.shown())
        self.assertIn('trying again in', log.output)
