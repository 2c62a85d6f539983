# SPDX-License-Identifier: Apache-2.0
"""Rows for the units of a claim: a GPU, a VF or an mdev each."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import unit_device
from gpgpu_plugin.domain.allocation import offer


def take(rows: host_rows.HostRows,
         units: Iterable[tuple[capacity.LoadedGroup, offer.Selection]],
         ) -> list[host_rows.Device]:
    """Return a device for each unit that a claim selected, none twice.

    If a GPU has no free mdev row, one is made.

    :param units: units of groups of the rows
    :returns: as they are after the claim
    """
    taken: dict[str, host_rows.Device] = {}
    for group, unit in units:
        device = unit_device.of_unit(group.value, unit, taken)
        row = rows.by_stable_id.get(device.id)
        if row is None:
            row = new_mdev_row(
                rows, rows.by_stable_id[unit.gpu_id], device.id)
            rows = rows.put(row)
        now = device_db.after(row, device_rules.DeviceEvent.CLAIM)
        if unit.vgpu_type != naming.PASSTHROUGH:
            now = dataclasses.replace(
                now, vgpu_type=unit.vgpu_type,
                placement_id=unit.placement_id)
        taken[row.stable_id] = now
    return list(taken.values())


def new_mdev_row(rows: host_rows.HostRows, gpu: host_rows.Device,
                 stable_id: str) -> host_rows.Device:
    """Return a new mdev row of a GPU."""
    return dataclasses.replace(
        new_row(rows, stable_id, gpu.address), parent_id=gpu.id,
        group_id=gpu.group_id, kind=str(device_rules.DeviceKind.MDEV))


def new_row(rows: host_rows.HostRows, stable_id: str,
            address: str) -> host_rows.Device:
    """Return the row of a function that nobody knew before.

    A report fills in what is unknown.
    """
    return host_rows.Device(
        id=rows.new_id(), uuid=str(uuid.uuid4()), host_id=rows.host.id,
        stable_id=stable_id, address=address, pci_function=device_db.dump(
            pci.PCIFunction(id=stable_id, address=address)))
