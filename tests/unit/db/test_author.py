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
"""Tests of who a transaction runs for."""

import threading

from gpgpu_plugin.db import author
from tests.unit.db import base

ROOT = author.Author(actor='operator root', request_id='req-1')


class AuthorTest(base.DatabaseTestCase):

    def authors(self, db):
        found = []
        db.write(lambda session: found.append(author.of(session)))
        return found

    def test_transaction_that_no_caller_wants_is_the_conductors(self):
        self.assertEqual([author.CONDUCTOR], self.authors(self.db))

    def test_transaction_of_a_caller_has_its_author(self):
        self.assertEqual([ROOT], self.authors(self.db.by(ROOT)))
        self.assertEqual([author.CONDUCTOR], self.authors(self.db))

    def test_callers_at_the_same_time_have_their_own_authors(self):
        other = author.Author(actor='host h1')
        found = {}
        entered = threading.Barrier(2, timeout=60)

        def work(session, name):
            found[name] = author.of(session)

        def run(name, db):
            entered.wait()
            db.write(lambda session: work(session, name))
        threads = [threading.Thread(target=run, args=pair) for pair in (
            ('root', self.db.by(ROOT)), ('h1', self.db.by(other)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({'root': ROOT, 'h1': other}, found)
