# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts, stored as rows."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib

from sqlalchemy import orm

import gpgpu_plugin
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import observation
from gpgpu_plugin.conductor import restore_recovery
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as objects


def report(db: api.Database, scan: objects.HostReport,
           origin: objects.Origin | None = None,
           ) -> inventory_obj.HostInventory:
    """Store a scan (Conductor.report).

    A scan without any change changes nothing but its number.

    :raises Invalid: no host can have what the scan says
    """
    scan = observation.checked_report(scan)
    answer = answer_repeated(db, scan, origin)
    if answer is not None:
        return answer
    return db.write(functools.partial(_report, scan=scan, origin=origin))


def _report(session: orm.Session, scan: objects.HostReport,
            origin: objects.Origin | None,
            ) -> inventory_obj.HostInventory:
    """Store a scan."""
    host = _host(session, scan, origin)
    if origin is not None and scan.number <= host.report_number:
        # A newer scan was faster.
        return capacity.host_inventory(session, host)
    before = host_rows.load_one(session, host)
    facts = _facts(session, before, scan)
    observed = observation.observe(before.hold_host(
        device_rules.HostHoldKind.SERVICE_DISABLED, held=scan.service_disabled,
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
        host_db.report_arrived(session, host.id, clock.utc(session))
    elif not capacity.is_driver_report_late(before, scan.driver_capacities):
        note_report(
            session, scan, before.newest_version, host.id, stored)
    return stored


def _host(session: orm.Session, scan: objects.HostReport,
          origin: objects.Origin | None) -> host_db.HostRow:
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
        unknown=restore_recovery.unknown(session, scan.assignments or ()),
        seen=seen, decisions=sighting_db.decisions(
            session, elsewhere) if elsewhere else {},
        variants=variant_matching.Variants.load(session, before),
        at=clock.utc(session))


# -- Reports that have no news, recognised by a digest of the scan.
#
# Hosts report periodically and after each start of nova-compute, mostly what
# they have reported before. To compare it with the rows of all devices takes
# ten times longer than to compare one digest.
#
# A digest is kept for a scan that changed nothing when it was stored. The same
# scan changes nothing again as long as the host's generation, the variants and
# this program are the same.


def answer_repeated(db: api.Database, scan: objects.HostReport,
                    origin: objects.Origin | None,
                    ) -> inventory_obj.HostInventory | None:
    """Return the answer to a report that has no news.

    :returns: None if the report must be stored
    """
    def work(session: orm.Session) -> inventory_obj.HostInventory | None:
        last = host_db.lock_last_report(session, scan.host)
        sessions.refuse(last, origin, reported=False)
        if last is None or not _is_repeated(session, last, scan, origin):
            return None
        assert last.report_answer is not None
        answer = codec.decode(inventory_obj.HostInventory, last.report_answer)
        host_db.repeat_report(session, last, scan.number)
        return dataclasses.replace(answer, generation=last.generation)
    return db.write(work)


def _is_repeated(session: orm.Session, last: host_db.LastReport,
                 scan: objects.HostReport,
                 origin: objects.Origin | None) -> bool:
    return (
        last.report_generation == last.generation
        and (origin is None or scan.number > last.report_number)
        and last.report_digest == _digest(scan, last.changes)
        and not (scan.assignments and restore_recovery.unknown(
            session, scan.assignments)))


def note_report(session: orm.Session, scan: objects.HostReport, changes: int,
                host_id: int, inventory: inventory_obj.HostInventory) -> None:
    """Keep the digest of a scan that changed nothing, and the answer to it.

    :param changes: number of changes of variants, read before the variants
    """
    host_db.note_report(
        session, host_id, digest=_digest(scan, changes),
        generation=inventory.generation,
        answer=codec.encode(inventory).decode())


def _digest(scan: objects.HostReport, changes: int) -> str:
    # When the driver was read is no news (domain.vgpu.merge_reports).
    return codec.digest((_program(), changes, dataclasses.replace(
        scan, number=0, assignments=None, driver_capacities={
            stable_id: dataclasses.replace(report, sampled_at=('', 0))
            for stable_id, report in scan.driver_capacities.items()})))


@functools.cache
def _program() -> str:
    """Return what tells this program from one with other rules.

    Its version alone does not: builds with fixes of their own have the same.
    """
    package = pathlib.Path(gpgpu_plugin.__file__).parent
    return hashlib.sha256(b''.join(
        path.read_bytes() for path in sorted(package.rglob('*.py')))
    ).hexdigest()
