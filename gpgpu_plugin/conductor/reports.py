# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts, stored as rows."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import adoption
from gpgpu_plugin.conductor import device_health
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.conductor import driver_capacity as driver_capacity_mod
from gpgpu_plugin.conductor import exchange
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.conductor import repeated_reports
from gpgpu_plugin.conductor import report_check
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import sightings
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import last_report
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity
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
    rebooted = not host.report_number and host.report_digest is None
    known = before.hold_host(
        hold.HostHoldKind.SERVICE_DISABLED, held=scan.service_disabled,
    ).change_host(
        node=scan.node, problems=json.dumps(scan.problems),
        report_number=scan.number)
    adopted = adoption.adopt(
        session, _observe(session, known, scan, rebooted=rebooted),
        scan.assignments)
    stored = settle.settle(session, before, variant_matching.apply(
        session, adopted.rows))
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


def _observe(session: orm.Session, before: host_rows.HostRows,
             scan: objects.HostReport, *,
             rebooted: bool) -> host_rows.HostRows:
    """Return the rows of a host with what a scan found."""
    rows, exchanged = retirement.leave(before, scan.functions)
    # Not yet adopted, as that takes the rows of this scan.
    adopted = adoption.unknown(session, scan.assignments or ())
    known = _Known(
        places=assignment_db.places(session, before.host.id, {
            name for vgpus in scan.vgpu_capabilities.values()
            for name in vgpus.existing_vgpus}) | {
                assignment.uuid: assignment.stable_id
                for assignment in adopted},
        used={**rows.types_in_use, **{
            assignment.stable_id: assignment.vgpu_type
            for assignment in adopted}})
    absent = {device.stable_id for device in rows.devices
              if not device.present}
    new = set[str]()
    for function in scan.functions:
        device = rows.by_stable_id.get(function.id)
        if device is None:
            rows = _insert(rows, scan, function, known)
            new.add(function.id)
        else:
            rows = _update(rows, device, scan, function, known,
                           restored=rows.is_held(
                               hold.HostHoldKind.RESTORED))
        rows = device_health.store(
            rows, rows.by_stable_id[function.id],
            scan.health.get(function.id))
    found = {function.id for function in scan.functions}
    returned = absent & found
    rows = _relate(rows, scan, returned)
    for stable_id, gpu in exchanged.items():
        rows = retirement.occupy(
            rows, rows.now(gpu), rows.by_stable_id[stable_id])
    rows = _move_mdev_rows(_lose(rows, found), found)
    return sightings.check(session, rows, found, new, returned,
                           rebooted=rebooted)


def _relate(rows: host_rows.HostRows, scan: objects.HostReport,
            returned: Collection[str]) -> host_rows.HostRows:
    """Join VFs to their GPUs.

    :param returned: stable ids of functions that were away, so that guests
        may have had the whole GPU of a VF
    """
    found = {function.id: function.pf for function in scan.functions}
    changed = []
    for stable_id, pf in found.items():
        vf = rows.by_stable_id[stable_id]
        gpu = rows.by_stable_id[pf] if pf in found else None
        if gpu is None:
            continue
        was_used = (stable_id in returned
                    and gpu.cleaned_steps == device_db.NOTHING_PASSED)
        if vf.parent_id != gpu.id or was_used:
            changed.append(dataclasses.replace(
                vf, parent_id=gpu.id, cleaned_steps=device_db.NOTHING_PASSED
                if was_used else vf.cleaned_steps))
    return rows.put(*changed)


def _lose(rows: host_rows.HostRows,
          found: Collection[str]) -> host_rows.HostRows:
    """Record that the host does not report some functions any more."""
    for device in rows.devices:
        if (device.kind == device_rules.DeviceKind.PCI and device.present
                and device.stable_id not in found):
            rows = rows.put(dataclasses.replace(
                device_health.lost(device), present=False))
            if hold.HoldKind.RETIRED not in device.holds:
                rows = rows.note('missing', [device])
    return rows


def _move_mdev_rows(rows: host_rows.HostRows,
                    found: Collection[str]) -> host_rows.HostRows:
    """Set the addresses of mdev rows to those of their GPUs."""
    return rows.put(*(
        dataclasses.replace(device, address=gpu.address)
        for device in rows.devices
        if device.kind == device_rules.DeviceKind.MDEV
        and (gpu := rows.gpu_of(device)).stable_id in found
        and device.address != gpu.address))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """Knowledge about a host that the functions of its scan do not have.

    :ivar places: stable ids of mdevs made for assignments, by UUID
    :ivar used: types of devices that are not available, or will not be when
        the host's book is adopted, by stable id
    """

    places: Mapping[str, str]
    used: Mapping[str, str | None]


def _insert(rows: host_rows.HostRows, scan: objects.HostReport,
            function: pci.PCIFunction,
            known: _Known) -> host_rows.HostRows:
    vgpus = _vgpu_capability(None, scan, function, known)
    device = dataclasses.replace(device_db.observed(
        device_rows.new_row(rows, function.id, function.address),
        function, vgpus, driver_capacity.merge(
            None, scan.driver_capacities.get(function.id), known.places,
            known.used)), vgpu_type=_foreign_type(function, vgpus))
    return rows.put(device).note('appeared', [device])


def _update(rows: host_rows.HostRows, device: host_rows.Device,
            scan: objects.HostReport, function: pci.PCIFunction,
            known: _Known, *, restored: bool) -> host_rows.HostRows:
    before = device_db.pci_function(device)
    function = exchange.remembered(device, function)
    vgpus = _vgpu_capability(
        device_db.vgpu_capability(device), scan, function, known)
    driver = driver_capacity.merge(
        device_db.driver_capacity(device),
        scan.driver_capacities.get(function.id), known.places, known.used)
    now = device_db.observed(device, function, vgpus, driver)
    if function.pf is None and not before.has_vfs and (
            restored if function.has_vfs else function.owner):
        # Others use the whole GPU, or may have done so since the backup.
        now = dataclasses.replace(
            now, cleaned_steps=device_db.NOTHING_PASSED)
    if now == device and device.present:
        return rows
    if device.state == device_rules.DeviceState.AVAILABLE:
        now = dataclasses.replace(
            now, vgpu_type=_foreign_type(function, vgpus))
    now = dataclasses.replace(now, address=function.address, present=True)
    rows = rows.put(now)
    if not device.present and hold.HoldKind.RETIRED not in device.holds:
        rows = rows.note('returned', [now])
    rows = exchange.check(rows, device, pci.Identity.of(function))
    # A guest of the service that managed the device may have used it. A GPU
    # that had VFs was not used itself.
    is_reported = (function.pf is not None or function.has_vfs
               or function.id not in scan.vgpu_capabilities)
    return recleaning.distrust(
        rows, device, f'no longer managed by {before.owner}',
    ) if (is_reported and before.owner and not function.owner
          and not before.has_vfs) else rows


def _vgpu_capability(
    stored: capability.VGPUCapability | None, scan: objects.HostReport,
    function: pci.PCIFunction, known: _Known,
) -> capability.VGPUCapability | None:
    """Return what is known about a function's vGPUs after a scan."""
    observed = scan.vgpu_capabilities.get(function.id)
    in_use = function.id in known.used
    return capability.merge(
        stored, observed, in_use=in_use,
        # The type of a VF in use was set for its assignment.
        own_vgpus=observed.existing_vgpus
        if observed and in_use and function.pf is not None else known.places)


def _foreign_type(function: pci.PCIFunction,
                  vgpus: capability.VGPUCapability | None) -> str | None:
    """Return the type id that a VF has and that the plugin did not set.

    Return None for functions that are not VFs.
    """
    if function.pf is None or vgpus is None or not vgpus.existing_vgpus:
        return None
    return vgpus.existing_vgpus[0]
