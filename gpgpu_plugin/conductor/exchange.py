# SPDX-License-Identifier: Apache-2.0
"""Devices in whose place a scan found another device.

Nothing is known about the other one: it may have had a tenant elsewhere, and
the baseline of the host is that of the previous device. It is held until an
operator accepts it.

All functions run in a transaction that locked the device's host.
"""

from __future__ import annotations

import dataclasses

from sqlalchemy import orm

from gpgpu_plugin import vfio
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci


def remembered(row: models.Device,
               function: pci.PCIFunction) -> pci.PCIFunction:
    """Return a function with what it does not show now, but showed before.

    That is its serial numbers and, while a VFIO driver has it, its xGMI hive.

    :param row: of the device, as it was before the scan
    """
    known, now = device_db.identity(row), pci.Identity.of(function)
    if known.swap_reason(now) is not None:
        # They are those of the device before.
        return function
    hive = function.hive
    if hive is None and vfio.is_vfio(function.driver):
        hive = device_db.pci_function(row).hive
    return dataclasses.replace(
        function, serial=now.serial or known.serial, dsn=now.dsn or known.dsn,
        hive=hive)


def check(session: orm.Session, host: models.Host, row: models.Device,
          known: pci.PCIFunction, before: pci.Identity,
          now: pci.Identity) -> None:
    """Store the identity of a device, and hold it if it is another one.

    :param known: its function before the scan
    :param before: its identity before the scan
    """
    reason = before.swap_reason(now)
    row.identity = device_db.dump(before.after(now) if reason is None else now)
    if reason is None:
        return
    if row.before_swap is None:
        row.before_swap = device_db.dump(known)
    hold_changed(session, host, row, reason)


def hold_changed(session: orm.Session, host: models.Host,
                 row: models.Device, reason: str) -> None:
    """Hold a device until an operator accepts it."""
    event_db.add(session, 'swapped', host.name, row, detail=reason)
    if hold.HoldKind.IDENTITY_CHANGED in holds.of(session, row):
        # Yet another one took its place.
        hold_db.remove(session, row.id, [hold.HoldKind.IDENTITY_CHANGED])
    holds.add(session, host, row, hold.HoldKind.IDENTITY_CHANGED, reason)
