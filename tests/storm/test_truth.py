#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The judges of the storm see what they are there for."""

import pathlib
import types

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host import base as host_base
from tests.storm import truth

GPU = '/devices/pci0000:00/01.0'


class TruthTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.truth = truth.Truth(self.folder)

    def boot(self, instance):
        self.truth.prepare(GPU, instance)
        self.truth.start(instance, [GPU])

    def clean(self):
        with self.truth.cleaning(GPU) as cleaned:
            cleaned()

    def test_device_that_was_cleaned_is_free(self):
        self.boot('i1')
        self.assertEqual({'i1': {GPU}}, self.truth.guests())
        self.truth.end('i1')
        self.clean()
        self.boot('i2')
        self.assertFalse((self.folder / 'doubled').exists())

    def test_device_of_a_guest_is_doubled_with_its_history(self):
        self.boot('i1')
        exc = self.assertRaises(truth.Doubled, self.truth.prepare, GPU, 'i2')
        self.assertRegex(
            str(exc), 'prepared for i2(.|\n)*prepare i1(.|\n)*start i1')
        self.assertEqual(
            f'{exc}\n', (self.folder / 'doubled').read_text())

    def test_device_with_traces_of_another_instance_is_doubled(self):
        self.boot('i1')
        self.truth.end('i1')
        self.assertRaises(truth.Doubled, self.truth.prepare, GPU, 'i2')

    def test_device_that_is_being_cleaned_is_doubled(self):
        with self.truth.cleaning(GPU) as cleaned:
            cleaned()
            self.truth.devices[GPU].cleaning = True
            self.assertRaises(truth.Doubled, self.truth.prepare, GPU, 'i2')

    def test_guest_gets_only_what_was_prepared_for_it(self):
        self.truth.prepare(GPU, 'i1')
        self.assertRaises(truth.Doubled, self.truth.start, 'i2', [GPU])

    def test_same_instance_may_get_its_device_again(self):
        self.boot('i1')
        self.truth.prepare(GPU, 'i1')
        self.truth.end('i1')
        self.boot('i1')
        self.assertEqual({GPU}, self.truth.of_guest('i1'))

    def test_truth_outlives_its_process(self):
        self.boot('i1')
        self.truth.count('granted')
        after = truth.Truth(self.folder)
        self.assertEqual({'i1': {GPU}}, after.guests())
        self.assertEqual({'granted': 1}, after.counts)
        self.assertRaises(truth.Doubled, after.prepare, GPU, 'i2')

    def test_cleaning_ends_with_its_process(self):
        with self.truth.cleaning(GPU):
            after = truth.Truth(self.folder)
        after.prepare(GPU, 'i1')
        self.assertEqual({GPU}, after.used())

    def test_cleaning_under_a_guest_fails_and_is_doubled(self):
        self.boot('i1')
        host = truth.WatchedHost(
            types.SimpleNamespace(), self.truth, lambda uuid: 'i1')
        self.assertRaises(
            exception.HostError, host.clean, host_base.HostDevice(
                assignment_uuid='a1', stable_id=GPU, address='0000:01:00.0'))
        self.assertIn('cleaned', (self.folder / 'doubled').read_text())
