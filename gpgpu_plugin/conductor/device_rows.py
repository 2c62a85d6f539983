# SPDX-License-Identifier: Apache-2.0
"""Rows for the units of a claim: a GPU, a VF or an mdev each."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection
from collections.abc import Iterable

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import unit_device
from gpgpu_plugin.domain.allocation import offer


def take(session: orm.Session,
         units: Iterable[tuple[capacity.LoadedGroup,
                               offer.Selection]],
         ) -> list[tuple[device_db.DeviceRow, device_db.DeviceRow]]:
    """Return a row for each unit that a claim selected, no row twice.

    If a GPU has no free mdev row, one is created.

    :param units: units of groups that were loaded under the host's lock
    :returns: each row before and after the claim, which is yet to be stored
    """
    taken: dict[str, tuple[device_db.DeviceRow, device_db.DeviceRow]] = {}
    for group, unit in units:
        row = _row(session, group, unit, taken)
        now = device_db.after(row, device_rules.DeviceEvent.CLAIM)
        if unit.vgpu_type != naming.PASSTHROUGH:
            now = dataclasses.replace(
                now, vgpu_type=unit.vgpu_type,
                placement_id=unit.placement_id)
        taken[row.stable_id] = row, now
    return list(taken.values())


def _row(session: orm.Session, group: capacity.LoadedGroup,
         unit: offer.Selection,
         taken: Collection[str]) -> device_db.DeviceRow:
    rows = {row.stable_id: row for row in group.rows.devices}
    device = unit_device.of_unit(group.value, unit, taken)
    if device.id in rows:
        return rows[device.id]
    created = new_mdev_row(session, rows[unit.gpu_id], device.id)
    session.flush()
    return device_db.row_of(created)


def new_mdev_row(session: orm.Session, gpu: device_db.AnyDevice,
                 stable_id: str) -> models.Device:
    """Add an mdev row of a GPU and return it."""
    row = models.Device(
        uuid=str(uuid.uuid4()), host_id=gpu.host_id, parent_id=gpu.id,
        group_id=gpu.group_id, kind=str(device_rules.DeviceKind.MDEV),
        stable_id=stable_id, address=gpu.address,
        state=str(device_rules.DeviceState.AVAILABLE), present=True,
        generation=0, vendor_id='', product_id='',
        pci_function=device_db.dump(
            pci.PCIFunction(id=stable_id, address=gpu.address)))
    session.add(row)
    return row


def new_absent_row(session: orm.Session, host: models.Host, stable_id: str,
                   address: str) -> models.Device:
    """Add the row of a function that no scan found, and return it.

    When it returns, its report fills in what is unknown.
    """
    row = models.Device(
        uuid=str(uuid.uuid4()), host_id=host.id, stable_id=stable_id,
        address=address, kind=str(device_rules.DeviceKind.PCI),
        state=str(device_rules.DeviceState.AVAILABLE), present=False,
        generation=0, vendor_id='', product_id='',
        pci_function=device_db.dump(
            pci.PCIFunction(id=stable_id, address=address)))
    session.add(row)
    return row
