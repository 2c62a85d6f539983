# SPDX-License-Identifier: Apache-2.0
"""Tests of baselines: recorded once per assignment, never lost."""

import json
import pathlib

import fixtures
import hypothesis
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.vfio import baseline

ID = '/devices/pci0000:00/01.0'
SHAPES = st.dictionaries(st.text(), st.text())
NOTES = st.dictionaries(st.text(), st.none() | st.text())


class BaselinesTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.folder / 'devices_pci0000:00_01.0.json'

    def baselines(self):
        """Return the baselines, read from their files again."""
        return baseline.Baselines(str(self.folder))

    def differences(self, cleaning, shape, *, had_guest=True):
        return self.baselines().differences(
            ID, cleaning, shape, had_guest=had_guest)


class RoundTripTest(BaselinesTestCase):

    @hypothesis.given(SHAPES, NOTES, NOTES)
    @hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
    def test_whatever_is_recorded_is_read_again(self, shape, notes, others):
        with fixtures.MonkeyPatch('os.fsync', lambda fd: None):
            self.path.unlink(missing_ok=True)
            self.baselines().record(ID, 'a', shape, notes)
            self.assertEqual(notes, self.baselines().notes(ID))
            self.assertEqual([], self.differences('c', dict(shape)))
            self.baselines().note(ID, others)
            self.assertEqual(others, self.baselines().notes(ID))
            self.assertEqual(
                [f'{name} was {shape[name] or "none"}, is none'
                 for name in sorted(shape)],
                self.differences('c', {}))

    def test_file_says_its_version(self):
        self.baselines().record(ID, 'a', {'vendor': '10de'})
        self.assertEqual(1, baseline.VERSION)
        self.assertEqual(
            {'version': 1, 'assignment': 'a', 'shape': {'vendor': '10de'},
             'notes': {}, 'firmware': None, 'reported_to': None,
             'lost': False},
            json.loads(self.path.read_text()))


class LifeTest(BaselinesTestCase):

    def test_same_assignment_again_keeps_the_first_record(self):
        for driver in ('nvidia', 'vfio-pci'):
            self.baselines().record(ID, 'a', {'x': driver}, {'driver': driver})
        self.assertEqual({'driver': 'nvidia'},
                         self.baselines().notes(ID))
        self.assertEqual(['x was nvidia, is y'],
                         self.differences('c', {'x': 'y'}))

    def test_record_that_is_missing_after_the_guest_began_is_lost(self):
        for assignment in ('a', 'b'):
            with self.subTest(assignment):
                self.baselines().record(ID, assignment, {'x': '1'},
                                        had_guest=True)
                self.baselines().record_firmware(
                    ID, lambda: self.fail('read after the guest'))
                self.assertIn('it is lost', ''.join(
                    self.differences(f'of {assignment}', {'x': '1'})))

    def test_record_of_the_assignment_is_kept_when_it_is_restored(self):
        self.baselines().record(ID, 'a', {'x': '1'})
        self.baselines().record(ID, 'a', {'x': '2'}, had_guest=True)
        self.assertEqual([], self.differences('c', {'x': '1'}))

    def test_next_assignment_replaces_the_record(self):
        self.baselines().record(ID, 'a', {'x': '1'}, {'driver': 'nvidia'})
        self.baselines().record(ID, 'b', {'x': '2'})
        self.assertEqual({}, self.baselines().notes(ID, 'a'))
        self.assertEqual([], self.differences('c', {'x': '2'}))

    def test_driver_before_a_cleaning_is_noted_and_keeps_the_shape(self):
        self.baselines().record(ID, 'a', {'x': '1'}, {'driver': 'nvidia'})
        for driver, noted in (('nouveau', 'nouveau'), (None, 'nouveau')):
            self.baselines().note_driver(ID, driver)
            self.assertEqual({'driver': noted}, self.baselines().notes(ID))
        self.assertEqual(['x was 1, is 2'],
                         self.differences('c', {'x': '2'}))

    def test_driver_of_a_function_without_a_baseline_is_no_baseline(self):
        self.baselines().note_driver(ID, None)
        self.assertEqual({'driver': None}, self.baselines().notes(ID))
        self.baselines().record(ID, 'a', {'x': '1'}, {'driver': 'nvidia'})
        self.assertEqual(['x was 1, is 2'],
                         self.differences('c', {'x': '2'}))

    def test_another_function_keeps_the_notes_alone(self):
        self.baselines().renew(ID)
        self.assertFalse(self.baselines().has(ID))
        self.baselines().record(
            ID, 'a', {'x': '1'}, {'driver': None}, had_guest=True)
        self.baselines().renew(ID)
        self.assertEqual({'driver': None}, self.baselines().notes(ID))
        self.assertEqual(
            [], self.differences('c', {'x': '2'}, had_guest=False))
        self.assertEqual(['x was 2, is 3'], self.differences('d', {'x': '3'}))

    def test_notes_are_those_of_the_last_preparation(self):
        self.baselines().note(ID, {'type': '1'})
        self.assertFalse(self.baselines().has(ID))
        for assignment in 'ab':
            self.baselines().record(ID, assignment, {})
            self.baselines().note(ID, {'type': assignment})
        self.assertEqual({'type': 'b'}, self.baselines().notes(ID))
        self.assertEqual({'type': 'b'}, self.baselines().notes(ID, 'b'))
        self.assertEqual({}, self.baselines().notes(ID, 'a'))

    def test_differences_are_returned_to_one_cleaning(self):
        self.baselines().record(ID, 'a', {'x': '1', 'y': '2'})
        for _ in range(2):
            self.assertEqual(
                ['x was 1, is 3', 'y was 2, is none'],
                self.differences('c', {'x': '3'}))
        self.assertEqual([], self.differences('d', {}))

    def test_function_that_no_guest_had_gets_its_baseline(self):
        self.assertEqual([], self.baselines().differences(
            ID, 'c', {'x': '1'}, {'ROM': '1'}, had_guest=False))
        self.assertEqual({}, self.baselines().notes(ID))
        self.assertEqual(
            ['x was 1, is 2', 'ROM was 1, is 2'],
            self.baselines().differences(
                ID, 'd', {'x': '2'}, {'ROM': '2'}, had_guest=True))

    def test_lost_baseline_is_doubt_until_an_operator_accepts_it(self):
        lost = ['it is lost, so nobody knows what the guest has changed']
        for begin in (lambda: None,
                      lambda: self.baselines().note_driver(ID, 'x')):
            with self.subTest(begin=begin):
                self.path.unlink(missing_ok=True)
                begin()
                for _ in range(2):
                    self.assertEqual(lost, self.differences('c', {'x': '1'}))
                self.assertEqual(
                    [*lost, 'x was 1, is 2'],
                    self.differences('c', {'x': '2'}))
                # An operator has released the device.
                self.assertEqual([], self.differences('d', {'x': '2'}))
                self.baselines().record(ID, 'b', {'x': '2'})
                self.assertEqual([], self.differences('e', {'x': '2'}))

    def test_firmware_of_before_the_first_guest_stays(self):
        self.baselines().record_firmware(ID, lambda: {'ROM': '0'})
        self.assertEqual([], list(self.folder.iterdir()))
        for number, rom in enumerate('12'):
            self.baselines().record(ID, f'a{number}', {'x': '1'})
            self.baselines().record_firmware(ID, lambda rom=rom: {'ROM': rom})
        for _ in range(2):
            self.assertEqual(['ROM was 1, is 2'], self.baselines().differences(
                ID, 'c', {'x': '1'}, {'ROM': '2'}, had_guest=True))
        # An operator has released the device, which is handed out again.
        for cleaning in 'de':
            self.assertEqual([], self.baselines().differences(
                ID, cleaning, {'x': '1'}, {'ROM': '2'}, had_guest=True))
            self.baselines().record(ID, cleaning, {'x': '1'})
        self.assertEqual(['ROM was 2, is none'], self.baselines().differences(
            ID, 'f', {'x': '1'}, {'ROM': ''}, had_guest=True))

    def test_field_that_was_not_recorded_is_no_difference(self):
        self.baselines().record(ID, 'a', {'x': '1'})
        self.assertEqual([], self.differences('c', {'x': '1', 'new': '2'}))

    def test_folder_that_cannot_be_written_blames_no_device(self):
        with fixtures.MockPatch('gpgpu_plugin.durable.replace',
                                side_effect=OSError(28, 'no space left')):
            exc = self.assertRaises(
                exception.HostNotReady, self.baselines().record, ID, 'a', {})
        self.assertIn('no space left', str(exc))


class UnreadableTest(BaselinesTestCase):

    TEXTS = (
        b'{"version": 1, "assignment": "a", "sha',
        b'',
        b'\xff\xfe',
        b'null',
        b'{"assignment": "a", "shape": {}}',
        b'{"version": 2, "assignment": "a", "shape": {}, "more": 1}',
        b'{"version": 1, "assignment": "a"}',
        b'{"version": 1, "assignment": "a", "shape": {"x": 1}}',
    )

    def test_file_stays_and_the_error_names_it(self):
        for text in self.TEXTS:
            self.path.write_bytes(text)
            for method, args, kwargs in (
                    ('record', ('a', {}), {}), ('note', ({},), {}),
                    ('notes', (), {}), ('note_driver', (None,), {}),
                    ('differences', ('c', {}), {'had_guest': True})):
                with self.subTest(text=text, method=method):
                    exc = self.assertRaises(
                        exception.HostError,
                        getattr(self.baselines(), method), ID, *args, **kwargs)
                    self.assertEqual(str(self.path), exc.kwargs['path'])
                    self.assertIn(ID, str(exc))
                    self.assertEqual(text, self.path.read_bytes())

    def test_version_that_is_not_known_is_named(self):
        self.path.write_text('{"version": 7}')
        exc = self.assertRaises(
            exception.HostError, self.baselines().notes, ID, 'a')
        self.assertIn('version: 7', str(exc))
        self.assertIn('reads 1', str(exc))
        self.assertIn('remove the file', str(exc))
