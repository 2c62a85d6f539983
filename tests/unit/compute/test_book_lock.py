# SPDX-License-Identifier: Apache-2.0
"""Tests of the book's lock: two processes, and one that was killed."""

import errno
import os
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file

_PROGRAM = """
import os, sys
from gpgpu_plugin.compute import assignment_file
file = assignment_file.acquire_lock(sys.argv[1])
if os.fork():
    print('locked', flush=True)
sys.stdin.read()
"""


class AcquireTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.book = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'state', 'h1.json')

    def acquire(self):
        file = assignment_file.acquire_lock(str(self.book))
        self.addCleanup(file.close)

    def assert_locked(self):
        """Assert that another process cannot lock what this one has."""
        other = subprocess.run(
            [sys.executable, '-c', _PROGRAM, str(self.book)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertIn(f'in use by process {os.getpid()}.', other.stderr)

    def start(self):
        """Start another process that has the book locked, and a child."""
        process = subprocess.Popen(
            [sys.executable, '-c', _PROGRAM, str(self.book)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for pipe in (process.stdin, process.stdout):
            self.addCleanup(pipe.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual('locked\n', process.stdout.readline())
        return process

    def test_second_process_is_refused_with_the_first_one_s_pid(self):
        process = self.start()
        exc = self.assertRaises(
            exception.ConfigInvalid, assignment_file.acquire_lock,
            str(self.book))
        self.assertIn('[gpgpu_compute] state_path', str(exc))
        self.assertIn(
            f'{self.book} is in use by process {process.pid}.', str(exc))

    def test_second_acquire_of_a_process_keeps_the_lock(self):
        # A driver is made again, and the first one's file is dropped.
        file = assignment_file.acquire_lock(str(self.book))
        file = assignment_file.acquire_lock(str(self.book))
        self.addCleanup(file.close)
        self.assert_locked()

    def test_process_can_lock_again_what_it_unlocked(self):
        assignment_file.acquire_lock(str(self.book)).close()
        self.acquire()
        self.assert_locked()

    def test_book_of_a_killed_process_is_free_while_its_child_lives(self):
        process = self.start()
        process.kill()
        process.wait()
        self.acquire()
        self.assertEqual(
            f'{os.getpid()}\n', self.book.with_suffix('.lock').read_text())

    def test_file_system_without_locks_is_refused_with_the_reason(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.compute.assignment_file.fcntl.lockf',
            side_effect=OSError(errno.ENOLCK, 'No locks available')))
        exc = self.assertRaises(
            exception.ConfigInvalid, assignment_file.acquire_lock,
            str(self.book))
        self.assertIn('h1.lock cannot be locked (No locks available)',
                      str(exc))

    def test_books_of_two_hosts_are_locked_separately(self):
        self.start()
        self.book = self.book.with_name('h2.json')
        self.acquire()

    def test_folder_that_cannot_be_written_locks_nothing(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.book.parent.write_text('a file')
        self.assertIsNone(assignment_file.acquire_lock(str(self.book)))
        self.assertIn('Cannot open the lock file', log.output)

    def test_book_on_a_full_disk_is_locked(self):
        self.book.parent.mkdir()
        self.book.with_suffix('.lock').symlink_to('/dev/full')
        log = self.useFixture(fixtures.FakeLogger())
        self.acquire()
        self.assertIn('Cannot write the process ID', log.output)
