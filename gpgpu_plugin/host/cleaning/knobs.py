# SPDX-License-Identifier: Apache-2.0
"""Step ``knobs``: settings in the GPU's firmware are at their defaults.

A program of the operator reads and resets them, for which the vendors have
tools of their own. etc/gpgpu/knobs/nvidia.py is one for NVIDIA's
gpu-admin-tools.
"""

from __future__ import annotations

import shlex
import typing
from collections.abc import Mapping

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import knobs
from gpgpu_plugin.host.cleaning import operator_program
from gpgpu_plugin.host.cleaning import reset
from gpgpu_plugin.host.cleaning import step

SECONDS = 120.0
"""Seconds for which the program may run, each time."""

_OPTION = '[gpgpu_compute] knobs_command'

REFUSED = 3
"""Exit status of the program that says something about the GPU. Any other one
but 0 is of sudo, Python or a tool that is not installed."""
_QUERY, _RESET = 'query', 'reset'


class KnobsStep(step.Step):
    """Step that resets knobs that differ from their defaults.

    A knob takes effect at a reset of the GPU. So the step resets the card
    after ``reset``, and reads all knobs again.
    """

    name = cleaning.KNOBS
    # The program three times, and a reset between.
    limit = 3 * SECONDS + 150.0
    seconds: typing.ClassVar[float] = SECONDS

    def begin(self, target: step.Target) -> None:
        # Before the GPU is reset for nothing.
        _command(target)

    def run(self, target: step.Target) -> cleaning.StepResult:
        gpu = target.functions[0]
        expected = knobs.defaults(gpu.vendor, gpu.device)
        if gpu.pf is not None or expected is None:
            return self.inapplicable(
                'a VF has the settings of its GPU' if gpu.pf is not None else
                f'the default settings of {gpu.vendor}:{gpu.device} are not '
                f'known')
        command = _command(target)
        facts: step.Facts = {'command': shlex.join(command)}
        try:
            return self._compared(target, command, expected, facts)
        except exception.HostNotReady:
            raise
        except exception.HostError as exc:
            return self.failed(str(exc), **facts)

    def _compared(self, target: step.Target, command: list[str],
                  expected: Mapping[str, str],
                  facts: step.Facts) -> cleaning.StepResult:
        """Compare the knobs, and reset them if they differ.

        :param facts: gets the knobs before and after
        """
        found = self._query(target, command)
        facts['before'] = knobs.text(found)
        before = knobs.differences(found, expected)
        if not before:
            return self.passed(
                f'{_shown(expected)} of {target.address} are at their '
                f'defaults', **facts)
        self._run(target, command, _RESET)
        _, changes = reset.checked(target, lambda: target.vfio.hot_reset(
            target.address, target.addresses))
        if changes:
            return self.failed('; '.join(changes), **facts)
        found = self._query(target, command)
        facts['after'] = knobs.text(found)
        after = knobs.differences(found, expected)
        if after:
            return self.failed(
                f'{target.address} is not at its defaults after they were '
                f'set and the card was reset: {"; ".join(after)}', **facts)
        return self.passed(
            f'{_shown(expected)} of {target.address} are at their defaults '
            f'again; before, {"; ".join(before)}', **facts)

    def _query(self, target: step.Target,
               command: list[str]) -> dict[str, str]:
        """Return all knobs that the program shows, by name.

        :raises HostError: it shows none
        """
        output = self._run(target, command, _QUERY)
        try:
            return knobs.parse(output)
        except exception.Invalid as exc:
            raise exception.HostError(
                path=target.address,
                reason=f'{command[0]} {_QUERY}: {exc}') from None

    def _run(self, target: step.Target, command: list[str],
             action: str) -> str:
        """Run the program, and return what it printed.

        :raises HostError: it took too long, or refused the GPU
        :raises HostNotReady: it could not do its work for another reason
        """
        ended = operator_program.run(
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


def _command(target: step.Target) -> list[str]:
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
