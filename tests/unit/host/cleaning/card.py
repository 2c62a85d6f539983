# SPDX-License-Identifier: Apache-2.0
"""A GPU of a fake machine that is being cleaned."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.cleaning import steps
from gpgpu_plugin.host.fake import host as fake_host


def results_by_step(verdict):
    """Return the results of a cleaning by the name of their step."""
    return {result.step: result for result in verdict.results}


class CardCase(base.BaseTestCase):

    machine = 'pcie-l40s-4'
    has_companions = False

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake_host.FakeHost.for_machine(self.machine, self.root)
        self.vfio = self.host.kernel.vfio
        for display in pathlib.Path(self.root).glob('**/boot_vga'):
            display.write_text('0\n')
        self.gpu = next(
            function for function in self.host.scan().functions
            if pci.can_be_gpu(function.class_code)
            and function.used_by is None and function.vendor != '1a03'
            and bool(function.companions) is self.has_companions)
        self.address = self.gpu.address

    def device(self, policy='default', **kwargs):
        return host_base.HostDevice(**{
            'assignment_uuid': 'a', 'stable_id': self.gpu.id,
            'address': self.address, 'cleaning': 'token',
            'steps': cleaning.steps_of(policy), **kwargs})

    def target(self, **kwargs):
        """Return what steps get, for tests of one of them."""
        return steps.Target(
            device=self.device(**kwargs), access=self.host.access,
            functions=(self.gpu,), read=lambda: (self.gpu,))

    def use(self, secret=b'TENANT-A-SECRET'):
        """Let a guest use the GPU and leave something in its memory."""
        self.host.prepare(self.device())
        self.vfio.content(self.address)[100:100 + len(secret)] = secret
        self.host.release(self.device())

    def changes(self):
        """Return what was written, but for the names of wanted drivers."""
        return [path for path in self.host.kernel.written
                if not path.endswith('/driver_override')]

    def clean(self, policy='default', **kwargs):
        """Clean the GPU; return the verdict and results by step."""
        verdict = self.host.clean(self.device(policy, **kwargs))
        return verdict, results_by_step(verdict)
