# SPDX-License-Identifier: Apache-2.0
"""Watch that detects changes of a host without another scan.

It is called often, so it is cheap: it compares listings, and small files that
it keeps open. It notices functions, also VFs, and parents of mdevs that came
or went, functions that were replaced, drivers that were bound or unbound,
GPUs that died or came back, changed widths of their PCIe links, errors that
the kernel counted, and a replaced modules.alias. Of GPUs that have vGPUs it
reads again what their drivers report: others create and remove vGPUs, too,
and MIG instances. Of files in sysfs, modification times are not used, since
sysfs does not maintain them reliably.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import types
import typing
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
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
                 readings: Mapping[str, HealthReading] = (
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
            self, readings: Mapping[str, HealthReading]) -> None:
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
            if any(significant(file.path, os.pread(fd, _MAX, 0))
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


# -- Files of sysfs that show how well a GPU works.
#
# * ``current_link_width`` and ``max_link_width`` of both ends of each PCIe
#   link from the root port to the GPU (Linux,
#   Documentation/ABI/testing/sysfs-bus-pci).
# * ``aer_dev_fatal``, ``aer_dev_nonfatal`` and ``aer_dev_correctable`` of the
#   GPU, which the kernel has if it handles Advanced Error Reporting
#   (Documentation/ABI/testing/sysfs-bus-pci-devices-aer).
# * ``ras/umc_err_count``, ``gfx_err_count`` and ``sdma_err_count``, which
#   amdgpu has of GPUs with RAS while it is bound to them
#   (Documentation/gpu/amdgpu/ras.rst): errors of memory, of the graphics and
#   compute engine, and of the copy engines. NVIDIA's and Intel's drivers have
#   no such files.
#
# Each is one small file. Files that do not exist or cannot be read are left
# out.


WIDTH, MAX_WIDTH = 'current_link_width', 'max_link_width'
FATAL, NONFATAL = 'aer_dev_fatal', 'aer_dev_nonfatal'
CORRECTABLE = 'aer_dev_correctable'
RAS_BLOCKS = ('umc', 'gfx', 'sdma')

_AER = {FATAL: 'AER fatal', NONFATAL: 'AER nonfatal',
        CORRECTABLE: 'AER correctable'}
_TOTAL = re.compile(rb'^TOTAL_ERR_\w+ (\d+)$', re.MULTILINE)
_RAS = re.compile(rb'^(ue|ce): (\d+)$', re.MULTILINE)
# The kernel's value for a width that it does not know
# (PCIE_LNK_WIDTH_UNKNOWN), and what a device that does not answer shows.
_UNKNOWN_WIDTHS = (0xff, 0x3f)
_HOP = re.compile(r'[0-9a-f]{4,16}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')


@dataclasses.dataclass(frozen=True, kw_only=True)
class HealthReading:
    """Values of the health files of one GPU.

    :ivar links: from the root port downwards
    :ivar watched: what ``significant`` returns for each file whose change may
        change the health, by path
    """

    links: tuple[health.Link, ...] = ()
    counts: health.ErrorCounts = dataclasses.field(
        default_factory=health.ErrorCounts)
    watched: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def is_judged(function: pci.PCIFunction) -> bool:
    """Return whether a function has a health of its own.

    A VF has the health of its PF. A parent of mdevs that is no PCI function
    has nothing to read.
    """
    return (pci.can_be_gpu(function.class_code) and function.pf is None
            and _HOP.fullmatch(function.address) is not None)


def read_health(sysfs: sysfs_mod.Sysfs, address: str) -> HealthReading:
    """Return what the files of a GPU show; never raises."""
    reader = _Reader(sysfs, address)
    return HealthReading(links=tuple(reader.links()), counts=reader.counts(),
                         watched=reader.watched)


def significant(path: str, content: bytes) -> bytes:
    """Return the part of a file that may change the health of a GPU."""
    if path.endswith('_err_count'):
        return b'\n'.join(line for line in content.splitlines()
                          if line.startswith(b'ue:'))
    return content


class _Reader:
    """Reader of the files of one GPU."""

    def __init__(self, sysfs: sysfs_mod.Sysfs, address: str) -> None:
        self._sysfs = sysfs
        self._address = address
        self.watched: dict[str, bytes] = {}

    def links(self) -> Iterator[health.Link]:
        """Yield the links between the root port and the GPU."""
        try:
            target = self._sysfs.target(
                f'{self._sysfs.devices}/{self._address}')
        except OSError:
            return
        hops = list(filter(_HOP.fullmatch, target.split('/')))
        # Below a root port, links and the insides of switches alternate.
        for above, below in zip(hops[::2], hops[1::2], strict=False):
            width = self._width(below, WIDTH, watch=True)
            most = min(self._width(above, MAX_WIDTH),
                       self._width(below, MAX_WIDTH))
            yield health.Link(address=below, width=width, maximum=most)

    def _width(self, address: str, name: str, *, watch: bool = False) -> int:
        """Return a number of lanes; 0: unknown."""
        content = self._read(f'{self._sysfs.devices}/{address}/{name}',
                             watch=watch)
        text = content.strip()
        number = int(text) if text.isdigit() else 0
        return 0 if number in _UNKNOWN_WIDTHS else number

    def counts(self) -> health.ErrorCounts:
        """Return all errors that the kernel has counted."""
        uncorrected: dict[str, int] = {}
        corrected: dict[str, int] = {}
        folder = f'{self._sysfs.devices}/{self._address}'
        for name, kind in _AER.items():
            is_uncorrected = name != CORRECTABLE
            found = _TOTAL.search(
                self._read(f'{folder}/{name}', watch=is_uncorrected))
            if found is not None:
                (uncorrected if is_uncorrected else corrected)[kind] = int(
                    found.group(1))
        for block in RAS_BLOCKS:
            lines = dict(_RAS.findall(self._read(
                f'{folder}/ras/{block}_err_count', watch=True)))
            for line, kind, into in (
                    (b'ue', 'uncorrectable', uncorrected),
                    (b'ce', 'correctable', corrected)):
                if line in lines:
                    into[f'amdgpu {block} {kind}'] = int(lines[line])
        return health.ErrorCounts(
            uncorrected=uncorrected, corrected=corrected)

    def _read(self, path: str, *, watch: bool) -> bytes:
        try:
            content = self._sysfs.read_bytes(path)
        except OSError:
            return b''
        if content is None:
            return b''
        if watch:
            self.watched[path] = significant(path, content)
        return content
