# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators list and enable vGPU types."""

import dataclasses
import uuid

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

GPUS = vgpu_base.GPUS
t4 = vgpu_base.t4


class ListTest(vgpu_base.VGPUTestCase):

    def test_types_are_listed_with_properties_and_capacity(self):
        listed = {info.vgpu_type: info for info in group.list_types(
            self.db, 'h1', 'T4')}
        self.assertEqual(
            ['T4-16Q', 'T4-1Q', 'T4-2Q', 'T4-4Q', 'T4-8Q', 'passthrough'],
            sorted(listed))
        self.assertEqual(
            (False, 2048, 8, 16, 0), dataclasses.astuple(listed['T4-2Q'])[4:6]
            + dataclasses.astuple(listed['T4-2Q'])[9:12])
        self.assertEqual('CUSTOM_VGPU_T4_T4_4Q',
                         listed['T4-4Q'].resource_class)
        self.assertEqual(
            {'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
            self.remaining())

    def test_list_of_many_hosts_reads_no_devices(self):
        # There may be thousands of hosts with hundreds of VFs each.
        counts = []
        for number in range(2, 4):
            hosts.store(self.db, base.scan(
                GPUS, f'h{number}', str(uuid.uuid4())))
            with self.statements() as found:
                self.assertEqual(
                    6 * number, len(group.list_types(self.db)))
            self.assertFalse([
                statement for statement in found
                if 'pci_function' in statement])
            counts.append(len(found))
        self.assertEqual(1, len(set(counts)), counts)

    def test_list_of_one_host_or_variant_has_no_other(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        self.report_second_host()
        for host, variant, expected in (
                ('h1', None, {('h1', 'T4')}), ('h2', None, {('h2', 'H100')}),
                (None, 'T4', {('h1', 'T4')}), ('h2', 'T4', set()),
                (None, None, {('h1', 'T4'), ('h2', 'H100')})):
            self.assertEqual(expected, {
                (info.host, info.variant) for info in
                group.list_types(self.db, host, variant)})

    def test_vgpus_that_are_assigned_are_counted_by_type(self):
        self.ask(Q4=2)
        self.assertEqual({'T4-4Q': 2}, {
            info.vgpu_type: info.assigned
            for info in group.list_types(self.db) if info.assigned})


class EnableTest(vgpu_base.VGPUTestCase):

    def changed_by(self, *args, **kwargs):
        """Enable or disable a type, and return the hosts that changed."""
        changed = []
        self.enable(*args, caller=variant_sweep.SweepCaller(
            tell=changed.append), **kwargs)
        return changed

    def test_type_enabled_on_one_host_stays_disabled_on_the_others(self):
        other = str(uuid.uuid4())
        hosts.store(self.db, base.scan(GPUS, 'h2', other))
        self.assertEqual(['h2'], self.changed_by('T4-2Q', 'h2'))
        self.assertEqual([False, True], [
            info.enabled for info in group.list_types(self.db)
            if info.vgpu_type == 'T4-2Q'])

    def test_host_that_reports_later_offers_what_is_enabled_everywhere(self):
        self.enable('passthrough', enabled=False)
        hosts.store(self.db, base.scan(GPUS, 'h2', str(uuid.uuid4())))
        self.assertEqual(
            {'T4-16Q', 'T4-1Q', 'T4-4Q'},
            {info.vgpu_type for info in group.list_types(self.db, 'h2')
             if info.enabled})

    def test_unknown_type_host_or_variant_is_not_found(self):
        exc = self.assertRaises(
            exception.NotFound, self.enable, 'T4-3Q')
        self.assertIn('T4-3Q of T4 (known: T4-16Q', str(exc))
        self.assertRaises(exception.NotFound, self.enable, 'T4-1Q', 'h9')
        self.assertRaises(
            exception.NotFound, group.list_types, self.db, 'h9')
        self.assertRaises(
            exception.NotFound, group.list_types, self.db, None, 'T5')

    def is_taken(self, name):
        """Check that T4 has the class of a type of T4-T4.

        T4's type T4-4Q and T4-T4's type 4Q have the same normalised name.
        """
        variant_admin.create(self.db, admin.VariantInfo(
            name='T4-T4', vendor='10de', device='9999'))
        hosts.store(self.db, base.scan([*GPUS, t4(
            2, device='9999', vgpu_types=(vgpu.VGPUType(
                name=name, type_id='x', max_instances=1),))]))
        exc = self.assertRaises(
            exception.Conflict, group.set_type_enabled, self.db, 'T4-T4',
            name, None, enabled=True)
        self.assertIn(f'type T4-{name} of T4 has the resource class', str(exc))

    def test_type_whose_resource_class_is_taken_is_refused(self):
        self.is_taken('4Q')

    def test_type_whose_resource_class_is_being_enabled_is_refused(self):
        # No host lists it yet.
        self.enable('T4-2Q', caller=variant_sweep.SweepCaller(
            is_over=lambda: True))
        self.is_taken('2Q')

    def test_type_whose_resource_class_a_variant_has_is_refused(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='OTHER', vendor='10de', device='9999',
            resource_class='CUSTOM_VGPU_T4_T4_2Q'))
        exc = self.assertRaises(
            exception.Conflict, self.enable, 'T4-2Q')
        self.assertIn('variant OTHER has the resource class', str(exc))

    def test_disabled_type_is_reserved_and_its_claims_denied(self):
        claim = self.ask(Q1=1)
        self.enable('T4-1Q', enabled=False)
        self.assertEqual((32, 31), self.offered_to_placement(
            claims.activate(self.db, base.uuids(claim)))['1Q'])
        self.assertIn('vgpu-type enable', self.denied(
            'type_disabled', Q1=1))
        self.denied('type_disabled', Q2=1)

    def test_type_that_is_enabled_already_stays_so(self):
        self.assertEqual(['h1'], self.changed_by('T4-2Q'))
        [info] = self.enable('T4-2Q')
        self.assertEqual(('h1', 'T4-2Q', True), (
            info.host, info.vgpu_type, info.enabled))

    def test_type_enabled_everywhere_is_recorded_with_its_variant(self):
        self.enable('T4-2Q')
        self.enable('T4-2Q', 'h1', enabled=False)
        with self.db.reader() as session:
            events = session.execute(sa.select(event_db.TABLE).order_by(
                event_db.TABLE.c.id)).all()[-2:]
        self.assertEqual(
            [('type_enable', None, 'T4-2Q of T4'),
             ('type_disable', 'h1', 'T4-2Q of T4')],
            [(event.kind, event.host, event.detail) for event in events])

    def test_type_enabled_on_one_host_is_not_for_hosts_that_come(self):
        self.enable('T4-2Q', 'h1')
        self.report_second_host(GPUS)
        self.assertEqual({'h1': True, 'h2': False}, {
            info.host: info.enabled
            for info in group.list_types(self.db)
            if info.vgpu_type == 'T4-2Q'})
