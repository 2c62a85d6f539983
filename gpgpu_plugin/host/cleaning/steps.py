# SPDX-License-Identifier: Apache-2.0
"""Steps of a cleaning that the plugin does itself."""

from __future__ import annotations

import abc
import dataclasses
import os
import pathlib
import threading
import typing
import uuid
from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin import vfio
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
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


class CleaningStep(abc.ABC):
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
        return self._result(cleaning.StepOutcome.PASSED, reason, facts)

    def failed(self, reason: str, **facts: str | int) -> cleaning.StepResult:
        """Return the result of a step that failed."""
        return self._result(cleaning.StepOutcome.FAILED, reason, facts)

    def inapplicable(self, reason: str,
                     **facts: str | int) -> cleaning.StepResult:
        """Return the result of a step that says nothing about the device."""
        return self._result(cleaning.StepOutcome.INAPPLICABLE, reason, facts)

    def _result(self, outcome: cleaning.StepOutcome, reason: str,
                facts: Facts) -> cleaning.StepResult:
        return cleaning.StepResult(
            step=self.name, outcome=outcome, reason=reason, facts=facts)


# -- Steps ``reset`` and ``flr``: the device is reset, and is still the same.
#
# ``reset`` resets the whole card at once, as VFIO does before it gives a card
# to another user: functions without a reset of their own are reset, too.
# Whether that clears the memory depends on the GPU; see ``canary``. A VF has
# no bus of its own, and is reset alone. ``flr`` resets the device's own
# function, which leaves more of a GPU as it was; a policy must name it.


T = typing.TypeVar('T')

# What must be the same after a reset. A VF's number is a part of its id.
_IDENTITY = ('id', 'vendor', 'device', 'subsystem_vendor', 'subsystem',
             'revision', 'class_code', 'serial', 'dsn')


def checked(target: Target, reset: Callable[[], T], *,
            alone: bool = False) -> tuple[T, list[str]]:
    """Reset a device, and compare its identity with that before.

    :param reset: resets it
    :param alone: whether that resets its own function only
    :returns: what ``reset`` returned, and how the identity differs
    :raises HostError: its reset is known to be broken, or the kernel refused
    """
    before = target.functions[0]
    reason = health.broken_reset_reason(before, alone=alone)
    if reason is not None:
        raise exception.HostError(
            path=target.address, reason=f'it was not reset: {reason}; change '
            f'the cleaning policy of its variant')
    result = reset()
    target.check()
    target.after_reset()
    [after, *_] = target.read()
    return result, _changes(before, after)


class FunctionResetStep(CleaningStep):
    """Step that resets the device's own function."""

    name = cleaning.FLR
    limit = 150.0

    def run(self, target: Target) -> cleaning.StepResult:
        return self._checked(target, alone=True)

    def _checked(self, target: Target, *,
                 alone: bool) -> cleaning.StepResult:
        facts, changes = checked(
            target, lambda: self._reset(target, alone=alone), alone=alone)
        if changes:
            return self.failed('; '.join(changes), **facts)
        return self.passed(f'{target.address} was reset, and its identity is '
                           f'the same', **facts)

    @staticmethod
    def _reset(target: Target, *, alone: bool) -> Facts:
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

    def run(self, target: Target) -> cleaning.StepResult:
        return self._checked(
            target, alone=target.functions[0].pf is not None)


def _changes(before: pci.PCIFunction, after: pci.PCIFunction) -> list[str]:
    """Return how the identity of a function differs after the reset."""
    return [f'{name} was {getattr(before, name)}, is {getattr(after, name)}'
            for name in _IDENTITY
            if getattr(before, name) != getattr(after, name)]


# -- Step ``canary``: marks in the memory are gone after the steps before it.
#
# The marks are written after the guest has ended and before the first step.
# VFIO itself may reset the function before that, when it is opened. A mark
# that is found afterwards shows that the guest's own data may be there, too.
# Only memory that the largest prefetchable BAR shows is looked at.


class CanaryStep(CleaningStep):
    """Step that looks for marks which it wrote before the others ran."""

    name = cleaning.CANARY
    limit = 130.0

    def __init__(self) -> None:
        self._seed = str(uuid.uuid4())
        self._places = self._kept = 0

    def begin(self, target: Target) -> None:
        self._places, self._kept = target.vfio.write_marks(
            target.address, self._seed)

    def run(self, target: Target) -> cleaning.StepResult:
        facts: Facts = {'marks': self._kept, 'places': self._places}
        if not self._places:
            return self.inapplicable(
                'the host reaches no memory of it in which a mark could be '
                'written', **facts)
        if self._kept < self._places:
            return self.inapplicable(self._forgetful(self._kept), **facts)
        found = target.vfio.find_marks(target.address, self._seed)
        facts['found'] = found
        if found:
            return self.failed(
                f'{found} of {self._kept} marks in its memory outlasted the '
                f'cleaning, so the data of its last guest may have, too; use '
                f'a cleaning policy with a step that clears the memory',
                **facts)
        # A window that shows nothing any more would have no mark either.
        _, kept = target.vfio.try_marks(target.address, str(uuid.uuid4()))
        if kept < self._places:
            return self.inapplicable(
                f'after the reset {self._forgetful(kept)}', **facts)
        return self.passed(f'none of {self._kept} marks in its memory '
                           f'outlasted the cleaning', **facts)

    def _forgetful(self, kept: int) -> str:
        return (f'only {kept} of {self._places} marks could be read back from '
                f'its memory at once, so their absence says nothing')


# -- Step ``host-driver``: a driver of the host manages the memory of the VF.
#
# That the driver clears the memory before it is used again is its vendor's
# promise; this step records which driver it is.


_KERNEL = pathlib.Path('/proc/sys/kernel/osrelease')


def host_driver_facts(sysfs: sysfs_mod.Sysfs, folder: str) -> Facts:
    """Return the driver of a device, with its version or the kernel's.

    :param folder: of the device; a parent that is no PCI function is named
        itself
    """
    driver = sysfs.link(f'{folder}/driver')
    version = sysfs.read(f'{folder}/driver/module/version')
    return {'driver': driver or os.path.basename(folder),
            'version': version or f'Linux {_KERNEL.read_text().strip()}'}


class HostDriverStep(CleaningStep):
    """Step of VFs: the driver of their PF manages their memory."""

    name = cleaning.HOST_DRIVER

    def run(self, target: Target) -> cleaning.StepResult:
        sysfs = target.access.sysfs
        pf = sysfs.link(f'{sysfs.devices}/{target.address}/physfn')
        if pf is None:
            return self.inapplicable(
                'it is no VF: no driver of the host manages its memory')
        driver = sysfs.link(f'{sysfs.devices}/{pf}/driver')
        if driver is None or vfio.is_vfio(driver):
            return self.failed(
                f'its PF {pf} is bound to {driver or "no driver"}, which does '
                f'not clear its memory')
        found = host_driver_facts(sysfs, f'{sysfs.devices}/{pf}')
        return self.passed(
            f'driver {found["driver"]} {found["version"]} of {pf} manages '
            f'its memory', **found)


# -- Step ``memory-clear``: the GPU reports that it has cleared its memory.
#
# NVIDIA's GPUs do so while they boot after a reset of the bus, and report it
# in a register. The step resets the card itself: the register says nothing
# about which reset it follows, and VFIO resets the function alone whenever it
# opens the device. It writes and reads no memory, so it proves what the GPU
# reports and nothing else.


class MemoryClearStep(CleaningStep):
    """Step that resets the card and waits until its GPU is cleared."""

    name = cleaning.MEMORY_CLEAR
    limit = 150.0

    def run(self, target: Target) -> cleaning.StepResult:
        gpu = target.functions[0]
        architecture = nvidia.architecture(gpu.vendor, gpu.device)
        if gpu.pf is not None or architecture is None:
            return self.inapplicable(
                'the memory of a VF is cleared with that of its GPU'
                if gpu.pf is not None else
                f'no register of {gpu.vendor}:{gpu.device} is known to '
                f'report that its memory is cleared')
        registers = nvidia.REGISTERS[architecture]
        found, changes = checked(
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
           found: nvidia.ClearReading) -> Facts:
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


# -- Step ``scrub``: all memory is written, and verified.


_MIB = 1024 ** 2


class ScrubStep(CleaningStep):
    """Step that writes all memory through the largest prefetchable BAR.

    It is inapplicable if that BAR shows only a part of the GPU's memory, or if
    there is more than SCRUB_LIMIT. If the BAR shows more than the GPU is said
    to have, all of that is written: a guest could write it, too.
    """

    name = cleaning.SCRUB
    limit = operations.SCRUB_SECONDS + 20.0

    def run(self, target: Target) -> cleaning.StepResult:
        if target.device.memory_mib is None:
            return self.inapplicable(UNKNOWN_MEMORY)
        window = target.vfio.memory(target.address)
        total = max(target.device.memory_mib * _MIB, window)
        facts: Facts = {'bytes_of_memory': total,
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


# -- Step ``settings``: identity, layout and firmware are as before.


class SettingsStep(CleaningStep):
    """Step that compares all functions with their baselines.

    Its facts are what it found, so that the conductor compares it with what
    earlier cleanings found (conductor.ledger).
    """

    name = cleaning.SETTINGS

    def run(self, target: Target) -> cleaning.StepResult:
        functions = target.read()
        firmware = self._firmware(target, functions[0])
        shapes = {
            function.id: config_space.shape(
                target.access.binder.config(function))
            for function in functions}
        if target.device.replaces:
            for function in functions:
                target.access.baselines.renew(function.id)
        differences = [
            f'{function.address} differs from its baseline: {difference}'
            for function in functions
            for difference in target.access.baselines.differences(
                function.id,
                target.device.cleaning or target.device.assignment_uuid,
                shapes[function.id],
                firmware if function is functions[0] else None,
                had_guest=target.device.had_guest)]
        facts = cleaning.settings_facts(shapes, firmware or {})
        if differences:
            return self.failed('; '.join(differences), **facts)
        return self.passed(f'{target.address} matches its baseline', **facts)

    @staticmethod
    def _firmware(target: Target,
                  function: pci.PCIFunction) -> dict[str, str] | None:
        """Return the firmware of a card; None for VFs, which have none."""
        if function.pf is not None:
            return None
        return target.vfio.firmware(function.address)
