# SPDX-License-Identifier: Apache-2.0
"""vGPUs after a boot, which only the assignments survive."""

from __future__ import annotations

import os
import pathlib

from gpgpu_plugin import exception
from gpgpu_plugin.host import base as host_base
from tests.vfio_lab import kept
from tests.vfio_lab import lab


class SecondBootTest(lab.LabTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.mdev, self.vf = kept.noted()

    def test_mdev_is_created_again_with_its_uuid(self) -> None:
        backend = lab.host(self)
        # Its driver is not loaded yet.
        self.assertRaises(exception.HostError, backend.prepare, self.mdev)
        lab.load_mdevs()
        self.addCleanup(lab.remove_mdevs)
        self.assertEqual([], lab.mdevs())
        for _ in range(2):
            backend.prepare(self.mdev)
            self.assertEqual([self.mdev.assignment_uuid], lab.mdevs())
        self.assertEqual(
            host_base.Attachment(mdev=self.mdev.assignment_uuid),
            backend.attachment(self.mdev))
        path = pathlib.Path('/sys/bus/mdev/devices',
                            self.mdev.assignment_uuid)
        self.assertEqual(
            ('mbochs', self.mdev.vgpu_type),
            (path.resolve().parent.name,
             os.path.basename(os.readlink(path / 'mdev_type'))))
        print(f'{self.mdev.vgpu_type} {self.mdev.assignment_uuid} of the '
              f'boot before is there again')
        backend.release(self.mdev)
        self.assertEqual([], lab.mdevs())

    def test_vfs_are_created_again(self) -> None:
        pf = lab.nvme()
        self.assertEqual([], lab.vfs())
        backend = lab.host(self, kept.NUMVFS)
        exc = self.assertRaises(
            exception.HostError, backend.prepare, self.vf)
        self.assertIn('is not there', str(exc))
        self.addCleanup(
            lab.write, f'bus/pci/devices/{pf.address}/sriov_numvfs', '0')
        backend.make_vfs(())
        made = lab.vfs()
        self.assertEqual(4, len(made))
        self.assertIn((self.vf.stable_id, self.vf.address), [
            (vf.id, vf.address) for vf in made])
        backend.prepare(self.vf)
        self.assertEqual(
            ['vfio-pci'], [vf.driver for vf in lab.vfs()
                           if vf.id == self.vf.stable_id])
        self.assertEqual(1, lab.nested(
            '1b36:0010', '-device', f'vfio-pci,host={self.vf.address}'))
        print(f'{self.vf.stable_id} is there again, and in a guest')
        verdict = backend.clean(self.vf)
        self.assertTrue(verdict.passed, verdict.failure)
        backend.give_back(self.vf)
