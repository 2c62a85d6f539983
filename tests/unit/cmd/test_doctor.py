# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-manage doctor: rows, exit codes, and what it asks."""

import json
import uuid

import fixtures
import sqlalchemy as sa
from openstack import exceptions as sdk_exceptions
from oslotest import base as test_base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import cloud
from gpgpu_plugin.cmd import doctor
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import tables
from gpgpu_plugin.doctor import cloud as cloud_drifts
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import naming
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import clocks
from tests.unit.cmd import base
from tests.unit.cmd import fake_cloud
from tests.unit.conductor import base as conductor_base

LISTED = [
    {'uuid': 'p1', 'name': 'h1_gpu_T4', 'root_provider_uuid': 'root'},
    {'uuid': 'root', 'name': 'h1', 'root_provider_uuid': 'root'}]
_CONDUCTOR = 'gpgpu_plugin.rpc.conductor_client.ConductorAPI'
LEFT = drift.of('mdev_unassigned', 'h1', 'm1', sysfs='it is there')
REPAIRABLE = drift.of('instance_deleted', 'h1', 'a1', nova='it is deleted')
SILENT = drift.of('host_not_examined', 'h1', 'h1', host='silence')


class DoctorCase(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.answers = self.agreeing({'h1': conductor_base.NODE})
        self.cloud = fake_cloud.FakeCloud(self.answers)
        self.repairs = []
        # What the host finds, examination by examination.
        self.found = [()]
        # What it says after its repairs.
        self.after_repairs = ()
        self.useFixture(fixtures.MonkeyPatch(
            f'{_CONDUCTOR}.examine_hosts', self.examine))

    def examine(self, api, ctxt, hosts, repairs=()):
        if repairs:
            self.repairs.append((list(hosts), list(repairs)))
            return self.after_repairs
        drifts = self.found[0]
        del self.found[:len(self.found) > 1]
        return drifts if hosts else ()

    def agreeing(self, nodes):
        """Return the answers of a cloud that agrees with the conductor."""
        gpu = naming.resource_class('H100')
        return {
            '/resource_providers': {'resource_providers': [
                {'uuid': naming.provider_uuid(node, 'H100'),
                 'name': f'{host}_gpu_H100', 'root_provider_uuid': node}
                for host, node in nodes.items()]},
            '/resource_providers/': lambda path, query: {
                'inventories': {'inventories': {
                    gpu: {'total': 8, 'reserved': 0}}},
                'traits': {'traits': sorted(naming.traits('H100'))},
                'allocations': {'allocations': {}}}[path.split('/')[-1]],
            '/os-services': {'services': [{'host': host} for host in nodes]},
            '/flavors/detail': {'flavors': []}}

    def doctor(self, *arguments):
        result = self.manage(
            'doctor', '--confirm-after', '0', '-f', 'json', *arguments,
            connect=self.cloud.connect)
        rows = json.loads(result.out) if result.out else None
        return result.code, rows, result.err


class ExitCodeTest(DoctorCase):

    def check(self, code, outcomes, *arguments):
        found, rows, err = self.doctor(*arguments)
        self.assertEqual(outcomes, {
            row['Drift']: row['Outcome'] for row in rows}, rows)
        self.assertEqual(code, found)
        return err

    def test_consistent_cloud_is_0_and_one_line(self):
        self.assertEqual(
            'gpgpu-manage: 1 host examined: consistent\n',
            self.check(0, {}))

    def test_failed_gpus_are_counted_beside_the_answer(self):
        self.sql(sa.update(tables.DEVICES).where(
            tables.DEVICES.c.id == 1).values(health='failed'))
        self.assertEqual(
            'gpgpu-manage: 1 host examined: consistent; 1 GPU failed, see '
            '"gpgpu-manage device list --faulty"\n', self.check(0, {}))

    def test_value_that_cannot_be_read_is_a_row(self):
        self.sql(sa.update(tables.GROUPS).values(allocation_policy='bad'))
        _, rows, _ = self.doctor()
        self.assertIn('rows_unreadable', [row['Drift'] for row in rows])

    def sql(self, statement):
        with self.conductor.db.engine.begin() as connection:
            connection.execute(statement)

    def test_drift_without_fix_is_3_and_changes_nothing(self):
        self.found = [(LEFT, REPAIRABLE)]
        err = self.check(doctor.DRIFT_LEFT, {
            'mdev_unassigned': 'found', 'instance_deleted': 'found'})
        self.assertIn('2 drifts, 0 repaired', err)
        self.assertEqual([], self.repairs)

    def test_drifts_that_are_all_repaired_are_4(self):
        self.found = [(REPAIRABLE,), (REPAIRABLE,), ()]
        self.check(doctor.ALL_REPAIRED, {'instance_deleted': 'repaired'},
                   '--fix')
        self.assertEqual([(['h1'], [drift.Repair.COMPARE])], self.repairs)

    def test_drift_that_is_left_is_3_beside_repaired_ones(self):
        both = (LEFT, REPAIRABLE)
        self.found = [both, both, (LEFT,)]
        self.check(doctor.DRIFT_LEFT, {
            'instance_deleted': 'repaired', 'mdev_unassigned': 'left'},
            '--fix')

    def test_drift_without_a_repair_repairs_nothing(self):
        self.found = [(LEFT,)]
        self.check(doctor.DRIFT_LEFT, {'mdev_unassigned': 'left'}, '--fix')
        self.assertEqual([], self.repairs)

    def test_host_that_could_not_be_examined_is_5(self):
        self.found = [(SILENT,)]
        self.check(doctor.NOT_EXAMINED, {'host_not_examined': 'found'})

    def test_host_that_must_report_after_a_restore_is_not_asked(self):
        self.found = [(SILENT,)]
        sessions.mark_restored(self.conductor.db)
        self.check(doctor.NOT_EXAMINED, {'host_not_reported': 'found'})

    def test_host_that_falls_silent_meanwhile_is_5(self):
        self.found = [(REPAIRABLE,), (SILENT,)]
        self.check(doctor.NOT_EXAMINED, {'host_not_examined': 'found'})

    def test_repair_is_unknown_if_the_host_falls_silent(self):
        self.found = [(REPAIRABLE,), (REPAIRABLE,), (SILENT,)]
        self.check(doctor.NOT_EXAMINED, {
            'instance_deleted': 'unknown', 'host_not_examined': 'left'},
            '--fix')

    def test_change_that_was_going_on_is_no_drift(self):
        self.found = [(LEFT,), ()]
        self.check(0, {})

    def test_cloud_that_cannot_be_read_is_5(self):
        for path in ('/resource_providers', '/os-services'):
            self.answers[path] = 403
        self.check(doctor.NOT_EXAMINED, {
            'placement_not_examined': 'found', 'nova_not_examined': 'found'})

    def test_unknown_host_is_an_error(self):
        code, rows, err = self.doctor('--host', 'h9')
        self.assertEqual((1, None), (code, rows))
        self.assertIn('h9', err)


class RepairTest(DoctorCase):

    def test_wrong_capacity_is_repaired_in_the_database(self):
        self.wrong_capacities(99)
        code, [row], _ = self.doctor('--fix')
        self.assertEqual(doctor.ALL_REPAIRED, code)
        self.assertEqual(('capacity_wrong', 'h1', 'repaired'), (
            row['Drift'], row['Host'], row['Outcome']))

    def test_provider_of_no_host_is_deleted(self):
        self.answers['/resource_providers']['resource_providers'].append(
            {'uuid': 'p9', 'name': 'gone_gpu_H100',
             'root_provider_uuid': 'n9'})

        def remove(path, query):
            found = self.answers['/resource_providers']
            found['resource_providers'] = found['resource_providers'][:1]
            return 204
        self.answers['/resource_providers/p9'] = remove
        self.answers['/resource_providers/p9/allocations'] = {
            'allocations': {}}
        code, [row], _ = self.doctor('--fix')
        self.assertEqual((doctor.ALL_REPAIRED, 'provider_of_unknown_host'),
                         (code, row['Drift']))
        self.assertEqual(1, self.cloud.requests['placement', 'DELETE'])

    def test_provider_of_a_host_that_reported_meanwhile_stays(self):
        examination = self.examination()
        with fixtures.MonkeyPatch(f'{_CONDUCTOR}.examine_database',
                                  lambda api, ctxt, host=None: ()):
            found = examination.run().values()
        self.assertIn(('provider_of_unknown_host',
                       naming.provider_uuid(conductor_base.NODE, 'H100')),
                      [(one.name, one.subject) for one in found])
        examination.repair(found, self.fail)
        self.assertNotIn(('placement', 'DELETE'), self.cloud.requests)

    def test_provider_that_placement_did_not_list_stays(self):
        examination = self.examination()
        examination.run()
        examination.repair([drift.of(
            'provider_of_unknown_host', None, '../../servers/s1')], self.fail)
        self.assertNotIn(('placement', 'DELETE'), self.cloud.requests)

    def test_repair_that_fails_stops_no_other(self):
        self.wrong_capacities(99)
        drifts = (REPAIRABLE,)
        self.found = [drifts, drifts, ()]
        with self.failing(exception.DatabaseBusy(reason='a lock')):
            code, rows, err = self.doctor('--fix')
        self.assertEqual(doctor.DRIFT_LEFT, code)
        self.assertEqual(
            {'capacity_wrong': 'left', 'instance_deleted': 'repaired'},
            {row['Drift']: row['Outcome'] for row in rows})
        self.assertIn(' failed: ', err)
        self.assertIn('a lock', err)
        self.assertEqual([(['h1'], [drift.Repair.COMPARE])], self.repairs)

    def test_conductor_that_dies_meanwhile_leaves_a_list(self):
        examine = conductor_client.ConductorAPI.examine_database
        silence = exception.ConductorUnavailable(
            method='repair_database', timeout=60)
        answers = iter([None, None, silence])

        def examine_database(api, *args, **kwargs):
            if error := next(answers):
                raise error
            return examine(api, *args, **kwargs)
        self.wrong_capacities(99)
        with self.failing(silence), fixtures.MonkeyPatch(
                f'{_CONDUCTOR}.examine_database', examine_database):
            code, rows, _ = self.doctor('--fix')
        self.assertEqual(doctor.NOT_EXAMINED, code)
        self.assertEqual(
            {'capacity_wrong': 'unknown', 'conductor_not_examined': 'left'},
            {row['Drift']: row['Outcome'] for row in rows})

    def test_hosts_that_do_not_answer_a_repair_are_named(self):
        drifts = (REPAIRABLE,)
        self.found = [drifts, drifts, ()]
        self.after_repairs = (LEFT, drift.of(
            'host_not_examined', 'h1', 'h1', host='Placement refuses'))
        _, _, err = self.doctor('--fix')
        self.assertIn('compare on h1: Placement refuses\n', err)
        self.assertNotIn('it is there', err)

    def test_repairs_end_if_nobody_answers(self):
        self.wrong_capacities(99)
        drifts = (REPAIRABLE,)
        self.found = [drifts]
        with self.failing(exception.ConductorUnavailable(
                method='repair_database', timeout=60)):
            code, rows, err = self.doctor('--fix')
        self.assertEqual(doctor.DRIFT_LEFT, code)
        self.assertEqual({'left'}, {row['Outcome'] for row in rows})
        self.assertIn(' on h1 failed: ', err)
        self.assertIn('the repairs after it were not tried', err)
        self.assertEqual([], self.repairs)

    def test_provider_that_cannot_be_deleted_stops_no_repair(self):
        self.answers['/resource_providers']['resource_providers'].append(
            {'uuid': 'p9', 'name': 'gone_gpu_H100',
             'root_provider_uuid': 'n9'})
        self.answers['/resource_providers/p9/allocations'] = {
            'allocations': {}}
        drifts = (REPAIRABLE,)
        self.found = [drifts, drifts, ()]
        self.answers['/resource_providers/p9'] = 409, {
            'errors': [{'detail': 'it has allocations'}]}
        code, _, err = self.doctor('--fix')
        self.assertEqual(doctor.DRIFT_LEFT, code)
        self.assertIn('deletion of provider p9 failed: ', err)
        self.assertIn('it has allocations', err)
        self.assertEqual([(['h1'], [drift.Repair.COMPARE])], self.repairs)

    def wrong_capacities(self, value):
        with self.conductor.db.engine.begin() as connection:
            connection.execute(sa.update(tables.TYPES).values(
                remaining_capacity=value))

    def failing(self, error):
        def fail(api, *args):
            raise error
        return fixtures.MonkeyPatch(f'{_CONDUCTOR}.repair_database', fail)

    def examination(self):
        return doctor.Examination(
            self.api, doctor.ExaminedCloud(self.cloud.connect), None)


class BusyCloudTest(DoctorCase):

    def test_numbers_that_change_are_no_drift(self):
        reserved = iter((1, 2))
        gpu = naming.resource_class('H100')
        before = self.answers['/resource_providers/']

        def changing(path, query):
            answer = before(path, query)
            if path.endswith('/inventories'):
                answer['inventories'][gpu]['reserved'] = next(reserved)
            return answer
        self.answers['/resource_providers/'] = changing
        self.assertEqual((0, []), self.doctor()[:2])

    def test_numbers_that_stay_are_a_drift(self):
        self.answers['/resource_providers/'] = (
            lambda path, query, before=self.answers['/resource_providers/']:
            {'inventories': {}} if path.endswith('/inventories')
            else before(path, query))
        code, [row], _ = self.doctor()
        self.assertEqual((doctor.DRIFT_LEFT, 'inventory_smaller'),
                         (code, row['Drift']))


class OutputTest(DoctorCase):

    def test_row_says_what_each_authority_says_and_what_follows(self):
        self.found = [(LEFT, REPAIRABLE)]
        _, rows, _ = self.doctor()
        by_name = {row['Drift']: row for row in rows}
        self.assertEqual('nova: it is deleted',
                         by_name['instance_deleted']['Says'])
        self.assertTrue(by_name['instance_deleted']['Reason'].startswith(
            'compare: '))
        self.assertTrue(by_name['mdev_unassigned']['Reason'].startswith(
            'not repaired: '))

    def test_critical_drifts_come_first(self):
        critical = drift.of('assigned_device_missing', 'h1', 'a9')
        self.found = [(SILENT, LEFT, critical)]
        _, rows, _ = self.doctor()
        self.assertEqual(['critical', 'warning', 'unknown'],
                         [row['Severity'] for row in rows])


class ThousandHostsTest(DoctorCase):

    HOSTS = 1000

    def setUp(self):
        super().setUp()
        self.asked = []
        nodes = {f'n{number:04}': str(uuid.uuid4())
                 for number in range(self.HOSTS)}
        with self.conductor.db.engine.begin() as connection:
            connection.execute(sa.insert(tables.HOSTS), [
                {'name': name, 'node': name, 'node_uuid': node, 'heard_at': 0,
                 'plugin_version': '1', 'session_began_at': clocks.now()}
                for name, node in nodes.items()])
            self._add_groups(connection, nodes)
        self.answers.update(self.agreeing(
            {'h1': conductor_base.NODE, **nodes}))

    def _add_groups(self, connection, nodes):
        """Give each host a group like that of h1, with its eight devices."""
        ids = dict(connection.execute(sa.select(
            tables.HOSTS.c.name, tables.HOSTS.c.id)).tuples().all())

        def rows(table):
            return [{key: value for key, value in row.items() if key != 'id'}
                    for row in connection.execute(
                        sa.select(table)).mappings()]
        [group] = rows(tables.GROUPS)
        types, devices = rows(tables.TYPES), rows(tables.DEVICES)
        connection.execute(sa.insert(tables.GROUPS), [
            {**group, 'host_id': ids[name],
             'provider_uuid': naming.provider_uuid(node, 'H100')}
            for name, node in nodes.items()])
        groups = dict(connection.execute(sa.select(
            tables.GROUPS.c.host_id,
            tables.GROUPS.c.id)).tuples().all())
        connection.execute(sa.insert(tables.TYPES), [
            {**row, 'gpu_group_id': groups[ids[name]]}
            for name in nodes for row in types])
        connection.execute(sa.insert(tables.DEVICES), [
            {**row, 'host_id': ids[name], 'group_id': groups[ids[name]],
             'uuid': str(uuid.uuid4())}
            for name in nodes for row in devices])

    def examine(self, api, ctxt, hosts, repairs=()):
        self.asked.append(len(hosts))
        return super().examine(api, ctxt, hosts, repairs)

    def test_questions_grow_with_pages_not_with_rows(self):
        statements = []

        def note(conn, cursor, statement, *args):
            # Meanwhile the conductor asks every second what time it is.
            if ' FROM ' in statement.replace('\n', ' '):
                statements.append(statement)
        sa.event.listen(
            self.conductor.db.engine, 'before_cursor_execute', note)
        examination = doctor.Examination(
            self.api, doctor.ExaminedCloud(self.cloud.connect), None)
        self.assertEqual({}, examination.run())
        self.assertEqual(1 + self.HOSTS, examination.hosts)
        self.assertEqual([1 + self.HOSTS], self.asked)
        # Two lists, and three questions for each provider.
        self.assertEqual(
            {('placement', 'GET'): 2 + 3 * (1 + self.HOSTS),
             ('compute', 'GET'): 2}, dict(self.cloud.requests))
        # Eleven pages of hosts, and the cloud.
        self.assertLessEqual(len(statements), 11 * 6 + 5)


class CloudCase(test_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.answers = {
            '/resource_providers': {'resource_providers': LISTED},
            '/resource_providers/p1/inventories': {'inventories': {
                'CUSTOM_GPU_T4': {'total': 4, 'reserved': 1}}},
            '/resource_providers/p1/traits': {'traits': ['CUSTOM_GPU']},
            '/resource_providers/p1/allocations': {'allocations': {
                'i1': {'resources': {'CUSTOM_GPU_T4': 1}}}}}
        self.fake = fake_cloud.FakeCloud(self.answers)
        self.cloud = doctor.ExaminedCloud(self.fake.connect)


class PlacementTest(CloudCase):

    def test_provider_is_read_in_three_requests(self):
        self.answers['/resource_providers'] = (
            lambda path, query: {'resource_providers':
                                 LISTED[:1] if query else LISTED})
        found, ours = self.cloud.providers(['p1', 'gone'], None)
        provider = cloud_drifts.ProviderRecord(
            uuid='p1', name='h1_gpu_T4', root='root',
            traits=frozenset({'CUSTOM_GPU'}),
            inventories={'CUSTOM_GPU_T4': cloud_drifts.ProviderInventory(
                total=4, reserved=1)},
            allocations={'i1': {'CUSTOM_GPU_T4': 1}})
        self.assertEqual({'p1': provider}, found)
        self.assertEqual([provider], ours)
        self.assertEqual({('placement', 'GET'): 5}, self.fake.requests)

    def test_list_is_limited_to_a_node(self):
        self.answers['/resource_providers/root/allocations'] = {
            'allocations': {}}
        self.cloud.providers([], 'n1')
        self.assertEqual(
            [{'in_tree': 'n1'},
             {'in_tree': 'n1', 'required': 'CUSTOM_GPU,OWNER_NOVA'}],
            [query for path, query in self.fake.seen
             if path == '/resource_providers'])

    def test_deletion_of_a_provider_that_placement_refuses_is_an_error(self):
        for status in (204, 404):
            self.answers['/resource_providers/p9'] = status
            self.cloud.delete_provider('p9')
        for status in (403, 409, 500):
            self.answers['/resource_providers/p9'] = status
            self.assertRaises(
                cloud.ERRORS, self.cloud.delete_provider, 'p9')

    def test_refusal_is_an_error_that_the_command_knows(self):
        self.answers['/resource_providers'] = 403
        self.assertRaises(
            cloud.ERRORS, self.cloud.providers, [], None)


class NovaTest(CloudCase):

    def test_hosts_of_services_are_listed(self):
        self.answers['/os-services'] = {'services': [
            {'host': 'h1'}, {'host': 'h2'}]}
        self.assertEqual(['h1', 'h2'], [
            service['host'] for service in self.cloud.services()])
        self.assertEqual([('/os-services', {'binary': 'nova-compute'})],
                         self.fake.seen)

    def test_flavors_of_all_pages_are_listed(self):
        def page(path, query):
            first = int(query.get('marker', -1)) + 1
            return {'flavors': [{
                'id': str(number), 'name': f'f{number}', 'extra_specs': {
                    'resources:CUSTOM_GPU_T4': '1',
                    'resources1:CUSTOM_GPU_L4': '1', 'hw:x': '1'}}
                for number in range(first, min(first + 1000, 1001))]}
        self.answers['/flavors/detail'] = page
        found = self.cloud.flavors()
        self.assertEqual(1001, len(found))
        self.assertEqual(cloud_drifts.FlavorRecord(
            name='f0', resource_classes=('CUSTOM_GPU_T4', 'CUSTOM_GPU_L4')),
            found[0])
        self.assertEqual({('compute', 'GET'): 2}, self.fake.requests)

    def test_flavor_without_resources_is_left_out(self):
        self.answers['/flavors/detail'] = {'flavors': [
            {'id': '1', 'name': 'small', 'extra_specs': {'hw:x': '1'}}]}
        self.assertEqual((), self.cloud.flavors())

    def test_server_that_does_not_exist_is_none(self):
        self.answers['/servers/i1'] = {'server': {
            'OS-EXT-SRV-ATTR:host': 'h1',
            'OS-EXT-STS:task_state': 'spawning'}}
        self.assertEqual(
            cloud_drifts.ServerRecord(host='h1', task='spawning'),
            self.cloud.server('i1'))
        self.assertIsNone(self.cloud.server('i2'))

    def test_server_that_cannot_be_read_is_an_error(self):
        self.answers['/servers/i1'] = 500
        self.assertRaises(
            sdk_exceptions.SDKException, self.cloud.server, 'i1')
