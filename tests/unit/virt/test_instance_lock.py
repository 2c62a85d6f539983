# SPDX-License-Identifier: Apache-2.0

import threading

from oslotest import base

from gpgpu_plugin.virt import lifecycle
from tests.fixtures import patience


class InstanceLocksTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.locks = lifecycle.InstanceLocks()
        self.calls = []

    def start(self, instance):
        """Hold the lock of an instance in another thread."""
        def call():
            with self.locks.hold(instance):
                self.calls.append(instance)
        thread = threading.Thread(target=call)
        thread.start()
        self.addCleanup(thread.join, patience.LONG)
        return thread

    def test_other_thread_waits_for_the_same_instance(self):
        with self.locks.hold('i1'):
            thread = self.start('i1')
            patience.wait_until(lambda: self.locks.users('i1') == 2)
            self.assertEqual([], self.calls)
        thread.join(patience.LONG)
        self.assertEqual(['i1'], self.calls)

    def test_other_instance_does_not_wait(self):
        with self.locks.hold('i1'):
            self.start('i2').join(patience.LONG)
            self.assertEqual(['i2'], self.calls)

    def test_same_thread_may_hold_it_again(self):
        with self.locks.hold('i1'), self.locks.hold('i1'):
            self.assertEqual(2, self.locks.users('i1'))

    def test_lock_goes_with_its_last_user(self):
        with self.locks.hold('i1'):
            thread = self.start('i1')
            patience.wait_until(lambda: self.locks.users('i1') == 2)
        thread.join(patience.LONG)
        self.assertEqual({}, self.locks._locks)

    def test_lock_is_left_when_a_call_fails(self):
        def fail():
            with self.locks.hold('i1'):
                raise RuntimeError('x')
        self.assertRaises(RuntimeError, fail)
        self.assertEqual({}, self.locks._locks)
