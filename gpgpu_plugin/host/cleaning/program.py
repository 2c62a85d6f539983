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
"""Step ``program``: an operator's program cleans or checks the GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import typing

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import step

SECONDS = 600.0
"""Seconds for which the program may run."""

_OUTPUT = 2000


class ProgramStep(step.Step):
    """Step that passes if ``[gpgpu] cleaning_program`` ends with status 0.

    It runs as the user of nova-compute, while the GPU is bound to its VFIO
    driver. Its environment has facts about the GPU; the end of its output is
    evidence.
    """

    name = cleaning.PROGRAM
    limit = SECONDS + 30
    seconds: typing.ClassVar[float] = SECONDS

    def run(self, target: step.Target) -> cleaning.StepResult:
        program = target.access.cleaning_program
        if program is None:
            raise exception.HostNotReady(
                path='[gpgpu] cleaning_program',
                reason='the cleaning policy of the variant names the step '
                       'program, but no program is configured for '
                       'nova-compute on this host; configure one, or change '
                       'the policy')
        target.check()
        with tempfile.TemporaryFile() as output:
            status = self._status(program, _environment(target), output)
            facts = {'program': program, 'output': _end_of(output)}
        if status is None:
            return self.failed(
                f'{program} took longer than {self.seconds:g} s, and was '
                f'ended', **facts)
        facts |= {'status': str(status)}
        if status:
            return self.failed(f'{program} ended with status {status}: '
                               f'{facts["output"]}', **facts)
        return self.passed(f'{program} ended with status 0', **facts)

    def _status(self, program: str, environment: dict[str, str],
                output: typing.IO[bytes]) -> int | None:
        """Run the program; return its exit status, None: it was ended.

        :raises HostNotReady: it cannot be run
        """
        try:
            with subprocess.Popen(
                    [program], env=environment, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True) as process:
                try:
                    return process.wait(self.seconds)
                except subprocess.TimeoutExpired:
                    # With what it has started.
                    os.killpg(process.pid, signal.SIGKILL)
                    return None
        except OSError as exc:
            raise exception.HostNotReady(
                path=program, reason=f'it is [gpgpu] cleaning_program, and '
                f'cannot be run: {exc.strerror}') from None


def _environment(target: step.Target) -> dict[str, str]:
    gpu = target.functions[0]
    return {
        'PATH': os.environ.get('PATH', os.defpath),
        'GPGPU_ADDRESS': gpu.address,
        'GPGPU_FUNCTIONS': ' '.join(
            function.address for function in target.functions),
        'GPGPU_STABLE_ID': gpu.id,
        'GPGPU_IDS': f'{gpu.vendor}:{gpu.device}',
        'GPGPU_MEMORY_MIB': str(target.device.memory_mib or ''),
        'GPGPU_ASSIGNMENT': target.device.assignment_uuid}


def _end_of(output: typing.IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT))
    return output.read().decode(errors='replace').strip()
