# SPDX-License-Identifier: Apache-2.0
"""Step ``program``: an operator's program cleans or checks the GPU."""

from __future__ import annotations

import typing

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import operator_program
from gpgpu_plugin.host.cleaning import step

SECONDS = 600.0
"""Seconds for which the program may run."""

_OPTION = '[gpgpu_compute] cleaning_program'


class ProgramStep(step.Step):
    """Step that passes if ``[gpgpu_compute] cleaning_program`` ends with 0.

    It runs as the user of nova-compute, while the GPU is bound to its VFIO
    driver. Its environment has facts about the GPU; the end of its output is
    evidence.
    """

    name = cleaning.PROGRAM
    limit = SECONDS + 30
    seconds: typing.ClassVar[float] = SECONDS

    def begin(self, target: step.Target) -> None:
        # Before the GPU is reset for nothing.
        _program(target)

    def run(self, target: step.Target) -> cleaning.StepResult:
        program = _program(target)
        ended = operator_program.run(
            [program], target, self.seconds, option=_OPTION,
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


def _program(target: step.Target) -> str:
    """Return the configured program.

    :raises HostNotReady: none is configured
    """
    program: str | None = target.access.cleaning_program
    if program is None:
        raise exception.HostNotReady(
            path=_OPTION,
            reason='the cleaning policy of the variant names the step '
                   'program, but no program is configured for nova-compute '
                   'on this host; configure one, or change the policy')
    return program
