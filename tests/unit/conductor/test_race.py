# SPDX-License-Identifier: Apache-2.0
"""Test of 64 concurrent claimers in one process on SQLite."""

from oslotest import base

from bench import race
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import hardware


class SQLiteRaceTest(base.BaseTestCase):

    def race(self, **kwargs):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        made = self.useFixture(database.Database(conf, sync=False))
        return race.run(race.Setting(
            database=made.connection, transport='fake:/', **kwargs))

    def test_whole_gpus_and_vgpus(self):
        self.shared('same_type')

    def test_mixed_sizes(self):
        self.shared('any_mix')

    def shared(self, rule):
        outcome = self.race(hosts=2, devices=3, mixed=True, mix_policy=rule)
        self.assertEqual(((), 0, 0), (
            outcome.errors, outcome.doubles, outcome.lost))
        self.assertEqual(6, len(outcome.assigned))
        self.assertEqual([], hardware.refused(
            self, 'nvidia-t4-2', outcome.assigned.values(), rule))
        # What was refused did not fit.
        self.assertEqual({0}, set(outcome.left.values()))

    def test_64_claimers(self):
        outcome = self.race(hosts=10)
        self.assertEqual((), outcome.errors)
        self.assertEqual((80, 0, 0), (
            outcome.granted, outcome.doubles, outcome.lost))
