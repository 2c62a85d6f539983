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
"""Tests of the messages of a gpgpu-conductor that cannot start."""

import subprocess
import sys

import fixtures
from oslotest import base


class ConductorProgramTest(base.BaseTestCase):

    def refused(self, *lines):
        path = f'{self.useFixture(fixtures.TempDir()).path}/x.conf'
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines))
        # A process of its own: it reads the global configuration.
        done = subprocess.run(
            [sys.executable, '-m', 'gpgpu_plugin.cmd.conductor',
             '--config-file', path],
            capture_output=True, text=True, timeout=900, check=False)
        self.assertEqual(1, done.returncode, done.stdout)
        self.assertEqual(1, done.stderr.count('\n'), done.stderr)
        self.assertTrue(done.stderr.startswith('gpgpu-conductor: '))
        return done.stderr

    def test_transport_that_reaches_nobody_is_refused(self):
        self.assertIn('[gpgpu] transport_url', self.refused(
            '[gpgpu]', 'transport_url = fake:/'))

    def test_database_that_cannot_be_opened_is_named(self):
        self.assertIn('unable to open database file', self.refused(
            '[gpgpu]', 'transport_url = rabbit://',
            '[database]', 'connection = sqlite:////nowhere/x.sqlite'))

    def test_database_without_schema_is_refused(self):
        self.assertIn('run "gpgpu-manage db sync"', self.refused(
            '[gpgpu]', 'transport_url = rabbit://',
            '[database]', 'connection = sqlite://'))

    def test_malformed_option_is_named(self):
        self.assertIn('rpc_timeout', self.refused(
            '[gpgpu]', 'transport_url = rabbit://', 'rpc_timeout = soon'))
