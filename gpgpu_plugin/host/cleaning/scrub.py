# SPDX-License-Identifier: Apache-2.0
"""Step ``scrub``: all memory is written, and verified."""

from __future__ import annotations

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import step
from gpgpu_plugin.host.vfio import operations

_MIB = 1024 ** 2


class ScrubStep(step.Step):
    """Step that writes all memory through the largest prefetchable BAR.

    It is inapplicable if that BAR shows only a part of the GPU's memory, or if
    there is more than SCRUB_LIMIT. If the BAR shows more than the GPU is said
    to have, all of that is written: a guest could write it, too.
    """

    name = cleaning.SCRUB
    limit = operations.SCRUB_SECONDS + 20.0

    def run(self, target: step.Target) -> cleaning.StepResult:
        if target.device.memory_mib is None:
            return self.inapplicable(step.UNKNOWN_MEMORY)
        window = target.vfio.memory(target.address)
        total = max(target.device.memory_mib * _MIB, window)
        facts: step.Facts = {'bytes_of_memory': total,
                             'bytes_of_window': window}
        reachable = min(window, operations.SCRUB_LIMIT)
        if reachable < total:
            return self.inapplicable(
                f'{reachable} of {total} bytes of its memory can be written '
                f'through its BAR', **facts)
        verified = target.vfio.scrub(target.address, total)
        facts['bytes_verified'] = verified
        if verified < total:
            return self.failed(
                f'{total - verified} of {total} bytes did not keep what was '
                f'written', **facts)
        return self.passed(f'{verified} of {total} bytes of its memory were '
                           f'written and verified', **facts)
