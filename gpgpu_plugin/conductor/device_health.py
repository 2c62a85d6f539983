# SPDX-License-Identifier: Apache-2.0
"""Health of devices as their hosts report it.

All functions run in a transaction that locked the device's host.
"""

from __future__ import annotations

import logging

from sqlalchemy import orm

from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import health


def store(session: orm.Session, host: models.Host, row: models.Device,
          condition: health.Condition | None) -> None:
    """Store the health of a device after a scan, with an event if it changed.

    The numbers behind it may change without an event.

    :param condition: None: the scan did not judge it
    """
    if condition is None:
        return
    before = row.health
    row.health = str(condition.health)
    row.health_reason = condition.reason
    row.errors = device_db.dump(condition.errors)
    if before == row.health or (
            before is None and condition.health is health.Health.OK):
        return
    event_db.add(
        session, 'health', host.name, row,
        detail=f'{before or "not known"} -> {row.health}' + (
            f': {condition.reason}' if condition.reason else ''),
        level=logging.INFO if condition.health is health.Health.OK
        else logging.WARNING)
    host_db.changed(host)
    if (before == health.Health.FAILED
            and device_db.vgpu_capability(row) is None
            and not device_db.pci_function(row).has_vgpus):
        # It was reset, repaired or replaced meanwhile. Nobody gets a GPU
        # whose driver makes vGPUs as a whole.
        recleaning.distrust(session, host, row, 'it answers again')


def lose(row: models.Device) -> None:
    """Forget the health of a device that a scan did not find.

    That it had failed is kept, since it must be cleaned if it returns.
    """
    if row.health != health.Health.FAILED:
        row.health = row.health_reason = row.errors = None
