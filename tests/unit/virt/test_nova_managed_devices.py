# SPDX-License-Identifier: Apache-2.0
"""Tests of devices that Nova manages, too."""

import json
import uuid

import fixtures
from nova.conf import devices as devices_conf
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.objects import admin
from gpgpu_plugin.virt import nova_devices
from tests.fixtures import reported

ADDRESS = '0000:21:00.0'


class ConflictCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = cfg.ConfigOpts()
        devices_conf.register_opts(self.conf)
        self.conf.register_opts(
            [cfg.MultiStrOpt('device_spec', default=[])], 'pci')
        self.conf([])
        # Nova's group is one object for all configurations.
        self.addCleanup(self.conf.clear_override, 'enabled_mdev_types',
                        'devices')


class ConflictTest(ConflictCase):

    def check(self, *resource_classes, variant='A', types=()):
        nova_devices.NovaManagedDevices(self.conf).check(
            [admin.DeviceInfo(
                uuid='u', host='h', stable_id='s', address=ADDRESS,
                variant=variant, state='available', shown_state='available',
                enabled=True, present=True, vendor='10de', device='2330')],
            reported.scan([reported.Reported(
                id='s', address=ADDRESS, vgpu_mechanism='mdev',
                vgpu_types=tuple(
                    vgpu.VGPUType(name=name, type_id=name)
                    for name in types))]),
            resource_classes)

    def refused(self, *words, **kwargs):
        exc = self.assertRaises(exception.ConfigInvalid, self.check, **kwargs)
        for word in words:
            self.assertIn(word, str(exc))

    def test_nova_without_such_options_conflicts_with_nothing(self):
        self.assertFalse(nova_devices.NovaManagedDevices(self.conf))
        self.check('VGPU', types=('nvidia-35',))

    def test_mdev_type_of_a_managed_gpu_is_refused(self):
        self.conf.set_override(
            'enabled_mdev_types', ['nvidia-35'], 'devices')
        self.assertTrue(nova_devices.NovaManagedDevices(self.conf))
        self.check('CUSTOM_GPU_A', types=('nvidia-36',))
        self.check(types=('nvidia-35',), variant=None)
        self.refused(ADDRESS, 'nvidia-35', types=('nvidia-35',))

    def test_resource_class_of_mdevs_of_nova_is_refused(self):
        self.conf.set_override(
            'enabled_mdev_types', ['nvidia-35'], 'devices')
        exc = self.assertRaises(
            exception.ConfigInvalid, self.check, 'VGPU')
        self.assertIn('resource class VGPU', str(exc))

    def test_pci_domain_that_nova_does_not_know_is_ignored(self):
        # Of Intel VMD and Hyper-V; Nova ignores such devices.
        self.conf.set_override('device_spec', [json.dumps(
            {'vendor_id': '10de'})], 'pci')
        wide = pci.PCIFunction(id='s', address='10000:e1:00.0',
                               vendor='10de', device='2330')
        self.assertEqual(
            {},
            nova_devices.NovaManagedDevices(self.conf).options(
                reported.scan([wide])),
        )

    def test_parent_that_is_no_pci_function_is_covered_by_its_type(self):
        self.conf.set_override('device_spec', [json.dumps(
            {'vendor_id': '1234'})], 'pci')
        self.conf.set_override(
            'enabled_mdev_types', ['mbochs-small'], 'devices')
        parents = [
            reported.Reported(
                id=f'/devices/virtual/{name}/{name}', address=name,
                vendor='1234', device='1111', vgpu_mechanism='mdev',
                vgpu_types=(
                    vgpu.VGPUType(name=kind, type_id=kind),))
            for name, kind in (('mbochs', 'mbochs-small'),
                               ('other', 'mbochs-large'))]
        self.assertEqual(
            {'mbochs': '[devices] enabled_mdev_types = mbochs-small'},
            nova_devices.NovaManagedDevices(self.conf).options(
                reported.scan(parents)))

    def test_vfs_of_a_function_in_device_spec_are_covered(self):
        # Nova looks at the real /sys for it.
        self.useFixture(fixtures.MockPatch(
            'nova.pci.utils.is_physical_function', return_value=True))
        self.conf.set_override('device_spec', [json.dumps(
            {'address': ADDRESS})], 'pci')
        pf = pci.PCIFunction(id='s', address=ADDRESS, vendor='10de',
                             device='2330')
        vf = pci.PCIFunction(id='s/vf0', address='0000:21:00.4', pf='s',
                             vendor='10de', device='2330')
        other = pci.PCIFunction(id='t', address='0000:22:00.0',
                                vendor='10de', device='2330')
        self.assertEqual(
            dict.fromkeys((ADDRESS, '0000:21:00.4'), '[pci] device_spec'),
            nova_devices.NovaManagedDevices(self.conf).options(
                reported.scan([pf, vf, other])
            ),
        )


class MdevOnVFTest(ConflictCase):
    """Tests of mdevs on VFs; a scan reports the types at the PF."""

    def setUp(self):
        super().setUp()
        self.host = fake_host.FakeHost.for_machine(
            'nvidia-a100-2', f'{self.useFixture(fixtures.TempDir()).path}/sys',
            {'10de:20b5': 20})
        self.host.make_vfs(())
        self.pf, *self.vfs = self.functions_of_first_gpu()
        [self.kind] = [offered for offered in self.pf.vgpu_types
                       if offered.name == 'A100D-20C']
        self.conf.set_override(
            'enabled_mdev_types', [self.kind.type_id], 'devices')
        self.option = f'[devices] enabled_mdev_types = {self.kind.type_id}'

    def functions_of_first_gpu(self):
        """Return the first GPU and its VFs."""
        functions = [
            function for function in reported.functions(self.host.scan())
            if pci.can_be_gpu(function.class_code)]
        return [function for function in functions
                if functions[0].id in (function.id, function.pf)]

    def options(self):
        return nova_devices.NovaManagedDevices(self.conf).options(
            reported.scan(self.functions_of_first_gpu()))

    def create_vgpu(self, vf):
        self.host.prepare(host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=vf.id,
            address=vf.address, vgpu_type=self.kind.name))

    def name(self, *addresses):
        group = f'mdev_{self.kind.type_id}'
        nova_devices.NovaManagedDevices(self.conf)
        self.conf.set_override('device_addresses', list(addresses), group)
        self.addCleanup(
            self.conf.clear_override, 'device_addresses', group)

    def test_functions_with_the_type_are_covered(self):
        covered = dict.fromkeys(
            (function.address for function in (self.pf, *self.vfs)),
            self.option)
        self.assertEqual(covered, self.options())
        # Also once one of them has it, as at each start after the first.
        self.create_vgpu(self.vfs[0])
        self.assertEqual(covered, self.options())

    def test_named_functions_alone_are_covered(self):
        self.name(self.vfs[3].address)
        covered = {self.vfs[3].address: self.option}
        self.assertEqual(covered, self.options())
        self.create_vgpu(self.vfs[0])
        self.assertEqual(covered, self.options())

    def test_type_of_another_gpu_covers_nothing(self):
        self.conf.set_override(
            'enabled_mdev_types', ['nvidia-233'], 'devices')
        self.create_vgpu(self.vfs[0])
        self.assertEqual({}, self.options())
