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
"""Processes of a storm: gpgpu-conductors, and hosts that outlive kills."""

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

from tests.fixtures import patience
from tests.storm import host as host_mod

TOP = pathlib.Path(__file__).parents[2]


class ProcessDied(Exception):
    """A process ended that nobody killed."""


class Conductor:
    """The installed program gpgpu-conductor."""

    def __init__(self, number: int, conf: pathlib.Path) -> None:
        self.name = f'conductor-{number}'
        self._conf = conf
        self._log = conf.with_name(f'{self.name}.log')
        self._process: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def start(self) -> None:
        """Start it."""
        program = shutil.which(
            'gpgpu-conductor', path=pathlib.Path(sys.executable).parent)
        assert program is not None, 'gpgpu-conductor is not installed'
        with self._log.open('a') as output:
            self._process = subprocess.Popen(
                [program, '--config-file', str(self._conf)], stdout=output,
                stderr=output, cwd=TOP, start_new_session=True,
                env={**os.environ, 'PYTHONPATH': str(TOP)})

    @property
    def is_up(self) -> bool:
        """Return whether it was started and neither killed nor stopped."""
        return self._process is not None and not self.is_stopped

    def wait_until_it_serves(self) -> None:
        """Wait for the line that it logs then."""
        assert patience.wait_until(lambda: (
            self.check(), ' serves' in self._log.read_text())[1])

    def check(self) -> None:
        """Raise if it has ended by itself.

        :raises ProcessDied: it has
        """
        if self._process is not None and self._process.poll() is not None:
            raise ProcessDied(
                f'{self.name} ended with {self._process.returncode}:\n'
                f'{self._log.read_text()[-3000:]}')

    def kill(self) -> None:
        """End it at once, with all its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self.is_stopped = False

    def stop(self) -> None:
        """Let it do nothing until ``go_on``."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        """Let it go on."""
        if self._process is not None and self.is_stopped:
            os.killpg(self._process.pid, signal.SIGCONT)
        self.is_stopped = False


class Host:
    """A process that is a host, started again after each kill."""

    def __init__(self, setting: host_mod.Setting) -> None:
        self.setting = setting
        self.starts = 0
        self._context = multiprocessing.get_context('forkserver')
        self._context.set_forkserver_preload([host_mod.__name__])
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self) -> None:
        """Start it; what it kept in its folder is all that it knows."""
        self.starts += 1
        near, far = self._context.Pipe()
        setting = host_mod.dataclasses.replace(
            self.setting, seed=f'{self.setting.seed}/{self.starts}')
        self._process = self._context.Process(
            target=host_mod.run, args=(setting, far), daemon=True)
        self._process.start()
        far.close()
        self._pipe = near

    def check(self) -> None:
        """Raise if it has ended by itself, or has used a GPU twice.

        :raises ProcessDied: it has ended
        :raises Doubled: with the history of the GPU
        """
        alarm = self.setting.folder / 'doubled'
        if alarm.exists():
            raise host_mod.truth_mod.Doubled(alarm.read_text())
        if self._process is not None and not self._process.is_alive():
            raise ProcessDied(
                f'{self.setting.name} ended with {self._process.exitcode}:\n'
                f'{self.log()[-3000:]}')

    def log(self) -> str:
        """Return what it has logged."""
        path = self.setting.folder / 'log'
        return path.read_text() if path.exists() else ''

    def kill(self) -> None:
        """End it at once, but not in the middle of a system call."""
        if self._process is not None:
            with host_mod.kernel_busy(self.setting.folder):
                self._process.kill()
                self._process.join()
            self._pipe.close()
            self._process = None

    def order(self, command: str) -> None:
        """Begin a command."""
        self._pipe.send(command)

    def wait(self, command: str) -> None:
        """Wait until a command is done."""
        deadline = time.monotonic() + patience.LONG
        while not self._pipe.poll(0.1):
            self.check()
            if time.monotonic() > deadline:
                raise ProcessDied(f'{self.setting.name} does not {command}')
        assert self._pipe.recv() == command
