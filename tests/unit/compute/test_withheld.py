# SPDX-License-Identifier: Apache-2.0
"""Tests of what the files of a host tell about devices that are not free."""

import errno
import json
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import designation_check
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.vfio import baseline
from tests.unit.compute.test_assignments import make_assignment

GPU = pci.PCIFunction(id='/devices/pci0000:20/01.0/00.0',
                      address='0000:21:00.0')
AUDIO = pci.PCIFunction(id='/devices/pci0000:20/01.0/00.1',
                        address='0000:21:00.1')


class BookCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.book = assignment_file.AssignmentFile(
            str(self.folder / 'h1.json'))

    def assign(self, stable_id):
        assignment = make_assignment(stable_id=stable_id)
        self.book.add('i1', [assignment])
        return assignment


class WithheldTest(BookCase):

    def had_guest(self):
        baseline.Baselines(str(self.folder / 'cards')).record(
            GPU.id, 'a1', {'vendor': '10de'})

    def refusal(self, *words):
        """Check that the card is refused with some words."""
        address, reason = designation_check.refusal(str(self.folder),
                                                    (GPU, AUDIO))
        self.assertEqual(GPU.address, address)
        for word in (*words, 'repeat the command'):
            self.assertIn(word, reason)

    def is_free(self):
        return designation_check.refusal(str(self.folder),
                                         (GPU, AUDIO)) is None

    def test_assigned_device_is_not_free(self):
        for stable_id in (GPU.id, f'{GPU.id}/vf3', f'{GPU.id}/mdev0',
                          f'{GPU.id}/vf3/mdev0'):
            assignment = self.assign(stable_id)
            self.refusal('on host h1', 'assigned to instance', 'device list')
            self.book.remove('i1', [assignment.uuid], [assignment.uuid])
            self.assertTrue(self.is_free())

    def test_device_is_not_free_until_its_cleaning_passed(self):
        self.had_guest()
        assignment = self.assign(GPU.id)
        self.book.remove('i1', [assignment.uuid])
        self.refusal('on host h1', 'not cleaned', 'device release')
        self.book.cleaned(GPU.id)
        self.assertTrue(self.is_free())

    def test_device_in_a_cleaning_without_a_guest_is_not_free(self):
        self.book.cleaning(GPU.id)
        self.refusal('not cleaned')
        self.book.cleaned(GPU.id)
        self.assertTrue(self.is_free())

    def test_other_devices_do_not_matter(self):
        self.assign('/devices/pci0000:20/02.0/00.0')
        self.assertTrue(self.is_free())

    def test_host_on_which_nova_compute_never_ran_is_free(self):
        self.folder /= 'none'
        self.assertTrue(self.is_free())

    def test_book_that_cannot_be_read_makes_the_card_unknown(self):
        path = self.folder / 'h1.json'
        for text in ('{', json.dumps({'version': 99}), '[]'):
            path.write_text(text)
            self.refusal('unknown', str(path), 'Start nova-compute')
            # It is nova-compute that renames it.
            self.assertEqual(text, path.read_text())

    def test_book_that_was_set_aside_makes_a_card_with_a_guest_unknown(self):
        self.book.begin(1, 1)
        (self.folder / 'h1.json.unreadable-1').write_text('{')
        self.assertTrue(self.is_free())
        self.had_guest()
        self.refusal('unknown', 'h1.json.unreadable-1', 'Remove that file')

    def test_missing_book_makes_a_card_with_a_guest_unknown(self):
        self.assertTrue(self.is_free())
        self.had_guest()
        self.refusal('unknown', 'has no record of assignments')

    def test_folder_that_cannot_be_read_makes_the_card_unknown(self):
        def refuse(path):
            raise PermissionError(errno.EACCES, 'Permission denied')
        self.useFixture(fixtures.MonkeyPatch(
            'pathlib.Path.iterdir', refuse))
        self.refusal('unknown', 'Permission denied')


class UsersTest(BookCase):

    def users(self):
        return designation_check.users(str(self.folder))

    def test_instance_is_that_of_the_function_and_of_its_gpu(self):
        self.assign(GPU.id)
        vf = '/devices/pci0000:20/02.0/00.0/vf3'
        self.book.add('i2', [make_assignment(
            stable_id=vf, instance_uuid='i2')])
        found = self.users()
        self.assertIsNone(found.doubt)
        self.assertEqual(['i2'], found.instances[vf])
        self.assertEqual(['i2'], found.instances[vf.removesuffix('/vf3')])
        self.assertEqual({GPU.id, vf, vf.removesuffix('/vf3')},
                         found.instances.keys())

    def test_gpu_has_the_instances_of_all_its_vgpus(self):
        for number in (1, 2):
            self.book.add(f'i{number}', [make_assignment(
                stable_id=f'{GPU.id}/mdev{number}',
                instance_uuid=f'i{number}')])
        self.assertEqual({GPU.id: ['i1', 'i2']}, self.users().instances)

    def test_what_no_book_says_is_in_doubt(self):
        self.assertIn('has no record', self.users().doubt)
        self.assign(GPU.id)
        (self.folder / 'h1.json.unreadable-1').write_text('{')
        found = self.users()
        self.assertIn('h1.json.unreadable-1', found.doubt)
        self.assertIn(GPU.id, found.instances)
        (self.folder / 'h2.json').write_text('{')
        self.assertIn('h2.json', self.users().doubt)

    def test_folder_that_cannot_be_read_is_in_doubt(self):
        self.folder /= 'none'
        self.assertIn(str(self.folder), self.users().doubt)
