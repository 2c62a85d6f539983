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
"""The worker iterates when woken, one at a time, and survives errors."""

import threading

from oslotest import base

from gpgpu_plugin.compute import worker


class WorkerTest(base.BaseTestCase):

    def make(self, work, interval=3600):
        made = worker.Worker(work, interval, 'test')
        self.addCleanup(made.stop)
        made.start()
        return made

    def test_wake(self):
        iterated = threading.Event()
        self.make(iterated.set).wake()
        self.assertTrue(iterated.wait(300))

    def test_interval(self):
        iterated = threading.Event()
        self.make(iterated.set, 0.01)
        self.assertTrue(iterated.wait(300))

    def test_next_iteration_comes_when_the_work_wants_it(self):
        iterations = []
        third = threading.Event()

        def work():
            iterations.append(1)
            if len(iterations) == 3:
                third.set()
                return None
            return 0.01
        self.make(work).wake()
        self.assertTrue(third.wait(300))

    def test_error_does_not_end_it(self):
        iterations = []
        second = threading.Event()

        def work():
            iterations.append(1)
            if len(iterations) == 1:
                raise RuntimeError('once')
            second.set()
        self.make(work, 0.01)
        self.assertTrue(second.wait(300))

    def test_wakes_while_it_works_become_one_iteration(self):
        iterations = []
        begun, go_on, done = (threading.Event() for _ in range(3))

        def work():
            iterations.append(1)
            begun.set()
            go_on.wait(300)
            if len(iterations) == 2:
                done.set()
        made = self.make(work)
        made.wake()
        self.assertTrue(begun.wait(300))
        for _ in range(50):
            made.wake()
        go_on.set()
        self.assertTrue(done.wait(300))
        made.stop()
        self.assertEqual(2, len(iterations))
