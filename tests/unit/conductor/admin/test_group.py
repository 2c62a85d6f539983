# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators list and change groups."""

import dataclasses

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.objects import history as history_obj
from tests.fixtures import hosts
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
                ('h9', 'H100', 'host h9')):
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
        for policy in ('breadth_first', None):
            group_admin.set_(self.db, 'h1', 'H100', policy)
        self.assertEqual(
            [('h1', 'H100: allocation policy breadth_first, of the group'),
             ('h1', 'H100: allocation policy depth_first, of the variant')],
            [(event.host, event.detail) for event in history.list_events(
                self.db, history_obj.EventFilter(kind='group_set'))][::-1])


class WithoutDevicesTest(base.ConductorTestCase):
    """A group all of whose GPUs cannot be passed on for a while."""

    def report(self, **facts):
        hosts.store(self.db, base.scan(tuple(
            dataclasses.replace(gpu, **facts) for gpu in base.EIGHT)))

    def test_settings_of_an_operator_stay(self):
        group_admin.set_type_enabled(
            self.db, 'H100', 'passthrough', 'h1', enabled=False)
        group_admin.set_(self.db, 'h1', 'H100', 'breadth_first')
        self.report(vfio_refusal='no IOMMU')
        [group] = group_admin.list_all(self.db)
        self.assertEqual((0, 0), (group.total, group.remaining))
        self.report()
        [group] = group_admin.list_all(self.db)
        self.assertEqual(('breadth_first', 'group', 8), (
            group.allocation_policy, group.policy_source, group.total))
        self.assertRaises(exception.ClaimDenied, self.claim)

    def test_group_without_settings_goes(self):
        self.report(vfio_refusal='no IOMMU')
        self.assertEqual((), group_admin.list_all(self.db))

    def test_group_of_a_deleted_variant_goes(self):
        group_admin.set_(self.db, 'h1', 'H100', 'breadth_first')
        variant_admin.delete(self.db, 'H100')
        self.assertEqual((), group_admin.list_all(self.db))
        self.assertEqual((), variant_admin.list_all(self.db))
