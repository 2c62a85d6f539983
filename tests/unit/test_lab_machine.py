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
"""The lab's machine runs all once more when QEMU crashed, and only then."""

import contextlib
import io

import fixtures
from oslotest import base

from tests.vfio_lab import machine


class CrashTest(base.BaseTestCase):

    def run_with(self, *outcomes):
        """:returns: the exit code, and how many crashes were told"""
        said = io.StringIO()
        with (fixtures.MockPatchObject(
                machine, '_run_once', side_effect=outcomes),
              contextlib.redirect_stdout(said)):
            return machine.run([['x']]), said.getvalue().count('SIGSEGV')

    def test_crash(self):
        crash = machine.EmulatorCrashed('QEMU itself ended by SIGSEGV')
        self.assertEqual((0, 2), self.run_with(crash, crash, 0))
        self.assertEqual((124, 3), self.run_with(crash, crash, crash))

    def test_failure(self):
        for code in (1, 124):
            self.assertEqual((code, 0), self.run_with(code))
