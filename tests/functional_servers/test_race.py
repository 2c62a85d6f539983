# SPDX-License-Identifier: Apache-2.0
"""64 claimers at once: no device twice, no claim lost, no other error."""

from oslotest import base

from bench import race
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import hardware
from tests.fixtures import services


class RaceMixin:

    server = ''

    def setUp(self):
        super().setUp()
        services.require(self, self.server, services.RABBITMQ)
        self.conf = self.useFixture(conductor_fixture.Conf()).conf

    def race(self, **kwargs):
        made = self.useFixture(database.ServerDatabase(
            self.conf, self.server, sync=False))
        return race.run(race.Setting(
            database=made.connection, transport=services.RABBITMQ,
            forked=True, **kwargs))

    def test_64_claimers_of_two_conductors_get_different_gpus(self):
        # The benchmark runs the same race for 25 hosts.
        outcome = self.race(hosts=8)
        self.assertEqual((), outcome.errors)
        self.assertEqual((64, 0, 0), (
            outcome.granted, outcome.doubles, outcome.lost))

    def test_64_claimers_of_whole_gpus_and_vgpus_get_what_fits(self):
        self.shared('same_type', hosts=3, devices=4)

    def test_64_claimers_of_mixed_sizes_get_what_fits(self):
        self.shared('any_mix', hosts=2, devices=3)

    def shared(self, rule, hosts, devices):
        outcome = self.race(
            hosts=hosts, devices=devices, mixed=True, mix_policy=rule)
        self.assertEqual(((), 0, 0), (
            outcome.errors, outcome.doubles, outcome.lost))
        self.assertEqual(hosts * devices, len(outcome.assigned))
        self.assertEqual([], hardware.refused(
            self, 'nvidia-t4-2', outcome.assigned.values(), rule))
        # What was refused did not fit.
        self.assertEqual({0}, set(outcome.left.values()))

    def test_race_without_lock_and_key_assigns_twice(self):
        # What the other test passes by is really tested: without the lock,
        # the unique key and the compare-and-swap, devices have two owners.
        for _ in range(3):
            outcome = self.race(hosts=4, unsafe=True)
            if outcome.doubles:
                break
        self.assertGreater(outcome.doubles, 0)


class PostgreSQLRaceTest(RaceMixin, base.BaseTestCase):

    server = services.POSTGRESQL


class MariaDBRaceTest(RaceMixin, base.BaseTestCase):

    server = services.MARIADB
