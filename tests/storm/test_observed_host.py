# SPDX-License-Identifier: Apache-2.0
import pathlib
import types

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host import base as host_base
from tests.storm import ground_truth
from tests.storm import observed_host

GPU = '/devices/pci0000:00/01.0'


class ObservedHostTest(base.BaseTestCase):

    def test_cleaning_under_guest_fails_and_is_recorded(self):
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        truth = ground_truth.GroundTruth(folder)
        truth.prepare(GPU, 'i1')
        truth.start('i1', [GPU])
        host = observed_host.ObservedHost(
            types.SimpleNamespace(), truth, lambda uuid: 'i1')
        self.assertRaises(
            exception.HostError, host.clean, host_base.HostDevice(
                assignment_uuid='a1', stable_id=GPU, address='0000:01:00.0'))
        self.assertIn('cleaned', (
            folder / ground_truth.DOUBLE_USE_FILE).read_text())
