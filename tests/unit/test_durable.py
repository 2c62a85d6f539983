# SPDX-License-Identifier: Apache-2.0
"""Tests of files that must survive a power failure."""

import io
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import durable
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import designation


class DurableTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.events = []
        fsync, replace = os.fsync, os.replace

        def noted_fsync(fd):
            path = pathlib.Path(os.readlink(f'/proc/self/fd/{fd}'))
            self.events.append(('fsync', path, path.is_file()
                                and path.read_text()))
            fsync(fd)

        def noted_replace(old, new):
            self.events.append(('replace', pathlib.Path(new),
                                pathlib.Path(old).read_text()))
            replace(old, new)
        for name, noted in (('fsync', noted_fsync),
                            ('replace', noted_replace)):
            self.useFixture(fixtures.MonkeyPatch(f'os.{name}', noted))

    def check(self, path):
        """Check the order: text synced, file replaced, folder synced."""
        path = pathlib.Path(path)
        text = path.read_text()
        self.assertNotEqual('', text)
        (first, new, written), *rest = self.events
        self.assertEqual(('fsync', path.parent, text),
                         (first, new.parent, written))
        self.assertEqual([('replace', path, text),
                          ('fsync', path.parent, False)], rest)
        self.assertEqual([path.name], os.listdir(path.parent))

    def test_baselines(self):
        baseline.Baselines(f'{self.folder}/cards').record(
            '/devices/x', 'a', {'vendor': '10de'})
        self.check(f'{self.folder}/cards/devices_x.json')

    def test_state_of_a_host(self):
        book = assignment_file.AssignmentFile(f'{self.folder}/state.json')
        book.add_pending(['a'])
        self.check(f'{self.folder}/state.json')

    def test_link_in_the_place_of_the_new_text_is_not_followed(self):
        folder = pathlib.Path(self.folder)
        other = folder / 'other'
        other.write_text('kept')
        (folder / 'x.new').symlink_to(other)
        durable.replace(folder / 'x', 'text')
        self.assertEqual(('kept', 'text'), (
            other.read_text(), (folder / 'x').read_text()))

    def test_new_file_gets_its_name_when_it_is_on_disk(self):
        path = pathlib.Path(self.folder) / 'sub' / 'new.csv'
        path.parent.mkdir()
        with durable.new(path) as file:
            file.write('text')
            self.assertFalse(path.exists())
        self.assertEqual('text', path.read_text())
        (first, unfinished, written), folder = self.events
        self.assertEqual(('fsync', path.parent, 'text'),
                         (first, unfinished.parent, written))
        self.assertNotEqual(path, unfinished)
        self.assertEqual(('fsync', path.parent, False), folder)
        self.assertEqual([path.name], os.listdir(path.parent))

    def test_file_that_exists_is_not_replaced(self):
        path = pathlib.Path(self.folder) / 'new.csv'

        def write():
            with durable.new(path) as file:
                file.write('mine')
                # Another process, meanwhile.
                path.write_text('other')
        for _ in range(2):
            self.assertRaises(FileExistsError, write)
            self.assertEqual('other', path.read_text())
            self.assertEqual([path.name], os.listdir(self.folder))

    def test_file_whose_writer_fails_does_not_exist(self):
        def write():
            with durable.new(pathlib.Path(self.folder) / 'new.csv') as file:
                file.write('text')
                raise ValueError
        self.assertRaises(ValueError, write)
        self.assertEqual([], os.listdir(self.folder))

    def test_what_has_no_disk_is_only_written(self):
        reading, writing = os.pipe()
        with open(reading, encoding='utf-8') as result:
            with open(writing, 'w', encoding='utf-8') as file:
                file.write('text')
                self.assertFalse(durable.sync(file))
            self.assertEqual('text', result.read())
        self.assertFalse(durable.sync(io.StringIO()))

    def test_what_has_a_disk_is_on_it(self):
        with open(pathlib.Path(self.folder) / 'new.csv', 'w',
                  encoding='utf-8') as file:
            file.write('text')
            self.assertTrue(durable.sync(file))
            self.assertEqual('text', pathlib.Path(file.name).read_text())

    def test_designations(self):
        self.useFixture(fixtures.MockPatchObject(
            designation, 'ETC', self.folder))
        designation.add_rule(
            '/devices/pci0000:20/01.0', '10de', '11fa',
            vfio_drivers.VFIODriver(module='vfio-pci', name='vfio-pci'))
        self.check(f'{self.folder}/{designation.RULES}')

    def test_files_are_private_whatever_the_umask(self):
        self.addCleanup(os.umask, os.umask(0))
        folder = pathlib.Path(self.folder)
        durable.replace(folder / 'map.html', 'text')
        durable.replace(folder / 'rules', 'text', mode=0o644)
        with durable.new(folder / 'usage.csv') as file:
            file.write('text')
        self.assertEqual([0o600, 0o644, 0o600], [
            (folder / name).stat().st_mode & 0o777
            for name in ('map.html', 'rules', 'usage.csv')])

    def test_file_beside_the_one_that_is_replaced_stays(self):
        beside = pathlib.Path(self.folder, 'map.new')
        beside.write_text('of the operator')
        durable.replace(pathlib.Path(self.folder, 'map.html'), 'text')
        self.assertEqual(['map.html', 'map.new'],
                         sorted(os.listdir(self.folder)))
        self.assertEqual('of the operator', beside.read_text())
