# SPDX-License-Identifier: Apache-2.0
"""Devices in whose place a scan found another device.

Nothing is known about the other one: it may have had a tenant elsewhere, and
the baseline of the host is that of the previous device. It is held until an
operator accepts it.
"""

from __future__ import annotations

import dataclasses

from gpgpu_plugin import vfio
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci


def remembered(device: host_rows.Device,
               function: pci.PCIFunction) -> pci.PCIFunction:
    """Return a function with what it does not show now, but showed before.

    That is its serial numbers and, while a VFIO driver has it, its xGMI hive.

    :param device: as it was before the scan
    """
    known, now = device_db.identity(device), pci.Identity.of(function)
    if known.swap_reason(now) is not None:
        # They are those of the device before.
        return function
    hive = function.hive
    if hive is None and vfio.is_vfio(function.driver):
        hive = device_db.pci_function(device).hive
    return dataclasses.replace(
        function, serial=now.serial or known.serial, dsn=now.dsn or known.dsn,
        hive=hive)


def check(rows: host_rows.HostRows, before: host_rows.Device,
          now: pci.Identity) -> host_rows.HostRows:
    """Keep the identity of a device, and hold it if it is another one.

    :param before: as it was before the scan
    """
    known = device_db.identity(before)
    reason = known.swap_reason(now)
    if reason is None:
        return rows.change(before, identity=device_db.dump(known.after(now)))
    return hold_changed(rows.change(
        before, identity=device_db.dump(now),
        before_swap=before.before_swap or before.pci_function),
        before, reason)


def hold_changed(rows: host_rows.HostRows, device: host_rows.Device,
                 reason: str) -> host_rows.HostRows:
    """Hold a device until an operator accepts it."""
    kind = hold.HoldKind.IDENTITY_CHANGED
    rows = rows.note('swapped', [rows.now(device)], reason)
    if kind in rows.holds_of(device):
        # Yet another one took its place.
        rows = rows.release(device, [kind])
    return holds.add(rows, device, kind, reason)
