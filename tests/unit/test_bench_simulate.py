# SPDX-License-Identifier: Apache-2.0
"""Tests of the comparison of policies: its workloads and its goals."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import fixtures
from oslotest import base

from bench import departures
from bench import simulate
from bench import workloads
from gpgpu_plugin.domain import weighing

GOOD = {('default', 'random'): (87.5, 86), ('default', 'best-fit'): (93, 92),
        ('default', 'fgd'): (95.4, 94.9), ('default', 'pack'): (96.2, 95),
        ('default', 'pack, mix learnt'): (96, 95),
        ('gpuspec33', 'fgd'): (94.6, 84), ('gpuspec33', 'pack'): (96, 88),
        ('gpuspec33', 'pack, mix learnt'): (95.8, 86)}


def run(workload, policy, allocated=90.0, at95=90.0, seed=42, curve=None):
    return simulate.Run(
        workload=workload, policy=policy, seed=seed, refused=1,
        allocated_percent=allocated, at95=at95, decisions_per_second=1000,
        curve=curve or {95: at95})


def missed(slack=0.0, **changes):
    """Return goals missed if some figures are other ones."""
    found = GOOD | {tuple(name.split('__')): figures
                    for name, figures in changes.items()}
    return list(simulate.missed(simulate.Figures(
        [run(*case, *figures) for case, figures in found.items()]), slack))


def beside_fgd(pack, learnt=None):
    """Return the figures of one more workload."""
    return {'other__fgd': (96, 95), 'other__pack': pack,
            'other__pack, mix learnt': learnt or pack}


def departed(rule, accepted, broken=0, what='links'):
    return departures.Run(what=what, rule=rule, seed=1, broken=broken,
                          accepted_percent=accepted)


class GoalsTest(base.BaseTestCase):

    def test_good_figures_miss_nothing(self) -> None:
        self.assertEqual([], missed())

    def test_each_goal_can_be_missed(self) -> None:
        for changes, word in (
                ({'default__random': (88.1, 87)}, 'published'),
                ({'default__pack': (96.05, 95)}, 'default: pack 96.05'),
                ({'default__pack': (96.2, 94.8)}, 'pack at 95'),
                ({'gpuspec33__pack': (95.5, 88)}, 'gpuspec33: pack 95.50'),
                (beside_fgd(pack=(96.5, 95)),
                 'other: pack beside fgd 96.50, less than 96.60'),
                (beside_fgd(pack=(97, 94.6)), 'other: pack beside fgd at 95'),
                (beside_fgd(pack=(97, 95), learnt=(96.6, 95)),
                 'other: mix learnt 96.60, less than 96.70')):
            found = missed(**changes)
            self.assertTrue(any(word in goal for goal in found),
                            (word, found))

    def test_learnt_mix_and_slack(self) -> None:
        figures = {'gpuspec33__pack': (96.5, 88)}
        self.assertEqual(1, len(missed(**figures)))
        self.assertEqual([], missed(slack=.5, **figures))
        for learnt, count in ((95.8, 0), (95.6, 1)):
            self.assertEqual(count, len(missed(slack=.5, **beside_fgd(
                pack=(97, 95), learnt=(learnt, 95)))))

    def test_departures(self) -> None:
        bound = departed('no fragmentation', 96.0)
        for runs, count in (
                ([bound, departed('linked', 94.1)], 0),
                ([bound, departed('linked', 93.9)], 1),
                ([bound, departed('linked', 95.0, broken=1)], 1),
                ([bound, departed('pack', 80.0, broken=9)], 0),
                ([departed('no fragmentation', 99.9, what='vGPUs'),
                  departed('started', 97.95, what='vGPUs')], 1),
                ([departed('no fragmentation', 99.9, what='vGPUs'),
                  departed('started', 98.0, what='vGPUs')], 0)):
            self.assertEqual(count, len(list(departures.missed(runs, 0.0))),
                             runs)


class FiguresTest(base.BaseTestCase):

    def test_mean_and_curve_are_of_all_seeds(self) -> None:
        figures = simulate.Figures([
            run('default', 'fgd', 90.0, curve={10: 8.0, 11: 9.0}),
            run('default', 'fgd', 92.0, seed=43, curve={10: 10.0})])
        self.assertEqual(91.0, figures.mean('default', 'fgd'))
        self.assertEqual({10: 9.0}, figures.curve('default', 'fgd'))
        self.assertIn('91.00', simulate.table(figures))


class RunTest(base.BaseTestCase):

    def test_lists_have_more_seeds_than_workloads(self) -> None:
        self.assertEqual([10, 10, 5], [
            len(simulate.FULL.seeds_of(name))
            for name in (*simulate.LISTS, 'more-vcpus')])
        self.assertEqual([42, 43], list(
            simulate.REDUCED.seeds_of('more-vcpus')))

    def test_rows_of_a_small_cloud(self) -> None:
        size = dataclasses.replace(simulate.REDUCED, part=20, seeds=(1, 2))
        for found, seed in zip(simulate.measure(size, 'default', 'best-fit'),
                               (1, 2), strict=True):
            self.assertEqual(seed, found.seed)
            self.assertTrue(80 < found.at95 <= found.allocated_percent <= 100)
            self.assertGreater(found.decisions_per_second, 0)

    def test_json_has_a_row_for_each_run(self) -> None:
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'json')
        simulate.write_json(path, [run('default', 'fgd')],
                            [departed('linked', 94.0)])
        found = json.loads(path.read_text())
        self.assertEqual(
            [{'workload': 'default', 'policy': 'fgd', 'seed': 42,
              'allocated_percent': 90.0, 'at95': 90.0, 'refused': 1,
              'decisions_per_second': 1000}], found['trace'])
        self.assertEqual('linked', found['departures'][0]['rule'])


class WorkloadsTest(base.BaseTestCase):

    def test_each_can_be_placed_and_differs_from_the_list(self) -> None:
        requests = simulate.requests_of('default')
        seen = {(tuple(simulate.hosts_of('default')), tuple(requests))}
        for name, make in workloads.WORKLOADS.items():
            made = make(requests)
            self.assertEqual(made, make(requests), name)
            key = tuple(simulate.hosts_of(name)), tuple(made)
            self.assertNotIn(key, seen)
            seen.add(key)
            for request in made:
                self.assertTrue(
                    request.units == (weighing.WHOLE if request.gpus > 1
                                      else request.units)
                    and 0 <= request.units <= weighing.WHOLE
                    and bool(request.units) == bool(request.gpus)
                    and request.gpus <= 8, (name, request))
