# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-nova-compute where Nova is not installed."""

import subprocess
import sys

from oslotest import base

# What "import" does with None is what it does with a package that is absent.
WITHOUT_NOVA = """
import sys
sys.modules[{module!r}] = None
from gpgpu_plugin.cmd import nova_compute
sys.exit(nova_compute.main())
"""


class NovaComputeProgramTest(base.BaseTestCase):

    def run_without(self, module):
        return subprocess.run(
            [sys.executable, '-c', WITHOUT_NOVA.format(module=module)],
            capture_output=True, text=True, timeout=300, check=False)

    def test_missing_nova_is_named_without_a_traceback(self):
        done = self.run_without('nova.cmd')
        self.assertEqual((1, ''), (done.returncode, done.stdout))
        self.assertEqual(
            f'gpgpu-nova-compute: Nova is not installed for {sys.executable};'
            f' run the gpgpu-nova-compute of the Python that has Nova',
            done.stderr.splitlines()[-1])
        self.assertNotIn('Traceback', done.stderr)

    def test_missing_dependency_of_nova_is_not_hidden(self):
        done = self.run_without('oslo_reports')
        self.assertEqual(1, done.returncode)
        self.assertIn('Traceback', done.stderr)
        self.assertIn('oslo_reports', done.stderr.splitlines()[-1])
