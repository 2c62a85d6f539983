# SPDX-License-Identifier: Apache-2.0
"""CPU time of reports without news, which hosts send most of the time.

One host reports again and again, then starts again and again and reports with
its book. All is stored in this process, without the broker.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from bench import claims
from bench import race
from bench import report
from gpgpu_plugin.conductor import claims as conductor_claims
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import report as report_obj
from tests.fixtures import hosts
from tests.fixtures import services
from tests.fixtures import tenant

REPORTS = 500
HOST = 'h0'


def run() -> report.Result:
    """Measure; a report without news that changes the host is wrong."""
    with claims.database(services.POSTGRESQL) as url:
        setting = race.Setting(
            database=url, transport='fake:/', hosts=1, mixed=True)
        db = race.set_up(setting)
        try:
            return _run(db, setting)
        finally:
            db.engine.dispose()


def _run(db: api.Database, setting: race.Setting) -> report.Result:
    host = _Host(db, setting)
    host.assign(setting.devices)
    # One with news, one without.
    for _ in range(2):
        host.report()
    before = host_admin.show(db, HOST)
    again = _times(host.report)
    wrong = [] if (host_admin.show(db, HOST).generation
                   == before.generation) else [
        'a report without news changed its host']
    first = [_times(lambda: host.report(book=True), host.begin, count=1)
             for _ in range(REPORTS)]
    devices = f'{setting.devices} GPUs'
    return report.Result(name='reports', wrong=tuple(wrong), rows=(
        report.Row(
            what=f'report of {devices} without news, CPU', unit='ms',
            ours=again[0], goal=report.Goal(at_most=0.5)),
        report.Row(
            what=f'report of {devices} without news', unit='ms',
            ours=again[1]),
        report.Row(
            what='the same, first one of a start, CPU', unit='ms',
            ours=sum(cpu for cpu, _ in first) / REPORTS)))


class _Host:
    """A host that reports what it has."""

    def __init__(self, db: api.Database, setting: race.Setting) -> None:
        self._db = db
        self._scan = race.scan(setting, HOST)
        self._number = self._starts = 0
        self._book: tuple[claim_obj.Assignment, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Start, which begins a session."""
        self._starts += 1
        self._number = 0
        session = hosts.begin(
            self._db, HOST, self._scan.node_uuid, expected=self._starts,
            start_uuid=self._start_uuid())
        self._origin = report_obj.Origin(
            host=HOST, node_uuid=self._scan.node_uuid,
            start_uuid=self._start_uuid(), session=session.number,
            generation=session.generation)

    def _start_uuid(self) -> str:
        return f'start {self._starts}'

    def assign(self, count: int) -> None:
        """Assign whole GPUs to an instance."""
        self.report()
        name = naming.resource_class(race.VARIANT)
        claim = conductor_claims.claim(self._db, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid='i1', host=HOST, request=request.Request(demands=(
                request.Demand(resource_class=name, count=count),)),
            allocated={naming.provider_uuid(
                self._scan.node_uuid, race.VARIANT): {name: count}}), lease=60)
        conductor_claims.activate(
            self._db, [assignment.uuid for assignment in claim.assignments])
        self._book = conductor_claims.of_host(self._db, HOST)

    def report(self, *, book: bool = False) -> None:
        """Report, with the book if it is the first report of a start."""
        self._number += 1
        reports.report(self._db, dataclasses.replace(
            self._scan, number=self._number,
            assignments=self._book if book else None), self._origin)


def _times(step: Callable[[], None],
           prepare: Callable[[], None] = lambda: None,
           count: int = REPORTS) -> tuple[float, float]:
    """Return the CPU time and the time of a step in ms."""
    prepare()
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return (1e3 * (time.process_time() - cpu_began) / count,
            1e3 * (time.perf_counter() - began) / count)
