# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of devices that Nova itself assigns."""

import fixtures

from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.domain import variant as rules
from tests.unit.cmd.upgrade import base
from tests.unit.cmd.upgrade import nova_conf

H100 = rules.Variant(name='H100', vendor='10de', device='2330',
                     resource_class='CUSTOM_GPU_H100')
VGPU = rules.Variant(name='L40S', vendor='10de', device='26b9',
                     resource_class='VGPU')
OURS = ('[DEFAULT]', 'compute_driver = gpgpu.GpuLibvirtDriver')
BY_IDS = 'device_spec = {"vendor_id": "10DE", "product_id": "2330"}'


class CollisionsTest(nova_conf.NovaConfMixin, base.ResultTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path

    def check(self, *lines, driver=OURS, variants=(H100,)):
        return upgrade.device_collisions(
            self.nova_conf(*driver, *lines), variants)

    def test_nova_that_assigns_nothing_passes(self):
        self.success(self.check())

    def test_device_spec_of_a_variant_fails(self):
        for line in (BY_IDS, f'device_spec = [{BY_IDS.split("= ")[1]}]'):
            text = self.failure(self.check('[pci]', line))
            self.assertIn('covers variant H100, so', text)
            self.assertIn('remove {"vendor_id": "10DE"', text)

    def test_former_name_of_the_option_is_read(self):
        self.failure(self.check(
            '[pci]', BY_IDS.replace('device_spec', 'passthrough_whitelist')))

    def test_device_spec_of_another_host_passes(self):
        self.success(self.check('[pci]', BY_IDS, driver=(
            '[DEFAULT]', 'compute_driver = libvirt.LibvirtDriver')))

    def test_device_spec_of_other_devices_passes(self):
        self.success(self.check(
            '[pci]',
            'device_spec = {"vendor_id": "15b3", "product_id": "1018"}',
            'device_spec = {"vendor_id": "15b3"}',
            'device_spec = {"devname": "eth1", "physical_network": "net"}'))

    def test_device_spec_without_a_product_is_a_warning(self):
        for spec in ('{"address": "0000:21:00.0"}', '{"vendor_id": "10de"}'):
            self.assertIn('may cover variant H100. ', self.warning(
                self.check('[pci]', f'device_spec = {spec}')))

    def test_value_that_is_no_json_fails(self):
        self.assertIn('[pci] device_spec is not JSON', self.failure(
            self.check('[pci]', 'device_spec = 10de:2330')))
        self.assertIn('[pci] alias is not JSON', self.failure(
            self.check('[pci]', 'alias = "a1"')))

    def test_alias_of_a_variant_is_a_warning(self):
        alias = ('alias = {"name": "a1", "vendor_id": "10de", '
                 '"product_id": "2330"}')
        text = self.warning(self.check('[pci]', alias, driver=()))
        self.assertIn('alias a1 is for variant H100', text)

    def test_mdev_types_are_a_warning(self):
        self.assertIn('enabled_mdev_types = nvidia-35,nvidia-36: ',
                      self.warning(self.check(
                          '[devices]',
                          'enabled_mdev_types = nvidia-35, nvidia-36')))

    def test_mdev_types_beside_a_variant_of_class_vgpu_fail(self):
        self.assertIn('which variant L40S has as well', self.failure(
            self.check('[devices]', 'enabled_vgpu_types = nvidia-35',
                       variants=(H100, VGPU))))

    def test_disabled_update_of_resources_is_a_warning(self):
        self.assertIn('update_resources_interval is negative', self.warning(
            self.check('update_resources_interval = -1')))
