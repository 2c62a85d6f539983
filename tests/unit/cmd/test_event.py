# SPDX-License-Identifier: Apache-2.0
"""Tests of ``event list``."""

import json

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import host as host_admin
from tests.unit.cmd import base


class EventCase(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        [self.assigned] = self.claim()

    def rows(self, *arguments):
        result = self.manage(*arguments, '-f', 'json')
        self.assertEqual(0, result.code, result.err)
        return json.loads(result.out)


class EventListTest(EventCase):

    def test_newest_event_is_first(self):
        found = self.rows('event', 'list')
        self.assertEqual(['activate', 'claim'],
                         [row['Kind'] for row in found[:2]])
        self.assertEqual(
            ['ID', 'At', 'Kind', 'Host', 'Device UUID', 'Instance UUID',
             'Actor', 'Reason', 'Count', 'Detail'], list(found[0]))

    def test_options_are_filters(self):
        of_claim = {
            '--host': 'h1', '--device': self.assigned.device_uuid,
            '--instance': base.INSTANCE, '--kind': 'claim',
            '--from': '2026-01-01'}
        arguments = [text for pair in of_claim.items() for text in pair]
        [found] = self.rows('event', 'list', '--long', *arguments)
        self.assertEqual(self.assigned.uuid, found['Assignment UUID'])
        for option, other in (
                ('--host', 'h2'), ('--device', 'none'),
                ('--instance', '11111111-1111-1111-1111-111111111111'),
                ('--kind', 'release'), ('--from', '2126-01-01'),
                ('--to', '2026-01-02'), ('--project', 'p9'),
                ('--request', 'req-9')):
            self.assertEqual([], self.rows(
                'event', 'list', *arguments, option, other), option)

    def test_operator_is_the_actor_of_a_command(self):
        self.manage('hold', 'add', '--kind', 'disabled',
                    self.assigned.device_uuid)
        [found] = self.rows('event', 'list', '--kind', 'disable')
        self.assertRegex(found['Actor'], '^operator .+@.+')

    def test_remark_says_how_to_go_on(self):
        result = self.manage('event', 'list', '--limit', '1', '-f', 'json')
        [found] = json.loads(result.out)
        self.assertIn(f'--marker {found["ID"]}', result.err)
        [older] = self.rows(
            'event', 'list', '--limit', '1', '--marker', str(found['ID']))
        self.assertEqual('claim', older['Kind'])

    def test_wrong_kind_is_explained(self):
        result = self.manage('event', 'list', '--kind', 'clam')
        self.assertEqual(2, result.code)
        self.assertIn("'clam' is no kind of events, such as claim", result.err)


class InstanceHistoryTest(EventCase):

    def kinds(self):
        return [row['Kind'] for row in self.rows(
            'event', 'list', '--instance', base.INSTANCE)]

    def test_events_outlive_the_host(self):
        expected = ['release', 'activate', 'claim']
        releases.release(self.conductor.db, [self.assigned.uuid])
        self.assertEqual(expected, self.kinds())
        host_admin.delete(self.conductor.db, 'h1', force=True)
        self.assertEqual(expected, self.kinds())

    def test_unknown_instance_is_explained(self):
        result = self.manage('event', 'list', '--instance',
                             '11111111-1111-1111-1111-111111111111')
        self.assertEqual(0, result.code)
        self.assertIn(
            'why-not --server 11111111-1111-1111-1111-111111111111',
            result.err)
        self.assertIn('nova_notifications_topic', result.err)
