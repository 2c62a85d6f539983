# SPDX-License-Identifier: Apache-2.0
"""Assignment of whole PCI functions: GPUs and plain VFs.

This is the common part of the backends for whole GPUs and plain VFs. A GPU is
assigned with all functions that belong to it (gpgpu_plugin.domain.gpu). They
stay bound to these from before the guest starts until they are clean, so that
no driver of the host can bind to them while they hold the guest's data. A
function that was designated stays bound after that, too.
"""

from __future__ import annotations

import time

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import vfio
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base
from gpgpu_plugin.host.cleaning import ladder
from gpgpu_plugin.host.cleaning import steps
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.vfio import operations

LOG = logging.getLogger(__name__)


_HELPER_SECONDS = operations.SCRUB_SECONDS + 60.0
"""Seconds after the start in which the helper of the last nova-compute, which
ends its call first, may still have devices open."""


class _StillOpenError(exception.HostError):
    """A process has a device open through VFIO."""


class WholeFunctionBackend(base.Backend):
    """Backend that binds functions to VFIO and resets them afterwards."""

    def __init__(self, access: base.Access) -> None:
        super().__init__(access)
        self._began = time.monotonic()

    def prepare(self, device: base.HostDevice) -> None:
        functions = self._functions(device)
        ladder.check_idle(device.stable_id)
        if functions[0].vfio_refusal is not None:
            raise exception.HostNotReady(
                path=device.address, reason=functions[0].vfio_refusal)
        if functions[0].has_vgpus:
            raise exception.HostError(
                path=device.address,
                reason='vGPUs exist on it, so it cannot be passed through '
                       'whole')
        # Every configuration space is read, and every module is loaded,
        # before the first driver is unbound: otherwise all stay as they are.
        shapes = [self._shape(function) for function in functions]
        for function, shape in zip(functions, shapes, strict=True):
            self.access.baselines.record(
                function.id, device.assignment_uuid, shape,
                {'driver': function.driver}, had_guest=device.restored)
        for function in functions:
            if not vfio.is_vfio(function.driver):
                self.access.binder.load_driver(function)
        with base.changing():
            self._bind(functions)

    def _bind(self, functions: tuple[pci.PCIFunction, ...]) -> None:
        for function in functions:
            self.access.binder.bind(function)
        if (functions[0].pf is None
                and functions[0].used_by != device_rules.DeviceUser.VFIO):
            # Read by VFIO: in sysfs, an idle function is asleep. A guest that
            # began before an upgrade has it open.
            self.access.baselines.record_firmware(
                functions[0].id, lambda: self.access.vfio.firmware(
                    functions[0].address))

    def release(self, device: base.HostDevice) -> None:
        """Make sure that no guest has the device; it stays bound."""
        self._closed(device)

    def _closed(self, device: base.HostDevice) -> tuple[pci.PCIFunction, ...]:
        """Return the device's functions, which no process has open.

        :raises _StillOpenError: a process has the device open
        :raises HostError: see _functions
        """
        functions = self._functions(device)
        if functions[0].used_by == device_rules.DeviceUser.VFIO:
            raise _StillOpenError(
                path=device.address, reason='a process still has it open')
        return functions

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        """Take the steps of the device's policy while it is isolated."""
        try:
            before = self._closed(device)
        except _StillOpenError as exc:
            if time.monotonic() - self._began > _HELPER_SECONDS:
                raise
            raise exception.HostNotReady(
                path=device.address, reason='a process still has it open, '
                'perhaps the privileged helper of a nova-compute that was '
                'stopped during a cleaning; it is tried again') from exc
        if before[0].has_vgpus:
            # Only its own driver keeps them alive, and they may be in guests.
            return base.CleanVerdict(
                steps=device.steps, results=(cleaning.StepResult(
                    step=device.steps[0],
                    outcome=cleaning.StepOutcome.INAPPLICABLE,
                    reason='the GPU has vGPUs or VFs, so its driver manages '
                           'its memory; remove them, then run "gpgpu-manage '
                           'device release"'),))
        ladder.check_idle(device.stable_id)
        for function in before:
            # After a reboot of the host, or if no guest of ours had it.
            self._note_driver(function)
            self.access.binder.bind(function)
        return base.CleanVerdict(steps=device.steps, results=ladder.clean(
            steps.Target(device=device, access=self.access, functions=before,
                         read=lambda: self._functions(device))))

    def give_back(self, device: base.HostDevice) -> None:
        """Bind the functions to the drivers that they had before the guest.

        After that a vGPU driver can create vGPUs on the GPU again.
        """
        for function in self._closed(device):
            driver = self.access.baselines.notes(function.id).get(
                'driver', function.driver)
            if vfio.is_vfio(driver) or self.access.is_designated(function):
                continue
            if driver is None:
                self.access.binder.unbind(function)
            else:
                self.access.binder.give_back(function)

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        return base.Attachment(functions=tuple(
            function.address for function in self._functions(device)))

    def _note_driver(self, function: pci.PCIFunction) -> None:
        """Note the driver, to which ``give_back`` binds the function."""
        if vfio.is_vfio(function.driver):
            return
        try:
            self.access.baselines.note_driver(function.id, function.driver)
        except exception.HostNotReady as exc:
            LOG.warning('Cannot record that %s had driver %s: %s. It stays '
                        'bound to VFIO after its cleaning; then run '
                        '"gpgpu-host undesignate %s" to bind its '
                        'driver again', function.address, function.driver,
                        exc, function.address)

    def _shape(self, function: pci.PCIFunction) -> dict[str, str]:
        return config_space.shape(self.access.binder.config(function))

    def _functions(self, device: base.HostDevice,
                   ) -> tuple[pci.PCIFunction, ...]:
        """Return the device's function and its companions.

        :raises HostError: another device or none is at the address, or it does
            not answer, the host needs it, or it shares an IOMMU group
        """
        functions = scanner.scan_card(self.access.sysfs, device.address)
        if not functions or functions[0].id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        refusal = gpu_rules.isolation_refusal(functions[0])
        if refusal is not None:
            raise exception.HostError(path=device.address, reason=refusal)
        return functions


# -- Passthrough: a guest gets a whole physical GPU.


class PassthroughBackend(WholeFunctionBackend):
    """Backend that assigns whole GPUs."""

    order = 400

    def handles(self, device: base.HostDevice) -> bool:
        return device.is_passthrough


# -- vGPUs that are plain VFs, which have no types.


class SriovVFBackend(WholeFunctionBackend):
    """Backend that assigns plain VFs, as whole functions."""

    order = 300

    def handles(self, device: base.HostDevice) -> bool:
        # A VF without its vendor's driver is no vGPU of a vendor's type.
        return (vgpu.is_of_plain_vfs(device.vgpu_type)
                and pci.pf_of(device.stable_id) is not None)
