#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of the writes that the privileged daemon does and refuses."""

import os
import pathlib
import shutil
import uuid

import fixtures
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep.test import fixture as privsep_fixture
from oslotest import base

from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import sysfs

DEVICE = 'bus/pci/devices/10000:e1:00.0'


class SysfsWriteTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.root, self.outside = f'{folder}/sys', f'{folder}/sys2'
        os.makedirs(f'{self.root}/{DEVICE}')
        os.mkdir(self.outside)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.privsep.sysfs.SYSFS_ROOT', self.root))
        # The daemon, but without more rights. It is another process, which
        # keeps what it saw.
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))

    def written(self, name):
        with open(f'{self.root}/{DEVICE}/{name}', encoding='utf-8') as file:
            return file.read()

    def test_written_and_cleared(self):
        for value, expected in (('vfio-pci', 'vfio-pci'), ('', '\n')):
            with open(f'{self.root}/{DEVICE}/driver_override', 'w',
                      encoding='utf-8'):
                pass
            sysfs.write(self.root, f'{DEVICE}/driver_override', value)
            self.assertEqual(expected, self.written('driver_override'))

    def test_error_of_the_kernel_arrives(self):
        exc = self.assertRaises(
            OSError, sysfs.write, self.root, f'{DEVICE}/reset', '1')
        self.assertEqual(2, exc.errno)

    def test_what_may_be_written(self):
        mdev = f'bus/mdev/devices/{uuid.uuid4()}'
        for path in (f'{DEVICE}/nvidia/current_vgpu_type',
                     f'{DEVICE}/nvidia/placement_id', f'{mdev}/remove',
                     f'{mdev}/nvidia/placement_id'):
            os.makedirs(os.path.dirname(f'{self.root}/{path}'), exist_ok=True)
            with open(f'{self.root}/{path}', 'w', encoding='utf-8'):
                pass
            sysfs.write(self.root, path, '1')

    def test_other_paths_are_refused(self):
        for path in ('../etc/passwd', f'{DEVICE}/../x/reset', '/etc/passwd',
                     f'{DEVICE}/config', f'{DEVICE}/nvidia/vgpu_params',
                     f'{DEVICE}/remove', 'bus/pci/rescan',
                     'kernel/reset', f'{DEVICE}/reset/',
                     'bus/pci/drivers/x/new_id', 'bus/pci/drivers/../x/bind'):
            exc = self.assertRaises(
                PermissionError, sysfs.write, self.root, path, '1')
            self.assertIn(path, str(exc))
            self.assertFalse(os.path.exists(f'{self.root}/{path}'))

    def test_other_roots_are_refused(self):
        # Where the caller might have put links.
        shutil.copytree(self.root, self.outside, dirs_exist_ok=True)
        for name in ('reset', 'config'):
            pathlib.Path(self.outside, DEVICE, name).touch()
        for root in (self.outside, f'{self.root}/../sys2', '/', ''):
            for function, *arguments in (
                    (sysfs.write, f'{DEVICE}/reset', '1'),
                    (sysfs.read_config, f'{DEVICE}/config')):
                exc = self.assertRaises(
                    privsep.HelperUnavailable, function, root, *arguments)
                self.assertIn(self.root, exc.strerror)
        self.assertEqual('', pathlib.Path(
            self.outside, DEVICE, 'reset').read_text())

    def test_links_out_of_sysfs_are_refused(self):
        for place in (f'{self.outside}/x', f'{self.root}/../sys2/x'):
            pathlib.Path(place).write_text('theirs')
            for name in ('reset', 'config'):
                path = pathlib.Path(self.root, DEVICE, name)
                path.unlink(missing_ok=True)
                path.symlink_to(place)
            self.assertRaises(PermissionError, sysfs.write, self.root,
                              f'{DEVICE}/reset', 'ours')
            self.assertRaises(PermissionError, sysfs.read_config, self.root,
                              f'{DEVICE}/config')
            self.assertEqual('theirs', pathlib.Path(place).read_text())

    def test_links_of_the_kernel_are_followed(self):
        device = pathlib.Path(self.root, 'devices/pci10000:e1/10000:e1:00.0')
        device.parent.mkdir(parents=True)
        os.rename(f'{self.root}/{DEVICE}', device)
        os.symlink(f'../../../devices/pci10000:e1/{device.name}',
                   f'{self.root}/{DEVICE}')
        (device / 'reset').touch()
        sysfs.write(self.root, f'{DEVICE}/reset', '1')
        self.assertEqual('1', self.written('reset'))

    def test_only_configuration_space_is_read(self):
        with open(f'{self.root}/{DEVICE}/config', 'wb') as file:
            file.write(b'\xff' * 5000)
        self.assertEqual(b'\xff' * 4096, sysfs.read_config(
            self.root, f'{DEVICE}/config'))
        for path in ('../etc/shadow', f'{DEVICE}/../x/config', f'{DEVICE}/rom',
                     f'{DEVICE}/driver/config'):
            self.assertRaises(
                PermissionError, sysfs.read_config, self.root, path)
        exc = self.assertRaises(
            OSError, sysfs.read_config, self.root,
            'bus/pci/devices/0000:00:00.0/config')
        self.assertEqual(2, exc.errno)


class CallTest(base.BaseTestCase):
    """What goes wrong with the daemon itself is an OSError, too."""

    def test_kernel_that_does_not_answer(self):
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))

        def blocks(path):
            raise comm.PrivsepTimeout
        exc = self.assertRaises(TimeoutError, privsep.call, blocks, 'x')
        self.assertIn('did not answer within 60 s', exc.strerror)

    def test_helper_that_does_not_start(self):
        for error in (FileNotFoundError(2, 'No such file', 'sudo'),
                      daemon.FailedToDropPrivileges('exited non-zero')):
            with fixtures.MockPatchObject(
                    privsep.sys_admin_pctxt, 'start', side_effect=error):
                exc = self.assertRaises(
                    PermissionError, privsep.call, sysfs.write, '/', 'x', '')
            self.assertIn('[gpgpu_sys_admin] helper_command', exc.strerror)
            self.assertIn(str(error), exc.strerror)
