# SPDX-License-Identifier: Apache-2.0
"""Tests of the RPC endpoint: primitives, errors, casts to hosts."""

import dataclasses
import datetime
import inspect
import logging
import types
import uuid

import fixtures
import oslo_messaging
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import refusals
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import cleaning as rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import history
from gpgpu_plugin.objects import report
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from tests.fixtures import cleaned
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.unit.conductor import base

CONTRACT = conductor_contract.Conductor


class FakeComputeAPI:
    """Client of nova-computes that records casts.

    :ivar answers: whether a question about nothing is answered
    :ivar answer: takes the answer to a question
    """

    def __init__(self):
        self.refreshed = []
        self.changed = []
        self.asked = []
        self.answers = False

    def refresh(self, ctxt, host):
        self.refreshed.append(host)

    def assignments_changed(self, ctxt, host):
        self.changed.append(host)

    def ask(self, ctxt, host, question, assignments):
        if not assignments:
            self.asked.append(host)
        if assignments or self.answers:
            self.answer(host, question, tuple(
                claim_obj.Usage(uuid=assignment.uuid, used=False,
                                reason='over')
                for assignment in assignments))

    def probe(self):
        """Do nothing."""


class _Direct:
    """RPC client whose server is in this thread."""

    def __init__(self, endpoint):
        self._endpoint = endpoint

    def prepare(self, timeout):
        return self

    def call(self, ctxt, method, **arguments):
        return getattr(self._endpoint, method)(ctxt, **arguments)


class ManagerCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.ctxt = context.admin()
        self.compute = FakeComputeAPI()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 0.2))
        self.refused_events = refusals.RefusalRecorder(self.db)
        self.client = contract.Client(_Direct(manager.ConductorManager(
            self.conf, self.db, self.compute,
            refused=self.refused_events)))
        self.compute.answer = lambda host, question, usages: self.call(
            CONTRACT.answer, host=host, question=question, usages=usages,
            drifts=())

    def call(self, method, **arguments):
        """Call a method, as the session of h1 if it has an origin."""
        if 'origin' in inspect.signature(method).parameters:
            arguments.setdefault('origin', hosts.origin('h1', base.NODE))
        return self.client.call(method, self.ctxt, **arguments)

    def refused(self, kind, method, **arguments):
        """Return the error of ours that a call raises, unwrapped."""
        exc = self.assertRaises(
            oslo_messaging.ExpectedException, self.call, method, **arguments)
        error = exc.exc_info[1]
        self.assertIsInstance(error, kind)
        return error

    def activate(self, assignments):
        return self.call(
            CONTRACT.activate, assignments=assignments,
            driver_capacities=None, guest_addresses=None)

    def release(self, assignments, ages=types.MappingProxyType({})):
        return self.call(
            CONTRACT.release, assignments=assignments, ages=dict(ages))

    def abort(self, assignments, *, touched):
        return self.call(
            CONTRACT.abort, assignments=assignments, touched=touched,
            fault=None, driver_capacities=None)


class ClaimTest(ManagerCase):

    def claim_by_rpc(self, **kwargs):
        return self.call(
            CONTRACT.claim,
            request=dataclasses.replace(self.request(2), **kwargs))

    def test_claim_for_an_instance_refreshes_no_host(self):
        self.assertEqual(2, len(self.claim_by_rpc().assignments))
        self.assertEqual([], self.compute.refreshed)

    def test_claim_for_another_host_is_invalid(self):
        error = self.refused(
            exception.Invalid, CONTRACT.claim,
            request=dataclasses.replace(
                self.request(2), host='h2', migration_uuid='m1',
                role=claim_obj.ClaimRole.DESTINATION))
        self.assertIn('a host claims its own devices', str(error))

    def test_claim_lasts_two_intervals(self):
        self.conf.set_override('digest_interval', 35000, 'gpgpu')
        now = datetime.datetime(2026, 11, 24, 12)
        self.useFixture(clocks.Clocks(lambda: now))
        self.assertEqual({now.replace(
            tzinfo=datetime.UTC).timestamp() + 70000}, {
            assignment.lease_expires_at
            for assignment in self.claim_by_rpc().assignments})

    def test_denied_claim_is_an_answer_with_its_reason_in_the_log(self):
        log = self.useFixture(fixtures.FakeLogger())
        error = self.refused(
            exception.ClaimDenied, CONTRACT.claim,
            request=self.request(9))
        self.assertEqual('not_enough_available', error.reason)
        self.assertIn('Claim of i1 on h1 denied: not_enough_available',
                      log.output)

    def test_denied_claim_is_an_event_and_denied_again_a_count(self):
        for _ in range(2):
            self.refused(exception.ClaimDenied, CONTRACT.claim,
                         request=self.request(9))
        self.refused_events.run_once()
        [event] = self.call(
            CONTRACT.event_list, limit=9, marker=None,
            wanted=history.EventFilter(kind='claim_denied'))
        self.assertEqual(
            ('i1', 'h1', 'not_enough_available', 'host h1'),
            (event.instance_uuid, event.host, event.reason, event.actor))
        self.assertIn('8 available', event.detail)

    def test_abort_by_the_host_itself_tells_no_host(self):
        for touched in (True, False):
            changed = self.abort(base.uuids(self.claim(1)), touched=touched)
            self.assertEqual('h1', changed.host)
        self.assertEqual([], self.compute.changed)
        self.assertEqual([], self.compute.refreshed)

    def test_abort_by_the_source_of_a_move_tells_the_destination(self):
        self.report_second_host()
        self.abort(base.uuids(self.claim_destination(1, 'm1', host='h2')),
                   touched=True)
        self.assertEqual(['h2'], self.compute.changed)

    def test_abort_of_what_never_existed_refreshes_no_host(self):
        self.assertIsNone(self.abort(['none'], touched=True))
        self.assertEqual([], self.compute.refreshed)

    def test_activation_tells_other_hosts_that_have_the_instance(self):
        self.report_second_host()
        self.boot(1, host='h2')
        uuids = base.uuids(self.claim_by_rpc())
        self.activate(uuids)
        self.assertEqual(['h2'], self.compute.changed)

    def test_activation_of_a_move_tells_nobody(self):
        self.report_second_host()
        self.boot(1, host='h2')
        uuids = base.uuids(self.claim_destination(1, 'm1', source='h2'))
        self.activate(uuids)
        self.assertEqual([], self.compute.changed)

    def test_life_of_a_claim_by_rpc(self):
        uuids = base.uuids(self.claim_by_rpc())
        self.activate(uuids)
        for found in (
                self.call(CONTRACT.host_assignments, known=uuids),
                self.call(CONTRACT.instance_assignments,
                          instance_uuid='i1')):
            self.assertEqual(uuids, [row.uuid for row in found])
        self.release(uuids)
        for task in self.call(CONTRACT.clean_tasks, host='h1'):
            attempt = {'device_uuid': task.device_uuid, 'attempt': 'a1'}
            self.call(CONTRACT.clean_started, token=task.token, **attempt)
            self.assertIsNone(self.call(
                CONTRACT.clean_failure, results=cleaned.results(task.steps),
                **attempt))
            self.call(CONTRACT.clean_finished,
                      steps=task.steps, results=cleaned.results(task.steps),
                      driver_capacities=None, **attempt)
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual([], self.compute.refreshed)

    def test_release_ends_usage_before_it_arrives_if_the_host_says_so(self):
        [first, second] = base.uuids(self.boot(2))
        with self.db.writer() as session:
            session.execute(sa.update(usage_db.TABLE).values(
                began_at=datetime.datetime(2026, 1, 1)))
        self.release([first], {first: 3600})
        self.release([second])
        with self.db.reader() as session:
            ended = {row.assignment_uuid: row.ended_at
                     for row in session.execute(sa.select(usage_db.TABLE))}
        self.assertAlmostEqual(
            3600, (ended[second] - ended[first]).total_seconds(), delta=60)


class AuthorTest(ManagerCase):
    """Events of calls name the caller."""

    def actors(self, *kinds):
        with self.db.reader() as session:
            found = dict(session.execute(sa.select(
                event_db.TABLE.c.kind, event_db.TABLE.c.actor)).tuples().all())
        return [found[kind] for kind in kinds]

    def test_events_of_a_hosts_calls_name_the_host(self):
        uuids = base.uuids(self.call(
            CONTRACT.claim, request=self.request(1)))
        self.activate(uuids)
        self.release(uuids)
        [task] = self.call(CONTRACT.clean_tasks, host='h1')
        attempt = {'device_uuid': task.device_uuid, 'attempt': 'a1'}
        self.call(CONTRACT.clean_started, token=task.token, **attempt)
        self.call(CONTRACT.clean_finished, steps=task.steps,
                  results=cleaned.failed('looked at'),
                  driver_capacities=None, **attempt)
        self.assertEqual({'host h1'}, set(self.actors(
            'claim', 'activate', 'release', 'clean_started',
            'clean_failed')))

    def test_events_of_an_operators_calls_name_the_operator(self):
        self.ctxt = context.admin().of_actor('root@control')
        [device, *_] = device_admin.list_all(self.db)
        self.call(CONTRACT.hold_add, device=device.uuid, kind='disabled',
                  reason=None)
        self.call(CONTRACT.variant_create, variant=admin.VariantInfo(
            name='other', vendor='10de', device='1eb8'))
        self.call(CONTRACT.group_set, host='h1', variant='H100',
                  allocation_policy='breadth_first')
        self.call(CONTRACT.host_takeover, host='h1')
        self.assertEqual({'operator root@control'}, set(self.actors(
            'disable', 'variant_create', 'group_set', 'takeover')))


class TextOfHostsTest(ManagerCase):

    def finished(self, result):
        """End a cleaning with one result; return the device."""
        uuids = base.uuids(self.boot(1))
        self.release(uuids)
        [task] = self.call(CONTRACT.clean_tasks, host='h1')
        attempt = {'device_uuid': task.device_uuid, 'attempt': 'a1'}
        self.call(CONTRACT.clean_started, token=task.token, **attempt)
        self.call(CONTRACT.clean_finished, steps=task.steps,
                  results=[result], driver_capacities=None, **attempt)
        return self.call(CONTRACT.device_show, device=task.device_uuid)

    def test_reason_of_a_cleaning_controls_no_terminal(self):
        """PostgreSQL stores no NUL either."""
        device = self.finished(rules.StepResult(
            step='reset', outcome=rules.StepOutcome.FAILED,
            reason='\0\x1b[31mx', facts={'output\x1b': '\0\x1b[2J'}))
        [record] = self.call(CONTRACT.device_history, device=device.uuid,
                             limit=9, marker=None)
        self.assertIn('\\x00\\x1b[31mx', device.reason)
        self.assertTrue((device.reason + record.content).isprintable())
        self.assertEqual(
            {'output\\x1b': '\\x00\\x1b[2J'},
            record.fields['results'][0]['facts'])

    def test_long_reason_and_facts_are_stored_in_part(self):
        device = self.finished(rules.StepResult(
            step='reset', outcome=rules.StepOutcome.FAILED,
            reason='\u20ac' * 70000,
            facts=dict.fromkeys('abcde', 'x' * 70000)))
        self.assertLess(len(device.reason.encode()), 2 ** 14)
        self.assertIn(' characters)', device.reason)
        with self.db.reader() as session:
            for detail in session.scalars(sa.select(event_db.TABLE.c.detail)):
                self.assertLess(len((detail or '').encode()), 2 ** 14)
        [record] = self.call(CONTRACT.device_history, device=device.uuid,
                             limit=9, marker=None)
        [result] = record.fields['results']
        self.assertEqual({'dropped_bytes': 80045}, result['facts'])
        self.assertLess(len(result['reason']), 5000)
        self.assertLess(len(record.fields['reason']), 5000)

    def test_long_fault_is_stored_in_part(self):
        uuids = base.uuids(self.claim(1))
        self.call(CONTRACT.abort, assignments=uuids, touched=True,
                  fault='x' * 70000, driver_capacities=None)
        [device] = device_admin.list_all(self.db, state='quarantined')
        self.assertLess(len(device.reason), 5000)


class CastTest(ManagerCase):

    def test_host_that_cannot_be_notified_does_not_delay_others(self):
        self.report_second_host()
        notified = []

        def refresh(ctxt, host):
            if host == 'h1':
                raise oslo_messaging.MessageDeliveryFailure('h1')
            notified.append(host)
        self.compute.refresh = refresh
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.host_messages'))
        self.call(CONTRACT.variant_delete, name='H100')
        self.assertEqual(['h2'], notified)
        self.assertIn('Cannot notify h1', log.output)


class ConfirmTest(ManagerCase):

    def test_confirmation_tells_the_destination_of_its_assignments(self):
        self.report_second_host()
        source = base.uuids(self.boot(1))
        self.claim_destination(1, 'm1', host='h2')
        [moved] = self.call(
            CONTRACT.host_assignments, known=(), origin=hosts.origin(
                'h2', str(uuid.uuid5(uuid.NAMESPACE_DNS, 'h2'))))
        claims.activate(self.db, [moved.uuid])
        offered = self.call(
            CONTRACT.confirm_migration,
            confirmation=claim_obj.MigrationConfirmation(
                instance_uuid='i1', migration_uuid='m1',
                source_assignments=tuple(source)))
        self.assertEqual(['h1', 'h2'], [view.host for view in offered])
        self.assertEqual((['h2'], []),
                         (self.compute.changed, self.compute.refreshed))

    def test_release_tells_other_hosts_of_the_instance(self):
        self.report_second_host()
        here = self.boot(2)
        self.boot(1, instance='i2', host='h2')
        self.release(base.uuids(here))
        self.assertEqual([], self.compute.changed)
        self.clean_all()
        here = self.boot(2)
        self.claim_destination(1, 'm1', host='h2')
        # An answer that was lost is asked for again.
        for _ in range(2):
            self.compute.changed.clear()
            self.release(base.uuids(here))
            self.assertEqual((['h2'], []), (
                self.compute.changed, self.compute.refreshed))


class OperatorTest(ManagerCase):

    variant = False
    VARIANT = admin.VariantInfo(name='H100', vendor='10de', device='2330')

    def test_variant_refreshes_the_hosts_that_it_concerns(self):
        self.report_second_host([base.function(0, device='1111')])
        created = self.call(CONTRACT.variant_create, variant=self.VARIANT)
        self.assertEqual(8, created.devices)
        self.call(CONTRACT.variant_set, before=created,
                  variant=dataclasses.replace(
                      created, traits=('CUSTOM_X',)))
        self.call(CONTRACT.variant_delete, name='H100')
        self.assertEqual(['h1'] * 3, self.compute.refreshed)

    def test_type_refreshes_the_hosts_on_which_it_changed(self):
        self.call(CONTRACT.variant_create, variant=self.VARIANT)
        self.compute.refreshed.clear()
        self.call(CONTRACT.vgpu_type_set, variant='H100',
                  vgpu_type='passthrough', host=None, enabled=False)
        self.assertEqual(['h1'], self.compute.refreshed)

    def test_device_that_is_disabled_refreshes_its_host(self):
        device = device_admin.list_all(self.db)[0]
        shown = self.call(
            CONTRACT.hold_add, device=device.uuid, kind='disabled',
            reason=None)
        self.assertFalse(shown.enabled)
        self.assertEqual(['h1'], self.compute.refreshed)

    def test_question_refreshes_no_host(self):
        self.call(CONTRACT.variant_create, variant=self.VARIANT)
        self.compute.refreshed.clear()
        device = device_admin.list_all(self.db)[0]
        page = {'limit': 1000, 'marker': None}
        everything = {'host': None, 'variant': None, **page}
        for method, arguments in (
                (CONTRACT.report, {'report': base.scan(base.EIGHT)}),
                (CONTRACT.host_inventory, {'host': 'h1'}),
                (CONTRACT.compare_allocations, {
                    'number': 1, 'allocations': {}, 'assignments': (),
                    'used': ()}),
                (CONTRACT.changes_since, {
                    'since': 0.0, 'known': (), 'marker': None,
                    'refusals': (), 'requests': (), 'mix': 0,
                    'period': 1.0}),
                (CONTRACT.variant_list, {}),
                (CONTRACT.variant_show, {'name': 'H100'}),
                (CONTRACT.vgpu_type_list,
                 everything | {'vgpu_type': None, 'only_enabled': False}),
                (CONTRACT.host_list, page),
                (CONTRACT.host_show, {'host': 'h1'}),
                (CONTRACT.group_list, everything),
                (CONTRACT.group_set, {
                    'host': 'h1', 'variant': 'H100',
                    'allocation_policy': 'breadth_first'}),
                (CONTRACT.device_list, {
                    **everything, 'state': None, 'used_by': None,
                    'project': None, 'type': None, 'vgpu_type': None,
                    'health': None, 'faulty': False,
                    'include_retired': False}),
                (CONTRACT.device_show, {'device': device.uuid})):
            with self.subTest(method.__name__):
                self.assertTrue(self.call(method, **arguments))
        self.assertEqual(([], [], []), (
            self.compute.refreshed, self.compute.changed,
            self.compute.asked))


class DeviceReleaseTest(ManagerCase):

    def test_released_device_is_dirty_and_its_host_refreshed(self):
        self.release(base.uuids(self.boot(1)))
        self.clean_all(passed=False)
        [device] = device_admin.list_all(self.db, state='quarantined')
        shown = self.call(CONTRACT.hold_remove, device=device.uuid,
                          kinds=['failed'])
        self.assertEqual(('dirty', None), (shown.state, shown.reason))
        self.assertEqual(['h1'], self.compute.refreshed)
        self.assertEqual(1, len(cleaning.tasks(self.db, 'h1')))

    def test_device_that_is_available_is_not_released(self):
        device = device_admin.list_all(self.db)[0]
        self.refused(exception.Conflict, CONTRACT.hold_remove,
                     device=device.uuid, kinds=['failed', 'retired'])
        self.assertEqual([], self.compute.refreshed)


class AssignmentTest(ManagerCase):

    def test_ended_assignment_tells_its_host(self):
        uuids = base.uuids(self.boot(2))
        ended = self.call(CONTRACT.assignment_end, assignments=uuids,
                          force=False, actor='root@ctl1')
        self.assertEqual([(uuid, 'no') for uuid in uuids],
                         [(info.uuid, info.used) for info in ended])
        self.assertEqual(['h1'], self.compute.changed)
        self.assertEqual((), self.call(
            CONTRACT.assignment_list, host='h1', instance=None, limit=9,
            marker=None))

    def test_list_tells_no_host(self):
        self.boot(1)
        self.assertEqual(1, len(self.call(
            CONTRACT.assignment_list, host=None, instance='i1', limit=9,
            marker=None)))
        self.assertEqual(([], []), (
            self.compute.changed, self.compute.refreshed))


class SessionTest(ManagerCase):

    def begin(self, timeout):
        """Return what is logged when a session begins."""
        logged = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        contract.Client(_Direct(manager.ConductorManager(
            self.conf, self.db, self.compute)), timeout).call(
                CONTRACT.begin_session, context.admin(),
                request=report.SessionRequest(
                    host='h1', node='h1', node_uuid=base.NODE, version='1',
                    start_uuid=hosts.start_uuid('h1'),
                    identity=host_rules.MachineIdentity(machine_id='h1')))
        return logged.output

    def test_host_with_a_shorter_timeout_is_named_with_both_values(self):
        self.conf.set_override('rpc_timeout', 10, 'gpgpu')
        self.assertIn(
            'rpc_timeout is 5 s in nova-compute on h1, but 10 s in this '
            'gpgpu-conductor', self.begin(5))

    def test_host_with_the_same_timeout_is_not_named(self):
        self.conf.set_override('rpc_timeout', 10, 'gpgpu')
        self.assertEqual('', self.begin(10))


class HostDeleteTest(ManagerCase):

    def hosts(self):
        return [host.host for host in host_admin.list_all(self.db)]

    def test_host_whose_nova_compute_is_silent_is_deleted(self):
        self.call(CONTRACT.host_delete, host='h1', force=False)
        self.assertEqual(([], ['h1'], ['h1']), (
            self.hosts(), self.compute.asked, self.compute.refreshed))

    def test_host_whose_nova_compute_answers_stays(self):
        self.compute.answers = True
        self.refused(exception.Conflict, CONTRACT.host_delete, host='h1',
                     force=False)
        self.assertEqual((['h1'], []),
                         (self.hosts(), self.compute.refreshed))

    def test_host_that_is_deleted_by_force_is_not_asked(self):
        self.compute.answers = True
        self.call(CONTRACT.host_delete, host='h1', force=True)
        # One that runs all the same reports its devices again.
        self.assertEqual(([], [], ['h1']), (
            self.hosts(), self.compute.asked, self.compute.refreshed))

    def test_host_with_a_quarantined_gpu_is_deleted_by_force_alone(self):
        releases.abort(self.db, base.uuids(self.claim(1)), touched=True,
                       fault='it hangs')
        self.refused(exception.Conflict, CONTRACT.host_delete, host='h1',
                     force=False)
        self.call(CONTRACT.host_delete, host='h1', force=True)
        self.assertEqual([], self.hosts())

    def test_unknown_host_is_not_found(self):
        for force in (False, True):
            self.refused(exception.NotFound, CONTRACT.host_delete,
                         host='h9', force=force)
        self.assertEqual([], self.compute.refreshed)
