# SPDX-License-Identifier: Apache-2.0
"""Labels of slots in SMBIOS, which are read once: firmware does not change."""

from __future__ import annotations

from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin import smbios
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod


class SlotLabels:
    """Labels that the firmware of a host gives to slots.

    They are read when a GPU is first found whose slot sysfs does not have.

    :param privileged: reads the table with root's rights, and raises
        HostError; None: nothing has these rights
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 privileged: Callable[[], bytes] | None = None) -> None:
        self._sysfs = sysfs
        self._privileged = privileged
        self._known: smbios.Labels | exception.HostError | None = None

    def get(self) -> smbios.Labels:
        """Return the labels; none: the host has no SMBIOS.

        :raises HostError: the table cannot be read, now or before
        :raises HostNotReady: the privileged helper does not start; the next
            call tries again
        """
        if self._known is None:
            try:
                self._known = smbios.labels(self._table())
            except exception.HostNotReady:
                raise
            except exception.HostError as exc:
                self._known = exc
        if isinstance(self._known, exception.HostError):
            raise self._known
        return self._known

    def _table(self) -> bytes:
        path = f'{self._sysfs.root}/{smbios.TABLE}'
        try:
            return self._sysfs.read_all(path, smbios.LARGEST) or b''
        except PermissionError:
            return self._privileged() if self._privileged else b''
        except OSError as exc:
            raise exception.HostError(
                path=path, reason=f'cannot be read: {exc.strerror}') from None
