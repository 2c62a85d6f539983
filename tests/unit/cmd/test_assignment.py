# SPDX-License-Identifier: Apache-2.0
"""Tests of ``assignment``."""

import fixtures

from tests.unit.cmd import base


class AssignmentTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        # Nobody serves h1.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.USAGE_TIMEOUT', 0.2))
        self.uuids = [assigned.uuid for assigned in self.claim(2)]

    def test_list_says_that_a_silent_host_leaves_usage_unknown(self):
        rows = self.json('assignment', 'list', '--host', 'h1', '--long')
        self.assertEqual(self.uuids, [row['UUID'] for row in rows])
        self.assertEqual(
            {(base.INSTANCE, 'h1', 'instance', 'assigned', 'unknown')},
            {(row['Instance UUID'], row['Host'], row['Role'], row['State'],
              row['Used']) for row in rows})
        self.assertIn('did not answer', rows[0]['Reason'])
        self.assertEqual(
            [('H100', 'passthrough', None)] * 2,
            [(row['Variant'], row['vGPU Type'], row['Migration UUID'])
             for row in rows])
        self.assertEqual(rows, self.json(
            'assignment', 'list', '--instance', base.INSTANCE, '--long'))
        self.assertNotIn('Reason', self.json('assignment', 'list')[0])

    def test_end_is_refused_where_usage_is_unknown(self):
        err = self.refused('assignment', 'end', self.uuids[0])
        self.assertIn('it is unknown whether device', err)
        self.assertIn('--force', err)
        self.assertEqual(2, len(self.json('assignment', 'list')))

    def test_end_by_uuid(self):
        [row] = self.json('assignment', 'end', self.uuids[0], '--force')
        self.assertEqual(self.uuids[0], row['UUID'])
        [row] = self.json('assignment', 'list')
        self.assertEqual(self.uuids[1], row['UUID'])

    def test_end_by_instance_and_host(self):
        words = ('assignment', 'end', 'h1', '--instance', base.INSTANCE)
        self.json(*words, '--force')
        self.assertEqual([], self.json('assignment', 'list'))
        self.assertIn('does not exist', self.refused(*words))

    def test_end_of_an_instance_on_two_hosts_is_refused(self):
        self.assertIn('name one host, whose assignments', self.refused(
            'assignment', 'end', 'h1', 'h2', '--instance', base.INSTANCE,
            code=2))
