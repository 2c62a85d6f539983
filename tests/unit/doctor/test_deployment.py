# SPDX-License-Identifier: Apache-2.0
"""Tests of drifts between the conductor and Nova."""

from oslotest import base

from gpgpu_plugin.doctor import deployment
from gpgpu_plugin.doctor import view


class DeploymentTest(base.BaseTestCase):

    def test_host_without_a_service_is_found(self):
        [found] = deployment.services(['h1', 'h2'], {'h1', 'other'})
        self.assertEqual(('host_without_service', 'h2', None),
                         (found.name, found.host, found.repair))

    def test_flavor_of_a_class_that_no_variant_has_is_found(self):
        flavors = [
            view.Flavor(name='good', resource_classes=(
                'CUSTOM_GPU_T4', 'VCPU', 'CUSTOM_FPGA')),
            view.Flavor(name='bad', resource_classes=(
                'CUSTOM_VGPU_T4_T4_9Q',))]
        [found] = deployment.flavors(flavors, {'CUSTOM_GPU_T4'})
        self.assertEqual(('flavor_of_unknown_class',
                          'bad CUSTOM_VGPU_T4_T4_9Q'),
                         (found.name, found.subject))
