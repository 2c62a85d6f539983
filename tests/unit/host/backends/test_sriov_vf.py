# SPDX-License-Identifier: Apache-2.0
"""Tests of plain VFs as vGPUs, on the fake kernel."""

import os
import pathlib

import fixtures

from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel
from tests.unit.host import vgpu_base


class PlainVFTest(vgpu_base.VGPUCase):

    machine = 'intel-flex170-2'
    numvfs = {'8086:56c0': 4}.items()

    def test_plain_vf_is_assigned_whole(self):
        [pf, *_] = self.functions()
        self.assertEqual(('vf', [('vf4', 4)]), (pf.vgpu_mechanism, [
            (listed.name, listed.max_instances)
            for listed in pf.vgpu_types]))
        vf = next(vf for vf in self.functions() if vf.pf == pf.id)
        device = host_base.HostDevice(
            assignment_uuid='a', stable_id=vf.id, address=vf.address,
            vgpu_type='vf4')
        self.twice(self.host.prepare, device)
        self.assertEqual((vf.address,),
                         self.host.attachment(device).functions)
        # No driver reports capacity; the number of VFs is all there is.
        self.assertEqual({}, self.capacities(device))
        self.assertIsNone(pf.driver_capacity)
        self.twice(self.host.release, device)
        self.host.kernel.written.clear()
        self.assertTrue(self.host.clean(device).passed)
        self.assertIn(f'bus/pci/devices/{vf.address}/reset',
                      self.host.kernel.written)

    def test_plain_vf_is_refused_as_vendors_type(self):
        vf = next(vf for vf in self.functions() if vf.pf)
        self.refused(self.host.prepare, host_base.HostDevice(
            assignment_uuid='a', stable_id=vf.id, address=vf.address,
            vgpu_type='vf-4Q'), vf.address, "vendor's driver",
            'bound to no driver')

    def test_more_vfs_than_the_gpu_supports_is_logged(self):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        host = fake_host.FakeHost.for_machine(
            self.machine, root, {'8086:56c0': 32})
        log = self.useFixture(fixtures.FakeLogger())
        host.make_vfs(())
        self.assertIn('has none of its 32 VFs', log.output)


class NoGPUTest(vgpu_base.VGPUCase):
    """VFs of a device that is no GPU; a scan reads no number of VFs of it."""

    machine = 'intel-flex170-2'

    def setUp(self):
        super().setUp()
        self.pfs = self.functions()
        for pf in self.pfs:
            with open(f'{self.root}/{self.path(pf)}/class', 'w') as file:
                file.write('0x010802\n')
            kernel.write_modalias(
                pathlib.Path(self.root, self.path(pf)))
        self.host = fake_host.FakeHost(self.root, {'8086:56c0': 4})

    @staticmethod
    def path(function):
        return f'bus/pci/devices/{function.address}'

    def vfs(self):
        return [vf for vf in self.host.scan().functions if vf.pf]

    def test_vfs_are_created_once(self):
        self.assertIsNone(self.host.scan().functions[-1].sriov_numvfs)
        for _ in range(2):
            self.host.make_vfs(())
            self.assertEqual(4 * len(self.pfs), len(self.vfs()))
        self.assertEqual([f'{self.path(pf)}/sriov_numvfs'
                          for pf in self.pfs], self.host.kernel.written)

    def test_make_vfs_skips_busy_devices(self):
        self.host.make_vfs([pf.id for pf in self.pfs[1:]])
        self.assertEqual({self.pfs[0].id}, {vf.pf for vf in self.vfs()})

    def test_unreadable_numvfs_is_logged_and_stops_nothing(self):
        path = f'{self.root}/{self.path(self.pfs[0])}/sriov_numvfs'
        os.unlink(path)
        os.symlink('sriov_numvfs', path)
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn(f'{self.pfs[0].address} has none', log.output)
        self.assertEqual({pf.id for pf in self.pfs[1:]},
                         {vf.pf for vf in self.vfs()})


class MxGPUTest(vgpu_base.VGPUCase):

    machine = 'amd-v620-2'
    numvfs = {'1002:73a1': 6}.items()

    def test_vfs_have_their_own_ids(self):
        [pf, *_] = [gpu for gpu in self.functions() if gpu.pf is None]
        vfs = [vf for vf in self.functions() if vf.pf == pf.id]
        self.assertEqual(({'73ae'}, 6), (
            {vf.device for vf in vfs}, len(vfs)))
        self.assertEqual(['vf6'], [listed.name for listed in pf.vgpu_types])
