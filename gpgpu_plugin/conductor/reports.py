# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts, stored as rows."""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import adoption
from gpgpu_plugin.conductor import device_health
from gpgpu_plugin.conductor import exchange
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.conductor import repeated_reports
from gpgpu_plugin.conductor import report_check
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import sightings
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import variant as variant_db
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

    A scan without any change changes nothing but its number. If variants
    change at the same time, the devices are matched again: whoever applied
    the change to hosts may not have seen them (``variant_changes``). If the
    conductor crashes before that, the host has no answer and reports again.

    :raises Invalid: no host can have what the scan says
    """
    scan = report_check.checked(scan)
    answer = repeated_reports.answer(db, scan, origin)
    if answer is not None:
        return answer
    number, stored = db.write(
        functools.partial(_report, scan=scan, origin=origin))
    if number is not None and _have_variants_changed(db, number):
        return db.write(functools.partial(_match_again, name=scan.host))
    return stored


def _report(session: orm.Session, scan: objects.HostReport,
            origin: session_obj.Origin | None,
            ) -> tuple[int | None, inventory_obj.HostInventory]:
    """Store a scan.

    :returns: the number of changes of variants that are in effect, None if
        the scan had no news; and the inventory
    """
    host = _host(session, scan, origin)
    if origin is not None and scan.number <= host.report_number:
        # A newer scan was faster.
        return None, inventory.of_host(session, host)
    # Read before the variants themselves, which may change meanwhile.
    number = variant_db.change_number(session)
    before = host.generation
    problems = json.dumps(scan.problems)
    if (host.node, host.problems, host.service_disabled) != (
            scan.node, problems, scan.service_disabled):
        host.node, host.problems = scan.node, problems
        host.service_disabled = scan.service_disabled
        host_db.changed(host)
    rebooted = not host.report_number and host.report_digest is None
    host.report_number = scan.number
    _store(session, host, scan, rebooted=rebooted)
    adoption.adopt(session, host, scan.assignments)
    stored = _match(session, host, before)
    if host.generation != before:
        return number, stored
    repeated_reports.note(session, host, scan, number, stored)
    return None, stored


def _match(session: orm.Session, host: models.Host,
           before: int) -> inventory_obj.HostInventory:
    """Bring the devices of a (locked) host into their groups.

    :param before: generation of the host before this transaction
    """
    variant_matching.apply(session, [host])
    if host.generation == before:
        return inventory.of_host(session, host)
    type_sync.sync(session, [host.id])
    host.reported_at = clock.utc(session)
    return inventory.refresh(session, host)


def _have_variants_changed(db: api.Database, number: int) -> bool:
    with db.reader() as session:
        return variant_db.change_number(session) != number


def _match_again(session: orm.Session,
                 name: str) -> inventory_obj.HostInventory:
    """Bring the devices of a host into their groups.

    :raises NotFound: the host was deleted
    """
    host = host_db.lock(session, name)
    if host is None:
        raise exception.NotFound(kind='host', name=name)
    return _match(session, host, host.generation)


def _host(session: orm.Session, scan: objects.HostReport,
          origin: session_obj.Origin | None) -> models.Host:
    """Return the host, locked.

    :raises NotFound: it never began a session
    """
    host = host_db.lock(session, scan.host)
    sessions.check(host, origin, reported=False)
    if host is None:
        raise exception.NotFound(kind='host', name=scan.host)
    return host


def _store(session: orm.Session, host: models.Host,
           scan: objects.HostReport, *, rebooted: bool) -> None:
    devices = device_db.of_hosts(session, [host.id])
    # Most scans find nothing that asks for them.
    kinds = functools.cache(functools.partial(
        hold_db.kinds_of_hosts, session, [host.id]))
    exchanged = retirement.leave(session, devices, scan.functions, kinds)
    rows = {device.stable_id: device for device in devices
            if device.kind == device_rules.DeviceKind.PCI}
    # Not yet adopted, as that takes the rows of this scan.
    adopted = adoption.unknown(session, scan.assignments or ())
    known = _Known(
        places=assignment_db.places(session, host.id, {
            name for vgpus in scan.vgpu_capabilities.values()
            for name in vgpus.existing_vgpus}) | {
                assignment.uuid: assignment.stable_id
                for assignment in adopted},
        used={device.stable_id: device.vgpu_type for device in devices
              if device.state != device_rules.DeviceState.AVAILABLE} | {
                  assignment.stable_id: assignment.vgpu_type
                  for assignment in adopted},
        kinds=kinds)
    seen, new = {}, set[str]()
    returned = {row.stable_id for row in rows.values() if not row.present}
    for function in scan.functions:
        row = rows.pop(function.id, None)
        if row is None:
            row = _insert(session, host, scan, function, known)
            new.add(function.id)
        else:
            _update(session, host, row, scan, function, known)
            device_health.store(
                session, host, row, scan.health.get(function.id))
        seen[function.id] = row
    session.flush()
    _relate(scan, seen, returned)
    for stable_id, before in exchanged.items():
        retirement.occupy(session, host, before, seen[stable_id])
    _lose(session, host, rows.values(), kinds)
    _move_mdev_rows(devices, seen.values())
    sightings.check(session, host, seen.values(), new, returned,
                    rebooted=rebooted)


def _relate(scan: objects.HostReport, seen: Mapping[str, models.Device],
            returned: Collection[str]) -> None:
    """Join VFs to their GPUs.

    :param seen: rows of the functions that the host reports, by stable ID
    :param returned: those of VFs that were away, so that guests may have had
        the whole GPU
    """
    for function in scan.functions:
        gpu = seen.get(function.pf or '')
        if gpu is not None:
            seen[function.id].parent_id = gpu.id
            if (function.id in returned
                    and gpu.cleaned_steps == device_db.NOTHING_PASSED):
                seen[function.id].cleaned_steps = device_db.NOTHING_PASSED


def _lose(session: orm.Session, host: models.Host,
          rows: Iterable[models.Device],
          kinds: Callable[[], Mapping[int, hold_db.Kinds]]) -> None:
    """Record that the host does not report these devices any more.

    :param kinds: of their holds, by id
    """
    for row in rows:
        if row.present:
            row.present = False
            device_health.lose(row)
            host_db.changed(host)
            held = kinds().get(row.id, frozenset())
            if hold.HoldKind.RETIRED not in held:
                event_db.add(session, 'missing', host.name, row)
                notification_db.device_seen(
                    session, device_db.row_of(row, held))


def _move_mdev_rows(devices: Iterable[models.Device],
                    seen: Iterable[models.Device]) -> None:
    """Set the addresses of mdev rows to those of their GPUs."""
    addresses = {row.id: row.address for row in seen}
    for device in devices:
        if (device.kind == device_rules.DeviceKind.MDEV
                and device.parent_id in addresses):
            device.address = addresses[device.parent_id]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """Knowledge about a host that the functions of its scan do not have.

    :ivar places: stable ids of mdevs made for assignments, by UUID
    :ivar used: types of devices that are not available, or will not be when
        the host's book is adopted, by stable id
    :ivar kinds: of the holds of devices, by id
    """

    places: Mapping[str, str]
    used: Mapping[str, str | None]
    kinds: Callable[[], Mapping[int, hold_db.Kinds]]


def _insert(session: orm.Session, host: models.Host,
            scan: objects.HostReport, function: pci.PCIFunction,
            known: _Known) -> models.Device:
    vgpus = _vgpu_capability(None, scan, function, known)
    row = models.Device(
        uuid=str(uuid.uuid4()), host_id=host.id, stable_id=function.id,
        address=function.address, state=str(
            device_rules.DeviceState.AVAILABLE),
        present=True, generation=0,
        kind=str(device_rules.DeviceKind.PCI),
        vgpu_type=_foreign_type(function, vgpus))
    device_db.set_observed(row, function, vgpus, driver_capacity.merge(
        None, scan.driver_capacities.get(function.id), known.places,
        known.used))
    session.add(row)
    event_db.add(session, 'appeared', host.name, row)
    device_health.store(session, host, row, scan.health.get(function.id))
    host_db.changed(host)
    return row


def _update(session: orm.Session, host: models.Host, row: models.Device,
            scan: objects.HostReport, function: pci.PCIFunction,
            known: _Known) -> None:
    before, identity = device_db.pci_function(row), device_db.identity(row)
    function = exchange.remembered(row, function)
    vgpus = _vgpu_capability(
        device_db.vgpu_capability(row), scan, function, known)
    driver = driver_capacity.merge(
        device_db.driver_capacity(row),
        scan.driver_capacities.get(function.id), known.places, known.used)
    if function.pf is None and not before.has_vfs and (
            host.restored if function.has_vfs else function.owner):
        # Others use the whole GPU, or may have done so since the backup.
        row.cleaned_steps = device_db.NOTHING_PASSED
    if not device_db.set_observed(
            row, function, vgpus, driver) and row.present:
        return
    held = frozenset() if row.present else known.kinds().get(
        row.id, frozenset())
    returned = not row.present and hold.HoldKind.RETIRED not in held
    row.address, row.present = function.address, True
    if returned:
        event_db.add(session, 'returned', host.name, row)
        notification_db.device_seen(session, device_db.row_of(row, held))
    if row.state == device_rules.DeviceState.AVAILABLE:
        row.vgpu_type = _foreign_type(function, vgpus)
    host_db.changed(host)
    exchange.check(session, host, row, before, identity,
                   pci.Identity.of(function))
    if (function.pf is not None or function.has_vfs
            or function.id not in scan.vgpu_capabilities):
        _check_owner(session, host, row, before, function)


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


def _check_owner(session: orm.Session, host: models.Host,
                 row: models.Device, before: pci.PCIFunction,
                 now: pci.PCIFunction) -> None:
    """Distrust a device that another service no longer manages.

    A guest of that service may have used it. A GPU that had VFs was not used
    itself.
    """
    if before.owner and not now.owner and not before.has_vfs:
        recleaning.distrust(session, host, row,
                            f'no longer managed by {before.owner}')
