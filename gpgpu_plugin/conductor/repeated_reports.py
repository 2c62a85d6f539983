# SPDX-License-Identifier: Apache-2.0
"""Reports that have no news, recognised by a digest of the scan.

Hosts report periodically and after each start of nova-compute, mostly what
they have reported before. To compare it with the rows of all devices takes ten
times longer than to compare one digest.

A digest is kept for a scan that changed nothing when it was stored. The same
scan changes nothing again as long as the host's generation, the variants and
this program are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib

from sqlalchemy import orm

import gpgpu_plugin
from gpgpu_plugin.conductor import adoption
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import api
from gpgpu_plugin.db import last_report
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as objects
from gpgpu_plugin.objects import session as session_obj


def answer(db: api.Database, scan: objects.HostReport,
           origin: session_obj.Origin | None,
           ) -> inventory_obj.HostInventory | None:
    """Return the answer to a report that has no news.

    :returns: None if the report must be stored
    """
    def work(session: orm.Session) -> inventory_obj.HostInventory | None:
        last = last_report.lock(session, scan.host)
        sessions.refuse(last, origin, reported=False)
        if last is None or not _is_repeated(session, last, scan, origin):
            return None
        assert last.report_answer is not None
        answer = codec.decode(inventory_obj.HostInventory, last.report_answer)
        last_report.repeat(session, last, scan.number)
        return dataclasses.replace(answer, generation=last.generation)
    return db.write(work)


def _is_repeated(session: orm.Session, last: last_report.LastReport,
                 scan: objects.HostReport,
                 origin: session_obj.Origin | None) -> bool:
    return (
        last.report_generation == last.generation
        and (origin is None or scan.number > last.report_number)
        and last.report_digest == _digest(scan, last.changes)
        and not (scan.assignments and adoption.unknown(
            session, scan.assignments)))


def note(session: orm.Session, scan: objects.HostReport, changes: int,
         host_id: int, inventory: inventory_obj.HostInventory) -> None:
    """Keep the digest of a scan that changed nothing, and the answer to it.

    :param changes: number of changes of variants, read before the variants
    """
    last_report.note(
        session, host_id, digest=_digest(scan, changes),
        generation=inventory.generation,
        answer=codec.encode(inventory).decode())


def _digest(scan: objects.HostReport, changes: int) -> str:
    # When the driver was read is no news (domain.vgpu.driver_capacity.merge).
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
