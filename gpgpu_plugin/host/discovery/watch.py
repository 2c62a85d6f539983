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
"""Did anything change since the last scan? Asked often, so it is cheap.

It notices a function or a parent of mdevs that came or went, a driver that
was bound or unbound, a changed number of VFs, and that a driver makes vGPUs
which made none at all, by listings and by small files that are kept open.
Modification times are not used: sysfs does not promise them.
"""

from __future__ import annotations

import contextlib
import os

from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vgpu_sysfs

# More than an attribute of sysfs can say.
_MAX = 4096


class Watch:
    """Compares a host with how it was when the watch was made.

    Made from a scan; when ``changed`` says so, close it, scan and make
    another one.
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 scan: scanner.Scan) -> None:
        self._sysfs = sysfs
        drivers = f'{sysfs.root}/bus/pci/drivers'
        # All of them: the first device of a driver must be noticed, too.
        self._folders = [
            sysfs.devices, drivers, f'{sysfs.root}/{vgpu_sysfs.PARENTS}',
            *(f'{drivers}/{name}' for name in sorted(sysfs.names(drivers)))]
        self._files: dict[int, bytes] = {}
        for function in scan.functions:
            if function.sriov_totalvfs is not None:
                self._keep(f'{sysfs.devices}/{function.address}'
                           '/sriov_numvfs')
            driver = scan.driver_capacities.get(function.id)
            if driver is not None and driver.fails:
                # The vendor's service may begin after us.
                folder = f'{sysfs.root}/{vgpu_sysfs.PARENTS}'
                if (scan.vgpu_capabilities[function.id].mechanism
                        == capability.VGPUMechanism.VF):
                    self._keep_room(
                        f'{sysfs.devices}/{function.address}/virtfn0')
                else:
                    self._keep_room(f'{folder}/{function.address}')
        self._before = self._listing()

    def _keep_room(self, folder: str) -> None:
        """What a driver tells that makes nothing, and so neither do we."""
        self._keep(f'{folder}/{vgpu_sysfs.CREATABLE}')
        types = f'{folder}/{vgpu_sysfs.MDEV_TYPES}'
        for name in self._sysfs.names(types):
            self._keep(f'{types}/{name}/{vgpu_sysfs.AVAILABLE}')

    def _keep(self, path: str) -> None:
        # A file that cannot be opened is no worse watched than before.
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._files[fd] = os.pread(fd, _MAX, 0)

    def _listing(self) -> list[list[str]]:
        return [sorted(self._sysfs.names(folder))
                for folder in self._folders]

    def changed(self) -> bool:
        """Whether the host differs from the scan."""
        try:
            if any(os.pread(fd, _MAX, 0) != before
                   for fd, before in self._files.items()):
                return True
        except OSError:
            # The function went away below the open file.
            return True
        return self._listing() != self._before

    def close(self) -> None:
        """Close the files that were kept open."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()
