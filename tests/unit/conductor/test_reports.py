# SPDX-License-Identifier: Apache-2.0
"""Tests of reports: devices that appear, vanish and change."""

import dataclasses
import re

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class ReportTest(base.ConductorTestCase):

    def test_nothing_new_writes_only_what_was_reported(self):
        before = host_admin.list_all(self.db)
        with self.statements() as found:
            hosts.store(self.db, base.scan(base.EIGHT))
        [written] = [statement for statement in found if statement.split()[0]
                     in ('INSERT', 'UPDATE', 'DELETE')]
        self.assertEqual(
            ['report_digest', 'report_generation', 'report_answer'],
            re.findall(r'(\w+)=', written.partition('WHERE')[0]))
        self.assertEqual(before, host_admin.list_all(self.db))

    def test_unmatched_is_listed_and_never_offered(self):
        other = base.function(9, device='1234')
        inventory = hosts.store(self.db, base.scan((*base.EIGHT, other)))
        self.assertEqual((8, 0), self.offered(inventory))
        [device] = device_admin.list_all(self.db, state='unmanaged')
        self.assertIn('10de:1234', device.reason)

    def test_broken_gpu_is_unmanaged_with_the_reason(self):
        hosts.store(self.db, base.scan((
            *base.EIGHT[1:], base.replace(0, fault='reads all ones'))))
        [device] = device_admin.list_all(self.db, state='unmanaged')
        self.assertEqual('reads all ones', device.reason)

    def test_broken_gpu_that_is_assigned_stays_so_with_the_reason(self):
        [assigned] = self.boot(1).assignments
        broken = [dataclasses.replace(function, fault='reads all ones')
                  if function.id == assigned.stable_id else function
                  for function in base.EIGHT]
        hosts.store(self.db, base.scan(broken))
        [device] = device_admin.list_all(self.db, state='assigned')
        self.assertEqual('reads all ones', device.reason)
        hosts.store(self.db, base.scan(base.EIGHT))
        [device] = device_admin.list_all(self.db, state='assigned')
        self.assertIsNone(device.reason)

    def managed_elsewhere(self, before=None, **facts):
        """Report the first GPU as Nova's, then again with these facts.

        :param before: facts of the first report
        """
        hosts.store(self.db, base.scan((
            base.replace(0, owner='Nova ([pci] device_spec)',
                         **(before or {})), *base.EIGHT[1:])))
        return hosts.store(self.db, base.scan((
            base.replace(0, **facts), *base.EIGHT[1:])))

    def test_gpu_that_others_no_longer_manage_is_cleaned_first(self):
        inventory = self.managed_elsewhere()
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())
        self.assertEqual((8, 1), self.offered(inventory))
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_gpu_that_others_manage_in_another_way_stays_theirs(self):
        self.managed_elsewhere(owner='Cyborg')
        self.assertEqual({'available': 7, 'unmanaged': 1}, self.states())
        [device] = device_admin.list_all(self.db, state='unmanaged')
        self.assertIn('Cyborg', device.reason)

    def test_gpu_whose_vfs_others_managed_is_not_cleaned(self):
        self.managed_elsewhere({'used_by': 'vf'}, used_by='vf')
        self.assertEqual({'available': 8}, self.states())

    def test_gpu_of_others_without_a_variant_waits_for_one(self):
        variant_admin.delete(self.db, 'H100')
        self.managed_elsewhere()
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        variant_admin.create(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_variant_that_changes_during_a_report_applies_soon(self):
        load = variant_matching.Variants.load

        def early(cls, session, rows):
            # They change after this transaction has read them.
            variant_db.lock(session)
            return dataclasses.replace(load(session, rows), rows={})
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.conductor.variant_matching.Variants.load',
                early):
            self.report_second_host()
        self.assertEqual({'H100', None}, self.variants())
        variant_sweep.run(self.db)
        self.assertEqual({'H100'}, self.variants())

    def variants(self):
        return {device.variant for device in device_admin.list_all(self.db)}

    def test_assigned_gpu_that_vanishes_keeps_its_instance(self):
        granted = self.boot(8)
        inventory = hosts.store(self.db, base.scan(()))
        self.assertEqual((8, 0), self.offered(inventory))
        self.assertEqual({'assigned': 8}, self.states())
        self.assertEqual({False}, {
            device.present for device in device_admin.list_all(self.db)})
        inventory = releases.release(self.db, base.uuids(granted))
        self.assertEqual((8, 8), self.offered(inventory))
        self.assertEqual({'missing': 8}, self.states())

    def test_group_whose_gpus_vanish_and_return(self):
        self.assertEqual((8, 8), self.offered(
            hosts.store(self.db, base.scan(()))))
        # What returns is cleaned first.
        self.assertEqual((8, 8), self.offered(
            hosts.store(self.db, base.scan(base.EIGHT))))
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_renumbered_gpu_is_the_same_device(self):
        before = {device.stable_id: device.uuid
                  for device in device_admin.list_all(self.db)}
        hosts.store(self.db, base.scan(
            base.replace(number, address=f'0000:{number + 64:02x}:00.0')
            for number in range(8)))
        self.assertEqual(before, {
            device.stable_id: device.uuid
            for device in device_admin.list_all(self.db)})
        self.assertEqual({'available': 8}, self.states())

    def test_swapped_gpu_is_quarantined(self):
        hosts.store(self.db, base.scan((
            *base.EIGHT[1:], base.replace(0, dsn='ff-00'))))
        [device] = device_admin.list_all(self.db, state='quarantined')
        self.assertIn('dsn', device.reason)

    def test_swapped_gpu_keeps_its_instance(self):
        self.boot(8)
        hosts.store(self.db, base.scan((
            *base.EIGHT[1:], base.replace(0, dsn='ff-00'))))
        self.assertEqual({'assigned': 8}, self.states())

    def test_another_node_uuid(self):
        other = '00000000-0000-0000-0000-000000000000'
        exc = self.assertRaises(
            exception.Conflict, hosts.store, self.db,
            base.scan((), node_uuid=other))
        self.assertIn(other, str(exc))
        self.assertIn(base.NODE, str(exc))
        exc = self.assertRaises(
            exception.Conflict, hosts.store, self.db,
            base.scan(base.EIGHT, host='h2'))
        self.assertIn('h1', str(exc))
        self.assertEqual(['h1'], [
            host.host for host in host_admin.list_all(self.db)])

    def test_same_id_twice_writes_nothing(self):
        self.assertRaises(
            exception.Invalid, reports.report, self.db,
            base.scan((base.function(0), base.function(0))))
        self.assertEqual({'available': 8}, self.states())

    def test_type_that_no_gpu_has_costs_the_host_no_device(self):
        odd = vgpu.VGPUType(
            name='X', type_id='1', video_ram=10 ** 20, max_instances=2)
        hosts.store(self.db, base.scan((
            vgpu_base.t4(9, vgpu_types=(*vgpu_base.TYPES, odd)),
            *base.EIGHT)))
        variant_admin.create(self.db, admin.VariantInfo(
            name='T4', vendor='10de', device='1eb8'))
        self.assertEqual({'available': 9}, self.states())
        self.assertEqual(
            {'passthrough', *(known.name for known in vgpu_base.TYPES)},
            {info.vgpu_type for info in group.list_types(self.db)
             if info.variant == 'T4'})
        [problem] = host_admin.show(self.db, 'h1').problems
        self.assertIn('vGPU type X is left out: video_ram', problem)

    def test_problems_are_shown(self):
        hosts.store(self.db, base.scan(
            base.EIGHT, problems=('slot 1 cannot be read',)))
        self.assertEqual(('slot 1 cannot be read',),
                         host_admin.list_all(self.db)[0].problems)

    def test_node_that_was_renamed_is_shown(self):
        reports.report(self.db, dataclasses.replace(
            base.scan(base.EIGHT), node='h1.example.org'))
        self.assertEqual(
            'h1.example.org', host_admin.list_all(self.db)[0].node)

    def test_device_that_goes_and_returns_is_recorded(self):
        for found in (base.EIGHT[1:], base.EIGHT):
            reports.report(self.db, base.scan(found))
        with self.db.reader() as session:
            self.assertEqual(
                ['missing', 'returned', 'distrust'],
                session.scalars(sa.select(event_db.TABLE.c.kind).order_by(
                    event_db.TABLE.c.id)).all()[-3:])

    def test_report_that_changes_something_says_when_it_came(self):
        self.set_reported_at(None)
        reports.report(self.db, base.scan(base.EIGHT))
        self.assertIsNone(host_admin.list_all(self.db)[0].reported_at)
        reports.report(self.db, base.scan(base.EIGHT[1:]))
        self.assertIsNotNone(host_admin.list_all(self.db)[0].reported_at)

    def set_reported_at(self, value):
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).values(reported_at=value))

    def test_host_without_devices_made_again_has_a_higher_generation(self):
        before = reports.report(self.db, base.scan(())).generation
        host_admin.delete(self.db, 'h1')
        # The tombstone is a change, too.
        self.assertGreater(hosts.store(
            self.db, base.scan(())).generation, before + 1)
