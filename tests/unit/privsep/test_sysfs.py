# SPDX-License-Identifier: Apache-2.0
"""Tests of the writes that the privileged daemon does and refuses."""

import os
import pathlib
import shutil
import socket
import threading
import time
import types
import uuid

import fixtures
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep.test import fixture as privsep_fixture
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin import smbios
from gpgpu_plugin.host.discovery import sysfs as discovery
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.privsep import sysfs
from tests.fixtures import patience
from tests.fixtures import smbios as firmware

DEVICE = 'bus/pci/devices/10000:e1:00.0'


class SysfsWriteTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.root, self.outside = f'{folder}/sys', f'{folder}/sys2'
        self.add_device(DEVICE)
        os.mkdir(self.outside)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.privsep.sysfs.SYSFS_ROOT', self.root))
        # The daemon, but without more rights. It is another process, which
        # keeps what it saw.
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))

    def add_device(self, path, code='0x030200'):
        os.makedirs(f'{self.root}/{path}')
        pathlib.Path(self.root, path, 'class').write_text(f'{code}\n')

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

    def test_all_rules_write_only_their_values(self):
        mdev, uuids = 'devices/virtual/mtty/mtty', [
            str(uuid.uuid4()) for _ in range(2)]
        os.makedirs(f'{self.root}/{mdev}/{uuids[0]}')
        for folder, name, target in (
                ('class/mdev_bus', 'mtty', mdev),
                ('bus/mdev/devices', uuids[0], f'{mdev}/{uuids[0]}')):
            os.makedirs(f'{self.root}/{folder}')
            os.symlink(f'{self.root}/{target}', f'{self.root}/{folder}/{name}')
        values = ('', 'vfio-pci', '0', '1', '25', '10000:e1:00.0', uuids[1],
                  'nvme', '0000:00:00.0', '1; id', '\n')
        allowed = {
            'driver_override': {'', 'vfio-pci'}, 'reset': {'1'},
            'sriov_numvfs': {'1', '25'},
            'current_vgpu_type': {'0', '1', '25'},
            'placement_id': {'0', '1', '25'}, 'bind': {'10000:e1:00.0'},
            'unbind': {'10000:e1:00.0'}, 'drivers_probe': {'10000:e1:00.0'},
            'create': {uuids[1]}, 'remove': {'1'}}
        for rule in sysfs.RULES:
            path = rule.path
            for name, real in (
                    ('ADDRESS', '10000:e1:00.0'), ('DRIVER', 'nvidia'),
                    ('PARENT', 'mtty'), ('TYPE', 'mtty-1'),
                    ('UUID', uuids[0])):
                path = path.replace(name, real)
            file = pathlib.Path(self.root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            for value in values:
                if value in allowed[file.name]:
                    sysfs.write(self.root, path, value)
                else:
                    self.assertRaises((PermissionError, FileNotFoundError),
                                      sysfs.write, self.root, path, value)

    def test_devices_that_are_no_gpus_are_refused(self):
        # As the user of nova-compute could ask for.
        for number, code in enumerate(('0x010802', '0x020700', '0x068000')):
            address = f'0000:0{number}:00.0'
            device = f'bus/pci/devices/{address}'
            self.add_device(device, code)
            for path, value in (
                    (f'{device}/driver_override', 'vfio-pci'),
                    (f'{device}/driver_override', ''),
                    (f'{device}/reset', '1'), (f'{device}/sriov_numvfs', '4'),
                    ('bus/pci/drivers/nvme/unbind', address),
                    ('bus/pci/drivers/vfio-pci/bind', address),
                    ('bus/pci/drivers_probe', address)):
                file = pathlib.Path(self.root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
                exc = self.assertRaises(
                    PermissionError, sysfs.write, self.root, path, value)
                self.assertIn('neither a GPU', str(exc))
                self.assertEqual('', file.read_text())
            pathlib.Path(self.root, device, 'config').touch()
            self.assertRaises(PermissionError, sysfs.read, self.root,
                              f'{device}/config')

    def test_helper_calls_nothing_but_its_entrypoints(self):
        channel = privsep.sys_admin_pctxt.channel
        for name, arguments in (
                ('gpgpu_plugin.host.vfio.designation.add_rule',
                 ('/devices/pci0000:20/01.0', '10de', '11fa', 'vfio-pci')),
                ('gpgpu_plugin.host.vfio.designation.unset_override',
                 ('0000:21:00.0',)),
                ('gpgpu_plugin.privsep.run', ('id',)), ('os.system', ('id',))):
            exc = self.assertRaises(
                NameError, channel.remote_call, name, arguments, {}, 60)
            self.assertIn('Invalid privsep function', str(exc))

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
                    (sysfs.read, f'{DEVICE}/config')):
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
            self.assertRaises(PermissionError, sysfs.read, self.root,
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

    def test_vpd_is_read_unless_a_guest_has_the_device(self):
        device = pathlib.Path(self.root, DEVICE)
        (device / 'vpd').write_bytes(b'serial' + bytes(2000))
        driver = pathlib.Path(self.root, 'bus/pci/drivers/vfio-pci')
        driver.mkdir(parents=True)
        (device / 'driver').symlink_to(driver)
        for enabled, other in (('0', ''), ('1', 'a process has it open'),
                               ('0', 'it has mdevs')):
            (device / 'enable').write_text(f'{enabled}\n')
            if 'mdevs' in other:
                (device / 'x/mdev_type').mkdir(parents=True)
            if not other:
                self.assertEqual(b'serial' + bytes(1018), sysfs.read(
                    self.root, f'{DEVICE}/vpd'))
                continue
            exc = self.assertRaises(
                PermissionError, sysfs.read, self.root, f'{DEVICE}/vpd')
            self.assertIn(other, str(exc))

    def test_vpd_of_other_devices_is_refused(self):
        other = 'bus/pci/devices/10000:e2:00.0'
        self.add_device(other, '0x020000')
        pathlib.Path(self.root, other, 'vpd').write_bytes(b'theirs')
        exc = self.assertRaises(
            PermissionError, sysfs.read, self.root, f'{other}/vpd')
        self.assertIn('neither a GPU', str(exc))

    def test_only_labels_of_slots_are_read_of_smbios(self):
        table = pathlib.Path(self.root, smbios.TABLE)
        table.parent.mkdir(parents=True)
        slots = [firmware.slot(f'S{number}', '0000:01:00.0')
                 for number in range(200)]
        table.write_bytes(firmware.table(*slots))
        found = sysfs.read(self.root, smbios.TABLE)
        self.assertEqual(b''.join(slots), found)
        self.assertGreater(len(found), 4096)
        exc = self.assertRaises(OSError, sysfs.read, self.outside,
                                smbios.TABLE)
        self.assertIn('works in', exc.strerror)

    def test_only_configuration_space_and_vpd_are_read(self):
        with open(f'{self.root}/{DEVICE}/config', 'wb') as file:
            file.write(b'\xff' * 5000)
        self.assertEqual(b'\xff' * 4096, sysfs.read(
            self.root, f'{DEVICE}/config'))
        for path in ('../etc/shadow', f'{DEVICE}/../x/config', f'{DEVICE}/rom',
                     f'{DEVICE}/driver/config', f'{DEVICE}/vpd_x'):
            self.assertRaises(
                PermissionError, sysfs.read, self.root, path)
        exc = self.assertRaises(
            OSError, sysfs.read, self.root,
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

    def test_helper_that_dies_during_a_call_does_not_blame_the_device(self):
        # The daemon is a fork of this process.
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.privsep.sysfs.check_root',
                lambda root: os._exit(9)):
            self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
                privsep.sys_admin_pctxt, {}))
        exc = self.assertRaises(
            exception.HalfPrepared, binding.Binder.privileged(
                discovery.Sysfs('/sys')).write, DEVICE, '1')
        self.assertIn('the privileged helper ended', str(exc))

    def test_helper_that_died_and_does_not_start_again(self):
        context = privsep.sys_admin_pctxt
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            context, {}))
        # The daemon ends, as if it was killed; its channel stays.
        context.channel.close()
        with fixtures.MockPatchObject(
                context, 'start', side_effect=daemon.FailedToDropPrivileges(
                    'exited non-zero')):
            for _ in range(2):
                exc = self.assertRaises(
                    privsep.HelperUnavailable, privsep.call, sysfs.write,
                    '/', 'x', '')
                self.assertIn('exited non-zero', exc.strerror)

    def connected(self):
        """Connect to a daemon that reads nothing; return how to end it."""
        ours, its = socket.socketpair()
        self.addCleanup(ours.close)
        # The thread of the channel ends with an error.
        self.useFixture(fixtures.MockPatch('threading.excepthook'))
        channel = comm.ClientChannel(ours)
        context = privsep.sys_admin_pctxt
        self.useFixture(fixtures.MockPatchObject(context, 'channel', channel))
        self.useFixture(fixtures.MockPatchObject(
            context, 'client_mode', True))

        def end():
            # With something unread, the kernel resets the connection.
            ours.sendall(b'x')
            its.close()
            channel.reader_thread.join(patience.LONG)
        return end

    def test_helper_that_died_with_an_unread_call_is_started_again(self):
        self.connected()()
        start = self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'start')).mock
        self.assertEqual('done', privsep.call(lambda: 'done'))
        start.assert_called_once_with()

    def test_helper_that_dies_while_a_call_waits_unread(self):
        end = self.connected()

        def call():
            end()
            # Nobody tells those that wait: their time passes.
            raise comm.PrivsepTimeout
        self.assertRaises(privsep.HelperDied, privsep.call, call)

    def test_helper_that_died_is_started_once_for_all_threads(self):
        context = privsep.sys_admin_pctxt
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            context, {}))
        context.channel.close()
        started, begin, channels = [], threading.Barrier(4), []

        def start():
            started.append(context.channel)
            time.sleep(0.05)
            context.channel = types.SimpleNamespace(
                running=True, close=lambda: None,
                reader_thread=threading.main_thread())

        def call():
            begin.wait()
            privsep.call(lambda: channels.append(context.channel))
        with fixtures.MockPatchObject(context, 'start', start):
            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual([None], started)
        self.assertEqual([context.channel] * 4, channels)
