# SPDX-License-Identifier: Apache-2.0
"""Kernel modules that the privileged helper loads."""

from __future__ import annotations

from gpgpu_plugin import privsep
from gpgpu_plugin import vfio


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def load_vfio(module: str) -> None:
    """Load a module with a VFIO driver.

    :param module: ``vfio-pci``, or a module that has a ``vfio_pci:`` alias
        in this kernel's modules.alias
    :raises OSError: it is another module, or cannot be loaded
    """
    # Loading any other module may harm the host, so the helper itself reads
    # which ones have a VFIO driver.
    if module != vfio.PLAIN and not (
            vfio.is_vfio(module) and module in {
                name for _, name in vfio.aliases(vfio.alias_file())}):
        raise PermissionError(
            1, f'{module} is not a module with a VFIO driver', module)
    privsep.run('modprobe', module)
