# SPDX-License-Identifier: Apache-2.0
"""Store the vGPU capacity that drivers report."""

from __future__ import annotations

from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.objects import report as report_obj


def merged(session: orm.Session, rows: host_rows.HostRows,
           reported: report_obj.DriverCapacities | None,
           ) -> host_rows.HostRows:
    """Return the rows of a host with what the drivers of its GPUs report."""
    if not reported:
        return rows
    places = assignment_db.places(session, rows.host.id, [
        name for report in reported.values() for name in report.existing])
    used = rows.types_in_use
    for stable_id, report in reported.items():
        gpu = rows.by_stable_id.get(stable_id)
        if gpu is not None:
            rows = rows.change(gpu, driver_capacity=device_db.dump(
                driver_capacity.newer(
                    device_db.driver_capacity(gpu),
                    driver_capacity.with_stable_ids(report, places), used)))
    return rows


def is_late(rows: host_rows.HostRows,
            reported: report_obj.DriverCapacities) -> bool:
    """Return whether one of the reports is older than what is stored."""
    return any(
        (gpu := rows.by_stable_id.get(stable_id)) is not None
        and (stored := device_db.driver_capacity(gpu)) is not None
        and driver_capacity.is_older(report, stored)
        for stable_id, report in reported.items())
