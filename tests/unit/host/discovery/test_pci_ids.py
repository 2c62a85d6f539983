# SPDX-License-Identifier: Apache-2.0
"""Tests of reading the ids of a function: from modalias, and without it."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import sysfs

MODALIAS = 'pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n'
ATTRIBUTES = {'vendor': '0x10de', 'device': '0x2330', 'class': '0x030200',
              'subsystem_vendor': '0x10de', 'subsystem_device': '0x16c1'}
IDS = config_space.PCIIds('10de', '2330', '10de', '16c1', 'a1', '030200')


class IdsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.write(revision='0xa1')
        self.attempt = sysfs.Attempt('0000:01:00.0', [])

    def write(self, **files):
        for name, text in files.items():
            (self.folder / name).write_text(f'{text}\n')

    def read(self):
        with sysfs.Folder(str(self.folder)) as folder:
            return config_space.read_ids(folder, self.attempt)

    def test_modalias_has_all_but_the_revision(self):
        self.write(modalias=MODALIAS.strip())
        self.assertEqual(IDS, self.read())

    def test_without_modalias_each_attribute_is_read(self):
        self.write(**ATTRIBUTES)
        self.assertEqual(IDS, self.read())

    def test_modalias_of_another_form_is_ignored(self):
        self.write(**ATTRIBUTES)
        for text in ('', 'garbage', MODALIAS.strip() + 'x',
                     'pci:v0001000Ad00002330sv0sd0bc03sc02i00'):
            self.write(modalias=text)
            self.assertEqual(IDS, self.read(), text)

    def test_modalias_that_cannot_be_read_is_ignored(self):
        self.write(**ATTRIBUTES)
        (self.folder / 'modalias').symlink_to('modalias')
        self.assertEqual(IDS, self.read())
        self.assertEqual([], self.attempt.unreadable)

    def test_missing_attribute_is_unknown(self):
        self.write(vendor='0x10de', device='0x2330')
        self.assertEqual(
            config_space.PCIIds('10de', '2330', None, None, 'a1', None),
            self.read())
        self.assertEqual([], self.attempt.unreadable)

    def test_attribute_that_is_no_number_is_unreadable(self):
        self.write(**{**ATTRIBUTES, 'device': 'garbage'})
        self.assertEqual(IDS._replace(device=None), self.read())
        self.assertEqual(['device'], self.attempt.unreadable)
