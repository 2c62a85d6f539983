# SPDX-License-Identifier: Apache-2.0
"""Tests of who a transaction runs for."""

import threading

from gpgpu_plugin.db import transaction
from tests.unit.db import base

ROOT = transaction.Author(actor='operator root', request_id='req-1')


class AuthorTest(base.DatabaseTestCase):

    def authors(self, db):
        found = []
        db.write(lambda session: found.append(transaction.author_of(session)))
        return found

    def test_transaction_that_no_caller_wants_is_the_conductors(self):
        self.assertEqual([transaction.CONDUCTOR], self.authors(self.db))

    def test_transaction_of_a_caller_has_its_author(self):
        self.assertEqual([ROOT], self.authors(self.db.by(ROOT)))
        self.assertEqual([transaction.CONDUCTOR], self.authors(self.db))

    def test_callers_at_the_same_time_have_their_own_authors(self):
        other = transaction.Author(actor='host h1')
        found = {}
        entered = threading.Barrier(2, timeout=60)

        def work(session, name):
            found[name] = transaction.author_of(session)

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
