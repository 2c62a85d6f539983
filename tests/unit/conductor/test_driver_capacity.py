# SPDX-License-Identifier: Apache-2.0
"""Tests of driver reports: the capacity they leave, and which counts."""

import dataclasses
import uuid

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.domain import vgpu
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

GPUS = vgpu_base.GPUS
TYPES = vgpu_base.TYPES


class DriverCapacityTest(vgpu_base.VGPUTestCase):
    """Tests of drivers that create fewer vGPUs than the sizes allow."""

    def driver(self, gpu, *existing, sampled_at=('', 0), **available):
        """Return a driver's report; ``Q4=2``: two more T4-4Q."""
        return {gpu.id: vgpu.DriverCapacity(
            existing=existing, sampled_at=sampled_at, available={
                f'T4-{name[1:]}Q': count
                for name, count in available.items()})}

    def report(self, reported, gpus=GPUS):
        return hosts.store(self.db, base.scan(
            dataclasses.replace(gpu, driver_capacity=reported.get(gpu.id))
            for gpu in gpus))

    def test_capacity_is_no_more_than_the_driver_reports(self):
        self.report(self.driver(GPUS[0], Q1=15, Q4=3))
        self.assertEqual({'passthrough': 2, '1Q': 31, '4Q': 7, '16Q': 1},
                         self.remaining())
        # A gpu with nothing on it is as large as its driver says.
        self.assertEqual({'CUSTOM_GPU_T4': (2, 0), '1Q': (31, 0),
                          '4Q': (7, 0), '16Q': (2, 1)},
                         self.offered_to_placement(self.report(
                             self.driver(GPUS[0], Q1=15, Q4=3))))

    def test_report_after_each_change_replaces_the_last(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        self.assertEqual(7, self.remaining()['4Q'])
        claims.activate(self.db, [mine], self.driver(GPUS[0], mine, Q4=1))
        self.assertEqual(5, self.remaining()['4Q'])
        # What was claimed since then is no news to it.
        other = self.ask('i2', Q4=1)
        self.assertEqual(4, self.remaining()['4Q'])
        releases.abort(self.db, base.uuids(other), touched=False, fault=None,
                     driver_capacities=self.driver(GPUS[0], mine, Q4=0))
        self.assertEqual(4, self.remaining()['4Q'])
        releases.release(self.db, [mine])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
        cleaning.finished(
            self.db, task.device_uuid, task.token, task.steps,
            cleaned.results(task.steps),
            driver_capacities=self.driver(GPUS[0], Q1=14, Q4=3, Q16=0))
        self.assertEqual({'passthrough': 2, '1Q': 30, '4Q': 7, '16Q': 1},
                         self.remaining())

    def test_report_without_number_counts_as_one(self):
        self.report(self.driver(GPUS[0], Q4=None))
        self.assertEqual({'passthrough': 2, '1Q': 16, '4Q': 8, '16Q': 1},
                         self.remaining())
        self.ask(Q4=2)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 6, '16Q': 1},
                         self.remaining())

    def test_report_holds_until_the_next_one(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        claims.activate(self.db, [mine], self.driver(
            GPUS[0], mine, Q4=None))
        self.assertEqual(16, self.remaining()['1Q'])
        # Its driver could not be read after the cleaning.
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 16, '4Q': 8, '16Q': 1},
                         self.remaining())
        again = base.uuids(self.ask('i3', Q4=1))
        claims.activate(self.db, again, self.driver(
            GPUS[0], f'{GPUS[0].id}/mdev7', Q4=0))
        self.assertEqual(4, self.remaining()['4Q'])
        self.report(self.driver(GPUS[0], *again, Q4=3), [
            dataclasses.replace(GPUS[0], existing_vgpus=again), GPUS[1]])
        self.assertEqual(7, self.remaining()['4Q'])

    def test_scan_without_report_keeps_the_last(self):
        self.report(self.driver(GPUS[0], Q4=1))
        self.assertEqual(5, self.remaining()['4Q'])
        self.report({})
        self.assertEqual(5, self.remaining()['4Q'])

    def test_same_report_again_writes_nothing(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        reported = self.driver(GPUS[0], mine, Q4=1)
        first = claims.activate(self.db, [mine], reported)
        self.assertEqual(first, claims.activate(self.db, [mine], reported))
        with self.statements() as found:
            self.report(
                reported,
                [
                    dataclasses.replace(GPUS[0], existing_vgpus=(mine,)),
                    GPUS[1],
                ],
            )
        self.assertFalse(
            [statement for statement in found
             if statement.startswith('UPDATE')
             and 'hosts' not in statement], found)

    def test_older_report_that_arrives_later_is_ignored(self):
        [first], [second] = (
            base.uuids(self.ask(name, Q1=1)) for name in ('i1', 'i2'))
        claims.activate(self.db, [second], self.driver(
            GPUS[0], first, second, sampled_at=('a', 3), Q1=3))
        for _ in range(2):
            self.assertEqual(19, self.remaining()['1Q'])
            claims.activate(self.db, [first], self.driver(
                GPUS[0], first, sampled_at=('a', 2), Q1=9))
        alone = [
            dataclasses.replace(GPUS[0], existing_vgpus=(second,)),
            GPUS[1],
        ]
        self.report(
            self.driver(GPUS[0], second, sampled_at=('a', 1), Q1=9), alone
        )
        self.assertEqual(19, self.remaining()['1Q'])
        releases.release(self.db, [first])
        self.clean_all()
        self.report(
            self.driver(GPUS[0], second, sampled_at=('a', 4), Q1=9), alone
        )
        self.assertEqual(25, self.remaining()['1Q'])

    def test_late_report_of_a_vgpu_that_is_gone_is_ignored(self):
        [first], [second] = (
            base.uuids(self.ask(name, Q4=1)) for name in ('i1', 'i2'))
        claims.activate(self.db, [first], self.driver(
            GPUS[0], first, sampled_at=('a', 1), Q4=1))
        releases.release(self.db, [first])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
        cleaning.finished(
            self.db,
            task.device_uuid,
            task.token,
            task.steps,
            cleaned.results(task.steps),
            driver_capacities=self.driver(
                GPUS[0], second, sampled_at=('a', 3), Q4=0
            ),
        )
        self.assertEqual(4, self.remaining()['4Q'])
        claims.activate(self.db, [second], self.driver(
            GPUS[0], first, second, sampled_at=('a', 2), Q4=0))
        self.assertEqual(4, self.remaining()['4Q'])

    def test_late_report_of_a_row_that_is_used_again_is_ignored(self):
        [first] = base.uuids(self.ask(Q16=1))
        claims.activate(self.db, [first], self.driver(
            GPUS[0], first, sampled_at=('a', 1)))
        releases.release(self.db, [first])
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
        cleaning.finished(
            self.db,
            task.device_uuid,
            task.token,
            task.steps,
            cleaned.results(task.steps),
            driver_capacities=self.driver(
                GPUS[0], sampled_at=('a', 3), Q1=12, Q4=3
            ),
        )
        mine = base.uuids(self.ask('i2', Q4=1))
        self.report(self.driver(GPUS[0], first, sampled_at=('a', 2)), [
            dataclasses.replace(GPUS[0], existing_vgpus=(first,)), GPUS[1]])
        self.assertEqual(6, self.remaining()['4Q'])
        claims.activate(self.db, mine, self.driver(
            GPUS[0], *mine, sampled_at=('a', 4), Q4=2))
        self.assertEqual(6, self.remaining()['4Q'])

    def test_report_of_another_start_of_the_host_is_newer(self):
        self.report(self.driver(GPUS[0], sampled_at=('a', 9), Q4=1))
        self.report(self.driver(GPUS[0], sampled_at=('b', 1), Q4=3))
        self.assertEqual(7, self.remaining()['4Q'])

    def test_later_sample_of_the_same_report_changes_no_generation(self):
        mine = base.uuids(self.ask(Q4=1))
        first = claims.activate(
            self.db,
            mine,
            self.driver(GPUS[0], *mine, sampled_at=('a', 1), Q4=1),
        )
        again = self.driver(GPUS[0], *mine, sampled_at=('a', 3), Q4=1)
        self.assertEqual(first, claims.activate(self.db, mine, again))
        with self.statements() as found:
            self.report(
                self.driver(GPUS[0], *mine, sampled_at=('a', 4), Q4=1),
                [dataclasses.replace(GPUS[0], existing_vgpus=mine), GPUS[1]])
        self.assertFalse(
            [statement for statement in found
             if statement.startswith('UPDATE')
             and 'hosts' not in statement], found)
        # It is known all the same, so that what was said before is late.
        claims.activate(self.db, mine, self.driver(
            GPUS[0], *mine, sampled_at=('a', 2), Q4=3))
        self.assertEqual(5, self.remaining()['4Q'])

    def test_report_that_differs_changes_the_generation(self):
        mine = base.uuids(self.ask(Q4=1))
        first, second = (
            claims.activate(self.db, mine, self.driver(
                GPUS[0], *mine, sampled_at=('a', number), Q4=number))
            for number in (1, 2))
        self.assertGreater(second.generation, first.generation)

    def test_gpu_that_is_full_shows_the_observed_maximum(self):
        claim = self.ask(Q4=3)
        mine = base.uuids(claim)
        claims.activate(self.db, mine, self.driver(GPUS[0], *mine))
        self.assertEqual(4, self.remaining()['4Q'])
        self.end(claim)
        # On an empty gpu it makes more than none.
        reported = self.driver(GPUS[0], Q1=None, Q4=None, Q16=None)
        self.report(reported)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 7, '16Q': 2},
                         self.remaining())
        [kind] = [info for info in group.list_types(self.db)
                  if info.vgpu_type == 'T4-4Q']
        self.assertEqual((4, 7), (kind.max_vgpu_per_pgpu, kind.max_capacity))
        # Another driver makes more; beside others it proves nothing.
        [*mine] = base.uuids(self.ask('i2', Q4=3))
        claims.activate(self.db, mine, self.driver(GPUS[0], *mine, Q4=None))
        self.assertEqual(5, self.remaining()['4Q'])

    def test_gpu_that_is_full_beside_foreign_mdevs_shows_no_maximum(self):
        one = base.uuids(self.ask(Q4=1))
        foreign = str(uuid.uuid4())
        claims.activate(self.db, one, self.driver(GPUS[0], *one, foreign))
        self.report(self.driver(GPUS[0], Q4=None))
        self.assertEqual({'T4-4Q': 8}, {
            info.vgpu_type: info.max_capacity
            for info in group.list_types(self.db)
            if info.vgpu_type == 'T4-4Q'})

    def test_report_beside_foreign_mdevs_counts(self):
        foreign = str(uuid.uuid4())
        self.report(
            self.driver(GPUS[0], foreign, Q4=2),
            [
                dataclasses.replace(GPUS[0], existing_vgpus=(foreign,)),
                GPUS[1],
            ],
        )
        self.assertEqual(4, self.remaining()['4Q'])

    def test_claim_that_the_drivers_alone_refuse_has_its_own_reason(self):
        self.report(self.driver(GPUS[0], Q1=None) | self.driver(GPUS[1]))
        self.assertIn('8 would fit by size, but the drivers of the '
                      'GPUs report no more',
                      self.denied('driver_has_no_room', Q4=1))
        self.ask(Q1=1)
        self.assertIn('4 would fit by size,',
                      self.denied('driver_has_no_room', Q4=1))
        self.denied('not_enough_available', Q4=9)

    def test_claim_beside_another_type_is_refused_by_the_policy(self):
        self.report(self.driver(GPUS[0], Q1=16, Q4=4, Q16=1))
        self.ask(Q4=1)
        self.assertIn('vGPUs of type T4-4Q', self.denied(
            'type_conflict', Q16=2))
