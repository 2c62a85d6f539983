# SPDX-License-Identifier: Apache-2.0
"""Store the vGPU capacity that drivers report."""

from __future__ import annotations

from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.objects import report as report_obj


def store(session: orm.Session, host: models.Host,
          reported: report_obj.DriverCapacities | None) -> bool:
    """Store reports of the drivers of GPUs of a (locked) host.

    :returns: whether there are any, so that the host's groups must be read
        again
    """
    if not reported:
        return False
    places = assignment_db.places(session, host.id, [
        name for report in reported.values() for name in report.existing])
    used = device_db.in_use(session, host.id)
    for gpu in device_db.by_stable_id(session, host.id, reported):
        before = device_db.driver_capacity(gpu)
        now = driver_capacity.newer(
            before, driver_capacity.with_stable_ids(
                reported[gpu.stable_id], places), used)
        # A report that only was sampled later is stored, too, so that older
        # ones are recognised; nobody needs to be told about it.
        gpu.driver_capacity = device_db.dump(now)
        if now != before:
            host_db.changed(host)
    return True


def is_late(session: orm.Session, host_id: int,
            reported: report_obj.DriverCapacities) -> bool:
    """Return whether one of the reports is older than what is stored."""
    if not reported:
        return False
    both = ((reported[gpu.stable_id], device_db.driver_capacity(gpu))
            for gpu in device_db.by_stable_id(session, host_id, reported))
    return any(stored is not None and driver_capacity.is_older(one, stored)
               for one, stored in both)
