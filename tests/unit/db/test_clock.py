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
"""Tests of the database's clock on SQLite."""

import datetime
import time

import sqlalchemy as sa

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import models
from tests.unit.db import base


class ClockTest(base.DatabaseTestCase):

    def test_it_is_seconds_since_the_epoch_in_utc(self):
        with self.db.reader() as session:
            # The same machine; a day is more than any time zone.
            self.assertAlmostEqual(time.time(), session.scalar(
                sa.select(clock.now())), delta=600)

    def test_it_goes_on_within_a_transaction(self):
        with self.db.reader() as session:
            first = session.scalar(sa.select(clock.now()))
            while session.scalar(sa.select(clock.now())) == first:
                pass

    def test_seconds_of_a_stored_time_are_whole(self):
        at = datetime.datetime(2026, 10, 31, 1, 2, 3, 987654)
        self.add(models.Event(at=at, kind='x'))
        with self.db.reader() as session:
            self.assertEqual(
                int(at.replace(tzinfo=datetime.UTC).timestamp()),
                session.scalar(sa.select(clock.seconds(models.Event.at))))
