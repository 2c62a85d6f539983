# SPDX-License-Identifier: Apache-2.0
"""Tests of the fixture of pools whose threads sleep."""

import queue
import threading
import types

from oslotest import base

from tests.fixtures import pools


class StopTest(base.BaseTestCase):

    def worker(self):
        return types.SimpleNamespace(
            work_queue=queue.Queue(), should_stop=False)

    def stop(self, worker):
        """Stop a worker; return whether that ended."""
        thread = threading.Thread(
            target=pools._stop, args=(worker,), daemon=True)
        thread.start()
        thread.join(10)
        return not thread.is_alive()

    def test_worker_is_woken(self):
        worker = self.worker()
        self.assertTrue(self.stop(worker))
        self.assertTrue(worker.should_stop)
        self.assertIsNone(worker.work_queue.get_nowait())

    def test_queue_that_is_locked_is_not_waited_for(self):
        """Garbage was collected in a call of the same queue."""
        worker = self.worker()
        with worker.work_queue.mutex:
            self.assertTrue(self.stop(worker))
        self.assertTrue(worker.should_stop)
