# SPDX-License-Identifier: Apache-2.0
"""A variant that is created while GPUs are claimed on all hosts.

Half of the GPUs of each host have a variant and are claimed by threads of the
process that creates a variant for the other half. ``python -m bench.variants
10000`` measures a large cloud.
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid

import sqlalchemy as sa

from bench import claims as bench_claims
from bench import race
from bench import report
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import migration
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import report as report_obj
from tests.fixtures import hosts
from tests.fixtures import services
from tests.fixtures import tenant

HOSTS = 300
THREADS = 4
_GPUS = 8
_OLD = admin.VariantInfo(name='OLD', vendor='10de', device='2330')
_NEW = admin.VariantInfo(name='NEW', vendor='10de', device='20b5')


def _set_up(db: api.Database, count: int) -> None:
    """Create hosts: one reports, and the others are copies of its rows."""
    migration.sync(db.engine)
    hosts.store(db, report_obj.HostReport(
        host='h0', node='h0', node_uuid=str(uuid.uuid4()),
        functions=tuple(
            pci.PCIFunction(
                id=f'/devices/pci0000:00/{gpu:02x}.0',
                address=f'0000:{gpu:02x}:00.0', vendor='10de',
                device='2330' if gpu % 2 else '20b5', nvswitches=0)
            for gpu in range(_GPUS))))
    host_table, device_table = (
        migration.METADATA.tables[name] for name in ('hosts', 'devices'))
    with db.engine.begin() as connection:
        host = _row(connection, host_table)[0]
        devices = _row(connection, device_table)
        ids = range(host['id'] + 1, host['id'] + count)
        connection.execute(host_table.insert(), [{
            **host, 'id': host_id, 'name': f'h{host_id - host["id"]}',
            'node_uuid': str(uuid.uuid4())} for host_id in ids])
        connection.execute(device_table.insert(), [{
            **{name: value for name, value in device.items()
               if name != 'id'},
            'host_id': host_id, 'uuid': str(uuid.uuid4())}
            for host_id in ids for device in devices])


def _row(connection: sa.Connection,
         table: sa.Table) -> list[dict[str, object]]:
    return [dict(row) for row in
            connection.execute(sa.select(table)).mappings()]


class _Claimer(threading.Thread):
    """Claims one GPU on one host after the other until it is stopped.

    :ivar seconds: how long each claim took
    """

    def __init__(self, db: api.Database, number: int, count: int,
                 over: threading.Event) -> None:
        super().__init__()
        self._db, self._over = db, over
        self._number, self._count = number, count
        self.seconds: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        number = self._number
        while not self._over.is_set():
            number += THREADS
            began = time.perf_counter()
            try:
                claims.claim(self._db, claim_obj.ClaimRequest(
                    **tenant.TENANT,
                    instance_uuid=str(uuid.uuid4()),
                    host=f'h{number * 7 % self._count}',
                    request=request.Request(demands=(request.Demand(
                        resource_class=naming.resource_class('OLD'),
                        count=1),))), lease=600)
            except exception.ClaimDenied as exc:
                # All GPUs of the host are assigned.
                if exc.reason != request.Reason.NOT_ENOUGH_AVAILABLE:
                    self.errors.append(str(exc))
            self.seconds.append(time.perf_counter() - began)


def run(count: int = HOSTS) -> report.Result:
    """Measure the longest claim, and the cost of a variant for each host."""
    with bench_claims.database(services.POSTGRESQL) as url:
        db = api.Database(race.configuration(race.Setting(
            database=url, transport='fake:/')), url)
        try:
            return _run(db, count)
        finally:
            db.engine.dispose()


def _run(db: api.Database, count: int) -> report.Result:
    _set_up(db, count)
    variant_admin.create(db, _OLD)
    over = threading.Event()
    claimers = [_Claimer(db, number, count, over)
                for number in range(THREADS)]
    for claimer in claimers:
        claimer.start()
    began, cpu_began = time.perf_counter(), time.thread_time()
    try:
        created = variant_admin.create(db, _NEW)
        passed = time.perf_counter() - began
        cpu = time.thread_time() - cpu_began
    finally:
        over.set()
        for claimer in claimers:
            claimer.join()
    seconds = [value for claimer in claimers for value in claimer.seconds]
    wrong = [error for claimer in claimers for error in claimer.errors[:3]]
    if created.devices != count * _GPUS // 2 or created.status != 'ready':
        wrong.append(f'{created.devices} devices of {count} hosts have the '
                     f'variant, and its status is {created.status}')
    return report.Result(name='variants', wrong=tuple(wrong), rows=(
        report.Row(
            what='longest claim beside variant create', unit='s',
            ours=max(seconds), goal=report.Goal(at_most=2),
            note=f'{len(seconds)} claims of {THREADS} threads on {count} '
                 f'hosts'),
        report.Row(
            what='variant create, CPU per host', unit='ms',
            ours=1e3 * cpu / count,
            note=f'{passed:.1f} s in all, beside the claims')))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(prog='python -m bench.variants')
    parser.add_argument('hosts', type=int, nargs='?', default=HOSTS)
    print(report.table([run(parser.parse_args().hosts)]))
