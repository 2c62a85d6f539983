# SPDX-License-Identifier: Apache-2.0
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
