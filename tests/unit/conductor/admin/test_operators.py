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
"""Variants, hosts, groups and devices as operators change them."""

import dataclasses
import uuid

import oslo_messaging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import operators
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
            return [len([each for each in part
                         if not each.startswith('INSERT')])
                    for part in (created, deleted)]
        before = counts()
        for number in range(2, 12):
            base.reports.report(self.db, base.scan(
                base.EIGHT, host=f'h{number}',
                node_uuid=str(uuid.uuid4())))
        self.assertEqual(before, counts())
        with self.statements() as listed:
            self.assertEqual(11, len(operators.host_list(self.db)))
        self.assertLessEqual(len(listed), 3)

    def test_boot_display_is_not_managed(self):
        base.reports.report(self.db, base.scan((
            *base.EIGHT[1:], base.replace(0, used_by='boot_vga'))))
        self.create()
        self.assertEqual({'available': 7, 'unmanaged': 1}, self.states())
        [device] = operators.device_list(self.db, state='unmanaged')
        self.assertIn('booted with', device.reason)

    def test_more_specific_one_takes_over(self):
        self.create()
        self.create('H100_BOARD', subsystem_vendor='10de', subsystem='16c1')
        self.assertEqual({'H100_BOARD'}, {
            each.variant for each in operators.device_list(self.db)})

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
            each.name for each in variant_admin.list_all(self.db)])

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
        changed, hosts = variant_admin.set_(
            self.db, dataclasses.replace(created, traits=('CUSTOM_X',)))
        self.assertEqual((('CUSTOM_X',), ['h1']), (changed.traits, hosts))
        self.assertIn('CUSTOM_X', self.inventory().groups[0].traits)
        _, hosts = variant_admin.set_(
            self.db, dataclasses.replace(changed, device='1111'))
        self.assertEqual(['h1'], hosts)
        self.assertEqual({'unmanaged': 8}, self.states())

    def test_deleted(self):
        self.create()
        self.assertEqual(['h1'], variant_admin.delete(self.db, 'H100'))
        self.assertEqual({'unmanaged': 8}, self.states())
        self.assertEqual((), self.inventory().groups)
        self.assertRaises(
            exception.NotFound, variant_admin.show, self.db, 'H100')
        self.create()
        self.assertEqual({'available': 8}, self.states())


class OperatorTest(base.ConductorTestCase):

    def test_filters(self):
        self.boot(3)
        for filters, count in (
                ({}, 8), ({'state': 'assigned'}, 3), ({'used_by': 'i1'}, 3),
                ({'variant': 'H100'}, 8), ({'variant': 'L4'}, 0),
                ({'host': 'h1', 'state': 'available'}, 5)):
            self.assertEqual(count, len(
                operators.device_list(self.db, **filters)), filters)
        exc = self.assertRaises(
            exception.Invalid, operators.device_list, self.db, state='free')
        self.assertIn('available', str(exc))
        self.assertRaises(
            exception.NotFound, operators.device_list, self.db, host='h9')

    def test_group(self):
        self.boot(3)
        detail = operators.group_set(
            self.db, 'h1', 'H100', 'breadth_first')
        self.assertEqual(
            ('breadth_first', 8, 0, 5, 3),
            (detail.allocation_policy, detail.total, detail.reserved,
             detail.remaining, detail.assigned))
        self.assertRaises(exception.Invalid, operators.group_set, self.db,
                          'h1', 'H100', 'random')
        self.assertRaises(exception.NotFound, operators.group_set, self.db,
                          'h1', 'L4', 'depth_first')

    def test_host_delete(self):
        granted = self.boot(1)
        self.assertRaises(
            exception.Conflict, operators.host_delete, self.db, 'h1')
        claims.release(self.db, base.uuids(granted))
        operators.host_delete(self.db, 'h1')
        self.assertEqual((), operators.host_list(self.db))
        self.assertRaises(
            exception.NotFound, operators.host_delete, self.db, 'h1')
        # Set up anew, under another UUID too.
        reports.report(self.db, base.scan(
            base.EIGHT, node_uuid='22222222-2222-2222-2222-222222222222'))
        self.assertEqual({'available': 8}, self.states())

    def test_host_made_again_begins_above_every_tombstone(self):
        # Trackers compare generations by host name, schedulers by node.
        other = '22222222-2222-2222-2222-222222222222'
        operators.host_delete(self.db, 'h1')
        for host, node_uuid in (
                ('h1', base.NODE), ('h1', base.NODE), ('h1', other),
                ('h2', other), ('h1', base.NODE), ('h2', base.NODE)):
            before = [
                each.generation
                for each in scheduler_feed.changes_since(self.db, 0).hosts
                if host == each.host or node_uuid == each.node_uuid
            ]
            inventory = reports.report(self.db, base.scan(
                base.EIGHT, host=host, node_uuid=node_uuid))
            with self.subTest(host=host, node_uuid=node_uuid):
                self.assertGreater(inventory.generation, max(before))
            # Changes, so that no two hosts have the same generation by chance.
            for device in operators.device_list(self.db, variant='H100'):
                operators.device_set(self.db, device.uuid, enabled=False)
            operators.host_delete(self.db, host)

    def test_host_that_does_not_answer_may_be_deleted(self):
        operators.check_not_running(self.db, 'h1', lambda: False)

    def test_host_that_answers_may_not_be_deleted(self):
        exc = self.assertRaises(
            exception.Conflict, operators.check_not_running, self.db, 'h1',
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
                    exception.Conflict, operators.check_not_running, self.db,
                    'h1', ask)
                self.assertIn(type(cause).__name__, str(exc))
                self.assertIn('--force', str(exc))
                self.assertNotIn('\n', str(exc))

    def test_unknown_host_is_not_asked(self):
        self.assertRaises(
            exception.NotFound, operators.check_not_running, self.db, 'h9',
            lambda: self.fail('asked'))

    def test_disabled_device(self):
        device = operators.device_list(self.db)[0]
        self.assertEqual('disabled', operators.device_set(
            self.db, device.uuid, enabled=False).shown_state)
        [group] = operators.group_list(self.db)
        self.assertEqual((1, 7), (group.reserved, group.remaining))


class ChangesTest(base.ConductorTestCase):

    def test_everything_then_what_changed_then_nothing(self):
        reports.report(self.db, base.scan(
            (), host='h2', node_uuid='22222222-2222-2222-2222-222222222222'))
        first = scheduler_feed.changes_since(self.db, 0)
        self.assertEqual({'h1', 'h2'}, {each.host for each in first.hosts})
        nothing = scheduler_feed.changes_since(self.db, first.generation)
        self.assertEqual((first.generation, ()),
                         (nothing.generation, nothing.hosts))
        self.claim(2)
        second = scheduler_feed.changes_since(self.db, first.generation)
        [host] = second.hosts
        self.assertEqual(6, host.groups[0].types[0].free.bit_count())
        self.assertEqual({'available': 6, 'provisioning': 2},
                         host.groups[0].states)

    def test_deleted_host_is_told(self):
        before = scheduler_feed.changes_since(self.db, 0).generation
        operators.host_delete(self.db, 'h1')
        [host] = scheduler_feed.changes_since(self.db, before).hosts
        self.assertTrue(host.deleted)
