# SPDX-License-Identifier: Apache-2.0
"""The backends that are installed on a host, and the one for a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib import metadata

from oslo_log import log as logging
from stevedore import extension

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base

LOG = logging.getLogger(__name__)


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
