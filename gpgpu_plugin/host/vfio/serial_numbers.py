# SPDX-License-Identifier: Apache-2.0
"""Serial numbers of GPUs, which only root can read.

They tell a GPU from another one of the same model. Each is read once, and
again when the kernel has found the function anew, or after its driver or its
user has changed: a card is exchanged while no guest has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.objects import codec

_IN_GUESTS = (device_rules.DeviceUser.VFIO, device_rules.DeviceUser.MDEV)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """Serial numbers of one function, and the state in which they were read.

    :ivar place: what differs if the kernel has found the function anew
    :ivar state: its driver and its user when it was read
    :ivar is_complete: whether it need not be read again in this state
    :ivar problem: why its VPD cannot be read
    """

    place: object
    state: object = None
    dsn: str | None = None
    serial: str | None = None
    is_complete: bool = False
    problem: str | None = None


class SerialNumbers:
    """Serial numbers of the physical GPUs of a host, which one thread scans.

    :param binder: reads what only root can read
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 binder: binding.Binder) -> None:
        self._sysfs = sysfs
        self._binder = binder
        self._known: dict[str, _Known] = {}

    def added(self, scan: scanner.Scan,
              in_cleaning: Collection[str]) -> scanner.Scan:
        """Return a scan with the serial numbers of its GPUs.

        :param in_cleaning: stable ids of functions that may not answer now
        """
        reading = _Reading(self._sysfs, self._binder, scan, in_cleaning)
        # Those of absent functions go: the next one there may be another.
        self._known = {
            function.id: reading.known(
                function, self._known.get(function.id))
            for function in scan.functions
            if _has_own(function) and reading.is_pci(function)}
        return dataclasses.replace(
            scan, problems=(*scan.problems, *reading.problems),
            functions=tuple(
                _with(function, self._known.get(function.id))
                for function in scan.functions))


def _has_own(function: pci.PCIFunction) -> bool:
    """Return whether a function is a GPU with serial numbers of its own.

    VFs have those of their PF, and a device that does not answer has none.
    """
    return (function.class_code is not None
            and pci.can_be_gpu(function.class_code)
            and function.pf is None and function.fault is None)


def _with(function: pci.PCIFunction,
          known: _Known | None) -> pci.PCIFunction:
    if known is None:
        return function
    unreadable = ('vpd',) if known.problem is not None else ()
    return dataclasses.replace(
        function, dsn=function.dsn or known.dsn, serial=known.serial,
        unreadable=(*function.unreadable, *unreadable))


class _Reading:
    """The reads of one scan.

    :ivar problems: sentences about what could not be read
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, binder: binding.Binder,
                 scan: scanner.Scan, in_cleaning: Collection[str]) -> None:
        self.problems: list[str] = []
        self._sysfs = sysfs
        self._binder = binder
        self._in_cleaning = in_cleaning
        self._inodes = dict(sysfs.inodes(sysfs.devices))
        self._with_guests = {
            function.pf for function in scan.functions
            if function.pf is not None and function.used_by in _IN_GUESTS}
        self._helper_error: exception.HostNotReady | None = None

    def is_pci(self, function: pci.PCIFunction) -> bool:
        """Return whether it is there, and not only a parent of mdevs."""
        return function.address in self._inodes

    def known(self, function: pci.PCIFunction,
              before: _Known | None) -> _Known:
        """Return what is known about a function, after reading it if needed.

        :param before: what was known at the last scan
        """
        place = (self._inodes[function.address], function.address,
                 function.vendor, function.device, function.subsystem_vendor,
                 function.subsystem, function.revision)
        if before is None or before.place != place:
            before = _Known(place=place)
        state = (function.driver, function.used_by,
                 function.id in self._with_guests)
        is_fresh = (before.is_complete and before.state == state
                    and function.dsn in (None, before.dsn))
        if not is_fresh and function.id not in self._in_cleaning:
            before = self._read(function, dataclasses.replace(
                before, state=state, is_complete=False, problem=None))
        if before.problem is not None:
            self.problems.append(before.problem)
        return before

    def _read(self, function: pci.PCIFunction, before: _Known) -> _Known:
        """Return what a function shows now; what it does not show stays."""
        try:
            dsn = self._dsn(function)
            if before.dsn is not None and dsn not in (None, before.dsn):
                before = _Known(place=before.place, state=before.state)
            before = dataclasses.replace(before, dsn=dsn or before.dsn)
            serial = self._serial(function)
        except exception.HostNotReady as exc:
            # Of the other functions, too: one sentence is enough.
            if self._helper_error is None:
                self.problems.append(_problem(
                    function, 'serial numbers', exc))
            self._helper_error = exc
            return before
        except exception.HostError as exc:
            # Not again in this state: an attempt may take long.
            return dataclasses.replace(
                before, is_complete=True,
                problem=_problem(function, 'serial numbers', exc))
        return dataclasses.replace(
            before, serial=serial or before.serial, is_complete=True)

    def _dsn(self, function: pci.PCIFunction) -> str | None:
        """Return the PCIe Device Serial Number, read now; None: unknown.

        :raises HostError: it cannot be read
        """
        path = f'{self._sysfs.devices}/{function.address}/config'
        with binding.translate_errors(path, 'cannot be read'):
            config = self._sysfs.read_bytes(path) or b''
        if len(config) <= config_space.HEADER:
            self._check_helper()
            config = self._binder.config(function)
        return config_space.serial_number(config)

    def _serial(self, function: pci.PCIFunction) -> str | None:
        """Return the serial number in VPD; None: unknown.

        The device itself has to answer, so it is not read while a guest has
        the GPU or a VF of it, nor of the display of the host.

        :raises HostError: it cannot be read
        """
        if (function.used_by not in (None, device_rules.DeviceUser.VF)
                or function.id in self._with_guests):
            return None
        path = f'{self._sysfs.devices}/{function.address}/vpd'
        with binding.translate_errors(path, 'cannot be read'):
            try:
                vpd = self._sysfs.read_bytes(
                    path, config_space.VPD_READ) or b''
            except PermissionError:
                self._check_helper()
                vpd = self._binder.vpd(function)
        # The device chose the text.
        serial = config_space.vpd_serial(vpd)
        return None if serial is None else codec.printable(str, serial)

    def _check_helper(self) -> None:
        """Refuse to start the privileged helper again in the same scan.

        :raises HostNotReady: it did not start
        """
        if self._helper_error is not None:
            raise self._helper_error


def _problem(function: pci.PCIFunction, name: str,
             exc: exception.HostError) -> str:
    return (f'{function.address}: {name} cannot be read ({exc}); an exchange '
            f'of this GPU may not be noticed')
