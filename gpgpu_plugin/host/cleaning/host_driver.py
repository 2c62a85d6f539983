# SPDX-License-Identifier: Apache-2.0
"""Step ``host-driver``: a driver of the host manages the memory of the VF.

That the driver clears the memory before it is used again is its vendor's
promise; this step records which driver it is.
"""

from __future__ import annotations

import os
import pathlib

from gpgpu_plugin import vfio
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import step
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

_KERNEL = pathlib.Path('/proc/sys/kernel/osrelease')


def facts(sysfs: sysfs_mod.Sysfs, folder: str) -> step.Facts:
    """Return the driver of a device, with its version or the kernel's.

    :param folder: of the device; a parent that is no PCI function is named
        itself
    """
    driver = sysfs.link(f'{folder}/driver')
    version = sysfs.read(f'{folder}/driver/module/version')
    return {'driver': driver or os.path.basename(folder),
            'version': version or f'Linux {_KERNEL.read_text().strip()}'}


class HostDriverStep(step.Step):
    """Step of VFs: the driver of their PF manages their memory."""

    name = cleaning.HOST_DRIVER

    def run(self, target: step.Target) -> cleaning.StepResult:
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
        found = facts(sysfs, f'{sysfs.devices}/{pf}')
        return self.passed(
            f'driver {found["driver"]} {found["version"]} of {pf} manages '
            f'its memory', **found)
