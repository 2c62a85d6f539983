# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts, stored as rows."""

from __future__ import annotations

import functools
import json

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import adoption
from gpgpu_plugin.conductor import driver_capacity as driver_capacity_mod
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import observation
from gpgpu_plugin.conductor import repeated_reports
from gpgpu_plugin.conductor import report_check
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import last_report
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as objects
from gpgpu_plugin.objects import session as session_obj


def report(db: api.Database, scan: objects.HostReport,
           origin: session_obj.Origin | None = None,
           ) -> inventory_obj.HostInventory:
    """Store a scan (Conductor.report).

    A scan without any change changes nothing but its number.

    :raises Invalid: no host can have what the scan says
    """
    scan = report_check.checked(scan)
    answer = repeated_reports.answer(db, scan, origin)
    if answer is not None:
        return answer
    return db.write(functools.partial(_report, scan=scan, origin=origin))


def _report(session: orm.Session, scan: objects.HostReport,
            origin: session_obj.Origin | None,
            ) -> inventory_obj.HostInventory:
    """Store a scan."""
    host = _host(session, scan, origin)
    if origin is not None and scan.number <= host.report_number:
        # A newer scan was faster.
        return inventory.of_host(session, host)
    before = host_rows.load_one(session, host)
    facts = _facts(session, before, scan)
    observed = observation.observe(before.hold_host(
        hold.HostHoldKind.SERVICE_DISABLED, held=scan.service_disabled,
    ).change_host(
        node=scan.node, problems=json.dumps(scan.problems),
        report_number=scan.number,
    ), scan, facts, rebooted=(
        not host.report_number and host.report_digest is None))
    stored = settle.settle(session, before, observed.rows)
    sighting_db.store(session, facts.seen, observed.sightings)
    adopted = observed.adopted
    if adopted.active or adopted.ended:
        adopted.store(session, host_rows.load_one(session, host))
    if stored.generation != host.generation:
        last_report.arrived(session, host.id, clock.utc(session))
    elif not driver_capacity_mod.is_late(before, scan.driver_capacities):
        repeated_reports.note(
            session, scan, before.newest_version, host.id, stored)
    return stored


def _host(session: orm.Session, scan: objects.HostReport,
          origin: session_obj.Origin | None) -> host_db.HostRow:
    """Return the host, locked.

    :raises NotFound: it never began a session
    """
    host = host_db.lock(session, scan.host)
    sessions.check(session, host, origin, reported=False)
    if host is None:
        raise exception.NotFound(kind='host', name=scan.host)
    return host


def _facts(session: orm.Session, before: host_rows.HostRows,
           scan: objects.HostReport) -> observation.Facts:
    """Return what the database knows of what a scan found."""
    functions = [pci.Identity.of(function) for function in scan.functions
                 if function.pf is None]
    gpus = [device for device in before.devices if device.parent_id is None]
    seen = sighting_db.of_cards(
        session, [gpu.uuid for gpu in gpus], set(map(
            sighting_db.numbers,
            (*functions, *map(device_db.identity, gpus)))))
    elsewhere = {row.device_uuid for row in seen
                 if row.host_id not in (None, before.host.id)}
    return observation.Facts(
        places=assignment_db.places(session, before.host.id, {
            name for vgpus in scan.vgpu_capabilities.values()
            for name in vgpus.existing_vgpus}),
        unknown=adoption.unknown(session, scan.assignments or ()),
        seen=seen, decisions=sighting_db.decisions(
            session, elsewhere) if elsewhere else {},
        variants=variant_matching.Variants.load(session, before),
        at=clock.utc(session))
