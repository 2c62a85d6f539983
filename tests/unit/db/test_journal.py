# SPDX-License-Identifier: Apache-2.0
"""Tests of lines that are logged when their transaction was committed."""

import logging

import fixtures

from gpgpu_plugin.db import transaction
from tests.unit.db import base


class JournalTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.db.transaction', level=logging.INFO,
            format='%(levelname)s %(message)s'))

    def test_line_appears_after_the_commit(self):
        with self.db.writer() as session:
            transaction.note_line(session, logging.INFO, 'a device, 100%')
            transaction.note_line(session, logging.WARNING, 'another one')
            self.assertEqual('', self.log.output)
        self.assertEqual('INFO a device, 100%\nWARNING another one\n',
                         self.log.output)

    def test_line_of_a_transaction_that_failed_does_not_appear(self):
        def work(session):
            transaction.note_line(session, logging.INFO, 'a device')
            raise RuntimeError('power cut')
        self.assertRaises(RuntimeError, self.db.write, work)
        self.db.write(lambda session: None)
        self.assertEqual('', self.log.output)
