#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""CPU time of a report, as all hosts send one when they restart.

The report has nothing new. It is stored in this process, without the broker.
"""

from __future__ import annotations

import time

from bench import claims
from bench import race
from bench import report
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import api
from tests.fixtures import services

REPORTS = 200


def run() -> report.Result:
    """Measure an unchanged report; one that changes the host is wrong."""
    with claims.database(services.POSTGRESQL) as url:
        setting = race.Setting(
            database=url, transport='fake:/', hosts=1, mixed=True)
        db = race.set_up(setting)
        try:
            return _run(db, setting)
        finally:
            db.engine.dispose()


def _run(db: api.Database, setting: race.Setting) -> report.Result:
    name = 'h0'
    scan = race.scan(setting, name)
    reports.report(db, scan)
    before = host_admin.show(db, name)
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(REPORTS):
        reports.report(db, scan)
    cpu, passed = (time.process_time() - cpu_began,
                   time.perf_counter() - began)
    wrong = [] if host_admin.show(db, name).generation == before.generation \
        else ['an unchanged report changed its host']
    return report.Result(name='reports', wrong=tuple(wrong), rows=(
        report.Row(
            what=f'unchanged report of {setting.devices} GPUs, CPU',
            unit='ms', ours=1e3 * cpu / REPORTS,
            goal=report.Goal(at_most=0.5)),
        report.Row(
            what=f'unchanged report of {setting.devices} GPUs', unit='ms',
            ours=1e3 * passed / REPORTS)))
