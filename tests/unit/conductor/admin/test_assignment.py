# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators list and end assignments."""

import collections

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import assignment as assignment_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.objects import claim as claim_obj
from tests.unit.conductor import base


class AssignmentCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.asked = []
        self.used = {}
        self.silent = None
        self.error = None

    def ask(self, assignments):
        """Answer as all hosts, by instance, but for one that is silent."""
        if self.error is not None:
            raise self.error
        answers = collections.defaultdict(list)
        for assignment in assignments:
            self.asked.append((assignment.host, assignment.uuid))
            if assignment.host != self.silent:
                answers[assignment.host].append(claim_obj.Usage(
                    uuid=assignment.uuid,
                    used=self.used.get(assignment.instance_uuid),
                    reason=f'{assignment.instance_uuid} is somewhere'))
        return answers


class ListTest(AssignmentCase):

    def list(self, **kwargs):
        return [(info.instance_uuid, info.host, info.used) for info
                in assignment_admin.list_all(self.db, self.ask, **kwargs)]

    def test_hosts_say_whether_assignments_are_used(self):
        self.report_second_host()
        self.boot(1)
        self.boot(1, 'i2')
        self.boot(1, 'i2', host='h2')
        self.used = {'i1': True, 'i2': False}
        on_h1 = [('i1', 'h1', 'yes'), ('i2', 'h1', 'no')]
        self.assertEqual([*on_h1, ('i2', 'h2', 'no')], self.list())
        self.assertEqual(on_h1, self.list(host='h1'))
        self.assertEqual([('i2', 'h1', 'no'), ('i2', 'h2', 'no')],
                         self.list(instance='i2'))
        self.assertEqual([('i2', 'h2', 'no')],
                         self.list(host='h2', instance='i2'))

    def test_row_says_which_device_and_since_when(self):
        [assignment] = self.boot(1).assignments
        [info] = assignment_admin.list_all(self.db, self.ask)
        for name in ('uuid', 'address', 'variant', 'vgpu_type', 'role',
                     'migration_uuid'):
            self.assertEqual(getattr(assignment, name), getattr(info, name))
        self.assertEqual('assigned', info.state)
        self.assertRegex(info.since, r'^\d{4}-.*Z$')
        self.assertEqual('i1 is somewhere', info.reason)

    def boot_on_two_hosts(self):
        self.report_second_host()
        self.boot(1)
        self.boot(1, 'i2', host='h2')
        self.used = {'i1': False, 'i2': True}

    def test_silence_of_a_host_leaves_only_its_usage_unknown(self):
        self.boot_on_two_hosts()
        self.silent = 'h1'
        silent, other = assignment_admin.list_all(self.db, self.ask)
        self.assertEqual(('unknown', 'yes'), (silent.used, other.used))
        self.assertEqual('nova-compute on h1 did not answer within 10 s',
                         silent.reason)

    def test_host_says_nothing_about_assignments_of_another(self):
        self.boot_on_two_hosts()
        self.used['i2'] = None

        def ask(assignments):
            answers = self.ask(assignments)
            return {'h1': [usage for found in answers.values()
                           for usage in found]}
        self.assertEqual(
            ['no', 'unknown'],
            [info.used for info in assignment_admin.list_all(self.db, ask)])

    def test_broker_that_is_down_leaves_all_usages_unknown(self):
        self.boot_on_two_hosts()
        self.error = exception.BrokerUnavailable(hosts='b', reason='down')
        infos = assignment_admin.list_all(self.db, self.ask)
        self.assertEqual(['unknown'] * 2, [info.used for info in infos])
        self.assertIn('nova-compute on h2 could not be asked',
                      infos[1].reason)

    def test_unknown_host_is_not_found(self):
        self.assertRaises(exception.NotFound, self.list, host='h9')
        self.assertEqual([], self.asked)


class EndTest(AssignmentCase):

    def end(self, uuids, *, force=False):
        return assignment_admin.end(
            self.db, self.ask, uuids, force=force, actor='root@ctl1')

    def test_unused_assignment_is_ended_with_an_event(self):
        first, second = base.uuids(self.boot(2))
        self.used = {'i1': False}
        [info] = self.end([first])
        self.assertEqual((first, 'no'), (info.uuid, info.used))
        # The host judges by all that the instance has there.
        self.assertEqual([('h1', first), ('h1', second)], self.asked)
        self.assertEqual({'dirty': 1, 'assigned': 1, 'available': 6},
                         self.states())
        with self.db.reader() as session:
            [event] = session.execute(sa.select(event_db.TABLE).where(
                event_db.TABLE.c.kind == 'operator_end'))
        self.assertEqual((first, 'i1', 'h1'), (
            event.assignment_uuid, event.instance_uuid, event.host))
        self.assertEqual(
            'by root@ctl1; used: no, i1 is somewhere', event.detail)

    def test_used_assignment_is_refused_with_the_reason(self):
        uuids = base.uuids(self.boot(2))
        for used, parts in (
                (True, ('is in use', 'i1 is somewhere', 'Delete')),
                (None, ('it is unknown', 'i1 is somewhere', 'nova-compute',
                        'h1'))):
            self.used = {'i1': used}
            exc = self.assertRaises(exception.Conflict, self.end, uuids)
            for part in (*parts, '--force'):
                self.assertIn(part, str(exc))
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_used_assignment_is_ended_with_force(self):
        self.used = {'i1': True}
        self.end(base.uuids(self.boot(2)), force=True)
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())

    def test_ended_assignment_is_not_found(self):
        uuids = base.uuids(self.boot(1))
        for _ in range(2):
            self.assertRaises(exception.NotFound, self.end,
                              [*uuids, 'none'], force=True)
        self.end(uuids, force=True)
        self.assertRaises(exception.NotFound, self.end, uuids, force=True)
        self.assertRaises(exception.NotFound, self.end, ['none'])
