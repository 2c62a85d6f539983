# SPDX-License-Identifier: Apache-2.0
"""Tests of the lab's machine: how QEMU ends, folders of the guest."""

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys

import fixtures
from oslotest import base

from tests.vfio_lab import machine


class EmulatorCrashTest(base.BaseTestCase):

    def run_with(self, *outcomes):
        """Run the machine.

        :returns: the exit code, and how many crashes were reported
        """
        said = io.StringIO()
        with (fixtures.MockPatchObject(
                machine, '_run_once', side_effect=outcomes),
              contextlib.redirect_stdout(said)):
            return machine.run([['x']]), said.getvalue().count('SIGSEGV')

    def test_crash_of_the_emulator_is_repeated(self):
        crash = machine.EmulatorCrashed('QEMU itself ended by SIGSEGV')
        self.assertEqual((0, 2), self.run_with(crash, crash, 0))
        self.assertEqual((124, 3), self.run_with(crash, crash, crash))

    def test_failure_of_the_guest_is_not_repeated(self):
        for code in (1, 124):
            self.assertEqual((code, 0), self.run_with(code))


class HangTest(base.BaseTestCase):
    """Guests that write nothing any more."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.limits(60, 60)

    def limits(self, silence, beat):
        for name, value in (('SILENCE', silence), ('BEAT_TIMEOUT', beat)):
            self.useFixture(fixtures.MockPatchObject(machine, name, value))

    def wait_for(self, script):
        """Return the exit code of a script instead of QEMU."""
        with subprocess.Popen(
                ['bash', '-c', script], cwd=self.folder) as process:
            try:
                return machine.wait_for(
                    process, [self.folder / 'stdout'],
                    self.folder / 'beats')
            finally:
                process.kill()

    def test_guest_that_writes_nothing_is_ended(self):
        self.limits(0, 60)
        exc = self.assertRaises(
            machine.EmulatorCrashed, self.wait_for, 'exec sleep 600')
        self.assertIn('wrote nothing', str(exc))

    def test_guest_that_writes_is_not_ended(self):
        self.assertEqual(3, self.wait_for('echo . >stdout; sleep 2; exit 3'))

    def test_guest_that_boots_gives_no_beat_yet(self):
        self.limits(60, 0)
        self.assertEqual(3, self.wait_for('echo . >stdout; sleep 3; exit 3'))

    def test_guest_that_hangs_is_ended(self):
        self.limits(60, 2)
        exc = self.assertRaises(
            machine.EmulatorCrashed, self.wait_for,
            'echo >beats; while :; do echo >>stdout; sleep 0.1; done')
        self.assertIn('gave no beat for 2 s', str(exc))

    def test_guest_that_beats_is_not_ended(self):
        self.limits(60, 3)
        self.assertEqual(3, self.wait_for(
            'for _ in {1..60}; do echo | tee -a beats >>stdout; '
            'sleep 0.1; done; exit 3'))

    def test_guest_that_does_not_end_is_ended(self):
        self.useFixture(fixtures.MockPatchObject(machine, 'TIMEOUT', 0))
        self.assertEqual(-signal.SIGKILL, self.wait_for('exec sleep 600'))


_PROGRAM = """
import pathlib, subprocess
from tests.vfio_lab import machine
machine.end_with_sigterm()
with subprocess.Popen(['sleep', '600']) as process:
    try:
        print(process.pid, flush=True)
        machine.wait_for(process, [], pathlib.Path('beats'))
    finally:
        process.kill()
"""


class EndTest(base.BaseTestCase):

    def test_sigterm_ends_the_emulator_too(self):
        with subprocess.Popen([sys.executable, '-c', _PROGRAM], text=True,
                              stdout=subprocess.PIPE) as program:
            emulator = int(program.stdout.readline())
            program.terminate()
            self.assertEqual(143, program.wait())
        self.assertRaises(ProcessLookupError, os.kill, emulator, 0)


class CheckoutTest(base.BaseTestCase):
    """Checkouts in folders over which the guest mounts something."""

    def run_in(self, folder, command='python'):
        """Run the machine in a folder.

        :returns: the exit code, the output, whether QEMU was started
        """
        said = io.StringIO()
        with (fixtures.MockPatchObject(
                machine, '_run_once', return_value=0) as once,
              fixtures.MockPatchObject(
                  pathlib.Path, 'cwd', return_value=pathlib.Path(folder)),
              contextlib.redirect_stderr(said)):
            return (machine.run([[command]]), said.getvalue(),
                    once.mock.called)

    def mounted(self):
        """Return the folders over which the guest mounts something."""
        script = (machine.HERE / 'guest_init.bash').read_text()
        text = script.replace('\\\n', '').partition('bash /out/command')[0]
        return {line.split()[-1] for line in re.findall(
            r'^mount (.*?)(?: 2>.*)?$', text, re.MULTILINE)} | set(
                re.findall(r'^mount --move \S+ /root(\S+)$',
                           machine.INIT, re.MULTILINE))

    def test_folders_that_the_guest_hides_are_known(self):
        self.assertEqual(set(machine.HIDDEN), {
            path for path in self.mounted()
            # Else it is in another one.
            if os.path.dirname(path) == '/'})
        self.assertEqual({'/dev/pts', '/dev/shm', '/etc/libvirt/qemu',
                          *machine.HIDDEN}, self.mounted())

    def test_checkout_below_tmp_runs(self):
        self.assertEqual((0, '', True), self.run_in(
            '/tmp/checkout', '/tmp/checkout/.tox/shared/bin/python'))

    def test_checkout_that_the_guest_hides_is_refused(self):
        for folder, command in (
                ('/run/user/1000/checkout', 'python'), ('/dev/shm/x', 'x'),
                ('/srv/checkout', '/run/user/1000/venv/bin/python')):
            code, said, started = self.run_in(folder, command)
            with self.subTest(folder=folder, command=command):
                self.assertEqual((2, False), (code, started))
                self.assertRegex(
                    said, r'\A/(run|dev)/\S+ is below /(run|dev), .*: '
                    r'move the checkout\n\Z')
