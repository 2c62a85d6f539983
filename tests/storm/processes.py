# SPDX-License-Identifier: Apache-2.0
"""Processes of a run: gpgpu-conductors and hosts, which can be killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Sequence

from tests.fixtures import patience
from tests.storm import child
from tests.storm import ground_truth
from tests.storm import host as host_mod
from tests.storm import second_start

TOP = pathlib.Path(__file__).parents[2]


class ProcessDied(Exception):
    """A process ended that was not killed."""


def spawn(command: Sequence[str],
          output: typing.IO[str]) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process, also on SIGKILL.

    Call it in the main thread: the program ends with the thread that called.

    :param output: receives what the program writes
    """
    return subprocess.Popen(
        [sys.executable, '-m', child.__name__, str(os.getpid()), *command],
        stdout=output, stderr=output, cwd=TOP, start_new_session=True,
        env={**os.environ, 'PYTHONPATH': str(TOP)})


class Conductor:
    """The installed program gpgpu-conductor."""

    def __init__(self, number: int, conf: pathlib.Path) -> None:
        self.name = f'conductor-{number}'
        self._conf = conf
        self._log = conf.with_name(f'{self.name}.log')
        self._start_of_log = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def start(self) -> None:
        """Start the program."""
        program = shutil.which(
            'gpgpu-conductor', path=pathlib.Path(sys.executable).parent)
        assert program is not None, 'gpgpu-conductor is not installed'
        with self._log.open('a') as output:
            self._start_of_log = output.tell()
            self._process = spawn(
                [program, '--config-file', str(self._conf)], output)

    @property
    def is_up(self) -> bool:
        """Return whether the program was started and not killed or stopped."""
        return self._process is not None and not self.is_stopped

    def wait_until_it_serves(self) -> None:
        """Wait until the program logs that it serves."""
        assert patience.wait_until(lambda: (
            self.check(), ' serves' in self._log.read_text())[1])

    def check(self) -> None:
        """Check that the program did not end by itself.

        If a connection to the database was cut while it started, it is started
        again, as systemd does.

        :raises ProcessDied: it did
        """
        if self._process is not None and self._process.poll() is not None:
            log = self._log.read_text()[self._start_of_log:]
            if ' serves' not in log and 'DBConnectionError' in log:
                self.start()
                return
            raise ProcessDied(
                f'{self.name} ended with {self._process.returncode}:\n'
                f'{self._log.read_text()[-3000:]}')

    def kill(self) -> None:
        """Kill the program and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self.is_stopped = False

    def stop(self) -> None:
        """Stop the program until ``resume``."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        """Continue a stopped program."""
        if self._process is not None and self.is_stopped:
            os.killpg(self._process.pid, signal.SIGCONT)
        self.is_stopped = False


class SecondStart:
    """The process of a second nova-compute for a host, on another machine."""

    def __init__(self, setting: host_mod.Setting) -> None:
        self._name = setting.name
        self._process = multiprocessing.get_context('forkserver').Process(
            target=second_start.run, args=(setting,), daemon=True)
        self._process.start()

    def is_fenced(self) -> bool:
        """Return whether it was fenced; False if no conductor answered.

        :raises ProcessDied: it was accepted, or failed
        """
        self._process.join(patience.LONG)
        code = self._process.exitcode
        if code not in (second_start.FENCED, second_start.UNANSWERED):
            raise ProcessDied(
                f'a second start of {self._name} was not fenced: {code}')
        return code == second_start.FENCED

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self._process.kill()


class Host:
    """The process of a host, which is started again after each kill."""

    def __init__(self, setting: host_mod.Setting) -> None:
        self.setting = setting
        self.starts = 0
        self._context = multiprocessing.get_context('forkserver')
        self._context.set_forkserver_preload([host_mod.__name__])
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self) -> None:
        """Start the process; its folder is all that it has of earlier ones."""
        self.starts += 1
        own_end, other_end = self._context.Pipe()
        setting = host_mod.dataclasses.replace(
            self.setting, seed=f'{self.setting.seed}/{self.starts}')
        self._process = self._context.Process(
            target=host_mod.run, args=(setting, other_end), daemon=True)
        self._process.start()
        other_end.close()
        self._pipe = own_end

    def check(self) -> None:
        """Check that no GPU was used twice and the process did not end.

        :raises ProcessDied: the process ended by itself
        :raises DoubleUse: a GPU was used twice
        """
        found = self.setting.folder / ground_truth.DOUBLE_USE_FILE
        if found.exists():
            raise ground_truth.DoubleUse(found.read_text())
        if self._process is not None and not self._process.is_alive():
            raise ProcessDied(
                f'{self.setting.name} ended with {self._process.exitcode}:\n'
                f'{self.log()[-3000:]}')

    def _stacks(self) -> str:
        """Return what all threads of the process do now."""
        assert self._process is not None and self._process.pid is not None
        path = self.setting.folder / host_mod.STACKS_FILE
        os.kill(self._process.pid, signal.SIGUSR1)
        # Nothing tells that all has been written.
        time.sleep(2)
        return path.read_text()

    def log(self) -> str:
        """Return the log of all processes of the host."""
        path = self.setting.folder / 'log'
        return path.read_text() if path.exists() else ''

    def kill(self) -> None:
        """Kill the process, but not in the middle of a system call."""
        if self._process is not None:
            with host_mod.kernel_busy(self.setting.folder):
                self._process.kill()
                self._process.join()
            self._pipe.close()
            self._process = None

    def send_command(self, command: str) -> None:
        """Let the process run a command, and do not wait."""
        self._pipe.send(command)

    def wait_for_command(self, command: str) -> None:
        """Wait until a command is done."""
        deadline = time.monotonic() + patience.LONG
        while not self._pipe.poll(0.1):
            self.check()
            if time.monotonic() > deadline:
                raise ProcessDied(
                    f'{self.setting.name} has not done {command}:\n'
                    f'{self._stacks()}')
        assert self._pipe.recv() == command
