# SPDX-License-Identifier: Apache-2.0
"""Tests of orphans; in doubt an assignment is in use."""

import itertools
import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.compute import vm_states
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.objects import claim
from tests.unit.compute import make

BUILD = assignment_use.Operation(assignment_use.OperationKind.BUILD)


class FindTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.domain = 'absent'
        self.migrations = []
        self.useFixture(fixtures.MockPatchObject(
            objects.MigrationList, 'get_by_filters',
            side_effect=lambda context, filters: self.migrations))
        self.log = self.useFixture(fixtures.FakeLogger())

    def find(self, instance=None, **kwargs):
        answer = {'side_effect': nova_exception.InstanceNotFound(
            instance_id='i1')}
        if instance is not None:
            answer = {'return_value': types.SimpleNamespace(**{
                'uuid': 'i1', 'deleted': False, 'host': 'h1',
                'task_state': None, 'vm_state': vm_states.ACTIVE,
                'hidden': False, 'flavor': types.SimpleNamespace(id=1),
                **instance})}
        with mock.patch.object(objects.Instance, 'get_by_uuid', **answer):
            return leftovers.find_orphans(
                [make.assignment()],
                lambda uuid: assignment_use.Domain(self.domain), **kwargs)

    def test_instance_is_where_nova_has_it(self):
        for location, here in (
                (assignment_use.Location(host='h1', task=None), True),
                (assignment_use.Location(host='h2', task=None), False),
                (None, False)):
            with mock.patch.object(
                    leftovers, 'location_of', return_value=location):
                self.assertEqual(here, leftovers.is_here('i1', 'h1'))

    def test_deleted_instance_uses_nothing(self):
        self.assertEqual({'a1'}, self.find())
        self.assertEqual({'a1'}, self.find({'deleted': True}))
        self.assertEqual(set(), self.find({}))

    def test_running_guest_keeps_all_with_a_warning(self):
        self.domain = 'active'
        self.assertEqual(set(), self.find())
        self.assertIn('a1', self.log.output)
        self.assertEqual(set(), self.find({}, operation=BUILD))

    def test_running_guest_that_nova_knows_is_no_warning(self):
        self.domain = 'active'
        self.assertEqual(set(), self.find({}))
        self.assertEqual('', self.log.output)

    def test_running_guest_frees_what_it_does_not_run_with(self):
        left = make.assignment(
            uuid='a2', address='0000:02:00.0', migration_uuid='m1',
            role=claim.ClaimRole.DESTINATION)
        self.migrations = [types.SimpleNamespace(
            id=1, created_at=1, uuid='m1', status='error', source_compute='h1',
            dest_compute='h2', migration_type='migration',
            new_instance_type_id=1)]
        mine = make.assignment(address='0000:01:00.0')
        for devices, unused in (
                ({'0000:01:00.0'}, {'a2'}), ({'0000:02:00.0'}, set()),
                ({'0000:01:00.0', '0000:02:00.0'}, set())):
            domain = assignment_use.Domain('active', frozenset(devices))
            with mock.patch.object(objects.Instance, 'get_by_uuid',
                                   return_value=self.record('h1')):
                self.assertEqual(unused, leftovers.find_orphans(
                    [mine, left], lambda uuid, domain=domain: domain))

    def test_delete_does_not_wait_for_the_migrations(self):
        self.migrations = None
        instance = self.record('h1')
        for state in ({'task_state': task_states.DELETING},
                      {'deleted': True},
                      {'vm_state': vm_states.BUILDING}):
            self.assertEqual({'a1'}, leftovers.find_orphans(
                [make.assignment()], lambda uuid: assignment_use.Domain.ABSENT,
                assignment_use.DESTROY, types.SimpleNamespace(
                    **{**vars(instance), **state})))

    def arrived(self, host='h1', domain='active', **kwargs):
        self.migrations = [types.SimpleNamespace(**{
            **vars(self.evacuation('error')), 'migration_type': 'migration',
            **kwargs})]
        with mock.patch.object(objects.Instance, 'get_by_uuid',
                               return_value=self.record(host)):
            return leftovers.arrived_with(
                'i1', 'h1', lambda uuid: assignment_use.Domain(domain))

    def test_guest_that_runs_has_arrived_with_a_migration_that_is_over(self):
        for status in ('error', 'confirmed', 'post-migrating'):
            self.assertEqual('m1', self.arrived(status=status))
        self.assertIsNone(self.arrived(status='finished'))
        self.assertIsNone(self.arrived(domain='inactive'))
        self.assertIsNone(self.arrived(dest_compute='h2'))
        with mock.patch.object(leftovers, 'location_of', return_value=None):
            self.assertIsNone(leftovers.arrived_with('i1', 'h1', self.fail))

    def test_guest_that_is_off_does_not_keep_a_deleted_instance(self):
        self.domain = 'inactive'
        self.assertEqual({'a1'}, self.find({'deleted': True}))

    def test_guest_that_is_off_keeps_all_if_nova_has_no_record(self):
        self.domain = 'inactive'
        self.assertEqual(set(), self.find())
        self.assertIn('Nova has no record', self.log.output)

    def record(self, host):
        return types.SimpleNamespace(
            uuid='i1', deleted=False, host=host, task_state=None,
            vm_state=vm_states.ACTIVE, hidden=False,
            flavor=types.SimpleNamespace(id=1))

    def evacuation(self, status):
        return types.SimpleNamespace(
            id=1, created_at=1, uuid='m1', status=status,
            source_compute='h0', dest_compute='h1',
            migration_type='evacuation', new_instance_type_id=None)

    def test_instance_that_arrives_while_it_is_read_is_read_again(self):
        self.migrations = [self.evacuation('done')]
        hosts = iter(('h0', 'h1', 'h1', 'h1'))
        with mock.patch.object(
                objects.Instance, 'get_by_uuid',
                side_effect=lambda *a, **k: self.record(next(hosts))):
            self.assertEqual(set(), leftovers.find_orphans(
                [make.assignment()],
                lambda uuid: assignment_use.Domain.INACTIVE))

    def test_instance_that_never_stays_is_in_doubt(self):
        self.migrations = [self.evacuation('done')]
        hosts = itertools.cycle(('h0', 'h1'))
        with mock.patch.object(
                objects.Instance, 'get_by_uuid',
                side_effect=lambda *a, **k: self.record(next(hosts))):
            self.assertRaises(exception.Conflict, leftovers.location_of, 'i1')

    def test_newest_migration_comes_first(self):
        self.migrations = [types.SimpleNamespace(
            id=1, created_at=number, uuid=f'm{number}', status=status,
            source_compute='h1', dest_compute='h2',
            migration_type='migration', new_instance_type_id=1)
            for number, status in ((1, 'finished'), (2, 'confirmed'))]
        self.assertEqual({'a1'}, self.find({'host': 'h2'}))
        self.migrations[0].id = 3
        self.assertEqual({'a1'}, self.find({'host': 'h2'}))
        self.migrations[0].created_at = 3
        self.assertEqual(set(), self.find({'host': 'h2'}))

    def test_instance_that_nova_deletes_on_another_host_uses_nothing(self):
        self.migrations = [types.SimpleNamespace(
            id=1, created_at=1, uuid='m1', status='post-migrating',
            source_compute='h1', dest_compute='h2',
            migration_type='migration', new_instance_type_id=1)]
        for state, unused in (
                ({'task_state': task_states.RESIZE_MIGRATED}, set()),
                ({'task_state': task_states.SOFT_DELETING}, set()),
                ({'task_state': task_states.DELETING}, {'a1'}),
                # Nova has called the driver, and removes its record next.
                ({'vm_state': vm_states.DELETED}, {'a1'})):
            self.assertEqual(unused, self.find({'host': 'h2', **state}))

    def test_instance_that_stays_in_another_cell_uses_nothing(self):
        self.migrations = [types.SimpleNamespace(
            id=1, created_at=1, uuid='m1', status='error', source_compute='h1',
            dest_compute='h2', migration_type='migration',
            new_instance_type_id=1)]
        for hidden, unused in ((True, {'a1'}), (False, set())):
            self.assertEqual(unused, self.find({'hidden': hidden}))

    def test_new_build_uses_nothing_of_before(self):
        self.assertEqual({'a1'}, self.find({}, operation=BUILD))

    def usage(self, building=(), **kwargs):
        """Return the usage of two assignments of an instance on h1."""
        instance = types.SimpleNamespace(**{
            'uuid': 'i1', 'deleted': False, 'host': 'h1',
            'task_state': None, 'vm_state': vm_states.ACTIVE,
            'hidden': False, 'flavor': types.SimpleNamespace(id=1), **kwargs})
        with mock.patch.object(objects.Instance, 'get_by_uuid',
                               return_value=instance):
            return leftovers.usage(
                [make.assignment(uuid=uuid) for uuid in ('a1', 'a2')],
                lambda uuid: assignment_use.Domain(self.domain), building)

    def test_usage_says_why(self):
        for kwargs, domain, used, reason in (
                ({}, 'inactive', True, 'instance i1 is on h1 with task none'),
                ({'host': 'h2'}, 'inactive', False, 'is on h2'),
                ({'host': 'h2'}, 'active', True, 'guest on h1 is active'),
                ({'deleted': True}, 'absent', False, 'is deleted in Nova'),
                ({'deleted': True, 'building': ['i1']}, 'absent', True, ''),
                ({'host': None, 'task_state': 'spawning'}, 'absent', True,
                 'no host with task spawning')):
            self.domain = domain
            with self.subTest(kwargs, domain=domain):
                judged = self.usage(**kwargs)
                self.assertEqual(
                    [('a1', used), ('a2', used)],
                    [(usage.uuid, usage.used) for usage in judged])
                self.assertIn(reason, judged[0].reason)

    def test_usage_names_the_newest_migration(self):
        self.migrations = [types.SimpleNamespace(
            id=1, created_at=1, uuid='m1', status='error', source_compute='h1',
            dest_compute='h2', migration_type='migration',
            new_instance_type_id=1)]
        self.assertIn('m1, is error', self.usage(host='h2')[0].reason)

    def test_guest_that_nova_has_no_record_of_uses_its_devices(self):
        for domain, used in (('inactive', True), ('absent', False)):
            with mock.patch.object(
                    objects.Instance, 'get_by_uuid',
                    side_effect=nova_exception.InstanceNotFound(
                        instance_id='i1')):
                [judged] = leftovers.usage(
                    [make.assignment()],
                    lambda uuid, domain=domain: assignment_use.Domain(domain),
                    ())
            self.assertEqual(used, judged.used)
            self.assertEqual(used, 'has no record' in judged.reason)

    def test_usage_is_unknown_where_nova_does_not_answer(self):
        with mock.patch.object(objects.Instance, 'get_by_uuid',
                               side_effect=RuntimeError('away')):
            judged = leftovers.usage(
                [make.assignment()], lambda uuid: assignment_use.Domain.ABSENT,
                ())
        self.assertEqual([None], [usage.used for usage in judged])
        self.assertIn('RuntimeError', judged[0].reason)

    def test_move_uses_nothing_of_earlier_ones(self):
        self.migrations = [types.SimpleNamespace(
            id=number, created_at=1, uuid=f'm{number}', status=status,
            source_compute='h2', dest_compute='h1',
            migration_type='migration', new_instance_type_id=1)
            for number, status in ((1, 'error'), (2, 'pre-migrating'))]
        moving = {'host': 'h2', 'task_state': task_states.RESIZE_PREP}
        for domain, unused in (('inactive', {'a1'}), ('active', set())):
            self.domain = domain
            self.assertEqual(
                unused, self.find(moving, operation=assignment_use.Operation(
                    assignment_use.OperationKind.PREPARE, 'm2')))

    def test_nothing_asks_nobody(self):
        self.assertEqual(set(), leftovers.find_orphans([], self.fail))

    def test_database_that_is_away_is_an_error(self):
        with mock.patch.object(objects.Instance, 'get_by_uuid',
                               side_effect=RuntimeError('away')):
            self.assertRaises(
                RuntimeError, leftovers.find_orphans, [make.assignment()],
                lambda uuid: assignment_use.Domain.ABSENT)
