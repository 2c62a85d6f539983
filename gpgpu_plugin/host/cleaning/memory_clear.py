# SPDX-License-Identifier: Apache-2.0
"""Step ``memory-clear``: the GPU reports that it has cleared its memory.

NVIDIA's GPUs do so while they boot after a reset of the bus, and report it in
a register. The step resets the card itself: the register says nothing about
which reset it follows, and VFIO resets the function alone whenever it opens
the device. It writes and reads no memory, so it proves what the GPU reports
and nothing else.
"""

from __future__ import annotations

from gpgpu_plugin import nvidia
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import reset
from gpgpu_plugin.host.cleaning import step


class MemoryClearStep(step.Step):
    """Step that resets the card and waits until its GPU is cleared."""

    name = cleaning.MEMORY_CLEAR
    limit = 150.0

    def run(self, target: step.Target) -> cleaning.StepResult:
        gpu = target.functions[0]
        architecture = nvidia.architecture(gpu.vendor, gpu.device)
        if gpu.pf is not None or architecture is None:
            return self.inapplicable(
                'the memory of a VF is cleared with that of its GPU'
                if gpu.pf is not None else
                f'no register of {gpu.vendor}:{gpu.device} is known to '
                f'report that its memory is cleared')
        registers = nvidia.REGISTERS[architecture]
        found, changes = reset.checked(
            target, lambda: target.vfio.reset_and_wait(
                target.address, target.addresses))
        facts = _facts(architecture, registers, found)
        if changes:
            return self.failed('; '.join(changes), **facts)
        if not registers.is_cleared(found.boot, found.clear):
            return self.failed(
                f'{found.milliseconds / 1000:g} s after its reset '
                f'{target.address} {_state(registers, found)}', **facts)
        return self.passed(
            f'{target.address} reported {found.milliseconds / 1000:g} s after '
            f'its reset that it has cleared its memory', **facts)


def _facts(architecture: nvidia.Architecture, registers: nvidia.Registers,
           found: nvidia.ClearReading) -> step.Facts:
    return {'architecture': architecture.value,
            'register': f'{registers.clear:#x}',
            'before_reset': f'{found.before:#x}',
            'after_reset': f'{found.first:#x}', 'value': f'{found.clear:#x}',
            'boot_register': f'{registers.boot:#x}',
            'boot_value': f'{found.boot:#x}',
            'milliseconds': found.milliseconds}


def _state(registers: nvidia.Registers, found: nvidia.ClearReading) -> str:
    """Return how far a GPU is that is not cleared."""
    if found.boot != registers.booted:
        return (f'has not booted: its register {registers.boot:#x} is '
                f'{found.boot:#x}, not {registers.booted:#x}')
    return (f'has not reported that it has cleared its memory: its register '
            f'{registers.clear:#x} is {found.clear:#x}, not '
            f'{nvidia.CLEARED:#x}')
