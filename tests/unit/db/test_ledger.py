# SPDX-License-Identifier: Apache-2.0
"""Tests of the rows of the ledger."""

import sqlalchemy as sa
from oslo_db import exception as db_exception

from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import ledger
from tests.fixtures import clocks
from tests.unit.conductor import base
from tests.unit.domain import test_ledger


class LedgerTest(base.ConductorTestCase):

    functions = ()
    variant = False

    def add(self, device='d1', **fields):
        with self.db.writer() as session:
            end = ledger_db.chain(session, device)
            record = ledger.record(test_ledger.entry(
                device_uuid=device, number=end.number + 1,
                previous_hash=end.hash or '', **fields))
            ledger_db.add(session, end, record, '{}')
        return record

    def listed(self, device='d1', limit=99, after=0):
        with self.db.reader() as session:
            return ledger_db.listed(session, device, limit, after)

    def head(self, device='d1'):
        with self.db.reader() as session:
            end = ledger_db.chain(session, device)
            return end.number, end.hash, end.started_at

    def test_device_without_a_record_has_no_chain(self):
        self.assertEqual(((0, None, None), ()), (self.head(), self.listed()))

    def test_records_are_read_as_they_were_written(self):
        records = tuple(self.add(reason=f'r\u00e4{n}') for n in range(3))
        other = self.add('d2')
        self.assertEqual(records, self.listed())
        self.assertEqual((3, records[-1].hash, None), self.head())
        self.assertEqual((other,), self.listed('d2'))

    def test_page_is_of_records_after_a_number(self):
        records = tuple(self.add() for _ in range(4))
        self.assertEqual(records[1:3], self.listed(limit=2, after=1))
        self.assertEqual((), self.listed(after=4))

    def test_long_evidence_is_stored_whole(self):
        record = self.add(results=(cleaning.StepResult(
            step='acme-scrub', outcome=cleaning.StepOutcome.PASSED, reason='',
            facts={'output': 'x' * 200_000}),))
        self.assertEqual((record,), self.listed())

    def test_second_record_in_the_same_place_is_refused(self):
        record = self.add()
        with self.db.engine.connect() as connection:
            self.assertRaises(
                db_exception.DBDuplicateEntry, connection.execute,
                sa.insert(ledger_db.TABLE).values(
                    device_uuid='d1', number=1, content=record.content,
                    hash=record.hash))

    def test_start_is_noted_until_the_next_record(self):
        now = clocks.now().replace(microsecond=0)
        with self.db.writer() as session:
            ledger_db.start(session, 'd1', now)
        self.assertEqual((0, None, now), self.head())
        self.add()
        self.assertIsNone(self.head()[2])
