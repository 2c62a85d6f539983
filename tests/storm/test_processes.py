# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import fixtures
from oslotest import base

from tests.fixtures import patience
from tests.storm import processes

CONDUCTOR = textwrap.dedent('''
    import sys, time
    from tests.storm import processes
    child = processes.spawn(['sleep', '600'], sys.stderr)
    print(child.pid, flush=True)
    time.sleep(600)
''')

# A host that does not read its commands, as while it calls a conductor.
HOST = textwrap.dedent('''
    import os, pathlib, sys, time
    from unittest import mock
    from tests.storm import host
    from tests.storm import processes

    def start(self):
        print(os.getpid(), flush=True)
        time.sleep(600)

    if __name__ == '__main__':
        process = processes.Host(host.Setting(
            name='h0', folder=pathlib.Path(sys.argv[1]), transport='fake:/',
            topic_prefix='', seed='', hosts=()))
        process._context = processes.multiprocessing.get_context('fork')
        with mock.patch.object(host.Host, '__init__', lambda *args: None):
            with mock.patch.object(host.Host, 'start', start):
                process.start()
        time.sleep(600)
''')


class ConductorTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.program = self.folder / 'gpgpu-conductor'
        self.useFixture(fixtures.MonkeyPatch(
            'shutil.which', lambda name, path: str(self.program)))
        self.conductor = processes.Conductor(0, self.folder / 'gpgpu.conf')
        self.addCleanup(self.conductor.kill)

    def write(self, *lines):
        self.program.write_text('\n'.join(('#!/bin/sh', *lines, '')))
        self.program.chmod(0o755)

    def test_start_whose_connection_is_cut_is_tried_again(self):
        self.write(f'if [ -e {self.folder}/again ]; then',
                   '    echo conductor serves; exec sleep 600', 'fi',
                   f'touch {self.folder}/again',
                   'echo DBConnectionError: cut; exit 1')
        self.conductor.start()
        self.conductor.wait_until_it_serves()
        self.conductor.check()

    def test_start_that_fails_otherwise_ends_the_run(self):
        self.write('echo "[database] connection is wrong"; exit 1')
        self.conductor.start()
        exc = self.assertRaises(
            processes.ProcessDied, self.conductor.wait_until_it_serves)
        self.assertIn('ended with 1', str(exc))

    def test_conductor_that_ends_by_itself_ends_the_run(self):
        self.write('echo conductor serves; echo DBConnectionError; exit 1')
        self.conductor.start()
        self.assertTrue(patience.wait_until(self.ended))

    def ended(self):
        try:
            self.conductor.check()
        except processes.ProcessDied:
            return True
        return False


class ParentDeathTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path

    def start(self, program):
        """Start a program that starts a child and prints its PID."""
        self.parent = subprocess.Popen(
            [sys.executable, '-c', program, self.folder], text=True,
            cwd=processes.TOP, stdout=subprocess.PIPE)
        self.addCleanup(self.parent.wait)
        self.addCleanup(self.parent.stdout.close)
        self.addCleanup(self.parent.kill)
        self.child = int(self.parent.stdout.readline())
        self.addCleanup(self.kill_child)

    def command(self):
        """Return the name of the child's program; None: it has ended."""
        try:
            name, state = pathlib.Path(
                f'/proc/{self.child}/stat').read_text().split()[1:3]
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state == 'Z' else name.strip('()')

    def kill_child(self):
        if self.command() is not None:
            os.kill(self.child, signal.SIGKILL)

    def assert_child_ends_with_parent(self):
        self.assertIsNotNone(self.command())
        self.parent.kill()
        self.assertTrue(patience.wait_until(
            lambda: self.command() is None, 10))

    def start_conductor(self):
        self.start(CONDUCTOR)
        patience.wait_until(lambda: self.command() == 'sleep')

    def test_conductor_ends_when_its_parent_is_killed(self):
        self.start_conductor()
        self.assert_child_ends_with_parent()

    def test_stopped_conductor_ends_when_its_parent_is_killed(self):
        self.start_conductor()
        os.killpg(self.child, signal.SIGSTOP)
        self.assert_child_ends_with_parent()

    def test_busy_host_ends_when_its_parent_is_killed(self):
        self.start(HOST)
        self.assert_child_ends_with_parent()
