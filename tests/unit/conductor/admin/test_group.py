# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators list and change groups."""



from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import event as event_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.objects import event as objects
from tests.unit.conductor import base


class GroupTest(base.ConductorTestCase):

    def test_group(self):
        self.boot(3)
        [detail] = group_admin.set_(
            self.db, 'h1', 'H100', 'breadth_first')
        self.assertEqual(
            ('breadth_first', 'group', 8, 0, 5, 3),
            (detail.allocation_policy, detail.policy_source, detail.total,
             detail.reserved, detail.remaining, detail.assigned))
        self.assertRaises(exception.Invalid, group_admin.set_, self.db,
                          'h1', 'H100', 'random')
        for host, variant, words in (
                ('h1', 'L4', 'group L4 on h1 (known there: H100)'),
                ('h9', 'H100', 'host h9'), (None, 'L4', 'variant L4')):
            exc = self.assertRaises(
                exception.NotFound, group_admin.set_, self.db, host, variant,
                'depth_first')
            self.assertIn(words, str(exc))
        self.assertEqual('breadth_first', group_admin.list_all(
            self.db)[0].allocation_policy)

    def test_name_of_nothing_is_no_empty_list(self):
        for host, variant, words in (
                ('h9', None, 'host h9'), (None, 'L4', 'variant L4')):
            exc = self.assertRaises(
                exception.NotFound, group_admin.list_all, self.db, host,
                variant)
            self.assertIn(words, str(exc))

    def test_events_say_whose_policy_it_is(self):
        for host, policy in (('h1', 'breadth_first'), ('h1', None),
                             (None, 'breadth_first')):
            group_admin.set_(self.db, host, 'H100', policy)
        self.assertEqual(
            [('h1', 'H100: allocation policy breadth_first, of the group'),
             ('h1', 'H100: allocation policy depth_first, of the variant'),
             (None, 'H100 on all hosts: allocation policy breadth_first, of '
                    'the variant')],
            [(event.host, event.detail) for event in event_admin.list_all(
                self.db, objects.EventFilter(kind='group_set'),
                oldest_first=True)])
