# SPDX-License-Identifier: Apache-2.0
"""Tests of ``group``."""

import json
import pathlib
import time

import fixtures

from tests.fixtures import rows
from tests.unit.cmd import base


class GroupTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.claim(2)
        self.manage('hold', 'add', self.device('available'), '--kind',
                    'disabled')

    def device(self, state):
        return self.json('device', 'list', '--state', state)[0]['UUID']

    def test_list_shows_inventory_and_states(self):
        [row] = self.json('group', 'list')
        # Held without a Placement allocation, so reserved there.
        self.assertEqual({
            'Host': 'h1', 'Variant': 'H100',
            'Resource Class': 'CUSTOM_GPU_H100',
            'Allocation Policy': 'depth_first',
            'Cleaning Policy': 'default', 'Free Partition Counts': [],
            'Total': 8, 'Reserved': 3,
            'Remaining': 5, 'Assigned': 2, 'States': {
                'assigned': 2, 'available': 5, 'disabled': 1},
            'Host State': 'up'}, row)

    def test_nothing_remains_on_a_host_whose_nova_compute_is_silent(self):
        with self.conductor.db.writer() as session:
            rows.change_host(session, 'h1', heard_at=time.time() - 901)
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

    def test_set_needs_something_to_set(self):
        self.assertIn('--unset', self.misused('group', 'set', 'h1', 'H100'))
        self.assertIn('not allowed with', self.misused(
            'group', 'set', 'h1', 'H100', '--unset', 'allocation-policy',
            '--allocation-policy', 'depth_first'))

    def table(self, **fields):
        """Return the path of a file of link partitions."""
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).join('f'))
        path.write_text(json.dumps({
            'named_by': 'address', 'partitions': {
                'pair': ['0000:06:00.0', '0000:07:00.0'],
                'used': ['0000:00:00.0', '0000:06:00.0']}, **fields}))
        return str(path)

    def test_link_partitions_of_one_host(self):
        [row] = self.json('group', 'set', 'h1', 'H100', '--link-partitions',
                          self.table())
        self.assertEqual(
            ('group', True, ['1 of 2'], None),
            (row['Links Source'], row['Fabric'],
             row['Free Partition Counts'], row['Links Problem']))
        self.assertEqual([
            {'Partition': 'pair', 'GPUs': 2, 'Free': True, 'State': 'free',
             'Addresses': '0000:06:00.0 0000:07:00.0'},
            {'Partition': 'used', 'GPUs': 2, 'Free': False, 'State': 'broken',
             'Addresses': '0000:00:00.0 0000:06:00.0'}],
            self.json('group', 'links', 'h1', 'H100'))
        self.assertEqual(
            ['1 of 2'], self.json('group', 'list')[0]['Free Partition Counts'])
        self.assertIn('pair 0000:06:00.0 0000:07:00.0',
                      self.done('group', 'show', 'h1', 'H100'))
        [row] = self.json('group', 'set', 'h1', 'H100', '--unset',
                          'link-partitions')
        self.assertIsNone(row['Links Source'])
        result = self.manage('group', 'links', 'h1', 'H100')
        self.assertIn('nothing is known of the links', result.err)

    def test_devices_show_the_partitions_that_they_are_in(self):
        self.done('group', 'set', 'h1', 'H100', '--link-partitions',
                  self.table())
        for address, names in (('0000:06:00.0', ['pair', 'used']),
                               ('0000:00:00.0', ['used']),
                               ('0000:01:00.0', [])):
            self.assertEqual(names, self.json(
                'device', 'show', 'h1', address)['Link Partitions'])
            self.assertEqual([names], [
                row['Link Partitions'] for row in self.json('device', 'list')
                if row['Address'] == address])

    def test_link_partitions_of_a_variant(self):
        shown = self.json('variant', 'set', 'H100', '--link-partitions',
                          self.table(fabric=False))
        self.assertEqual(
            {'named_by': 'address', 'fabric': False, 'partitions': {
                'pair': ['0000:06:00.0', '0000:07:00.0'],
                'used': ['0000:00:00.0', '0000:06:00.0']}},
            json.loads(shown['Link Partitions']))
        self.assertEqual('variant', self.json(
            'group', 'show', 'h1', 'H100')['Links Source'])
        self.assertIsNone(self.json(
            'variant', 'set', 'H100', '--unset',
            'link-partitions')['Link Partitions'])

    def test_partitions_of_a_variant_that_do_not_fit_a_host_are_noted(self):
        self.done('variant', 'set', 'H100', '--link-partitions', self.table(
            named_by='order', partitions=[[0, 1]]))
        result = self.manage('group', 'links', 'h1', 'H100')
        self.assertIn('names 2 GPUs by their order, but the group has 8',
                      result.err)

    def test_wrong_link_partitions_are_refused(self):
        for file, words in (
                (self.table(named_by='uuid'), 'one of order, address, slot'),
                ('/none', 'file /none does not exist'),
                ('/', 'a file of JSON'),
                (self.table(partitions=[['0000:99:00.0']]),
                 '0000:99:00.0; it has 0000:00:00.0')):
            self.assertIn(words, self.refused(
                'group', 'set', 'h1', 'H100', '--link-partitions', file))

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
