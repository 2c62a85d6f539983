# SPDX-License-Identifier: Apache-2.0
"""Lists of a cloud with 90,000 devices, on PostgreSQL.

They run in this process, page by page, without the broker. Before there were
pages, "device list" took 9.3 s and 61.6 MB in one message, and "--state
assigned" 8.7 s for no row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from collections.abc import Sequence

from bench import claims
from bench import cloud
from bench import race
from bench import report
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import pages
from tests.fixtures import services

HOSTS = 10000
DEVICES = 9

_List = Callable[[int, str | None], Sequence[pages.PageRow]]


def _rows(what: str, list_: _List, expected: int, goal: float,
          ) -> tuple[list[report.Row], list[str]]:
    """Measure a list, its slowest page and its largest message."""
    slowest, largest, count = 0.0, 0, 0
    marker: str | None = None
    began = time.perf_counter()
    while True:
        before = time.perf_counter()
        page = list_(pages.SIZE, marker)
        slowest = max(slowest, time.perf_counter() - before)
        largest = max(largest, len(json.dumps(codec.to_primitive(page))))
        count += len(page)
        if len(page) < pages.SIZE:
            break
        marker = page[-1].marker
    seconds = time.perf_counter() - began
    wrong = [] if count == expected else [
        f'{what} has {count} of {expected} rows']
    return [
        report.Row(what=f'{what}, {count} rows', unit='s', ours=seconds,
                   goal=report.Goal(at_most=goal)),
        report.Row(what=f'{what}, slowest page', unit='s', ours=slowest,
                   goal=report.Goal(at_most=1.0)),
        report.Row(what=f'{what}, largest message', unit='MB',
                   ours=largest / 1e6, goal=report.Goal(at_most=1.0)),
    ], wrong


def run() -> report.Result:
    """Measure all lists; a missing row is wrong."""
    rows: list[report.Row] = []
    wrong: list[str] = []
    with claims.database(services.POSTGRESQL) as url:
        db = race.set_up(race.Setting(
            database=url, transport='fake:/', hosts=1, devices=DEVICES))
        cloud.grow(db, HOSTS)
        for what, list_, expected, goal in (
                ('device list', lambda limit, marker: device_admin.list_all(
                    db, limit=limit, marker=marker), HOSTS * DEVICES, 9.3),
                ('device list --state assigned',
                 lambda limit, marker: device_admin.list_all(
                     db, state='assigned', limit=limit, marker=marker),
                 0, 1.0),
                ('host list', lambda limit, marker: host_admin.list_all(
                    db, limit, marker), HOSTS, 2.0),
                ('group list', lambda limit, marker: group_admin.list_all(
                    db, limit=limit, marker=marker), HOSTS, 15.0),
                ('vgpu-type list',
                 lambda limit, marker: group_admin.list_types(
                     db, limit=limit, marker=marker), HOSTS, 2.0)):
            of_list, missing = _rows(what, list_, expected, goal)
            rows += of_list
            wrong += missing
        db.engine.dispose()
    return report.Result(name='lists', rows=tuple(rows), wrong=tuple(wrong))
