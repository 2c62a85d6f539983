# SPDX-License-Identifier: Apache-2.0
"""gpgpu-host designate, before the machine is booted again."""

from __future__ import annotations

import io
import json
import os
import pathlib
import subprocess
import typing
from unittest import mock

import fixtures

from gpgpu_plugin.cmd import manage
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.vfio import designation
from gpgpu_plugin.privsep import guard
from tests.vfio_lab import lab

BOCHS = 'bochs-drm'


class DesignationTest(lab.LabTestCase):
    """Displays of node 1, which the guest's own driver has at first."""

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(['modprobe', 'bochs'], check=True)
        self.kept, self.returned = lab.displays()[2:]
        self.folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        (self.folder / 'nova.conf').write_text(
            f'[gpgpu_compute]\nstate_path = {self.folder}\n')

    def manage(self, *words: str, code: int = 0) -> str:
        out = self.useFixture(fixtures.MonkeyPatch(
            'sys.stdout', io.StringIO()))
        self.assertEqual(code, manage.run([
            '--config-file', str(self.folder / 'nova.conf'), *words],
            program=manage.HostApp))
        return typing.cast(str, out.new_value.getvalue())

    def designated(self) -> list[dict[str, str]]:
        return typing.cast(list[dict[str, str]], json.loads(self.manage(
            'designated', '-f', 'json')))

    def driver(self, card: pci.PCIFunction) -> str | None:
        return lab.functions()[card.address].driver

    def test_designated_card_is_bound_until_undesignated(self) -> None:
        for keeper in ('driverctl', 'udev'):
            self.assertEqual(BOCHS, self.driver(self.returned))
            if keeper == 'driverctl':
                subprocess.run([
                    designation.DRIVERCTL, '--noprobe', 'set-override',
                    self.returned.address, 'vfio-pci'], check=True)
            self.manage('designate', self.returned.address)
            self.assertEqual('vfio-pci', self.driver(self.returned))
            self.assertIn(
                (self.returned.address, keeper, 'vfio-pci'),
                [(row['Address'], row['Kept By'], row['Driver'])
                 for row in self.designated()])
            book = self.folder / 'h1.json'
            book.write_text(json.dumps(
                {'version': 1, 'unclean': [self.returned.id]}))
            self.manage('undesignate', self.returned.id, code=1)
            self.assertEqual('vfio-pci', self.driver(self.returned))
            book.unlink()
            self.manage('undesignate', self.returned.id)
            self.assertEqual(BOCHS, self.driver(self.returned))
            self.assertNotIn(self.returned.address, [
                row['Address'] for row in self.designated()])

    def test_designation_is_stored_for_the_next_boot(self) -> None:
        self.manage('designate', self.kept.id)
        self.assertEqual('vfio-pci', self.driver(self.kept))
        self.assertTrue(pathlib.Path(
            designation.ETC, designation.RULES).exists())

    def test_disk_in_use_is_not_designated(self) -> None:
        root = next(function for function in lab.functions().values()
                    if function.driver == 'virtio-pci' and any(
                        '/block/vda' in folder for folder, _, _ in os.walk(
                            os.path.realpath('/sys/bus/pci/devices/'
                                             + function.address))))
        err = self.useFixture(fixtures.MonkeyPatch(
            'sys.stderr', io.StringIO()))
        self.manage('designate', root.address, code=1)
        self.assertIn('neither a GPU', err.new_value.getvalue())
        # Nor if it were on the card of one.
        with mock.patch.object(guard, 'GPU_CLASSES', ('0x',)):
            self.manage('designate', root.address, code=1)
        self.assertIn('disk vda is in use', err.new_value.getvalue())
