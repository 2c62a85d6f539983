# SPDX-License-Identifier: Apache-2.0
"""Base classes of tests of backends for vGPUs."""

import itertools
import pathlib
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from tests.fixtures import reported


class VGPUCase(base.BaseTestCase):

    machine: str
    numvfs = ()

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake_host.FakeHost.for_machine(
            self.machine, self.root, dict(self.numvfs))
        self.host.make_vfs(())

    def functions(self):
        return [function for function in reported.functions(self.host.scan())
                if pci.can_be_gpu(function.class_code)]

    def read(self, path):
        with open(f'{self.root}/{path}') as file:
            return file.read().strip()

    def refused(self, method, device, *words):
        exc = self.assertRaises(exception.HostError, method, device)
        for word in words:
            self.assertIn(word, str(exc))

    def capacities(self, *devices):
        """Return driver capacities, the same ones that a scan finds."""
        capacities = self.host.driver_capacity(devices)
        self.assertEqual(capacities, {
            function.id: function.driver_capacity
            for function in self.functions() if function.id in capacities})
        return capacities

    def stop_drivers(self):
        """Let the drivers create nothing, as while their service is down.

        :returns: a function that starts them again
        """
        before = {path: path.read_text() for path in itertools.chain(*(
            pathlib.Path(self.root, 'devices').rglob(name) for name in (
                'creatable_vgpu_types', 'available_instances')))}
        for path in before:
            path.write_text('0\n' if path.name == 'available_instances'
                            else 'ID    : vGPU Name\n')

        def start():
            for path, text in before.items():
                path.write_text(text)
        return start

    def check_recovery(self, device):
        """Check that a driver that failed is scanned again once it works.

        :param device: is prepared while the driver fails, and afterwards
        """
        self.host.scan()
        start = self.stop_drivers()
        self.assertTrue(self.host.changed())
        # A build before that scan notices the failure, too.
        self.assertRaises(
            exception.NoDriverCapacity, self.host.prepare, device
        )
        [capacity] = self.host.driver_capacity([device]).values()
        self.assertEqual(((), set()), (
            capacity.existing, set(capacity.available.values()) - {0}))
        self.host.scan()
        self.assertFalse(self.host.changed())
        start()
        self.assertTrue(self.host.changed())
        self.host.scan()
        self.assertFalse(self.host.changed())
        # A vGPU of our own is scanned as those of others are, once.
        for change in (self.host.prepare, self.host.release):
            change(device)
            self.assertTrue(self.host.changed())
            self.host.scan()
            self.assertFalse(self.host.changed())

    def twice(self, method, device):
        return [method(device) for _ in range(2)][1]


class VFCase(VGPUCase):
    """A machine whose vGPUs are on VFs.

    :cvar vgpu_type: of the vGPUs, unless a test names another one
    """

    vgpu_type: str

    def setUp(self):
        super().setUp()
        self.vfs = [vf for vf in self.functions() if vf.pf]

    def device(self, number=0, **fields):
        """Return a vGPU on one of the VFs."""
        vf = self.vfs[number]
        if 'vgpu_type' not in fields:
            fields['vgpu_type'] = self.vgpu_type
        return host_base.HostDevice(**{
            'assignment_uuid': str(uuid.uuid4()), 'stable_id': vf.id,
            'address': vf.address, **fields})
