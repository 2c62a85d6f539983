# SPDX-License-Identifier: Apache-2.0
"""Tests of fake hosts, whose machine outlives the process."""

import os

import fixtures
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host


class FakeHostTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.root = f'{self.folder}/sys'

    @staticmethod
    def gpus(host, device):
        return [function for function in host.scan().functions
                if function.device == device]


class MachineTest(FakeHostTestCase):

    def make(self, name='pcie-l40s-4'):
        return fake_host.FakeHost.for_machine(name, self.root)

    def test_machine_is_kept_over_a_restart(self):
        host = self.make()
        gpu = self.gpus(host, '26b9')[0]
        host.prepare(host_base.HostDevice(
            assignment_uuid='a', stable_id=gpu.id, address=gpu.address))
        self.assertEqual('vfio-pci', next(
            function.driver for function in self.make().scan().functions
            if function.id == gpu.id))
        self.assertTrue(os.path.islink(
            f'{self.root}/bus/pci/drivers/vfio-pci/{gpu.address}'))

    def test_machine_of_the_folder_wins_over_another_name(self):
        self.make()
        self.assertEqual(4, len(self.gpus(self.make('hgx-h100-8'), '26b9')))

    def test_unknown_machine_is_not_found_and_builds_nothing(self):
        self.assertRaises(exception.NotFound, self.make, 'cray-1')
        self.assertFalse(os.path.exists(self.root))

    def test_write_that_is_to_fail_fails_in_a_backend(self):
        host = self.make()
        gpu = self.gpus(host, '26b9')[0]
        host.kernel.faults['driver_override'] = 16
        self.assertRaises(exception.HostError, host.prepare,
                          host_base.HostDevice(
                              assignment_uuid='a', stable_id=gpu.id,
                              address=gpu.address))


class ConfigurationTest(FakeHostTestCase):

    def setUp(self):
        super().setUp()
        self.conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(self.conf)
        self.conf([], default_config_files=[])
        self.conf.set_override('state_path', self.folder, 'gpgpu_compute')
        self.conf.set_override('machine', 'nvidia-t4-2', 'gpgpu_fake')
        self.conf.set_override(
            'machines', {'h2': 'intel-flex170-2'}, 'gpgpu_fake')

    def make(self, name):
        return fake_host.FakeHost.for_host(self.conf, name)

    def test_host_has_its_own_machine_else_the_default_one(self):
        self.assertEqual(2, len(self.gpus(self.make('h1'), '1eb8')))
        self.assertEqual(2, len(self.gpus(self.make('h2'), '56c0')))

    def test_hosts_have_folders_of_their_own(self):
        self.make('h1')
        self.make('h3')
        self.assertEqual({'h1', 'h3'},
                         set(os.listdir(f'{self.folder}/machines')))

    def test_cards_of_two_hosts_have_other_serial_numbers(self):
        self.conf.set_override('machine', 'pcie-l40s-4', 'gpgpu_fake')
        numbers = [[gpu.dsn for gpu in self.gpus(self.make(name), '26b9')]
                   for name in ('h1', 'h3', 'h1')]
        self.assertEqual(numbers[0], numbers[2])
        self.assertEqual(8, len({*numbers[0], *numbers[1]}), numbers)

    def test_configured_vfs_are_made(self):
        self.conf.set_override(
            'sriov_numvfs', ['8086:56C0=3'], 'gpgpu_compute')
        host = self.make('h2')
        host.make_vfs(())
        self.assertEqual([3, 3], [
            gpu.sriov_numvfs for gpu in self.gpus(host, '56c0')
            if gpu.pf is None])
