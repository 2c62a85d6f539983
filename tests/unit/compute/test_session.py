# SPDX-License-Identifier: Apache-2.0
"""Tests of sessions between resource trackers and a conductor."""

import contextlib
import os
import uuid

import fixtures
import sqlalchemy as sa
from oslo_context import context as oslo_context
from oslo_context import fixture as context_fixture

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import tables
from gpgpu_plugin.host.fake import host as fake_host
from tests.fixtures import orphans
from tests.fixtures import rows
from tests.fixtures import virt_driver
from tests.unit.compute import base


class SessionCase(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin'))

    def other_machine(self):
        """Return the tracker of a copy of nova.conf on another machine."""
        folder = self.useFixture(fixtures.TempDir()).path
        conf = self.conf
        conf.set_override('state_path', folder, 'gpgpu_compute')
        tracker = resource_tracker.ResourceTracker(
            conf, 'h1', fake_host.FakeHost.for_machine(
                self.machine, os.path.join(folder, 'sys')),
            self.api, virt_driver.make(self.client),
            orphans.search(self.is_orphaned),
            clock=lambda: self.seconds)
        conf.set_override('state_path', self.state_path, 'gpgpu_compute')
        tracker.set_node('h1', base.NODE)
        return tracker

    def claim(self, count=2, instance='i1'):
        return self.tracker.session.call(
            self.api.claim, self.request(count, instance))

    def forget(self, uuids):
        """Bring the database back to before claims."""
        with self.conductor.db.writer() as session:
            rows.forget(session, uuids)


class SecondComputeTest(SessionCase):
    """Tests of a second nova-compute with the host's name."""

    def test_copy_on_another_machine_frees_nothing_and_says_so_once(self):
        self.claim()
        copy = self.other_machine()
        for _ in range(3):
            copy.run_once()
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.assertFalse(copy.session.is_active)
        self.assertTrue(copy.session.is_fenced)
        self.assertEqual(1, self.log.output.count('is fenced'))
        self.assertIn('gpgpu-manage host takeover h1', self.log.output)

    def test_host_stays_with_its_cloud(self):
        def be(name):
            self.conductor.db.write(lambda session: session.execute(
                sa.update(caller_key.CLOUDS).values(uuid=name)))

        with self.conductor.db.reader() as session:
            cloud = caller_key.cloud(session)
        be(str(uuid.uuid4()))
        restarted = self.make_tracker()
        restarted.run_once()
        self.assertFalse(restarted.session.is_active)
        self.assertIn(f'"gpgpu-manage db restored --cloud {cloud}"',
                      self.log.output)
        be(cloud)
        restarted.run_once()
        self.assertTrue(restarted.session.is_active)

    def test_call_has_the_id_of_the_users_request(self):
        request_id = f'req-{uuid.uuid4()}'
        self.useFixture(context_fixture.ClearRequestContext())
        with fixtures.MockPatchObject(
                self.api, 'activate', return_value=None) as patched:
            oslo_context.RequestContext(request_id=request_id)
            self.tracker.session.call(self.api.activate, [])
        ctxt = patched.mock.call_args.args[0]
        self.assertEqual(request_id, ctxt.global_request_id)
        self.assertTrue(ctxt.is_admin)

    def test_host_without_a_conductor_is_not_fenced(self):
        self.conductor.stop()
        restarted = self.make_tracker()
        self.useFixture(fixtures.MockPatchObject(
            self.api, 'begin_session',
            side_effect=exception.ConductorUnavailable(
                method='begin_session', timeout=1)))
        restarted.run_once()
        self.assertEqual(
            (False, False),
            (restarted.session.is_active, restarted.session.is_fenced))
        self.conductor.start()

    def test_copy_claims_nothing(self):
        copy = self.other_machine()
        copy.run_once()
        exc = self.assertRaises(
            exception.NoSession, copy.session.call, self.api.claim,
            self.request())
        self.assertIn('fenced', str(exc))

    def test_host_that_was_taken_over_does_no_gpu_work(self):
        self.api.host_takeover(context.admin(), 'h1')
        copy = self.other_machine()
        copy.run_once()
        self.assertTrue(copy.session.is_reported)
        self.assertRaises(exception.Fenced, self.claim)
        self.tracker.run_once()
        self.assertFalse(self.tracker.session.is_active)
        self.tracker.run_once()
        self.assertTrue(copy.session.is_active)
        self.assertEqual({'available': 8}, self.states())

    def test_restart_within_a_second_is_taken(self):
        claim = self.claim()
        # kill -9: nothing of the old process says good-bye.
        restarted = self.make_tracker()
        restarted.run_once()
        self.assertTrue(restarted.session.is_reported)
        self.assertEqual([], list(restarted.assignments.all()))
        self.assertRaises(
            exception.Fenced, self.tracker.session.call, self.api.activate,
            [assignment.uuid for assignment in claim.assignments])

    def test_process_that_was_replaced_does_not_take_the_host_back(self):
        restarted = self.make_tracker()
        restarted.run_once()
        self.assertRaises(exception.Fenced, self.claim)
        self.tracker.run_once()
        self.assertTrue(self.tracker.session.is_fenced)
        restarted.session.call(self.api.claim, self.request(1))

    def test_nothing_is_reconciled_before_the_first_report(self):
        self.claim()
        self.tracker = self.make_tracker()
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'discover',
            side_effect=exception.HostError(path='/sys', reason='busy')))
        self.tracker.run_once()
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())


class RestoreTest(SessionCase):
    """Tests after the database was restored from a backup."""

    def test_device_of_a_running_guest_is_not_given_away(self):
        uuids = self.boot(2, 'i1')
        before = {assignment.address
                  for assignment in self.tracker.assignments.all()}
        self.forget(uuids)
        self.assertEqual({'available': 8}, self.states())
        claimed = None
        with contextlib.suppress(exception.ClaimDenied):
            claimed = self.claim(8, 'i2')
        if claimed is not None:
            found = self.tracker.assignments.contradictions(
                claimed.assignments)
            self.assertEqual(2, len(found), found)
            self.assertTrue(all('i1' in sentence for sentence in found))
        self.assertEqual(before, {
            assignment.address
            for assignment in self.tracker.assignments.all()})

    def test_restart_reports_what_the_database_does_not_know(self):
        uuids = self.boot(2, 'i1')
        self.forget(uuids)
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.assertEqual(set(uuids), {
            assignment.uuid
            for assignment in self.tracker.assignments.all()})
        self.assertEqual({'i1'}, {
            device.used_by
            for device in device_admin.list_all(self.conductor.db)
            if device.used_by})
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_comparison_never_shortens_the_book(self):
        uuids = self.boot(2, 'i1')
        self.forget(uuids)
        self.tracker.request_reconcile()
        self.tracker.run_once()
        self.assertIn('does not have assignments', self.log.output)
        self.assertEqual(set(uuids), {
            assignment.uuid
            for assignment in self.tracker.assignments.all()})
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_host_that_the_database_does_not_know_reports_anew(self):
        uuids = self.boot(2, 'i1')
        self.forget(uuids)
        with self.conductor.db.writer() as session:
            for kind in (tables.ASSIGNMENTS, tables.DEVICES, tables.TYPES,
                         tables.GROUPS, tables.HOSTS):
                session.execute(sa.delete(kind))
        self.seconds += 450
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_marked_restore_is_noticed_by_the_next_digest(self):
        self.boot(2, 'i1')
        sessions.mark_restored(self.conductor.db)
        self.assertRaises(exception.SessionLost, self.claim, 1, 'i2')
        self.tracker.run_once()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.assertIn('was restored', self.log.output)


class DigestTest(SessionCase):

    def test_lost_refresh_is_made_up_for(self):
        device = device_admin.list_all(
            self.conductor.db, variant='H100')[0]
        # As the conductor does, without the message that follows.
        device_admin.set_(self.conductor.db, device.uuid, 'op', enabled=False)
        self.tracker.run_once()
        self.assertEqual((8, 0), self.placement())
        self.seconds += 450
        self.tracker.run_once()
        self.assertEqual((8, 1), self.placement())

    def test_idle_host_makes_no_call_and_then_one(self):
        self.tracker.run_once()
        self.seconds += 600
        self.tracker.run_once()
        calls = []
        for name in ('report', 'host_assignments', 'host_inventory',
                     'clean_tasks', 'compare_allocations', 'digest'):
            real = getattr(self.api, name)

            def call(*args, real=real, name=name):
                calls.append(name)
                return real(*args)
            self.useFixture(fixtures.MockPatchObject(self.api, name, call))
        self.tracker.run_once()
        self.assertEqual([], calls)
        self.seconds += 450
        self.tracker.run_once()
        self.assertEqual(['digest'], calls)

    def test_idle_host_with_assignments_makes_one_call_as_well(self):
        self.boot(2)
        self.tracker.run_once()
        for _ in range(3):
            self.seconds += 600
            self.tracker.run_once()
        self.useFixture(fixtures.MockPatchObject(
            self.api, 'host_assignments',
            side_effect=AssertionError('called')))
        self.seconds += 450
        self.tracker.run_once()
        self.assertNotIn('failed', self.log.output)


class LateTest(SessionCase):

    def test_report_that_was_overtaken_is_dropped(self):
        self.tracker.run_once()
        real = self.api.report
        kept = []
        self.useFixture(fixtures.MockPatchObject(
            self.api, 'report', lambda *args: kept.append(args) or real(
                *args)))
        for _ in range(2):
            self.useFixture(fixtures.MockPatchObject(
                self.tracker.backend, 'changed', return_value=True))
            self.tracker.run_once()
        numbers = [report.number for _, _, report in kept]
        self.assertEqual(sorted(set(numbers)), numbers)
        self.assertEqual([None, None],
                         [report.assignments for _, _, report in kept])
