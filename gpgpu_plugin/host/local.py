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
from importlib import metadata

from oslo_config import cfg
from oslo_log import log as logging
from stevedore import extension

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin import vfio
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base
from gpgpu_plugin.host import health as health_mod
from gpgpu_plugin.host.cleaning import ladder
from gpgpu_plugin.host.discovery import machine
from gpgpu_plugin.host.discovery import scanner
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


class LocalHost(base.ComputeHost):
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
        self._backends = InstalledBackends(access)
        self._watch: watch.Watch | None = None
        self._health_changed = False
        self._in_cleaning = ladder.FunctionsInCleaning()
        self._serial_numbers = serial_numbers.SerialNumbers(
            access.sysfs, access.binder)
        self._slot_labels = machine.SlotLabels(
            access.sysfs, access.binder.smbios)
        self._start = str(uuid.uuid4())
        self._numbers = itertools.count(1)
        self._lacks_vfs = False

    @classmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str,
                 guests: base.Guests | None = None) -> LocalHost:
        sysfs = sysfs_mod.Sysfs()
        own = conf.gpgpu_compute
        return cls(base.Access(
            sysfs=sysfs, binder=binding.Binder.privileged(sysfs),
            is_designated=designation.Store().holds,
            baselines=baseline.Baselines.of_host(own.state_path),
            vfio=operations.PrivilegedVFIO(sysfs),
            cleaning_program=own.cleaning_program,
            knobs_command=own.knobs_command,
            scrub_guest=base.ScrubGuest(
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

    def identity(self, scan: scanner.Scan) -> host_rules.MachineIdentity:
        return machine.read_identity(scan.functions)

    def changed(self) -> bool:
        return (self._watch is None or self._health_changed
                or self._in_cleaning.is_outdated()
                or self._watch.changed(self._in_cleaning.ids()))

    def driver_capacity(self, devices: Iterable[base.HostDevice],
                  ) -> dict[str, vgpu.DriverCapacity]:
        reports: dict[str, vgpu.DriverCapacity] = {}
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


# -- The backends that are installed on a host, and the one for a device.


class InstalledBackends:
    """All backends of the namespace ``gpgpu_plugin.backends``, in order.

    If one of them cannot be loaded, it is unknown which devices only it can
    prepare and clean: another backend would treat them as its own. Then no
    device of the host is offered, and none is prepared or cleaned.
    """

    def __init__(self, access: base.Access) -> None:
        self._access = access
        self._failures: list[str] = []
        manager: extension.ExtensionManager[object] = (
            extension.ExtensionManager(
                extensions.BACKENDS, invoke_on_load=True,
                invoke_args=(access,), on_load_failure_callback=self._failed))
        found: list[tuple[int, str, base.Backend]] = []
        for loaded in manager:
            if isinstance(loaded.obj, base.Backend):
                found.append((loaded.obj.order, loaded.name, loaded.obj))
            else:
                self._failed(manager, loaded.entry_point, TypeError(
                    f'it is no {base.__name__}.{base.Backend.__name__}'))
        self._backends = [backend for *_, backend in sorted(
            found, key=lambda entry: entry[:2])]
        if not found:
            self._refuse('no backend is installed')

    def _failed(self, manager: object, entry_point: metadata.EntryPoint,
                error: BaseException) -> None:
        self._refuse(f'backend {entry_point.name} ({entry_point.value}) '
                     f'cannot be loaded: {error}')

    def _refuse(self, reason: str) -> None:
        LOG.error('%s. No GPU of this host is offered, prepared or cleaned. '
                  'Repair or uninstall its package, then restart '
                  'nova-compute', reason)
        self._failures.append(reason)

    def offered(self, functions: Iterable[pci.PCIFunction],
                ) -> tuple[pci.PCIFunction, ...]:
        """Return functions with a fault if a backend is missing."""
        if not self._failures:
            return tuple(functions)
        fault = '; '.join(self._failures)
        return tuple(dataclasses.replace(function, fault=fault)
                     for function in functions)

    def of(self, device: base.HostDevice) -> base.Backend:
        """Return the first backend that handles a device.

        :raises HostError: the device is not there, or its vendor's driver is
            not bound to it
        :raises HostNotReady: a backend is missing
        """
        if self._failures:
            raise exception.HostNotReady(
                path=device.address, reason='; '.join(self._failures))
        for backend in self._backends:
            if backend.handles(device):
                return backend
        sysfs = self._access.sysfs
        folder = f'{sysfs.devices}/{device.address}'
        if sysfs.link(folder) is None:
            reason = f'{device.stable_id} is not there'
        else:
            driver = sysfs.link(f'{folder}/driver')
            bound = f'driver {driver}' if driver else 'no driver'
            reason = (f'no backend supports vGPU type {device.vgpu_type} on '
                      f'it: it is bound to {bound}; load the '
                      f"vendor's driver and bind it")
        raise exception.HostError(path=device.address, reason=reason)
