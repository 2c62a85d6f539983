# SPDX-License-Identifier: Apache-2.0
"""Run the contract tests of the lab's real kernel on the fake kernel."""

import contextlib

import fixtures
from oslotest import base

from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import recording
from tests.contract import mdev
from tests.contract import passthrough
from tests.fixtures import reported


class FakeKernelContractTest(
        passthrough.PassthroughContract, base.BaseTestCase):

    vendor = '10de'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.backend = fake_host.FakeHost.for_machine(
            self.machine(), self.root
        )
        self.gpus = [function for function in self.backend.scan().functions
                     if function.vendor == self.vendor][:2]
        for gpu in self.gpus:
            self._enable(gpu, 0)

    def write(self, path, value):
        self.backend.kernel.write(path, value)

    @contextlib.contextmanager
    def opened(self, gpu):
        self._enable(gpu, 1)
        yield
        self._enable(gpu, 0)

    def _enable(self, gpu, count):
        # The kernel writes it when a driver enables the device.
        with open(f'{self.root}/bus/pci/devices/{gpu.address}/enable', 'w',
                  encoding='utf-8') as file:
            file.write(f'{count}\n')

    def machine(self):
        return 'pcie-l40s-4'


class RecordedContractTest(FakeKernelContractTest):
    """A recorded machine behaves as the machine that was recorded."""

    def machine(self):
        folder = self.useFixture(fixtures.TempDir()).path
        root = f'{folder}/sys'
        machine.build(machine.load(super().machine()), root)
        with open(f'{folder}/host.yaml', 'w', encoding='utf-8') as file:
            file.write(machine.dump(
                recording.record(sysfs.Sysfs(root)), 'a test'))
        return file.name


class FakeMdevContractTest(mdev.MdevContract, base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.backend = fake_host.FakeHost.for_machine('nvidia-t4-2', self.root)
        self.parent = next(
            function for function in reported.functions(self.backend.scan())
            if function.vgpu_mechanism)
        self.types = {'T4-1Q': 16, 'T4-2Q': 8, 'T4-4Q': 4, 'T4-8Q': 2,
                      'T4-16Q': 1}

    def write(self, path, value):
        self.backend.kernel.write(path, value)
