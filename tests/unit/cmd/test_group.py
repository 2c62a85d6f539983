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
"""Tests of ``group``."""

import time

from gpgpu_plugin.db import host as host_db
from tests.unit.cmd import base


class GroupTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.claim(2)
        self.manage('device', 'set', self.device('available'), '--disable')

    def device(self, state):
        return self.json('device', 'list', '--state', state)[0]['UUID']

    def test_list_shows_inventory_and_states(self):
        [row] = self.json('group', 'list')
        # Held without a Placement allocation, so reserved there.
        self.assertEqual({
            'Host': 'h1', 'Variant': 'H100',
            'Resource Class': 'CUSTOM_GPU_H100',
            'Allocation Policy': 'depth_first',
            'Cleaning Policy': 'default', 'Total': 8, 'Reserved': 3,
            'Remaining': 5, 'Assigned': 2, 'States': {
                'assigned': 2, 'available': 5, 'disabled': 1},
            'Host State': 'up'}, row)

    def test_nothing_remains_on_a_host_whose_nova_compute_is_silent(self):
        with self.conductor.db.writer() as session:
            host_db.get(session, 'h1').heard_at = time.time() - 901
        [group] = self.json('group', 'list')
        self.assertEqual(
            ('silent', 0, 8),
            (group['Host State'], group['Remaining'], group['Total']))
        for row in (*self.json('host', 'list'),
                    *self.json('device', 'list'),
                    *self.json('vgpu-type', 'list'),
                    self.json('host', 'show', 'h1')):
            self.assertEqual('silent', row['Host State'])
        self.assertIn('silent since', self.done('map'))

    def test_show_has_the_fields_of_the_list(self):
        shown = self.json('group', 'show', 'h1', 'H100')
        self.assertEqual(
            (5, 'CUSTOM_GPU_H100'),
            (shown['Remaining'], shown['Resource Class']))
        self.assertIn('available 5', self.done('group', 'show', 'h1', 'H100'))

    def test_set_changes_the_allocation_policy(self):
        [shown] = self.json('group', 'set', 'h1', 'H100',
                            '--allocation-policy', 'breadth_first')
        self.assertEqual(('breadth_first', 'group'), (
            shown['Allocation Policy'], shown['Policy Source']))
        self.assertEqual('breadth_first', self.json(
            'group', 'list')[0]['Allocation Policy'])

    def test_set_for_all_hosts_is_a_default_of_the_variant(self):
        self.done('group', 'set', 'h1', 'H100', '--allocation-policy',
                  'depth_first')
        [row] = self.json('group', 'set', '--all-hosts', 'H100',
                          '--allocation-policy', 'breadth_first')
        self.assertEqual(
            ('h1', 'breadth_first', 'variant'),
            (row['Host'], row['Allocation Policy'], row['Policy Source']))
        self.assertEqual('breadth_first', self.json(
            'variant', 'show', 'H100')['Allocation Policy'])

    def test_policy_of_a_group_is_unset(self):
        self.done('variant', 'set', 'H100', '--allocation-policy',
                  'breadth_first')
        self.done('group', 'set', 'h1', 'H100', '--allocation-policy',
                  'depth_first')
        [row] = self.json('group', 'set', 'h1', 'H100', '--unset',
                          'allocation-policy')
        self.assertEqual(('breadth_first', 'variant'), (
            row['Allocation Policy'], row['Policy Source']))
        shown = self.json('group', 'show', 'h1', 'H100')
        self.assertEqual('variant', shown['Policy Source'])

    def test_set_needs_one_host_or_all_and_something_to_set(self):
        for host, given in (((), 'none'), (('--all-hosts', 'h1'), 'h1')):
            self.assertIn(
                f"HOST: '{given}' is not valid: either the name of a host "
                f"before the variant, or --all-hosts", self.refused(
                    'group', 'set', *host, 'H100', '--allocation-policy',
                    'depth_first'))
        self.assertIn('--unset', self.misused('group', 'set', 'h1', 'H100'))
        self.assertIn('not allowed with', self.misused(
            'group', 'set', 'h1', 'H100', '--unset', 'allocation-policy',
            '--allocation-policy', 'depth_first'))

    def test_unknown_group_host_or_variant_is_not_found(self):
        self.assertEqual('gpgpu-manage: group H9 on h1 (known there: H100) '
                         'does not exist\n',
                         self.refused('group', 'show', 'h1', 'H9'))
        self.assertIn('host h9 does not exist',
                      self.refused('group', 'show', 'h9', 'H100'))
        self.assertIn(
            'group H9 on h1 (known there: H100) does not', self.refused(
                'group', 'set', 'h1', 'H9', '--allocation-policy',
                'depth_first'))
        self.assertIn('host h9 does not exist', self.refused(
            'group', 'list', '--host', 'h9'))
        self.assertIn('variant H9 does not exist', self.refused(
            'group', 'list', '--variant', 'H9'))

    def test_unknown_marker_says_what_one_looks_like(self):
        for noun, form in (('group', 'HOST:VARIANT'),
                           ('vgpu-type', 'HOST:VARIANT:TYPE')):
            self.assertIn(f'marker h9:x, of the form {form}, does not exist',
                          self.refused(noun, 'list', '--marker', 'h9:x'))

    def test_unknown_policy_is_refused(self):
        self.assertIn('breadth_first', self.misused(
            'group', 'set', 'h1', 'H100', '--allocation-policy', 'sideways'))

    def test_list_is_filtered_by_host_and_variant(self):
        self.assertEqual(1, len(self.json(
            'group', 'list', '--host', 'h1', '--variant', 'H100')))
