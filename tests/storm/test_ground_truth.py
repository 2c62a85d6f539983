# SPDX-License-Identifier: Apache-2.0
"""Tests of what counts as double use of a GPU."""

import pathlib

import fixtures
from oslotest import base

from tests.storm import ground_truth

GPU = '/devices/pci0000:00/01.0'


class GroundTruthTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.truth = ground_truth.GroundTruth(self.folder)

    def boot(self, instance):
        self.truth.prepare(GPU, instance)
        self.truth.start(instance, [GPU])

    def clean(self):
        with self.truth.cleaning(GPU) as cleaned:
            cleaned()

    def test_cleaned_device_is_free(self):
        self.boot('i1')
        self.assertEqual({'i1': {GPU}}, self.truth.guests())
        self.truth.end('i1')
        self.clean()
        self.boot('i2')
        self.assertFalse((self.folder / ground_truth.DOUBLE_USE_FILE).exists())

    def test_prepare_of_device_in_guest_fails_with_its_history(self):
        self.boot('i1')
        exc = self.assertRaises(
            ground_truth.DoubleUse, self.truth.prepare, GPU, 'i2')
        self.assertRegex(
            str(exc), 'prepared for i2(.|\n)*prepare i1(.|\n)*start i1')
        self.assertEqual(
            f'{exc}\n',
            (self.folder / ground_truth.DOUBLE_USE_FILE).read_text())

    def test_prepare_of_uncleaned_device_fails(self):
        self.boot('i1')
        self.truth.end('i1')
        self.assertRaises(
            ground_truth.DoubleUse, self.truth.prepare, GPU, 'i2')

    def test_prepare_of_device_during_cleaning_fails(self):
        with self.truth.cleaning(GPU) as cleaned:
            cleaned()
            self.truth.devices[GPU].cleaning = True
            self.assertRaises(
                ground_truth.DoubleUse, self.truth.prepare, GPU, 'i2')

    def test_start_with_device_of_another_instance_fails(self):
        self.truth.prepare(GPU, 'i1')
        self.assertRaises(
            ground_truth.DoubleUse, self.truth.start, 'i2', [GPU])

    def test_same_instance_gets_its_device_again(self):
        self.boot('i1')
        self.truth.prepare(GPU, 'i1')
        self.truth.end('i1')
        self.boot('i1')
        self.assertEqual({GPU}, self.truth.of_guest('i1'))

    def test_state_outlives_its_process(self):
        self.boot('i1')
        self.truth.count('granted')
        after = ground_truth.GroundTruth(self.folder)
        self.assertEqual({'i1': {GPU}}, after.guests())
        self.assertEqual({'granted': 1}, after.counts)
        self.assertRaises(
            ground_truth.DoubleUse, after.prepare, GPU, 'i2')

    def test_cleaning_ends_with_its_process(self):
        with self.truth.cleaning(GPU):
            after = ground_truth.GroundTruth(self.folder)
        after.prepare(GPU, 'i1')
        self.assertEqual({GPU}, after.used())
