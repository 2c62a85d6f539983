# SPDX-License-Identifier: Apache-2.0
"""Designations after a boot during which the plugin did not run."""

from __future__ import annotations

from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.vfio import designation
from tests.vfio_lab import lab


class SecondBootTest(lab.LabTestCase):

    def test_only_the_designated_card_is_bound_after_boot(self) -> None:
        drivers = [display.driver for display in lab.displays()]
        self.assertEqual(
            ['bochs-drm', 'bochs-drm', 'vfio-pci', 'bochs-drm'], drivers)
        [listed] = designation.listing(
            sysfs.Sysfs('/sys'), designation.Store())
        self.assertEqual(
            (lab.displays()[2].address, 'udev', 'vfio-pci'),
            (listed.address, listed.kept_by, listed.driver))
