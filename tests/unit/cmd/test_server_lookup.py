# SPDX-License-Identifier: Apache-2.0
"""Tests of servers by name, with a fake of Nova's REST API."""

import openstack.exceptions

from tests.unit.cmd import base
from tests.unit.cmd import fake_nova

OTHER = 'd9428888-122b-41e1-b85c-5d3b8d7d4f2f'


class ServerLookupTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.nova = self.useFixture(fake_nova.FakeNova())
        self.server(base.INSTANCE, 'train.1')

    def server(self, uuid, name, project='p1'):
        self.nova.servers.append(
            {'id': uuid, 'name': name, 'tenant_id': project})

    def show(self, name='train.1'):
        return self.json('device', 'list', '--instance', name,
                         connect=self.nova.connect)

    def test_name_stands_for_the_server_in_every_command(self):
        self.claim()
        self.assertEqual(1, len(self.show()))
        for arguments in (
                ('device', 'list', '--instance', 'train.1'),
                ('assignment', 'list', '--instance', 'train.1'),
                ('event', 'list', '--instance', 'train.1'),
                ('usage', 'list', '--instance', 'train.1')):
            with self.subTest(arguments):
                self.assertTrue(self.json(
                    *arguments, connect=self.nova.connect))

    def test_servers_of_all_projects_are_asked_for_by_the_exact_name(self):
        # Nova's database may ignore the case.
        self.server(OTHER, 'Train.1')
        self.claim()
        self.show()
        self.assertIn('all_tenants=True', self.nova.asked[0])
        self.assertIn('name=%5Etrain%5C.1%24', self.nova.asked[0])

    def test_ambiguous_name_is_refused_with_the_candidates(self):
        self.server(OTHER, 'train.1', 'p2')
        message = self.refused('device', 'list', '--instance', 'train.1',
                               connect=self.nova.connect)
        self.assertIn('2 servers have this name', message)
        for words in (f'{base.INSTANCE} of project p1',
                      f'{OTHER} of project p2'):
            self.assertIn(words, message)

    def test_unknown_name_is_not_found(self):
        message = self.refused('device', 'list', '--instance', 'gone',
                               connect=self.nova.connect)
        self.assertIn('server gone', message)
        self.assertIn('event list', message)

    def test_cloud_that_cannot_be_reached_is_named(self):
        def connect(cloud):
            raise openstack.exceptions.ConfigException(
                f'Cloud {cloud} was not found.')
        message = self.refused('--os-cloud', 'mycloud', 'device', 'list',
                               '--instance', 'train.1', connect=connect)
        for words in ('clouds.yaml', 'cloud mycloud', '--os-cloud',
                      'the UUID of the server'):
            self.assertIn(words, message)
