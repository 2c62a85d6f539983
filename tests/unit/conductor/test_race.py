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
"""64 claimers in one process on SQLite: the embedded default."""

from oslotest import base

from bench import race
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database


class SQLiteRaceTest(base.BaseTestCase):

    def test_64_claimers(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        made = self.useFixture(database.Database(conf, sync=False))
        outcome = race.run(race.Setting(
            database=made.connection, transport='fake:/', hosts=10))
        self.assertEqual((), outcome.errors)
        self.assertEqual((80, 0, 0), (
            outcome.granted, outcome.doubles, outcome.lost))
