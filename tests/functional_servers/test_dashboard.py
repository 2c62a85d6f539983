# SPDX-License-Identifier: Apache-2.0
"""The dashboard, drawn from what a real Prometheus answers.

``tox -e picture`` sets ``GPGPU_DASHBOARD_PAGE``, the file that the page is
written to, and has the cloud work for longer.
"""

import html
import os
import pathlib
import random
import time
from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin.objects import admin
from tests.fixtures import dashboard_page
from tests.fixtures import monitoring_files
from tests.fixtures import patience
from tests.functional_servers import test_metrics
from tests.unit.conductor import base

SECONDS = int(os.environ.get('GPGPU_DASHBOARD_SECONDS', 5))
INTERVAL = 15
RATES = tuple(f'rate(gpgpu_{name}_total[{INTERVAL}s])'
              for name in ('cleanings', 'claims_refused'))
L40S = tuple(base.function(number, device='26b9', subsystem='169d')
             for number in (8, 9))


class DashboardTest(test_metrics.PrometheusTestCase):

    def begin(self):
        super().begin()
        self.operator.variant_create(
            test_metrics.ADMIN, variant=admin.VariantInfo(
                name='L40S', vendor='10de', device='26b9'))
        self.report((*base.EIGHT, *L40S), 2, degraded=L40S[:1])
        self.clean_all()

    def work(self, is_seen: Callable[[], bool]):
        """Boot and delete instances, and clean what they had.

        :param is_seen: returns whether Prometheus has shown the rates. A busy
            machine may need longer than the window of a rate (INTERVAL), so
            that the work goes on until then, for at most patience.LONG
        """
        chance = random.Random(15)
        held: list[list[str]] = []
        number, enough = 0, time.monotonic() + SECONDS
        while (now := time.monotonic()) < enough + patience.LONG:
            if now > enough and is_seen():
                break
            number += 1
            self.scheduler.changes_since(
                test_metrics.ADMIN, since=0, known=(), marker=None)
            try:
                claimed = base.uuids(self.claim(
                    chance.choice((1, 1, 2, 4)), f'i{number}'))
            except exception.ClaimDenied:
                self.release(held.pop(0))
            else:
                self.host.activate(
                    test_metrics.ADMIN, origin=self.origin,
                    driver_capacities=None, assignments=claimed)
                held.append(claimed)
            if self.host.clean_tasks(test_metrics.ADMIN, host='h1'):
                self.clean(number != 12, seconds=chance.uniform(0.2, 1.2))
            time.sleep(chance.uniform(0.1, 0.8))

    def release(self, assignments):
        self.host.release(test_metrics.ADMIN, origin=self.origin,
                          assignments=assignments)

    def answers(self, prometheus, began):
        """Return what Prometheus answers to each query of the dashboard."""
        found, now = {}, time.time()
        for panel in monitoring_files.dashboard()['panels']:
            for target in panel['targets']:
                query = monitoring_files.replaced(
                    target['expr'], f'{INTERVAL}s')
                found[target['expr']] = (
                    prometheus.query(query) if target['instant'] else
                    prometheus.ask(
                        'query_range', query=query, start=str(began),
                        end=str(now), step=str(dashboard_page.STEP),
                    )['result'])
        return found

    def test_each_panel_shows_what_prometheus_answers(self):
        self.begin()
        prometheus = self.useFixture(test_metrics.Prometheus(self.port))
        began = time.time()
        unseen = set(RATES)

        def is_seen() -> bool:
            unseen.difference_update(
                [rate for rate in unseen if prometheus.query(f'{rate} > 0')])
            return not unseen
        self.work(is_seen)
        self.assertEqual(set(), unseen)
        # One GPU is gone.
        self.report((*base.EIGHT, L40S[0]), 3, degraded=L40S[:1])
        missing = 'gpgpu_devices{state="missing"} > 0'
        self.assertTrue(patience.wait_until(
            lambda: prometheus.query(missing)), missing)
        answers = self.answers(prometheus, began)
        page = dashboard_page.render(answers)
        drawn = page.split('<section')[1:]
        for panel, section in zip(
                monitoring_files.dashboard()['panels'], drawn, strict=True):
            self.assertIn(f'<h2>{html.escape(panel["title"])}</h2>', section)
            found = [answers[target['expr']] for target in panel['targets']]
            # Counters of errors that did not happen are 0, but shown.
            self.assertNotIn([], found, panel['title'])
            mark = {'stat': '<b>', 'table': '<tr><td>',
                    'timeseries': '<path'}[panel['type']]
            self.assertEqual(sum(map(len, found)), section.count(mark))
        self.assertIn('<td>missing</td>', page)
        if 'GPGPU_DASHBOARD_PAGE' in os.environ:
            pathlib.Path(os.environ['GPGPU_DASHBOARD_PAGE']).write_text(page)
