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
"""Programs of the operator that steps run, as the user of nova-compute."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import typing
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import step

_OUTPUT = 2000


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
    :raises HostError: the cleaning has ended
    :raises HostNotReady: the program cannot be run
    """
    target.check()
    with tempfile.TemporaryFile() as output, (
            tempfile.TemporaryFile()) as errors:
        try:
            with subprocess.Popen(
                    command, env=environment(target), stdout=output,
                    stderr=subprocess.STDOUT if join_errors else errors,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True) as process:
                status = _status(process, seconds)
        except OSError as exc:
            raise exception.HostNotReady(
                path=command[0], reason=f'it is {option}, and cannot be run: '
                f'{exc.strerror}') from None
        return Ended(status=status, output=_end_of(output),
                     errors=_end_of(errors))


def _status(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        # With what it has started. What sudo runs is root's, and nobody but
        # root can end it: the block of Popen waits for it, and the ladder
        # does not wait for that.
        with contextlib.suppress(PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return None


def _end_of(output: typing.IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT))
    return output.read().decode(errors='replace').strip()
