#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The host on which nova-compute runs: looked at as a whole, its devices
handed out by whichever backend is theirs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import uuid
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import mdev
from gpgpu_plugin.host.backends import nvidia_vf
from gpgpu_plugin.host.backends import passthrough
from gpgpu_plugin.host.backends import sriov_vf
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import designation

LOG = logging.getLogger(__name__)

# The first backend that handles a device is the one that assigns it.
BACKENDS: tuple[type[base.Backend], ...] = (
    mdev.MdevBackend, nvidia_vf.NvidiaVFBackend, sriov_vf.SriovVFBackend,
    passthrough.PassthroughBackend)


@contextlib.contextmanager
def _reading(device: base.HostDevice) -> Iterator[None]:
    """What cannot be read says nothing: the device is at fault, and may have
    been changed."""
    try:
        yield
    except OSError as exc:
        raise exception.HostError(
            path=device.address,
            reason=f'{exc.filename or "sysfs"} cannot be read: '
                   f'{exc.strerror}') from exc


class LocalHost(base.Host):
    """What sysfs shows and takes.

    :param numvfs: how many VFs a card gets, by ``vendor:device``
    """

    def __init__(self, access: base.Access,
                 numvfs: Mapping[str, int] | None = None) -> None:
        self.access = access
        self._numvfs = dict(numvfs or {})
        self.binder = access.binder
        self._backends = [backend(access) for backend in BACKENDS]
        self._watch: watch.Watch | None = None
        self._failed = False
        self._start = str(uuid.uuid4())
        self._numbers = itertools.count(1)

    @classmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str) -> LocalHost:
        sysfs = sysfs_mod.Sysfs(conf.gpgpu.sysfs_root)
        return cls(base.Access(
            sysfs=sysfs, binder=binding.Binder.privileged(sysfs),
            is_designated=designation.Store().holds,
            baselines=baseline.Baselines(
                os.path.join(conf.gpgpu.state_path, 'cards'))),
            conf_gpgpu.numvfs(conf))

    def make_vfs(self, busy: Collection[str]) -> None:
        if not self._numvfs:
            return
        for function in scanner.scan(self.access.sysfs).functions:
            wanted = self._numvfs.get(
                f'{function.vendor}:{function.device}', 0)
            if (not wanted or function.id in busy
                    or function.driver == binding.VFIO):
                continue
            try:
                # A scan says it of GPUs alone.
                if self.access.sysfs.read(
                        f'{self.access.sysfs.devices}/{function.address}'
                        '/sriov_numvfs') == '0':
                    made = self.binder.make_vfs(function, wanted)
                    LOG.info('%s has %s VFs now; %s were wanted',
                             function.address, made, wanted)
            except (exception.HostError, OSError):
                # Such as more than it can have; the other cards are used.
                LOG.exception('%s has none of its %s VFs', function.address,
                              wanted)

    def scan(self) -> scanner.Scan:
        self._failed = False
        at = self._at()
        scan = scanner.scan(self.access.sysfs)
        if self._watch is not None:
            self._watch.close()
        self._watch = watch.Watch(self.access.sysfs, scan)
        return dataclasses.replace(scan, driver_capacities={
            stable_id: dataclasses.replace(driver, sampled_at=at)
            for stable_id, driver in scan.driver_capacities.items()})

    def _at(self) -> tuple[str, int]:
        """Drawn before a driver is asked (DriverCapacity.sampled_at)."""
        return self._start, next(self._numbers)

    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        return tuple(function for function in scan.functions
                     if pci.can_be_gpu(function.class_code)
                     or function.id in scan.vgpu_capabilities)

    def changed(self) -> bool:
        return (self._watch is None or self._failed
                or self._watch.changed())

    def driver_capacity(self, devices: Iterable[base.HostDevice],
                  ) -> dict[str, driver_capacity.DriverCapacity]:
        found: dict[str, driver_capacity.DriverCapacity] = {}
        for device in devices:
            if device.is_passthrough:
                continue
            at = self._at()
            try:
                card, told = vgpu_sysfs.read_driver_capacity(
                    self.access.sysfs, device.address, device.stable_id)
            except (OSError, ValueError):
                # What is made there is refused if there is no room for it.
                LOG.exception('What can be made on the card of %s cannot be '
                              'read', device.address)
                continue
            if told is not None:
                found[card] = dataclasses.replace(told, sampled_at=at)
                if told.fails:
                    # Nobody will ask it for a vGPU, and so hear that it is
                    # well again; the watch of the next scan waits for that.
                    self._failed = True
        return found

    def prepare(self, device: base.HostDevice) -> None:
        with _reading(device):
            self._backend(device).prepare(device)

    def release(self, device: base.HostDevice) -> None:
        with _reading(device):
            self._backend(device).release(device)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            with _reading(device):
                return self._backend(device).clean(device)
        except exception.HostNotReady:
            raise
        except exception.HostError as exc:
            return base.CleanVerdict(passed=False, evidence=str(exc))

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        with _reading(device):
            return self._backend(device).attachment(device)

    def _backend(self, device: base.HostDevice) -> base.Backend:
        """Return the backend that handles a device.

        :raises HostError: the device is not there, or its vendor's driver is
            not bound to it
        """
        for backend in self._backends:
            if backend.handles(device):
                return backend
        folder = f'{self.access.sysfs.devices}/{device.address}'
        if self.access.sysfs.link(folder) is None:
            reason = f'{device.stable_id} is not there'
        else:
            driver = self.access.sysfs.link(f'{folder}/driver')
            bound = f'driver {driver}' if driver else 'no driver'
            reason = (f'no backend supports vGPU type {device.vgpu_type} on '
                      f'it: it is bound to {bound}; load the '
                      f"vendor's driver and bind it")
        raise exception.HostError(path=device.address, reason=reason)
