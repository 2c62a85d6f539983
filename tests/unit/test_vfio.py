# SPDX-License-Identifier: Apache-2.0
"""Tests of the names of VFIO drivers and their modules."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import vfio
from tests.fixtures import modules_alias


class AliasesTest(base.BaseTestCase):

    def test_aliases_of_vfio_drivers_are_read(self):
        path = f'{self.useFixture(fixtures.TempDir()).path}/modules.alias'
        pathlib.Path(path).write_text(modules_alias.TEXT)
        self.assertEqual(
            [('vfio_pci:v000010DEd00002342sv*sd*bc*sc*i*',
              'nvgrace_gpu_vfio_pci'),
             ('vfio_pci:v*d*sv*sd*bc*sc*i*', 'vfio_pci'),
             ('vfio_pci:v00001234', 'odd_module')],
            vfio.aliases(path))

    def test_file_is_that_of_the_running_kernel(self):
        self.assertEqual(f'/lib/modules/{os.uname().release}/modules.alias',
                         vfio.alias_file())


class IsVFIOTest(base.BaseTestCase):

    def test_names_of_vfio_drivers(self):
        for name, expected in (
                ('vfio-pci', True), ('xe-vfio-pci', True),
                ('nvgrace_gpu_vfio_pci', True), ('mlx5_vfio_pci', True),
                (None, False), ('', False), ('nvidia', False),
                ('vfio-pci-core', False), ('vfio-pci\n', False)):
            self.assertIs(expected, vfio.is_vfio(name), name)
