# SPDX-License-Identifier: Apache-2.0
"""Tests of reading sysfs: missing files and errors."""

import os
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.discovery import sysfs

# Breaks if eventlet still waits for the file number of the folder.
_WITH_EVENTLET = """
import eventlet
eventlet.monkey_patch()
import os, sys
from gpgpu_plugin.host.discovery import sysfs
try:
    sysfs.Sysfs('/').read(sys.argv[1])
except IsADirectoryError:
    os.close(os.open(sys.argv[1], os.O_RDONLY))
    eventlet.sleep(0)
    print('ended')
"""


class SysfsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.sysfs = sysfs.Sysfs(f'{self.root}/')

    def path(self, name, content=None):
        path = self.root / name
        if content is not None:
            path.write_bytes(content)
        return str(path)

    def test_root_has_no_slash_at_its_end(self):
        self.assertEqual(
            (str(self.root), f'{self.root}/bus/pci/devices'),
            (self.sysfs.root, self.sysfs.devices))
        self.assertEqual('/', sysfs.Sysfs('/').root)

    def test_text_is_stripped(self):
        self.assertEqual('10de', self.sysfs.read(self.path('a', b'10de\n')))
        self.assertEqual('', self.sysfs.read(self.path('b', b'')))

    def test_bytes_that_are_no_text_are_replaced(self):
        self.assertEqual('a\ufffd', self.sysfs.read(self.path('a', b'a\xff')))

    def test_bytes_are_read_up_to_the_size(self):
        path = self.path('config', bytes(5000))
        self.assertEqual(64, len(self.sysfs.read_bytes(path, 64)))
        self.assertEqual(4096, len(self.sysfs.read_bytes(path)))

    def test_missing_file_is_none(self):
        self.assertIsNone(self.sysfs.read(self.path('a')))
        self.assertIsNone(self.sysfs.read_bytes(self.path('a/b')))

    def test_file_that_cannot_be_read_is_an_error(self):
        self.assertRaises(OSError, self.sysfs.read, str(self.root))

    def test_folder_does_not_break_a_thread_of_eventlet(self):
        self.assertEqual('ended\n', subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _WITH_EVENTLET,
             str(self.root)], text=True, stdout=subprocess.PIPE,
            check=True).stdout)

    def test_no_file_stays_open(self):
        before = os.listdir('/proc/self/fd')
        self.sysfs.read(self.path('a', b'x'))
        self.assertRaises(OSError, self.sysfs.read, str(self.root))
        self.assertEqual(len(before), len(os.listdir('/proc/self/fd')))

    def test_open_folder_is_read_by_names(self):
        self.path('a', b'x\n')
        os.symlink('../bus/pci/drivers/nvidia', self.path('driver'))
        before = os.listdir('/proc/self/fd')
        with sysfs.Folder(str(self.root)) as folder:
            self.assertEqual(
                ({'a', 'driver'}, 'x', 'nvidia', None, None),
                (set(folder.names()), folder.read('a'),
                 folder.link('driver'), folder.read('b'), folder.link('b')))
        self.assertEqual(len(before), len(os.listdir('/proc/self/fd')))
        self.assertRaises(
            FileNotFoundError, sysfs.Folder, self.path('nowhere'))

    def test_link_is_the_last_part_of_its_target(self):
        os.symlink('../../bus/pci/drivers/nvidia', self.path('driver'))
        self.assertEqual('nvidia', self.sysfs.link(self.path('driver')))
        self.assertEqual('../../bus/pci/drivers/nvidia',
                         self.sysfs.target(self.path('driver')))

    def test_missing_link_and_file_that_is_no_link_are_none(self):
        self.assertIsNone(self.sysfs.link(self.path('driver')))
        self.assertIsNone(self.sysfs.link(self.path('a', b'x')))

    def test_link_below_a_file_is_an_error(self):
        self.path('a', b'x')
        self.assertRaises(
            NotADirectoryError, self.sysfs.link, self.path('a/driver'))

    def test_names_of_a_missing_folder_are_empty(self):
        self.path('a', b'')
        self.assertEqual(['a'], self.sysfs.names(str(self.root)))
        self.assertEqual([], self.sysfs.names(self.path('nowhere')))
        self.assertEqual([], self.sysfs.names(self.path('a')))

    def test_addresses_are_sorted(self):
        for address in ('0000:02:00.0', '0000:01:00.0'):
            os.makedirs(f'{self.sysfs.devices}/{address}')
        self.assertEqual(['0000:01:00.0', '0000:02:00.0'],
                         self.sysfs.addresses())

    def test_root_without_a_pci_bus_is_refused(self):
        exc = self.assertRaises(
            exception.HostError, self.sysfs.addresses)
        self.assertIn('is this the root of a sysfs?', str(exc))
