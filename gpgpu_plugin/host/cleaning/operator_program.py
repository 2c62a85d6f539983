# SPDX-License-Identifier: Apache-2.0
"""Programs of the operator that steps run, as the user of nova-compute."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
import typing
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import step

_OUTPUT = 2000

_PATIENCE = 5.0
"""Seconds to wait for the output and the children of an ended program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """A program that has ended.

    :ivar status: its exit status; None: it took too long, and was ended
    :ivar output: the end of what it printed
    :ivar errors: the end of what it printed to stderr; '' if that is a part
        of ``output``
    """

    status: int | None
    output: str
    errors: str = ''


def environment(target: step.Target) -> dict[str, str]:
    """Return the environment of a program: facts about the device alone."""
    gpu = target.functions[0]
    return {
        'PATH': os.environ.get('PATH', os.defpath),
        'GPGPU_ADDRESS': gpu.address,
        'GPGPU_FUNCTIONS': ' '.join(target.addresses),
        'GPGPU_STABLE_ID': gpu.id,
        'GPGPU_IDS': f'{gpu.vendor}:{gpu.device}',
        'GPGPU_MEMORY_MIB': str(target.device.memory_mib or ''),
        'GPGPU_ASSIGNMENT': target.device.assignment_uuid}


def run(command: Sequence[str], target: step.Target, seconds: float, *,
        option: str, join_errors: bool) -> Ended:
    """Run a program for a device, and wait until it has ended.

    :param command: the program and its arguments
    :param seconds: how long it may run
    :param option: name of the option that it comes from
    :param join_errors: whether stderr becomes a part of the output
    :raises HostError: the cleaning has ended, or the program left processes
        behind
    :raises HostNotReady: the program cannot be run
    """
    target.check()
    try:
        with subprocess.Popen(
                command, env=environment(target), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if join_errors else subprocess.PIPE,
                stdin=subprocess.DEVNULL, start_new_session=True) as process:
            tails = [_Tail(stream) for stream in (
                process.stdout, process.stderr) if stream is not None]
            status = _status(process, seconds, command[0])
            output, *errors = [tail.text() for tail in tails]
    except OSError as exc:
        raise exception.HostNotReady(
            path=command[0], reason=f'it is {option}, and cannot be run: '
            f'{exc.strerror}') from None
    return Ended(status=status, output=output, errors=''.join(errors))


class _Tail:
    """End of what a program prints, however much that is."""

    def __init__(self, stream: typing.IO[bytes]) -> None:
        # Its own file descriptor: the thread may outlast the stream.
        self._fd = os.dup(stream.fileno())
        self._end = b''
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._fd, 65536):
                self._end = (self._end + chunk)[-_OUTPUT:]
        finally:
            os.close(self._fd)

    def text(self) -> str:
        """Return it, without waiting for ever."""
        # What has left the program's session may keep the stream open.
        self._thread.join(_PATIENCE)
        return self._end.decode(errors='replace').strip()


def _status(process: subprocess.Popen[bytes], seconds: float,
            name: str) -> int | None:
    """Return the exit status; None: it took too long, and was ended.

    :raises HostError: it left processes behind, which are ended
    """
    try:
        status: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        status = None
    if _ended(process.pid, _PATIENCE if status is not None else 0):
        return status
    # What sudo runs is root's, and nobody but root can end it: the block of
    # Popen waits for it, and the ladder does not wait for that.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if status is not None:
        raise exception.HostError(
            path=name,
            reason=f'it ended with status {status}, but left processes '
                   f'behind, which were ended; it must wait for them')
    return status


def _ended(group: int, seconds: float) -> bool:
    """Return whether a group of processes ends within a time."""
    until = time.monotonic() + seconds
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
