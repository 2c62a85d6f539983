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
"""Which start of nova-compute speaks for a host, as a cloud sees it."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import typing
from collections.abc import Iterator

from gpgpu_plugin import exception
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.conductor import sessions
from tests.fixtures import cloud


class SessionsTest(cloud.GpuCloud):
    """One HGX server with a running server of two GPUs."""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2))

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[typing.Any]:
        """Start nova-compute on another machine with a copied nova.conf."""
        own = self.state_path
        folder = pathlib.Path(own, 'elsewhere')
        folder.mkdir()
        self.flags(state_path=str(folder), group='gpgpu')
        compute = self.start_service('compute', host='gpu1')
        self.flags(state_path=own, group='gpgpu')
        try:
            yield compute
        finally:
            compute.stop()

    def number(self, compute: typing.Any) -> int:
        """Return the number of the session that a nova-compute has."""
        return int(compute.manager.driver.gpu_tracker.session.origin().session)

    def test_second_machine_is_fenced_and_frees_nothing(self) -> None:
        claim = self.claim_directly('gpu1', 2)
        before = self.devices()
        with self.elsewhere() as compute:
            driver = compute.manager.driver
            driver._gpu_worker.run_once()
            self.assertFalse(driver.gpu_tracker.session.is_active)
            self.assertRaises(
                exception.NoSession, driver.gpu_tracker.session.origin)
            self.assertEqual(before, self.devices())
        self.assertEqual(1, self.stdlog.logger.output.count(
            'is offered, assigned or cleaned by this nova-compute'))
        self.assertIn('gpgpu-manage host takeover gpu1',
                      self.stdlog.logger.output)
        # The first one never noticed.
        self.abandon(claim)
        self.driver().gpu_tracker.refresh()
        self.run_once('gpu1')
        self.wait_states(assigned=2, available=6)
        self.assertTrue(self.driver().gpu_tracker.session.is_active)

    def test_second_machine_is_taken_after_takeover(self) -> None:
        before = self.number(self.computes['gpu1'])
        first = self.driver().gpu_tracker
        with self.elsewhere() as compute:
            self.manage('host', 'takeover', 'gpu1')
            compute.manager.driver._gpu_worker.run_once()
            self.assertEqual(before + 1, self.number(compute))
            self.assertRaises(
                exception.Fenced, first.session.call, first.api.digest)
            # It knows the server, though its book was empty.
            self.assertEqual(
                2, len(compute.manager.driver.gpu_tracker.assignments
                       .of_instance(self.server['id'])))
        self.wait_states(assigned=2, available=6)

    def test_killed_nova_compute_that_starts_again_is_taken_at_once(
            self) -> None:
        killed = self.driver()
        before = self.number(self.computes['gpu1'])
        with self._driver_with(killed.instances):
            self.computes['gpu1'] = self.start_service(
                'compute', host='gpu1')
        self.addCleanup(killed._gpu_stop)
        self.assertEqual(before + 1, self.number(self.computes['gpu1']))
        self.assertRaises(
            exception.Fenced, killed.gpu_tracker.session.call,
            killed.gpu_tracker.api.digest)
        self.assertTrue(self.driver().gpu_tracker.session.is_reported)
        self.wait_states(assigned=2, available=6)


class RestoreTest(cloud.GpuCloud):
    """A backup of the database that is older than a running server."""

    def setUp(self) -> None:
        super().setUp()
        path = self.conductor.database.engine.url.database
        backup = sqlite3.connect(':memory:')
        self.addCleanup(backup.close)
        with contextlib.closing(sqlite3.connect(path)) as source:
            source.backup(backup)
        self.server = self.boot(self.flavor(H100=2))
        self.before = self.devices_of(self.server)
        with contextlib.closing(sqlite3.connect(path)) as target:
            backup.backup(target)
        self.assertEqual(set(), self.devices_of(self.server))

    def check(self) -> None:
        # Due every few minutes.
        self.driver().gpu_tracker._schedule.require(tasks.Task.DIGEST)
        self.run_once('gpu1')
        self.assertEqual(self.before, self.devices_of(self.server))
        self.wait_states(assigned=2, available=6)
        self.wait_offered()
        other = self.boot(self.flavor(H100=6))
        self.assertEqual(set(), self.before & self.devices_of(other))
        self.delete(self.server, other)
        self.wait_states(available=8)
        self.wait_inventory(8, 0)

    def test_restore_that_is_marked_gives_no_gpu_away(self) -> None:
        # As gpgpu-manage db restored.
        sessions.mark_restored(self.conductor.database)
        self.check()

    def test_restore_that_nobody_marked_gives_no_gpu_away(self) -> None:
        self.check()

    def test_first_boot_after_a_restore_gets_no_gpu_that_is_used(
            self) -> None:
        # It is the first call after the restore, and notices it.
        self.delete(self.boot(self.flavor(H100=6), 'ERROR'))
        self.assertIn('has seen generation', self.stdlog.logger.output)
        self.check()

    def test_nova_compute_that_restarts_after_a_restore_keeps_its_book(
            self) -> None:
        book = self.driver().gpu_tracker.assignments.all()
        self.restart_compute('gpu1')
        self.assertEqual(
            {assignment.uuid for assignment in book},
            {assignment.uuid for assignment
             in self.driver().gpu_tracker.assignments.all()})
        self.check()
