# SPDX-License-Identifier: Apache-2.0
"""Tests of releases with a full disk or without a conductor."""

import contextlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import claims
from gpgpu_plugin.objects import claim
from tests.fixtures import disk
from tests.unit.compute import make

CONFIRMATION = claim.MigrationConfirmation(
    instance_uuid='i1', migration_uuid='m1', source_assignments=('a1',))


class ReleasesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = f'{self.useFixture(fixtures.TempDir()).path}/h1.json'
        self.book = assignment_file.AssignmentFile(self.path)
        self.book.add('i1', [make.assignment()])
        self.conductor = True
        self.sent = []
        self.releases = claims.Releases('h1', self.book, self.flush)

    def flush(self):
        if not self.conductor:
            raise exception.ConductorUnavailable(method='x', timeout=1)
        for pending, remove in (
                (self.book.pending(), self.book.remove_pending),
                (self.book.confirmations(),
                 lambda sent: [self.book.remove_confirmation(one)
                               for one in sent])):
            self.sent += pending
            remove(pending)

    def release_and_confirm(self):
        self.releases.release(['a1'])
        self.releases.confirm(CONFIRMATION)

    def test_full_disk_does_not_stop_what_the_conductor_accepts(self):
        with disk.full_disk():
            self.release_and_confirm()
        self.assertEqual(['a1', CONFIRMATION], self.sent)
        self.assertEqual(([], []), (
            self.book.pending(), self.book.confirmations()))

    def test_release_without_a_conductor_is_stored(self):
        self.conductor = False
        self.release_and_confirm()
        read = assignment_file.AssignmentFile(self.path)
        self.assertEqual((['a1'], [CONFIRMATION]), (
            read.pending(), read.confirmations()))

    def test_full_disk_without_a_conductor_changes_nothing(self):
        self.conductor = False
        for call in (lambda: self.releases.release(['a1']),
                     lambda: self.releases.confirm(CONFIRMATION)):
            with disk.full_disk():
                exc = self.assertRaises(exception.HostError, call)
            for part in ('h1', self.path, 'No space left on device',
                         'Free space'):
                self.assertIn(part, str(exc))
        self.assertEqual(([], []), (
            self.book.pending(), self.book.confirmations()))
        self.assertEqual({'a1'}, make.uuids(self.book.of_instance('i1')))

    def test_release_that_another_change_stored_stays_pending(self):
        self.conductor = False

        full = contextlib.ExitStack()
        full.enter_context(disk.full_disk())

        def flush():
            full.close()
            self.book.write_again()
            self.flush()
        self.releases = claims.Releases('h1', self.book, flush)
        self.releases.release(['a1'])
        self.assertEqual(
            ['a1'], assignment_file.AssignmentFile(self.path).pending())
