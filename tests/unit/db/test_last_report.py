# SPDX-License-Identifier: Apache-2.0
"""Tests of what a host last reported."""

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import variant as variant_db
from tests.unit.db import base


class LastReportTest(base.DatabaseTestCase):

    def lock(self, name):
        with self.db.writer() as session:
            return host_db.lock_last_report(session, name)

    def test_host_that_is_deleted_or_unknown_has_none(self):
        self.add(base.host('h1', deleted=1))
        for name in ('h1', 'h2'):
            self.assertIsNone(self.lock(name))

    def test_last_report_is_found_with_the_number_of_changes(self):
        self.add(base.host('h1', generation=7, report_number=3,
                           report_digest='d', report_generation=5,
                           report_answer='{}'), base.host('h2'))
        with self.db.writer() as session:
            variant_db.lock(session)
        found = self.lock('h1')
        self.assertEqual(
            ('h1', 7, 3, 'd', 5, '{}', 1),
            (found.name, found.generation, found.report_number,
             found.report_digest, found.report_generation,
             found.report_answer, found.changes))

    def test_repetition_is_noted_for_one_host(self):
        self.add(base.host('h1', report_number=3), base.host('h2'))
        with self.db.writer() as session:
            before = clock.epoch(session)
            host_db.repeat_report(session,
                                  host_db.lock_last_report(session, 'h1'), 4)
        with self.db.reader() as session:
            self.assertEqual([(4, True), (0, False)], [
                (host.report_number, host.heard_at >= before)
                for host in (host_db.get(session, 'h1'),
                             host_db.get(session, 'h2'))])
