# SPDX-License-Identifier: Apache-2.0
"""Rows of devices: of units, and their health."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Iterable

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
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
        device = group_rules.device_of_unit(group.value, unit, taken)
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


# -- Health of devices as their hosts report it.


def store_health(rows: host_rows.HostRows, device: host_rows.Device,
                 condition: health.Condition | None) -> host_rows.HostRows:
    """Keep the health of a device after a scan, with an event if it changed.

    The numbers behind it may change without an event.

    :param condition: None: the scan did not judge it
    """
    if condition is None:
        return rows
    device = rows.now(device)
    before, now = device.health, str(condition.health)
    rows = rows.change(
        device, health=now, health_reason=condition.reason,
        errors=device_db.dump(condition.errors))
    if before == now or (
            before is None and condition.health is health.Health.OK):
        return rows
    rows = rows.note(
        'health', [device], f'{before or "not known"} -> {now}' + (
            f': {condition.reason}' if condition.reason else ''),
        level=logging.INFO if condition.health is health.Health.OK
        else logging.WARNING)
    # It was reset, repaired or replaced meanwhile. Nobody gets a GPU whose
    # driver makes vGPUs as a whole.
    return rows if (
        before != health.Health.FAILED
        or device_db.vgpu_capability(device) is not None
        or device_db.pci_function(device).has_vgpus
    ) else holds.distrust(rows, device, 'it answers again')


def lose_health(device: host_rows.Device) -> host_rows.Device:
    """Return a device that a scan did not find, without its health.

    That it had failed is kept, since it must be cleaned if it returns.
    """
    return device if device.health == health.Health.FAILED else (
        dataclasses.replace(device, health=None, health_reason=None,
                            errors=None))
