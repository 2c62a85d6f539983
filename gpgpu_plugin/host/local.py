# SPDX-License-Identifier: Apache-2.0
"""The host on which nova-compute runs.

It is scanned as a whole; the first backend that handles a device works on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import vfio
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import machine
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.host import base
from gpgpu_plugin.host import guest
from gpgpu_plugin.host import health as health_mod
from gpgpu_plugin.host import installed_backends
from gpgpu_plugin.host.cleaning import in_progress
from gpgpu_plugin.host.discovery import identity as identity_mod
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import slot_labels
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import designation
from gpgpu_plugin.host.vfio import operations
from gpgpu_plugin.host.vfio import serial_numbers

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def _reading(device: base.HostDevice) -> Iterator[None]:
    """Turn errors of reads into HostError of the device.

    The device may have been changed before the read.
    """
    try:
        yield
    except OSError as exc:
        raise exception.HostError(
            path=device.address,
            reason=f'{exc.filename or "sysfs"} cannot be read: '
                   f'{exc.strerror}') from exc


class LocalHost(base.Host):
    """A host, scanned and changed through its sysfs.

    :param health: judges the health of its GPUs
    :param numvfs: number of VFs to create on a GPU, by ``vendor:device``
    """

    def __init__(self, access: base.Access, health: health_mod.HealthBook,
                 numvfs: Mapping[str, int] | None = None) -> None:
        self.access = access
        self._health = health
        self._numvfs = dict(numvfs or {})
        self.binder = access.binder
        self._backends = installed_backends.InstalledBackends(access)
        self._watch: watch.Watch | None = None
        self._health_changed = False
        self._in_cleaning = in_progress.FunctionsInCleaning()
        self._serial_numbers = serial_numbers.SerialNumbers(
            access.sysfs, access.binder)
        self._slot_labels = slot_labels.SlotLabels(
            access.sysfs, access.binder.smbios)
        self._start = str(uuid.uuid4())
        self._numbers = itertools.count(1)
        self._lacks_vfs = False

    @classmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str,
                 guests: guest.Guests | None = None) -> LocalHost:
        sysfs = sysfs_mod.Sysfs()
        own = conf.gpgpu_compute
        return cls(base.Access(
            sysfs=sysfs, binder=binding.Binder.privileged(sysfs),
            is_designated=designation.Store().holds,
            baselines=baseline.Baselines.of_host(own.state_path),
            vfio=operations.PrivilegedVFIO(sysfs),
            cleaning_program=own.cleaning_program,
            knobs_command=own.knobs_command,
            scrub_guest=guest.ScrubGuest(
                path=own.scrub_guest_path, memory_mib=own.scrub_guest_memory,
                seconds=own.scrub_guest_timeout, guests=guests)),
            health_mod.HealthBook(
                sysfs, f'{own.state_path}/health/errors.json',
                withhold_degraded=own.withhold_degraded),
            conf_gpgpu.numvfs(conf))

    def make_vfs(self, busy: Collection[str],
                 refused: Callable[[Sequence[str]], Collection[str]]
                 = lambda gpus: ()) -> None:
        if not self._numvfs:
            return
        busy = {*busy, *self._in_cleaning.ids()}
        lacking = {function.id: function
                   for function in scanner.scan(self.access.sysfs).functions
                   if self._wanted_vfs(function)
                   and self._has_no_vfs(function)}
        possible = [gpu.id for gpu in lacking.values()
                    if gpu.id not in busy and not vfio.is_vfio(gpu.driver)]
        allowed = (set(possible).difference(refused(possible))
                   if possible else set())
        self._lacks_vfs = allowed != lacking.keys()
        for gpu_id in possible:
            if gpu_id in allowed:
                self._make_vfs(lacking[gpu_id])

    def lacks_vfs(self) -> bool:
        return self._lacks_vfs

    def _wanted_vfs(self, function: pci.PCIFunction) -> int:
        return self._numvfs.get(f'{function.vendor}:{function.device}', 0)

    def _has_no_vfs(self, function: pci.PCIFunction) -> bool:
        # Read here: a scan reads it of GPUs only.
        with self._logged(function):
            names = self.access.sysfs.names(
                f'{self.access.sysfs.devices}/{function.address}')
            return ('sriov_numvfs' in names
                    and sysfs_mod.count_vfs(names) == 0)
        return False

    def _make_vfs(self, gpu: pci.PCIFunction) -> None:
        with self._logged(gpu):
            wanted = self._wanted_vfs(gpu)
            created = self.binder.make_vfs(gpu, wanted)
            LOG.info('%s has %s VFs now; %s were configured',
                     gpu.address, created, wanted)

    @contextlib.contextmanager
    def _logged(self, gpu: pci.PCIFunction) -> Iterator[None]:
        """Log an error of a GPU; the others get their VFs."""
        try:
            yield
        except (exception.HostError, OSError):
            # Such as more than it supports.
            LOG.exception(
                '%s has none of its %s VFs; check [gpgpu_compute] '
                'sriov_numvfs and the driver',
                gpu.address, self._wanted_vfs(gpu))

    def scan(self) -> scanner.Scan:
        self._health_changed = False
        sampled_at = self._next_sample()
        self._in_cleaning.begin_scan()
        scan = self._serial_numbers.added(
            self._in_cleaning.shown(
                scanner.scan(self.access.sysfs, self._slot_labels)),
            self._in_cleaning.shown_ids())
        readings = self._health.read(scan, self._in_cleaning.shown_ids())
        if self._watch is not None:
            self._watch.close()
        self._watch = watch.Watch(self.access.sysfs, scan, readings)
        scan = self._health.judged(scan, readings)
        return dataclasses.replace(scan, driver_capacities={
            stable_id: dataclasses.replace(report, sampled_at=sampled_at)
            for stable_id, report in scan.driver_capacities.items()})

    def inspect(self) -> base.Inspection:
        scan = self._in_cleaning.scan_alone(functools.partial(
            scanner.scan, self.access.sysfs, self._slot_labels))
        return base.Inspection(scan=scan, designated=frozenset(
            function.address for function in scan.functions
            if self.access.is_designated(function)))

    def _next_sample(self) -> tuple[str, int]:
        """Return the number of a driver report, before the driver is read.

        See DriverCapacity.sampled_at.
        """
        return self._start, next(self._numbers)

    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        return self._backends.offered(
            function for function in scan.functions
            if pci.can_be_gpu(function.class_code)
            or function.id in scan.vgpu_capabilities)

    def identity(self, scan: scanner.Scan) -> machine.MachineIdentity:
        return identity_mod.read(scan.functions)

    def changed(self) -> bool:
        return (self._watch is None or self._health_changed
                or self._in_cleaning.is_outdated()
                or self._watch.changed(self._in_cleaning.ids()))

    def driver_capacity(self, devices: Iterable[base.HostDevice],
                  ) -> dict[str, driver_capacity.DriverCapacity]:
        reports: dict[str, driver_capacity.DriverCapacity] = {}
        for device in devices:
            if device.is_passthrough:
                continue
            sampled_at = self._next_sample()
            try:
                gpu_id, report = vgpu_sysfs.read_driver_capacity(
                    self.access.sysfs, device.address, device.stable_id)
            except (OSError, ValueError):
                # A vGPU for which the driver has no capacity is refused later.
                LOG.exception('The driver capacity of the GPU of %s cannot be '
                              'read', device.address)
                continue
            if report is not None:
                reports[gpu_id] = dataclasses.replace(
                    report, sampled_at=sampled_at)
        return reports

    def prepare(self, device: base.HostDevice) -> None:
        with _reading(device):
            self._backends.of(device).prepare(device)

    def release(self, device: base.HostDevice) -> None:
        with _reading(device):
            self._backends.of(device).release(device)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            with _reading(device), self._in_cleaning.cleaning(
                    self._touched_by_cleaning(device)):
                verdict = self._backends.of(device).clean(device)
                if verdict.passed and self._health.cleaned(
                        device.stable_id, device.address):
                    self._health_changed = True
                return verdict
        except exception.HostNotReady:
            raise
        except exception.HostError as exc:
            return base.CleanVerdict.failed(device, str(exc))

    def give_back(self, device: base.HostDevice) -> None:
        with _reading(device), self._in_cleaning.cleaning(
                self._touched_by_cleaning(device)):
            self._backends.of(device).give_back(device)

    def _touched_by_cleaning(self, device: base.HostDevice,
                             ) -> tuple[pci.PCIFunction, ...]:
        """Return the functions that a cleaning resets or rebinds."""
        if pci.function_id_of(device.stable_id) != device.stable_id:
            # An mdev is removed, and its GPU stays as it is.
            return ()
        found = scanner.scan_card(self.access.sysfs, device.address)
        if not found or found[0].id != device.stable_id:
            return ()
        return found

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        with _reading(device):
            return self._backends.of(device).attachment(device)
