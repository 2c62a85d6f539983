# SPDX-License-Identifier: Apache-2.0
"""Steps ``reset`` and ``flr``: the device is reset, and is still the same.

``reset`` resets the whole card at once, as VFIO does before it gives a card to
another user: functions without a reset of their own are reset, too. Whether
that clears the memory depends on the GPU; see ``canary``. A VF has no bus of
its own, and is reset alone. ``flr`` resets the device's own function, which
leaves more of a GPU as it was; a policy must name it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin.domain import broken_resets
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.cleaning import step

T = typing.TypeVar('T')

# What must be the same after a reset. A VF's number is a part of its id.
_IDENTITY = ('id', 'vendor', 'device', 'subsystem_vendor', 'subsystem',
             'revision', 'class_code', 'serial', 'dsn')


def checked(target: step.Target, reset: Callable[[], T], *,
            alone: bool = False) -> tuple[T, list[str]]:
    """Reset a device, and compare its identity with that before.

    :param reset: resets it
    :param alone: whether that resets its own function only
    :returns: what ``reset`` returned, and how the identity differs
    :raises HostError: its reset is known to be broken, or the kernel refused
    """
    before = target.functions[0]
    reason = broken_resets.reason(before, alone=alone)
    if reason is not None:
        raise exception.HostError(
            path=target.address, reason=f'it was not reset: {reason}; change '
            f'the cleaning policy of its variant')
    result = reset()
    target.check()
    target.after_reset()
    [after, *_] = target.read()
    return result, _changes(before, after)


class FunctionResetStep(step.Step):
    """Step that resets the device's own function."""

    name = cleaning.FLR
    limit = 150.0

    def run(self, target: step.Target) -> cleaning.StepResult:
        return self._checked(target, alone=True)

    def _checked(self, target: step.Target, *,
                 alone: bool) -> cleaning.StepResult:
        facts, changes = checked(
            target, lambda: self._reset(target, alone=alone), alone=alone)
        if changes:
            return self.failed('; '.join(changes), **facts)
        return self.passed(f'{target.address} was reset, and its identity is '
                           f'the same', **facts)

    @staticmethod
    def _reset(target: step.Target, *, alone: bool) -> step.Facts:
        """Reset the device.

        :returns: how it was reset
        :raises HostError: the kernel refused
        """
        if alone:
            target.access.binder.reset(target.functions[0])
            return {'method': 'function'}
        target.vfio.hot_reset(target.address, target.addresses)
        return {'method': 'card', 'functions': len(target.addresses)}


class ResetStep(FunctionResetStep):
    """Step that resets the whole card."""

    name = cleaning.RESET

    def run(self, target: step.Target) -> cleaning.StepResult:
        return self._checked(
            target, alone=target.functions[0].pf is not None)


def _changes(before: pci.PCIFunction, after: pci.PCIFunction) -> list[str]:
    """Return how the identity of a function differs after the reset."""
    return [f'{name} was {getattr(before, name)}, is {getattr(after, name)}'
            for name in _IDENTITY
            if getattr(before, name) != getattr(after, name)]
