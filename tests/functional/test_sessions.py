# SPDX-License-Identifier: Apache-2.0
"""Which start of nova-compute speaks for a host, as a cloud sees it."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import typing
from collections.abc import Iterator

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.conductor import sessions
from tests.fixtures import cloud
from tests.functional import test_vgpus


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
        self.flags(state_path=str(folder), group='gpgpu_compute')
        compute = self.start_service('compute', host='gpu1')
        self.flags(state_path=own, group='gpgpu_compute')
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
            driver.gpu_tracker.service.worker.run_once()
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
            compute.manager.driver.gpu_tracker.service.worker.run_once()
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
        self.addCleanup(killed.gpu_tracker.stop)
        self.assertEqual(before + 1, self.number(self.computes['gpu1']))
        self.assertRaises(
            exception.Fenced, killed.gpu_tracker.session.call,
            killed.gpu_tracker.api.digest)
        self.assertTrue(self.driver().gpu_tracker.session.is_reported)
        self.wait_states(assigned=2, available=6)


class _Backup(fixtures.Fixture):
    """A backup of a conductor's SQLite file."""

    def __init__(self, conductor: cloud.Conductor) -> None:
        self._path = str(conductor.database.engine.url.database)

    def _setUp(self) -> None:
        self._copy = sqlite3.connect(':memory:')
        self.addCleanup(self._copy.close)
        with contextlib.closing(sqlite3.connect(self._path)) as source:
            source.backup(self._copy)

    def restore(self) -> None:
        """Bring the database back to when the backup was made."""
        with contextlib.closing(sqlite3.connect(self._path)) as target:
            self._copy.backup(target)


class RestoreTest(cloud.GpuCloud):
    """A backup of the database that is older than a running server."""

    def setUp(self) -> None:
        super().setUp()
        backup = self.useFixture(_Backup(self.conductor))
        self.server = self.boot(self.flavor(H100=2))
        self.before = self.devices_of(self.server)
        backup.restore()
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


class RestoredVGPUsTest(test_vgpus.VGPUViews, cloud.GpuCloud):
    """A host with vGPUs, and one with GPUs that nobody can get."""

    machines = {'gpu1': 'nvidia-t4-2', 'gpu2': 'old-two-card'}
    variants = test_vgpus.T4

    def setUp(self) -> None:
        super().setUp()
        self.manage('vgpu-type', 'enable', 'gpu1', 'T4', 'T4-4Q')
        self.drivers = self.bound_drivers('gpu1')
        backup = self.useFixture(_Backup(self.conductor))
        self.server = self.boot(self.vgpu_flavor(Q4=2))
        self._leave_a_whole_gpu_dirty()
        self.assertNotEqual(self.drivers, self.bound_drivers('gpu1'))
        backup.restore()
        sessions.mark_restored(self.conductor.database)

    def _leave_a_whole_gpu_dirty(self) -> None:
        """Delete a server whose GPU its host does not clean at once."""
        with fixtures.MonkeyPatch('gpgpu_plugin.conductor.cleaning.tasks',
                                  lambda *args: ()):
            self.delete(self.boot(self.vgpu_flavor(whole=1)))
            self.wait_states(variant='T4', dirty=1, assigned=3)
            self.run_once('gpu1')

    def _report(self) -> None:
        for host in self.machines:
            # Due every few minutes.
            self.driver(host).gpu_tracker._schedule.require(tasks.Task.DIGEST)
            self.run_once(host)

    def test_hosts_have_all_that_they_had_when_they_have_reported(
            self) -> None:
        shown = {row['host']: row for row in self.listing('host', 'list')}
        self.assertEqual(
            ('restored', {'unknown': 2}),
            (shown['gpu1']['host_state'], shown['gpu1']['devices']))
        self._report()
        self.assertEqual({'up'}, {
            row['host_state'] for row in self.listing('host', 'list')})
        self.wait_for(lambda: self.bound_drivers('gpu1') == self.drivers,
                      'the GPU has its driver again')
        # Two of four, and all of the other GPU.
        self.wait_for(lambda: self.remaining() == {
            'passthrough': 1, 'T4-4Q': 6}, 'capacity')
        self.wait_for(lambda: self.unallocated()['4Q'] == 6,
                      'capacity in Placement')
        self.delete(self.boot(self.vgpu_flavor(Q4=6)))

    def test_usage_goes_on_with_its_project_and_flavor(self) -> None:
        self._report()
        usages = self.listing('usage', 'list')
        self.assertEqual(
            [(self.server['id'], self.server['tenant_id'],
              self.server['flavor']['original_name'], 'T4', None)] * 2,
            [(usage['instance_uuid'], usage['project_id'], usage['flavor'],
              usage['variant'], usage['ended_at']) for usage in usages])

    def test_host_of_which_nobody_can_get_a_gpu_is_deleted(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 1))
        self._report()
        self.computes['gpu2'].stop()
        self.manage('host', 'delete', 'gpu2')
        self.assertEqual(['gpu1'], [
            row['host'] for row in self.listing('host', 'list')])
        self.restart_compute('gpu2')
