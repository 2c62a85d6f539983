# SPDX-License-Identifier: Apache-2.0
"""Watch that detects changes of a host without another scan.

It is called often, so it is cheap: it compares listings, and small files that
it keeps open. It notices functions, also VFs, and parents of mdevs that came
or went, functions that were replaced, drivers that were bound or unbound,
GPUs that died or came back, changed widths of their PCIe links, errors that
the kernel counted, and a replaced modules.alias. Of GPUs that have vGPUs it
reads again what their drivers report: others create and remove vGPUs, too,
and MIG instances.
Of files in sysfs, modification times are not used, since sysfs does not
maintain them reliably.
"""

from __future__ import annotations

import contextlib
import os
import types
import typing
from collections.abc import Collection
from collections.abc import Mapping

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import health_files
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import vgpu_sysfs

# An attribute of sysfs has one page at most.
_MAX = 4096


class _HealthFile(typing.NamedTuple):
    """A file that shows the health of one GPU, or of several."""

    path: str
    before: bytes
    gpus: frozenset[str]


class Watch:
    """Comparison of a host with one scan of it.

    When ``changed`` returns True, close the watch, scan, and make another one.

    :param readings: what the files of GPUs showed then, by stable id
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, scan: scanner.Scan,
                 readings: Mapping[str, health_files.Reading] = (
                     types.MappingProxyType({}))) -> None:
        self._sysfs = sysfs
        drivers = f'{sysfs.root}/bus/pci/drivers'
        # All drivers: the first device of a driver must be noticed, too.
        self._folders = [
            drivers, f'{sysfs.root}/{vgpu_sysfs.PARENTS}',
            *(f'{drivers}/{name}' for name in sorted(sysfs.names(drivers)))]
        self._reporting = scanner.reporting(scan)
        self._configs: dict[int, pci.PCIFunction] = {}
        self._health: dict[int, _HealthFile] = {}
        self._open_health(readings)
        for function in scan.functions:
            # A VF lives and dies with its PF.
            if (pci.can_be_gpu(function.class_code) and function.pf is None
                    and 'config' not in function.unreadable):
                self._open_config(function)
        self._before = self._listing()
        # A module may be installed for a GPU that lacks its VFIO driver.
        self._lacks_driver = any(
            function.vfio_refusal for function in scan.functions)
        self._aliases = self._aliases_version()

    def _open_config(self, function: pci.PCIFunction) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(f'{self._sysfs.devices}/{function.address}/config',
                         os.O_RDONLY | os.O_CLOEXEC)
            self._configs[fd] = function

    def _open_health(
            self, readings: Mapping[str, health_files.Reading]) -> None:
        """Watch the health of GPUs; several may share a link."""
        gpus: dict[tuple[str, bytes], set[str]] = {}
        for stable_id, reading in readings.items():
            for watched in reading.watched.items():
                gpus.setdefault(watched, set()).add(stable_id)
        for (path, before), stable_ids in gpus.items():
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._health[fd] = _HealthFile(
                    path, before, frozenset(stable_ids))

    def _listing(self) -> tuple[list[tuple[str, int]], list[list[str]]]:
        return (self._sysfs.inodes(self._sysfs.devices),
                [sorted(self._sysfs.names(folder))
                 for folder in self._folders])

    def changed(self, in_cleaning: Collection[str] = ()) -> bool:
        """Return whether the host differs from the scan.

        :param in_cleaning: stable ids of functions that may be in a reset,
            and do not answer then
        """
        try:
            # Compared with the scan, since it may have died after that.
            if any(config_space.is_dead(os.pread(fd, config_space.HEADER, 0))
                   != (function.fault is not None)
                   for fd, function in self._configs.items()
                   if function.id not in in_cleaning):
                return True
            # A reset lets links and errors change for a while.
            if any(health_files.significant(file.path, os.pread(fd, _MAX, 0))
                   != file.before for fd, file in self._health.items()
                   if file.gpus.isdisjoint(in_cleaning)):
                return True
            if scanner.have_vgpus_changed(
                    self._sysfs, self._reporting, in_cleaning):
                return True
        except OSError:
            # The function of the open file is gone.
            return True
        if self._lacks_driver and self._aliases_version() != self._aliases:
            return True
        return self._listing() != self._before

    def _aliases_version(self) -> vfio_drivers.Version | None:
        # A file that cannot be read is like none: it changes once it can.
        with contextlib.suppress(OSError):
            return vfio_drivers.aliases_version(self._sysfs)
        return None

    def close(self) -> None:
        """Close the files that were kept open."""
        for fd in (*self._configs, *self._health):
            os.close(fd)
        self._health.clear()
        self._configs.clear()
