# SPDX-License-Identifier: Apache-2.0
"""The schedulers' feed: a first view, and a change on a busy host.

One conductor is a process of its own, on PostgreSQL and RabbitMQ; the
scheduler is this process. ``python -m bench.feed`` measures a cloud of 10,000
hosts with 8 GPUs that can have vGPUs, ``python -m bench feed`` one of 1,000
hosts.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import re
import sys
import threading
import time
import uuid
from collections.abc import Sequence

from bench import claims
from bench import cloud
from bench import race
from bench import report
from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.fixtures import hosts as hosts_fixture
from tests.fixtures import services
from tests.fixtures import tenant

_GOAL_SECONDS = 5
_GOAL_MIB = 500


class _Calls:
    """The calls of a scheduler, whose bytes are counted."""

    def __init__(self, calls: conductor_client.ConductorAPI) -> None:
        self._calls = calls
        self.bytes = 0
        self.count = 0

    def changes_since(self, *arguments: object) -> scheduling.Changes:
        changes: scheduling.Changes = self._calls.changes_since(*arguments)
        self.bytes += len(changes.packed)
        self.count += 1
        return changes


class _Conductor:
    """A conductor in a process of its own."""

    def __init__(self, setting: race.Setting) -> None:
        context = multiprocessing.get_context('spawn')
        self._end, self._stop = context.Pipe(duplex=False)
        ready = context.Event()
        self.process = context.Process(
            target=race.conduct, args=(setting, ready, self._end))
        self.process.start()
        if not ready.wait(60):
            raise RuntimeError('the conductor does not start')

    def mebibytes(self) -> float:
        """Return the most memory that it has had."""
        status = pathlib.Path(f'/proc/{self.process.pid}/status')
        found = re.search(r'VmHWM:\s+(\d+)', status.read_text('utf-8'))
        assert found is not None
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used."""
        stat = pathlib.Path(f'/proc/{self.process.pid}/stat').read_text(
            'utf-8').rpartition(')')[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf('SC_CLK_TCK')

    def stop(self) -> None:
        """End it."""
        self._stop.close()
        self.process.join()


def _scheduler(setting: race.Setting) -> tuple[
        _Calls, scheduler_view.SchedulerViewCache]:
    conf = race.configuration(setting)
    calls = _Calls(conductor_client.ConductorAPI(
        conf, rpc_transport.get_transport(conf)))
    return calls, scheduler_view.SchedulerViewCache(calls)


def _first_view(setting: race.Setting, conductor: _Conductor, name: str,
                ) -> tuple[list[report.Row],
                           scheduler_view.SchedulerViewCache]:
    calls, cache = _scheduler(setting)
    began, cpu = time.perf_counter(), conductor.cpu_seconds()
    view = cache.refresh()
    seconds = time.perf_counter() - began
    assert len(view.hosts) == setting.hosts
    return [report.Row(
        what=f'first view of {setting.hosts} hosts, {name}', unit='s',
        ours=seconds, goal=report.Goal(at_most=_GOAL_SECONDS),
        note=f'{calls.count} calls, {calls.bytes / 1e6:.2f} MB; conductor '
             f'{conductor.cpu_seconds() - cpu:.2f} CPU s')], cache


def _changes(cache: scheduler_view.SchedulerViewCache) -> report.Row:
    """Measure a call that finds nothing new."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        cache.refresh()
        times.append(time.perf_counter() - began)
    return report.Row(what='changes, none', unit='ms',
                      ours=1e3 * sorted(times)[len(times) // 2],
                      note='median of 20')


class _Claimers:
    """Threads that claim a GPU of one host and abort the claim."""

    def __init__(self, setting: race.Setting) -> None:
        conf = race.configuration(setting)
        self._calls = conductor_client.ConductorAPI(
            conf, rpc_transport.get_transport(conf))
        self._class = setting.classes[0]
        self._ended = threading.Event()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._run)
                         for _ in range(8)]

    def __enter__(self) -> _Claimers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        context = gpgpu_context.admin()
        origin = hosts_fixture.origin('h0', race.node_uuid('h0'))
        while not self._ended.is_set():
            try:
                granted = self._calls.claim(
                    context, origin, claim_obj.ClaimRequest(
                        **tenant.TENANT,
                        instance_uuid=str(uuid.uuid4()), host='h0',
                        request=request.Request(demands=(request.Demand(
                            resource_class=self._class, count=1),))))
                self._calls.abort(
                    context, origin,
                    [assignment.uuid for assignment in granted.assignments],
                    touched=False, fault=None, driver_capacities=None)
            except exception.GPUPluginException as exc:
                self.errors.append(str(exc)[:300])


def _busy(setting: race.Setting, db: api.Database,
          cache: scheduler_view.SchedulerViewCache,
          ) -> tuple[report.Row, list[str]]:
    """Measure how long a committed change stays unseen."""
    times, wrong = [], []
    node = race.node_uuid('h0')
    with _Claimers(setting) as claimers:
        for _ in range(30):
            with db.reader() as session:
                committed = host_db.get(session, 'h0').generation
            began = time.perf_counter()
            seen = cache.refresh().hosts[node].sent.version.generation
            times.append(time.perf_counter() - began)
            if seen < committed:
                wrong.append(f'generation {seen} seen of {committed}')
    with db.reader() as session:
        changes = host_db.get(session, 'h0').generation
    return report.Row(
        what='change under 8 claimers on its host, until seen', unit='ms',
        ours=1e3 * max(times), goal=report.Goal(at_most=1000),
        note=f'most of 30, after {changes} changes; when rows were locked, '
             'never'), wrong + claimers.errors[:3]


def measure(hosts: int) -> report.Result:
    """Measure a cloud of some hosts; a change that is not seen is wrong."""
    with claims.database(services.POSTGRESQL) as url:
        setting = race.Setting(
            database=url, transport=services.RABBITMQ, hosts=1, mixed=True)
        db = race.set_up(setting)
        cloud.grow(db, hosts)
        large = dataclasses.replace(setting, hosts=hosts)
        conductor = _Conductor(large)
        try:
            cold, _ = _first_view(large, conductor, 'cold')
            warm, cache = _first_view(large, conductor, 'warm')
            quiet = _changes(cache)
            busy, wrong = _busy(large, db, cache)
            memory = report.Row(
                what=f'memory of the conductor, {hosts} hosts', unit='MiB',
                ours=conductor.mebibytes(),
                goal=report.Goal(at_most=_GOAL_MIB))
        finally:
            conductor.stop()
            db.engine.dispose()
    return report.Result(
        name='feed', rows=(*cold, *warm, quiet, busy, memory),
        wrong=tuple(wrong))


def run() -> report.Result:
    """Measure a cloud of 1,000 hosts."""
    return measure(1000)


def main(arguments: Sequence[str]) -> None:
    """Print the table of one large cloud."""
    print(report.table([measure(int(arguments[0]) if arguments else 10000)]))


if __name__ == '__main__':
    main(sys.argv[1:])
