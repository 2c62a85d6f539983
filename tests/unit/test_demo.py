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
"""Tests of the demo on a machine that is too slow."""

import os
import subprocess
import sys

import fixtures
from oslotest import base


class LimitTest(base.BaseTestCase):

    def test_demo_beyond_its_limit_names_the_current_step(self):
        folder = self.useFixture(fixtures.TempDir()).path
        demo = subprocess.run(
            [sys.executable, '-m', 'demo', '--limit', '0.01'],
            capture_output=True, text=True, timeout=900, check=False,
            env={**os.environ, 'TMPDIR': folder, 'COLUMNS': '80'})
        self.assertEqual(1, demo.returncode, demo.stderr)
        [line] = [line for line in demo.stdout.splitlines()
                  if '\u2718' in line]
        self.assertEqual(
            '  \u2718 Not told to its end within 0.01 s; it was at: '
            'The services start', line)
        [log] = os.listdir(folder)
        self.assertTrue(log.endswith('.log'))
