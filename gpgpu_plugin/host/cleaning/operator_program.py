# SPDX-License-Identifier: Apache-2.0
"""Steps of a cleaning that run programs of the operator."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import threading
import time
import typing
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import steps

_OUTPUT = 2000

_PATIENCE = 5.0
"""Seconds to wait for the output and the children of an ended program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedProgram:
    """A program that has ended.

    :ivar status: its exit status; None: it took too long, and was ended
    :ivar output: the end of what it printed
    :ivar errors: the end of what it printed to stderr; '' if that is a part
        of ``output``
    """

    status: int | None
    output: str
    errors: str = ''


def environment(target: steps.Target) -> dict[str, str]:
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


def run(command: Sequence[str], target: steps.Target, seconds: float, *,
        option: str, join_errors: bool) -> EndedProgram:
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
    return EndedProgram(status=status, output=output, errors=''.join(errors))


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


# -- Step ``knobs``: settings in the GPU's firmware are at their defaults.
#
# A program of the operator reads and resets them, for which the vendors have
# tools of their own. etc/gpgpu/knobs/nvidia.py is one for NVIDIA's
# gpu-admin-tools.


KNOBS_SECONDS = 120.0
"""Seconds for which the program may run, each time."""

_OPTION = '[gpgpu_compute] knobs_command'

REFUSED = 3
"""Exit status of the program that says something about the GPU. Any other one
but 0 is of sudo, Python or a tool that is not installed."""
_QUERY, _RESET = 'query', 'reset'


class KnobsStep(steps.CleaningStep):
    """Step that resets knobs that differ from their defaults.

    A knob takes effect at a reset of the GPU. So the step resets the card
    after ``reset``, and reads all knobs again.
    """

    name = cleaning.KNOBS
    # The program three times, and a reset between.
    limit = 3 * KNOBS_SECONDS + 150.0
    seconds: typing.ClassVar[float] = KNOBS_SECONDS

    def begin(self, target: steps.Target) -> None:
        # Before the GPU is reset for nothing.
        _command(target)

    def run(self, target: steps.Target) -> cleaning.StepResult:
        gpu = target.functions[0]
        expected = cleaning.default_knobs(gpu.vendor, gpu.device)
        if gpu.pf is not None or expected is None:
            return self.inapplicable(
                'a VF has the settings of its GPU' if gpu.pf is not None else
                f'the default settings of {gpu.vendor}:{gpu.device} are not '
                f'known')
        command = _command(target)
        facts: steps.Facts = {'command': shlex.join(command)}
        try:
            return self._compared(target, command, expected, facts)
        except exception.HostNotReady:
            raise
        except exception.HostError as exc:
            return self.failed(str(exc), **facts)

    def _compared(self, target: steps.Target, command: list[str],
                  expected: Mapping[str, str],
                  facts: steps.Facts) -> cleaning.StepResult:
        """Compare the knobs, and reset them if they differ.

        :param facts: gets the knobs before and after
        """
        found = self._query(target, command)
        facts['before'] = cleaning.knobs_text(found)
        before = cleaning.knob_differences(found, expected)
        if not before:
            return self.passed(
                f'{_shown(expected)} of {target.address} are at their '
                f'defaults', **facts)
        self._run(target, command, _RESET)
        _, changes = steps.checked(target, lambda: target.vfio.hot_reset(
            target.address, target.addresses))
        if changes:
            return self.failed('; '.join(changes), **facts)
        found = self._query(target, command)
        facts['after'] = cleaning.knobs_text(found)
        after = cleaning.knob_differences(found, expected)
        if after:
            return self.failed(
                f'{target.address} is not at its defaults after they were '
                f'set and the card was reset: {"; ".join(after)}', **facts)
        return self.passed(
            f'{_shown(expected)} of {target.address} are at their defaults '
            f'again; before, {"; ".join(before)}', **facts)

    def _query(self, target: steps.Target,
               command: list[str]) -> dict[str, str]:
        """Return all knobs that the program shows, by name.

        :raises HostError: it shows none
        """
        output = self._run(target, command, _QUERY)
        try:
            return cleaning.parse_knobs(output)
        except exception.Invalid as exc:
            raise exception.HostError(
                path=target.address,
                reason=f'{command[0]} {_QUERY}: {exc}') from None

    def _run(self, target: steps.Target, command: list[str],
             action: str) -> str:
        """Run the program, and return what it printed.

        :raises HostError: it took too long, or refused the GPU
        :raises HostNotReady: it could not do its work for another reason
        """
        ended = run(
            [*command, action, target.address], target, self.seconds,
            option=_OPTION, join_errors=False)
        if ended.status == 0:
            return ended.output
        error = (exception.HostError if ended.status in (None, REFUSED)
                 else exception.HostNotReady)
        raise error(
            path=target.address, reason=f'{command[0]} {action} ' + (
                f'took longer than {self.seconds:g} s'
                if ended.status is None else
                f'ended with status {ended.status}: '
                f'{ended.errors or ended.output}'))


def _command(target: steps.Target) -> list[str]:
    """Return the program and its first arguments.

    :raises HostNotReady: none is configured, or it cannot be split
    """
    try:
        command = shlex.split(target.access.knobs_command or '')
    except ValueError as exc:
        raise exception.HostNotReady(
            path=_OPTION, reason=f'{target.access.knobs_command!r} cannot be '
            f'split into words as a shell does: {exc}') from None
    if not command:
        raise exception.HostNotReady(
            path=_OPTION,
            reason='the cleaning policy of the variant names the step knobs, '
                   'but no command is configured for nova-compute on this '
                   'host; configure one, or change the policy')
    return command


def _shown(expected: Mapping[str, str]) -> str:
    return ', '.join(expected)


# -- Step ``program``: an operator's program cleans or checks the GPU.


PROGRAM_SECONDS = 600.0
"""Seconds for which the program may run."""

_PROGRAM_OPTION = '[gpgpu_compute] cleaning_program'


class ProgramStep(steps.CleaningStep):
    """Step that passes if ``[gpgpu_compute] cleaning_program`` ends with 0.

    It runs as the user of nova-compute, while the GPU is bound to its VFIO
    driver. Its environment has facts about the GPU; the end of its output is
    evidence.
    """

    name = cleaning.PROGRAM
    limit = PROGRAM_SECONDS + 30
    seconds: typing.ClassVar[float] = PROGRAM_SECONDS

    def begin(self, target: steps.Target) -> None:
        # Before the GPU is reset for nothing.
        _program(target)

    def run(self, target: steps.Target) -> cleaning.StepResult:
        program = _program(target)
        ended = run(
            [program], target, self.seconds, option=_PROGRAM_OPTION,
            join_errors=True)
        facts = {'program': program, 'output': ended.output}
        if ended.status is None:
            return self.failed(
                f'{program} took longer than {self.seconds:g} s, and was '
                f'ended', **facts)
        facts |= {'status': str(ended.status)}
        if ended.status:
            return self.failed(f'{program} ended with status {ended.status}: '
                               f'{ended.output}', **facts)
        return self.passed(f'{program} ended with status 0', **facts)


def _program(target: steps.Target) -> str:
    """Return the configured program.

    :raises HostNotReady: none is configured
    """
    program: str | None = target.access.cleaning_program
    if program is None:
        raise exception.HostNotReady(
            path=_PROGRAM_OPTION,
            reason='the cleaning policy of the variant names the step '
                   'program, but no program is configured for nova-compute '
                   'on this host; configure one, or change the policy')
    return program
