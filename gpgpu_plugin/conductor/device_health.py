# SPDX-License-Identifier: Apache-2.0
"""Health of devices as their hosts report it."""

from __future__ import annotations

import dataclasses
import logging

from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import health


def store(rows: host_rows.HostRows, device: host_rows.Device,
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
    ) else recleaning.distrust(rows, device, 'it answers again')


def lost(device: host_rows.Device) -> host_rows.Device:
    """Return a device that a scan did not find, without its health.

    That it had failed is kept, since it must be cleaned if it returns.
    """
    return device if device.health == health.Health.FAILED else (
        dataclasses.replace(device, health=None, health_reason=None,
                            errors=None))
