# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import fixtures
from oslo_privsep.test import fixture as privsep_fixture
from oslotest import base

from gpgpu_plugin import privsep
from gpgpu_plugin import vfio
from gpgpu_plugin.privsep import sysfs
from tests.fixtures import modules_alias


class LoadTest(base.BaseTestCase):

    def start_helper(self):
        # It is forked, with the environment and the mocks of that moment.
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))

    def fake_programs(self):
        """Make modprobe print its arguments to a file, and return that."""
        # Programs do not run from /dev/shm everywhere.
        folder = pathlib.Path(self.useFixture(
            fixtures.TempDir(rootdir='/var/tmp')).path)
        (folder / 'modprobe').write_text(
            f'#!/bin/sh\necho "$@" >>{folder}/called\n')
        os.chmod(folder / 'modprobe', 0o755)
        (folder / 'modules.alias').write_text(modules_alias.TEXT)
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', f'{folder}:{os.environ["PATH"]}'))
        self.useFixture(fixtures.MockPatchObject(
            vfio, 'alias_file',
            lambda: f'{folder}/modules.alias'))
        self.start_helper()
        return folder / 'called'

    def test_modules_with_a_vfio_driver_are_loaded(self):
        called = self.fake_programs()
        for module in ('vfio-pci', 'nvgrace_gpu_vfio_pci', 'vfio_pci'):
            sysfs.load_vfio(module)
        self.assertEqual('vfio-pci\nnvgrace_gpu_vfio_pci\nvfio_pci\n',
                         called.read_text())

    def test_other_modules_are_refused(self):
        called = self.fake_programs()
        for module in ('i40e', 'odd_module', 'xe_vfio_pci', '', '-r vfio_pci',
                       'nvgrace-gpu-vfio-pci', 'vfio_pci\n',
                       '../vfio_pci', 'vfio_pci.ko'):
            exc = self.assertRaises(
                PermissionError, sysfs.load_vfio, module)
            self.assertIn('not a module with a VFIO driver', str(exc))
        self.assertFalse(called.exists())

    def test_variant_without_modules_alias_is_refused(self):
        self.useFixture(fixtures.MockPatchObject(
            vfio, 'alias_file', lambda: '/nonexistent/modules.alias'))
        self.start_helper()
        self.assertRaises(OSError, sysfs.load_vfio, 'xe_vfio_pci')

    def test_module_that_cannot_be_loaded(self):
        folder = self.useFixture(fixtures.TempDir()).path
        # Where no program is.
        self.useFixture(fixtures.EnvironmentVariable('PATH', folder))
        self.assertRaises(OSError, sysfs.load_vfio, 'vfio-pci')
