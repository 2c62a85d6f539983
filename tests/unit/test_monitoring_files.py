# SPDX-License-Identifier: Apache-2.0
"""The metrics in the rules, the dashboard and the docs are the conductor's."""

import json
import re

import prometheus_client
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin.cmd import commands
from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import server
from tests.fixtures import dashboard_page
from tests.fixtures import metric_families
from tests.fixtures import monitoring_files
from tests.unit import test_meta

PAGE = 'admin/monitoring.rst'
PICTURE = 'doc/source/images/dashboard.png'


def shown():
    """Return the labels of each metric that a conductor shows."""
    counters, registry = metric_families.registry()
    counters.handled(server.Handled(
        method='claim', arguments={}, seconds=1, error=None))
    return {name: {label for sample in family.samples
                   for label in sample.labels} - {'le'}
            for name, family in metric_families.parsed(
                prometheus_client.generate_latest(registry)).items()}


def series():
    """Return the names of all series, which histograms have three of."""
    _, registry = metric_families.registry()
    found = set(shown())
    for name, family in metric_families.parsed(
            prometheus_client.generate_latest(registry)).items():
        if family.type == 'histogram':
            found |= {f'{name}_{part}' for part in ('bucket', 'sum', 'count')}
    return found


class DocumentationTest(base.BaseTestCase):

    def test_each_metric_is_in_the_tables_with_its_labels(self):
        rows = re.findall(
            r'^   \* - ``(gpgpu_\w+)``\n     -( .*)?\n     - \w',
            test_meta.doc(PAGE), re.MULTILINE)
        self.assertEqual(len(rows), len(dict(rows)))
        self.assertEqual(shown(), {
            name: set(re.findall(r'``(\w+)``', labels))
            for name, labels in rows})

    def test_values_of_labels_are_on_the_page(self):
        page = test_meta.doc(PAGE)
        for value in (metrics.OK, metrics.FAILED, metrics.OTHER,
                      *metrics.OUTCOMES, *metrics.VERDICTS, *api.Failure):
            self.assertIn(f'``{value}``', page)

    def test_numbers_on_the_page_are_those_of_the_code(self):
        page = ' '.join(test_meta.doc(PAGE).split())
        for words in (
                f'not again for {metrics.LIFETIME:.0f} seconds',
                f'within {metrics.PATIENCE:.0f} seconds',
                'for 15 minutes',
                f'disconnected after {metrics.SILENCE:.0f} seconds'):
            self.assertIn(words, page)

    def test_each_alert_has_a_section(self):
        sections = re.findall(
            r'^``(GPU\w+)``\n-+$', test_meta.doc(PAGE), re.MULTILINE)
        self.assertEqual(
            [rule['alert'] for rule in monitoring_files.alerts()], sections)


class AlertsTest(base.BaseTestCase):

    def test_each_alert_says_what_it_is_and_what_to_do(self):
        for rule in monitoring_files.alerts():
            notes = rule['annotations']
            self.assertEqual(
                {'summary', 'description', 'action', 'docs'}, notes.keys())
            self.assertEqual(
                f'admin/monitoring#{rule["alert"].lower()}', notes['docs'])
            self.assertIn(rule['labels']['severity'],
                          ('info', 'warning', 'critical'))

    def test_metrics_of_the_alerts_exist(self):
        used = {name for rule in monitoring_files.alerts()
                for name in monitoring_files.metrics(rule['expr'])}
        self.assertEqual(set(), used - series())
        self.assertGreater(len(used), 8)

    def test_commands_of_the_alerts_exist(self):
        known = {name for name, _ in commands.CommandManager('gpgpu-manage')}
        for rule in monitoring_files.alerts():
            for found in re.findall(
                    'gpgpu-manage ([a-z-]+ [a-z-]+)',
                    ' '.join(rule['annotations'].values())):
                self.assertIn(found, known)

    def test_host_is_silent_when_the_conductor_says_so(self):
        [rule] = [rule for rule in monitoring_files.alerts()
                  if rule['alert'] == 'GPUHostSilent']
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        self.assertTrue(rule['expr'].endswith(
            f'> {conf_gpgpu.silent_after(conf)}'))


def answers():
    """Return one series for each query of the dashboard."""
    return {target['expr']: [{
        'metric': {'state': 'missing', 'host': '<h1>'},
        **({'value': [0, '7']} if target['instant'] else
           {'values': [[0, '0.5'], [1, '0.25'], [9, 'NaN'], [10, '1250']]})}]
        for panel in monitoring_files.dashboard()['panels']
        for target in panel['targets']}


class DashboardPageTest(base.BaseTestCase):

    def test_each_panel_has_title_values_and_legend(self):
        sections = dashboard_page.render(answers()).split('<section')[1:]
        found = {re.search('<h2>(.+?)</h2>', section)[1]: section
                 for section in sections}
        self.assertEqual([panel['title'] for panel in
                          monitoring_files.dashboard()['panels']],
                         list(found))
        self.assertIn('<b>7</b>silent', found['Hosts'])
        self.assertIn('<td>missing</td><td>&lt;h1&gt;</td><td>7</td>',
                      found['GPUs that need an operator'])
        self.assertIn('missing: 1,250<', found['Devices by state'])
        self.assertIn('granted: 1,250 ops/s<', found['Claims'])
        self.assertIn('half: 1,250 s<', found['Duration of cleanings'])
        self.assertIn(' per hour: 1,250<', found['Cleanings'])

    def test_line_has_a_gap_where_no_value_is(self):
        page = dashboard_page.render(answers())
        self.assertEqual({'MLM'}, {
            re.sub('[^ML]', '', path)
            for path in re.findall(' d="(.+?)"', page)})

    def test_stacked_lines_are_on_top_of_each_other(self):
        one = dashboard_page.Line(legend='a', points={0: 2, 1: 3})
        two = dashboard_page.Line(legend='b', points={1: 4})
        self.assertEqual([{0: 2, 1: 3}, {1: 7}], [
            line.points for line in dashboard_page._stacked([one, two])])

    def test_numbers_have_the_units_of_the_panels(self):
        for unit, expected in (
                ('s', '50 ms'), ('percentunit', '5%'), ('ops', '0.05 ops/s'),
                ('short', '0.05')):
            self.assertEqual(expected, dashboard_page.number(0.05, unit))
        for panel in monitoring_files.dashboard()['panels']:
            dashboard_page.number(1, panel['fieldConfig']['defaults']['unit'])

    def test_picture_is_of_these_panels(self):
        """``tox -e picture`` makes another picture."""
        picture = (test_meta.TOP / PICTURE).read_bytes()
        place, texts = 8, {}
        while place < len(picture):
            size = int.from_bytes(picture[place:place + 4])
            if picture[place + 4:place + 8] == b'tEXt':
                name, _, text = picture[
                    place + 8:place + 8 + size].partition(b'\0')
                texts[name] = text
            place += size + 12
        self.assertEqual(dashboard_page.panels(),
                         json.loads(texts[b'Description']))
        self.assertLess(len(picture), 200_000)
        self.assertIn('../images/dashboard.png', test_meta.doc(PAGE))


class DashboardTest(base.BaseTestCase):

    def test_metrics_of_the_panels_exist(self):
        used = {name for _, expression in monitoring_files.queries()
                for name in monitoring_files.metrics(expression)}
        self.assertEqual(set(), used - series())

    def test_each_metric_that_is_no_detail_has_a_panel(self):
        used = {name.removesuffix('_bucket')
                for _, expression in monitoring_files.queries()
                for name in monitoring_files.metrics(expression)}
        # Alerts show these.
        self.assertEqual({'gpgpu_host_heard_timestamp_seconds',
                          'gpgpu_requests_refused_total',
                          'gpgpu_conductor_fit'}, shown().keys() - used)

    def test_dashboard_asks_for_its_data_source(self):
        found = monitoring_files.dashboard()
        [source, *_] = found['templating']['list']
        self.assertEqual(('datasource', 'datasource', 'prometheus'), (
            source['name'], source['type'], source['query']))
        for panel in found['panels']:
            for part in (panel, *panel['targets']):
                self.assertEqual('${datasource}', part['datasource']['uid'])

    def test_panels_do_not_overlap(self):
        places = [panel['gridPos']
                  for panel in monitoring_files.dashboard()['panels']]
        cells = [(place['x'] + x, place['y'] + y) for place in places
                 for x in range(place['w']) for y in range(place['h'])]
        self.assertEqual(len(cells), len(set(cells)))
        self.assertLessEqual(max(x for x, _ in cells), 23)

    def test_no_query_adds_up_what_all_conductors_show(self):
        # A gauge of the cloud is the same in each of them.
        for _, expression in (
                *monitoring_files.queries(), *(
                    (rule['alert'], rule['expr'])
                    for rule in monitoring_files.alerts())):
            for name in ('gpgpu_devices', 'gpgpu_max_capacity',
                         'gpgpu_remaining_capacity', 'gpgpu_hosts',
                         'gpgpu_silent_hosts', 'gpgpu_notifications_waiting',
                         'gpgpu_host_heard_timestamp_seconds'):
                for found in re.findall(
                        rf'(\w+)(?: by \([^)]*\))? ?\(\s*{name}\b',
                        expression):
                    self.assertIn(found, ('max', 'count'), expression)
