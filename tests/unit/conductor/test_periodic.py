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
"""Tests of functions that are called again and again."""

import threading

from oslotest import base

from gpgpu_plugin.conductor import periodic


class PeriodicTest(base.BaseTestCase):

    def test_function_is_called_again_until_the_stop(self):
        called = threading.Semaphore(0)
        subject = periodic.Periodic('again', 0.01, called.release)
        subject.start()
        for _ in range(3):
            self.assertTrue(called.acquire(timeout=60))
        subject.stop()
        self.assertNotIn('again', [
            thread.name for thread in threading.enumerate()])

    def test_stop_before_the_start_does_nothing(self):
        periodic.Periodic('never', 1, self.fail).stop()
