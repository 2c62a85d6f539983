# SPDX-License-Identifier: Apache-2.0
"""Backend for GPUs of Acme, which are known by their PCI ids."""

from __future__ import annotations

from oslo_log import log as logging

from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import whole_function

LOG = logging.getLogger(__name__)

_ACME = ['0x10de', '0x26b9']


class AcmeBackend(whole_function.WholeFunctionBackend):
    """Backend that assigns whole GPUs of Acme."""

    # Before passthrough (400), which handles all whole GPUs.
    order = 350

    def handles(self, device: base.HostDevice) -> bool:
        folder = f'{self.access.sysfs.devices}/{device.address}'
        ids = [self.access.sysfs.read(f'{folder}/{name}')
               for name in ('vendor', 'device')]
        return device.is_passthrough and ids == _ACME

    def prepare(self, device: base.HostDevice) -> None:
        super().prepare(device)
        LOG.info('Acme prepared %s', device.address)
