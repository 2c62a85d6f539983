# SPDX-License-Identifier: Apache-2.0
"""Contract of the steps of a cleaning (domain.cleaning)."""

from __future__ import annotations

import abc
import dataclasses
import threading
import typing
from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.vfio import operations

Facts = dict[str, str | int]

UNKNOWN_MEMORY = ('its size of memory is unknown; set it with "gpgpu-manage '
                  'variant set VARIANT --memory-mib MIB"')
"""Reason of steps that have to write all memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A device that is being cleaned.

    No guest has it, and only the privileged helper opens it.

    :ivar functions: as they were before the cleaning, the device's own first
    :ivar read: reads the functions again; it raises HostError if another
        device is in their place
    :ivar after_reset: what the backend has to do after each reset; it raises
        HostError if it cannot
    :ivar ended: set when nobody waits for the cleaning any more; nothing may
        touch the device then
    """

    device: base.HostDevice
    access: base.Access
    functions: tuple[pci.PCIFunction, ...]
    read: Callable[[], tuple[pci.PCIFunction, ...]]
    after_reset: Callable[[], None] = lambda: None
    ended: threading.Event = dataclasses.field(
        default_factory=threading.Event)

    @property
    def address(self) -> str:
        """Return the address of the device's own function."""
        return self.functions[0].address

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of all functions, the device's own first."""
        return [function.address for function in self.functions]

    @property
    def vfio(self) -> operations.VFIO:
        """Return what VFIO does with the device, for one call.

        :raises HostError: the cleaning has ended
        """
        self.check()
        return self.access.vfio

    def check(self) -> None:
        """Check that the device may still be touched.

        Steps call it before each access that may come late.

        :raises HostError: the cleaning has ended
        """
        if self.ended.is_set():
            raise exception.HostError(
                path=self.address, reason='its cleaning has ended')


class Step(abc.ABC):
    """One step of a cleaning.

    Third parties register theirs in the entry-point namespace
    ``gpgpu_plugin.cleaning_steps``. One object takes part in one cleaning, so
    it may keep what ``begin`` found.

    :cvar name: name of the entry point, which policies use
    :cvar limit: timeout of ``begin`` and of ``run``, each, in seconds, unless
        ``limit_for`` says otherwise. A step that takes longer has failed; its
        thread is not waited for
    """

    name: typing.ClassVar[str]
    limit: typing.ClassVar[float] = 60.0

    def begin(self, target: Target) -> None:  # noqa: B027
        """Act before the first step of the cleaning runs.

        Most steps have nothing to do then.

        :raises HostError: it cannot; the cleaning has failed
        """

    def limit_for(self, target: Target) -> float:
        """Return the timeout for a device, such as a configured one."""
        return self.limit

    @abc.abstractmethod
    def run(self, target: Target) -> cleaning.StepResult:
        """Run the step.

        :raises HostError: the step has failed
        :raises HostNotReady: the host is not set up for the step; the device
            is not defective
        """

    def passed(self, reason: str, **facts: str | int) -> cleaning.StepResult:
        """Return the result of a step that passed."""
        return self._result(cleaning.Outcome.PASSED, reason, facts)

    def failed(self, reason: str, **facts: str | int) -> cleaning.StepResult:
        """Return the result of a step that failed."""
        return self._result(cleaning.Outcome.FAILED, reason, facts)

    def inapplicable(self, reason: str,
                     **facts: str | int) -> cleaning.StepResult:
        """Return the result of a step that says nothing about the device."""
        return self._result(cleaning.Outcome.INAPPLICABLE, reason, facts)

    def _result(self, outcome: cleaning.Outcome, reason: str,
                facts: Facts) -> cleaning.StepResult:
        return cleaning.StepResult(
            step=self.name, outcome=outcome, reason=reason, facts=facts)
