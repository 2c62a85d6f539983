#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of how operators change variants."""

import dataclasses
import uuid

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
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
            **{'name': name, 'vendor': '10de', 'device': '2330', **ids}))

    def inventory(self):
        with self.db.reader() as session:
            return inventory.of_host(session, host_db.get(session, 'h1'))

    def test_created_at_run_time(self):
        self.assertEqual({'unmanaged': 8}, self.states())
        self.assertEqual((), self.inventory().groups)
        created, hosts = self.create()
        self.assertEqual((8, ['h1']), (created.devices, hosts))
        self.assertEqual((8, 0), self.offered(self.inventory()))
        [group] = self.inventory().groups
        self.assertEqual(
            ('CUSTOM_GPU', 'CUSTOM_GPU_H100', 'OWNER_NOVA'), group.traits)

    def test_statements_do_not_grow_with_the_hosts(self):
        def counts():
            with self.statements() as created:
                self.create()
            with self.statements() as deleted:
                variant_admin.delete(self.db, 'H100')
            # SQLAlchemy inserts rows of which it needs the id one by one
            # on SQLite: a group and its type for each host.
            return [len([statement for statement in part
                         if not statement.startswith('INSERT')])
                    for part in (created, deleted)]
        before = counts()
        for number in range(2, 12):
            base.hosts.store(self.db, base.scan(
                base.EIGHT, host=f'h{number}',
                node_uuid=str(uuid.uuid4())))
        self.assertEqual(before, counts())
        with self.statements() as listed:
            self.assertEqual(11, len(host_admin.list_all(self.db)))
        self.assertLessEqual(len(listed), 3)

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
        created, hosts = self.create(device='1111')
        self.assertEqual((0, []), (created.devices, hosts))

    def test_in_use_is_neither_changed_nor_deleted(self):
        created, _ = self.create()
        self.boot(1)
        self.assertRaises(exception.Conflict, variant_admin.delete, self.db,
                          'H100')
        self.assertRaises(
            exception.Conflict, variant_admin.set_, self.db,
            dataclasses.replace(created, traits=('CUSTOM_X',)))
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())

    def test_changed(self):
        created, _ = self.create()
        before = self.inventory().generation
        changed, hosts = variant_admin.set_(
            self.db, dataclasses.replace(created, traits=('CUSTOM_X',)))
        self.assertEqual((('CUSTOM_X',), ['h1']), (changed.traits, hosts))
        self.assertGreater(self.inventory().generation, before)
        self.assertIn('CUSTOM_X', self.inventory().groups[0].traits)
        _, hosts = variant_admin.set_(
            self.db, dataclasses.replace(changed, device='1111'))
        self.assertEqual(['h1'], hosts)
        self.assertEqual({'unmanaged': 8}, self.states())

    def test_hosts_that_match_only_after_the_change_are_named(self):
        created, _ = self.create()
        self.report_second_host([base.function(0, device='1111')])
        _, hosts = variant_admin.set_(
            self.db, dataclasses.replace(created, device='1111'))
        self.assertEqual(['h1', 'h2'], hosts)

    def test_deleted(self):
        self.create()
        self.assertEqual(['h1'], variant_admin.delete(self.db, 'H100'))
        self.assertEqual({'unmanaged': 8}, self.states())
        self.assertEqual((), self.inventory().groups)
        self.assertRaises(
            exception.NotFound, variant_admin.show, self.db, 'H100')
        self.create()
        self.assertEqual({'available': 8}, self.states())
