# SPDX-License-Identifier: Apache-2.0
"""Tests of NVIDIA's program, run by the privileged daemon."""

import os
import pathlib

import fixtures
from oslo_privsep.test import fixture as privsep_fixture
from oslotest import base

from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import sysfs


class MakeVFsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        # Programs do not run from /dev/shm everywhere.
        self.folder = self.useFixture(
            fixtures.TempDir(rootdir='/var/tmp')).path
        self.path = f'{self.folder}/sriov-manage'
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.privsep.sysfs.SRIOV_MANAGE', self.path))
        for address, code in (('0000:26:00.0', '0x030200'),
                              ('0000:27:00.0', '0x020700')):
            device = pathlib.Path(
                self.folder, 'sys/bus/pci/devices', address)
            device.mkdir(parents=True)
            (device / 'class').write_text(f'{code}\n')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.privsep.sysfs.SYSFS_ROOT', f'{self.folder}/sys'))
        # It is another process, which keeps what it saw.
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))

    def program(self, text):
        pathlib.Path(self.path).write_text(f'#!/bin/sh\n{text}\n')
        os.chmod(self.path, 0o755)

    def test_helper_is_called_for_one_gpu(self):
        self.program(f'echo "$@" > {self.folder}/called')
        sysfs.make_vfs('0000:26:00.0')
        self.assertEqual('-e 0000:26:00.0\n', pathlib.Path(
            self.folder, 'called').read_text())

    def test_output_of_the_helper_is_returned(self):
        self.program('echo cannot obtain unbindLock >&2; exit 1')
        exc = self.assertRaises(OSError, sysfs.make_vfs, '0000:26:00.0')
        self.assertIn('cannot obtain unbindLock', str(exc))

    def test_not_installed(self):
        self.assertRaises(
            FileNotFoundError, sysfs.make_vfs, '0000:26:00.0')

    def test_no_address(self):
        self.program('exit 0')
        for address in ('ALL', '', '-h', '0000:26:00.0 ALL', '0000:27:00.0'):
            self.assertRaises(PermissionError, sysfs.make_vfs, address)
