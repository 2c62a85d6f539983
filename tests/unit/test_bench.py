# SPDX-License-Identifier: Apache-2.0
"""Tests of the table and the JSON of benchmarks."""

import functools
import json
import pathlib
import re

import fixtures
from oslotest import base

from bench import __main__ as main
from bench import boots
from bench import report

SLOW = report.Row(what='claims', unit='1/s', ours=50.0, peer=10.0,
                  goal=report.Goal(at_least=10, ratio=True), note='peer: x')
FAST = report.Row(what='p99', unit='ms', ours=1234.5, limit=1000.0,
                  goal=report.Goal(at_most=2000))
BARE = report.Row(what='bytes', unit='B', ours=7.0)


class GoalTest(base.BaseTestCase):

    def test_goal_is_of_the_figure_or_of_its_ratio(self):
        self.assertEqual((5, False), (SLOW.ratio, SLOW.met))
        self.assertEqual((1.2345, True), (FAST.ratio, FAST.met))
        self.assertEqual((None, None), (BARE.ratio, BARE.met))

    def test_limit_itself_meets_the_goal(self):
        for goal in (report.Goal(at_most=7), report.Goal(at_least=7)):
            self.assertTrue(goal.is_met(BARE))

    def test_ratio_without_a_peer_is_not_judged(self):
        self.assertIsNone(report.Goal(at_most=1, ratio=True).is_met(BARE))


class OutputTest(base.BaseTestCase):

    results = (report.Result(name='race', rows=(SLOW, FAST)),
               report.Result(name='size', rows=(BARE,)))

    def test_table_has_a_line_for_each_row(self):
        self.assertEqual([
            ['benchmark', 'what', 'unit', 'peer', 'ours', 'ratio', 'limit',
             'goal', 'met', 'note'],
            ['race', 'claims', '1/s', '10', '50', '5', '-', '>=', '10', 'x',
             'NO', 'peer:', 'x'],
            ['race', 'p99', 'ms', '-', '1234', '1.23', '1000', '<=', '2000',
             'yes'],
            ['size', 'bytes', 'B', '-', '7', '-', '-', '-', '-']],
            [line.split() for line in report.table(
                self.results).splitlines()])

    def test_json_is_a_list_of_rows(self):
        path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'bench.json')
        report.write_json(self.results, path)
        slow, fast, bare = json.loads(path.read_text())
        self.assertEqual(
            {'benchmark': 'race', 'what': 'claims', 'unit': '1/s',
             'peer': 10, 'ours': 50, 'ratio': 5, 'limit': None,
             'goal': '>= 10 x', 'met': False, 'note': 'peer: x'}, slow)
        self.assertEqual((1000, True), (fast['limit'], fast['met']))
        self.assertEqual((None, None), (bare['goal'], bare['met']))


class MainTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.out = self.useFixture(fixtures.StringStream('out')).stream
        for name in ('stdout', 'stderr'):
            self.useFixture(fixtures.MonkeyPatch(f'sys.{name}', self.out))
        self.ran = []
        benchmarks = {name: functools.partial(self.measure, name)
                      for name in ('lists', 'reports', 'scan')}
        self.useFixture(fixtures.MonkeyPatch(
            'bench.__main__.BENCHMARKS', benchmarks))

    def measure(self, name):
        self.ran.append(name)
        if name == 'reports':
            raise ValueError('broken')
        return report.Result(name=name, rows=(BARE,))

    def printed(self):
        self.out.seek(0)
        return self.out.read()

    def test_failed_benchmark_loses_no_results_of_those_before(self):
        self.useFixture(fixtures.MonkeyPatch(
            'bench.__main__._is_there', lambda need: True))
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'json')
        self.assertRaises(ValueError, main.main, ['--json', str(path)])
        self.assertEqual(['lists'], [
            row['benchmark'] for row in json.loads(path.read_text())])
        self.assertIn('lists', self.printed())

    def test_nothing_is_measured_if_something_is_missing(self):
        self.useFixture(fixtures.MonkeyPatch(
            'bench.__main__._NEEDS', {'scan': ('no-such-program',)}))
        self.assertRaises(SystemExit, main.main, [])
        self.assertEqual([], self.ran)
        self.assertIn('no-such-program', self.printed())


class BootsTest(base.BaseTestCase):
    """The clouds themselves: tests/functional/test_boots.py."""

    @staticmethod
    def figures(one_by_one, at_once):
        return {mode: {'servers': 16, 'active': active, 'cpu': 0.5}
                for mode, active in zip(
                    boots.MODES, (one_by_one, at_once), strict=True)}

    def test_peers_may_refuse_servers(self):
        result = boots.result(
            self.figures(16, 16), {'x': self.figures(16, 4)})
        self.assertEqual((), result.wrong)
        self.assertEqual(
            [(16, 16, 'peer: x, which refused 0'), (500, 500, 'peer: x'),
             (16, 4, 'peer: x, which refused 12'), (500, 500, 'peer: x')],
            [(row.ours, row.peer, row.note) for row in result.rows])

    def test_server_that_the_plugin_refuses_is_wrong(self):
        result = boots.result(self.figures(16, 15), {})
        self.assertEqual(
            ('1 of 16 servers were refused, at once',), result.wrong)


class NamesTest(base.BaseTestCase):

    def test_every_benchmark_is_documented(self):
        root = pathlib.Path(report.__file__).parents[1]
        main = (root / 'bench' / '__main__.py').read_text()
        names = re.findall(r"'([a-z-]+)': [a-z]+\.run", main)
        self.assertIn('candidates-quick', names)
        page = (root / 'doc/source/contributor/benchmarks.rst').read_text()
        self.assertEqual([], [name for name in names
                              if f'``{name}``' not in page])
