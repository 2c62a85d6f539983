# SPDX-License-Identifier: Apache-2.0
"""Tests of the host's book: round trip, no lost update."""

import json
import logging
import pathlib
import typing
import uuid

import fixtures
import hypothesis
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim
from tests.fixtures import disk
from tests.unit.compute import make

ASSIGNMENTS = st.builds(
    claim.Assignment, host=st.just('h1'),
    host_generation=st.integers(0, 2 ** 62),
    placement_id=st.none() | st.integers(0, 2 ** 62),
    lease_expires_at=st.none() | st.floats(0, 1e11),
    used_seconds=st.none() | st.integers(0, 2 ** 61),
    **dict.fromkeys(('uuid', 'instance_uuid', 'migration_uuid',
                     'device_uuid'), st.text(max_size=36)))
BOOKS = st.tuples(
    st.dictionaries(
        st.uuids().map(str),
        st.lists(ASSIGNMENTS, min_size=1, max_size=3).map(tuple),
        max_size=3),
    st.lists(st.uuids().map(str), unique=True, max_size=3),
    st.lists(st.builds(claim.MigrationConfirmation), unique=True, max_size=2))
"""Any assignments by instance, and any pending releases and confirmations of
migrations."""


def make_assignment(instance='i1', **kwargs):
    values = {
        name: f'any {name}' for name, kind
        in typing.get_type_hints(claim.Assignment).items() if kind is str}
    return claim.Assignment(**{
        **values, 'host_generation': 1,
        'uuid': str(uuid.uuid4()), 'instance_uuid': instance,
        'host': 'h1', 'role': claim.ClaimRole.INSTANCE,
        'state': device_rules.DeviceState.ASSIGNED, **kwargs})


class AssignmentsTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.folder / 'h1.json'
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.assignment_file', level=logging.ERROR))

    def book(self):
        """Return the book, read from its file again."""
        return assignment_file.AssignmentFile(str(self.path))


class RoundTripTest(AssignmentsTestCase):

    @hypothesis.given(BOOKS)
    @hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
    def test_whatever_is_stored_is_read_again(self, content):
        assigned, pending, confirmations = content
        with fixtures.MonkeyPatch('os.fsync', lambda fd: None):
            self.path.unlink(missing_ok=True)
            book = self.book()
            book.replace(assigned, book.changes())
            book.add_pending(pending)
            for confirmation in confirmations:
                book.add_confirmation(confirmation)
            read = self.book()
        self.assertEqual(pending, read.pending())
        self.assertEqual(confirmations, read.confirmations())
        self.assertEqual(assigned, {
            instance: read.of_instance(instance) for instance in assigned})
        self.assertEqual(sum(map(len, assigned.values())), len(read.all()))
        self.assertEqual('', self.log.output)

    def test_file_says_its_version(self):
        with fixtures.MonkeyPatch('time.time', lambda: 1e9):
            self.book().add_pending(['a'])
        self.assertEqual(1, assignment_file.VERSION)
        self.assertEqual(
            {'version': 1, 'assigned': {}, 'pending': {'a': 1e9},
             'confirmations': [], 'began_at': {},
             'unclean': [], 'prepared': [], 'session': 0, 'generation': 0,
             'cloud': ''},
            json.loads(self.path.read_text()))

    def test_no_file_is_an_empty_book(self):
        book = self.book()
        self.assertEqual(([], []), (book.all(), book.pending()))
        self.assertEqual([], list(self.folder.iterdir()))
        self.assertEqual('', self.log.output)


class ChangeTest(AssignmentsTestCase):

    def test_every_change_is_on_disk(self):
        first, second = make_assignment(), make_assignment()
        other = make_assignment('i2')
        self.book().add('i1', [first])
        self.book().add('i1', [second])
        self.book().add('i2', [other])
        self.assertEqual((first, second), self.book().of_instance('i1'))
        self.assertEqual({first.uuid, second.uuid},
                         make.uuids(self.book().of_instance('i1')))
        self.assertEqual([first, second, other], self.book().all())
        self.book().remove('i1', [first.uuid])
        self.assertEqual((second,), self.book().of_instance('i1'))
        self.book().remove('i1', [second.uuid])
        self.assertEqual((), self.book().of_instance('i1'))
        self.assertEqual([other], self.book().all())
        self.book().replace({'i1': (first,)}, 0)
        self.assertEqual([first], self.book().all())

    def test_confirmation_is_stored_once_until_it_is_removed(self):
        first, second = (
            claim.MigrationConfirmation(
                instance_uuid='i1', migration_uuid=migration_uuid)
            for migration_uuid in ('m1', 'm2'))
        for confirmation in (first, second, first):
            self.book().add_confirmation(confirmation)
        self.assertEqual([first, second], self.book().confirmations())
        self.book().remove_confirmation(first)
        self.assertEqual([second], self.book().confirmations())

    def test_confirmed_migration_ends_what_it_names(self):
        source, other = make_assignment(), make_assignment('i2')
        destination = make_assignment(
            role=claim.ClaimRole.DESTINATION, migration_uuid='m1')
        confirmation = claim.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=(source.uuid,))
        for assigned, left in (
                ([source, destination], [destination.uuid]), ([source], [])):
            self.book().replace(
                {'i1': tuple(assigned), 'i2': (other,)}, 0)
            self.book().confirm(confirmation)
            self.assertEqual(
                [(uuid, claim.ClaimRole.INSTANCE, None) for uuid in left], [
                    (assignment.uuid, assignment.role,
                     assignment.migration_uuid)
                    for assignment in self.book().of_instance('i1')])
            self.assertEqual((other,), self.book().of_instance('i2'))

    def test_newer_answer_about_an_assignment_replaces_the_older_one(self):
        before = make_assignment(state='provisioning')
        after = make_assignment(uuid=before.uuid)
        book = self.book()
        book.add('i1', [before])
        book.add('i1', [after])
        self.assertEqual((after,), self.book().of_instance('i1'))

    def test_activated_assignment_is_that_of_a_guest(self):
        book = self.book()
        book.add('i1', [make_assignment(
            uuid=uuid, state='provisioning', lease_expires_at=5.0)
            for uuid in ('a1', 'a2')])
        book.activated('i1', ['a2'])
        self.assertEqual(
            [('a1', 'provisioning', 5.0), ('a2', 'assigned', None)],
            [(assignment.uuid, assignment.state, assignment.lease_expires_at)
             for assignment in self.book().of_instance('i1')])

    def test_use_of_a_device_is_counted_from_when_its_guest_began(self):
        self.book().add('i1', [
            make_assignment(uuid='a1', lease_expires_at=5.0),
            make_assignment(uuid='a2', lease_expires_at=5.0,
                            migration_uuid='m1',
                            role=claim.ClaimRole.DESTINATION)])
        for time, act, used in (
                (1000.0, lambda: None, [None, None]),
                (1100.0, lambda: self.book().activated('i1', ['a1', 'a2']),
                 [0, None]),
                (1300.0, lambda: self.book().confirm(
                    claim.MigrationConfirmation(
                        instance_uuid='i1', migration_uuid='m1',
                        source_assignments=('a1',))), [0]),
                (1350.0, lambda: None, [50]),
                # The clock was set back.
                (1000.0, lambda: None, [0])):
            with fixtures.MonkeyPatch('time.time', lambda time=time: time):
                act()
                self.assertEqual(used, [
                    assignment.used_seconds
                    for assignment in self.book().with_use()])

    def test_use_of_a_device_goes_on_when_the_book_changes(self):
        for time, instance in ((1000.0, 'i1'), (1100.0, 'i2')):
            with fixtures.MonkeyPatch('time.time', lambda time=time: time):
                self.book().add(instance, [make_assignment(instance)])
                used = {assignment.instance_uuid: assignment.used_seconds
                        for assignment in self.book().with_use()}
        self.assertEqual({'i1': 100, 'i2': 0}, used)

    def test_prepared_device_is_noted_until_it_is_cleaned(self):
        self.book().prepare([make_assignment(stable_id='/devices/x')])
        self.assertTrue(self.book().is_prepared('/devices/x'))
        self.assertFalse(self.book().is_prepared('/devices/y'))
        self.book().cleaned('/devices/x')
        self.assertFalse(self.book().is_prepared('/devices/x'))

    def test_generation_of_a_new_assignment_is_on_disk(self):
        # A conductor that was restored begins after it.
        self.book().add('i1', [make_assignment(host_generation=7)])
        self.book().add('i2', [make_assignment('i2', host_generation=3)])
        self.assertEqual(7, self.book().generation())

    def test_listed_assignments_with_a_pending_end_are_left_out(self):
        book = self.book()
        book.add_pending(['a'])
        book.add_confirmation(claim.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=('b',)))
        book.replace({'i1': (
            make_assignment(uuid='a'), make_assignment(uuid='b'),
            make_assignment(uuid='c', migration_uuid='m1',
                            role=claim.ClaimRole.DESTINATION))},
            book.changes())
        self.assertEqual([('c', None)], [
            (assignment.uuid, assignment.migration_uuid)
            for assignment in book.of_instance('i1')])

    def test_pending_releases_are_kept_in_order_and_once(self):
        book = self.book()
        book.add_pending(['a', 'b'])
        book.add_pending(['b', 'c'])
        self.assertEqual(['a', 'b', 'c'], self.book().pending())
        book.remove_pending(['a', 'c', 'x'])
        self.assertEqual(['b'], self.book().pending())

    def test_pending_releases_have_an_age(self):
        now = 1e9
        self.useFixture(fixtures.MonkeyPatch('time.time', lambda: now))
        self.book().add_pending(['a', 'b'])
        now += 60.9
        book = self.book()
        book.add_pending(['b', 'c'])
        now += 10
        book.remove_pending(['a'])
        self.assertEqual({'b': 70, 'c': 10}, self.book().ages(['a', 'b', 'c']))
        self.assertEqual({'c': 10}, book.ages(['c']))
        # The clock was set back.
        now -= 100
        self.assertEqual({'b': 0, 'c': 0}, book.ages(book.pending()))

    def test_same_list_again_writes_nothing(self):
        assigned = {'i1': (make_assignment(),)}
        book = self.book()
        book.replace(assigned, 0)
        self.path.unlink()
        book.replace(dict(assigned), 0)
        self.assertFalse(self.path.exists())

    def test_change_that_cannot_be_written_is_written_later(self):
        mine = make_assignment()
        book = self.book()
        book.add('i1', [mine])
        with disk.full_disk():
            self.assertFalse(book.add_pending(['a']))
            book.begin(7, 3)
            book.remove('i1', [mine.uuid])
            book.write_again()
            self.assertIsNotNone(book.error())
        self.assertEqual(((), ['a'], 7), (
            book.of_instance('i1'), book.pending(), book.session()))
        self.assertEqual((mine,), self.book().of_instance('i1'))
        book.write_again()
        self.assertIsNone(book.error())
        read = self.book()
        self.assertEqual(((), ['a'], 7), (
            read.of_instance('i1'), read.pending(), read.session()))
        self.assertEqual(
            [f'{mine.address} was not cleaned after its last assignment'],
            read.contradictions([make_assignment('i2')]))

    def test_assignment_that_cannot_be_written_is_not_added(self):
        book = self.book()
        with disk.full_disk():
            self.assertRaises(exception.HostNotReady, book.add, 'i1',
                              [make_assignment()])
        self.assertEqual(((), 0), (book.of_instance('i1'), book.changes()))
        self.assertIsNone(book.error())


class UnreadableTest(AssignmentsTestCase):

    TEXTS = (
        '{"assigned": {"i1": ["a"',
        '',
        'null',
        '[]',
        '{"assigned": {}, "pending": {}}',
        '{"version": 2, "assigned": {}, "pending": {}, "more": 1}',
        '{"version": "1", "assigned": {}, "pending": {}}',
        '{"version": 1, "assigned": {"i1": [{"uuid": 1}]}, "pending": {}}',
        '{"version": 1, "assigned": {}, "pending": ["a"]}',
        '[' * 100_000,
        '{"version": 1, "assigned": ' + '{"a": ' * 900 + '1' + '}' * 901,
        '{"version": 1, "session": -1}',
        f'{{"version": 1, "session": {2 ** 62}}}',
        '{"version": 1, "generation": -1}',
        f'{{"version": 1, "generation": {2 ** 64}}}',
        '{"version": 1, "pending": {"a": NaN}}',
        '{"version": 1, "pending": {"a": Infinity}}',
    )

    def test_file_is_kept_aside_and_the_log_names_it(self):
        for number, text in enumerate(self.TEXTS, 1):
            with self.subTest(text):
                self.path.write_text(text)
                book = self.book()
                self.assertEqual(([], []), (book.all(), book.pending()))
                kept = self.folder / f'h1.json.unreadable-{number}'
                self.assertEqual(text, kept.read_text())
                self.assertFalse(self.path.exists())
                self.assertIn(str(self.path), self.log.output)
                self.assertIn(str(kept), self.log.output)

    def test_assignment_that_no_report_can_send_is_kept_aside(self):
        assignment_file.AssignmentFile(str(self.path)).add(
            'i1', [make_assignment(uuid='a1', lease_expires_at=5.0,
                                   used_seconds=7)])
        good = self.path.read_text()
        for part, bad in (
                ('5.0', 'NaN'), ('5.0', 'Infinity'), ('5.0', '1e300'),
                ('"a1"', json.dumps('a' * 37)),
                ('"used_seconds": 7', f'"used_seconds": {2 ** 63}'),
                ('"used_seconds": 7', '"used_seconds": -1')):
            with self.subTest(bad):
                self.assertIn(part, good)
                self.path.write_text(good)
                self.assertEqual(1, len(self.book().all()))
                self.path.write_text(good.replace(part, bad))
                self.assertEqual([], self.book().all())

    def test_book_of_another_host_is_kept_aside(self):
        assignment_file.AssignmentFile(str(self.folder / 'h2.json')).add(
            'i1', [make_assignment(host='h2')])
        (self.folder / 'h2.json').rename(self.path)
        self.assertEqual([], self.book().all())
        self.assertIn("host: 'h2' is not valid: assignments of h1 alone",
                      self.log.output)
        self.assertRaises(
            exception.Invalid, assignment_file.not_free,
            self.folder / 'h1.json.unreadable-1')

    def test_version_that_is_not_known_is_named(self):
        self.path.write_text('{"version": 7}')
        self.book()
        self.assertIn('version: 7 is not valid', self.log.output)
        self.assertIn('reads 1', self.log.output)

    def test_bytes_that_are_no_text(self):
        self.path.write_bytes(b'\xff\xfe\x00')
        self.assertEqual([], self.book().all())
        self.assertEqual(
            b'\xff\xfe\x00',
            (self.folder / 'h1.json.unreadable-1').read_bytes())

    def test_book_can_be_written_afterwards(self):
        self.path.write_text('{"assigned": {"i1": ["a"')
        book = self.book()
        mine = make_assignment('i2')
        book.add('i2', [mine])
        self.assertEqual((mine,), self.book().of_instance('i2'))

    def test_file_that_cannot_be_renamed_is_named_too(self):
        self.path.write_text('?')
        with fixtures.MockPatch('pathlib.Path.rename',
                                side_effect=OSError(30, 'read-only')):
            self.assertEqual([], self.book().all())
        self.assertIn('cannot be renamed', self.log.output)
        self.assertIn('read-only', self.log.output)
