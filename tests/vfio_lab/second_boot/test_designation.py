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
