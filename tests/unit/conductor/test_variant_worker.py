# SPDX-License-Identifier: Apache-2.0
"""Tests of the thread that ends changes of variants."""

import threading

import fixtures

from gpgpu_plugin.conductor import variant_changes
from gpgpu_plugin.conductor import variant_worker
from gpgpu_plugin.conductor.admin import variant as variant_admin
from tests.fixtures import patience
from tests.unit.conductor import test_manager
from tests.unit.conductor import test_variant_changes as changes


class VariantWorkerTest(changes.ChangeCase):

    def setUp(self):
        super().setUp()
        self.compute = test_manager.FakeComputeAPI()
        self.worker = variant_worker.VariantWorker(self.db, self.compute)

    def test_change_that_was_left_is_ended_and_its_hosts_are_refreshed(self):
        variant_admin.create(self.db, changes.H100, changes.LATE)
        self.advance()
        self.worker.run_once()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual(['h3', 'h4', 'h5'], self.compute.refreshed)

    def test_change_that_was_undone_is_ended_at_once(self):
        variant_admin.create(self.db, changes.H100)
        variant_admin.delete(self.db, 'H100', changes.LATE)
        self.claim_unchecked(host='h4')
        self.worker.start()
        self.addCleanup(self.worker.stop)
        self.assertTrue(patience.wait_until(
            lambda: self.shown() == ('ready', 0)))

    def test_failure_of_one_change_delays_no_other(self):
        for variant in (changes.H100, changes.A100):
            variant_admin.create(self.db, variant, changes.LATE)
        run, failed = variant_changes.run, []

        def fail(*args):
            if not failed:
                failed.append(args)
                raise RuntimeError('away')
            run(*args)
        log = self.useFixture(fixtures.FakeLogger())
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.conductor.variant_changes.run', fail):
            self.worker.run_once()
        self.assertIn('trying again in 60 s', log.output)
        self.assertEqual(('applying', 5), self.shown())
        self.assertEqual(('ready', 0), self.shown('A100'))

    def test_database_that_is_away_ends_nothing(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.variant_change.all',
            side_effect=RuntimeError('away')))
        log = self.useFixture(fixtures.FakeLogger())
        self.worker.run_once()
        self.assertIn('Cannot search for changes', log.output)

    def test_search_for_changes_is_one_statement(self):
        with self.statements() as found:
            self.worker.run_once()
        self.assertEqual(['BEGIN', 'SELECT'],
                         [statement.split()[0] for statement in found])

    def test_thread_searches_at_its_start_and_when_it_is_woken(self):
        searched = threading.Semaphore(0)
        self.worker.run_once = searched.release
        self.worker.start()
        self.addCleanup(self.worker.stop)
        self.assertTrue(searched.acquire(timeout=patience.LONG))
        self.worker.wake()
        self.assertTrue(searched.acquire(timeout=patience.LONG))

    def test_stop_ends_the_thread_after_a_chunk(self):
        variant_admin.create(self.db, changes.H100, changes.LATE)
        self.worker.start()
        self.worker.stop()
        self.worker.stop()
        self.assertEqual([], [
            thread.name for thread in threading.enumerate()
            if thread.name == 'gpgpu-variants'])
