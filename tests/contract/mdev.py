# SPDX-License-Identifier: Apache-2.0
"""Contract of a kernel that creates mdevs, fake or real.

The same tests run on the fake driver (tests/unit) and on the kernel's own
mbochs (tests/vfio_lab). Errors of raw writes are those of drivers/vfio/mdev
and of its sample drivers.
"""

from __future__ import annotations

import errno
import os
import pathlib
import typing
import uuid

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host import local
from gpgpu_plugin.host.discovery import sysfs
from tests.fixtures import cleaned
from tests.fixtures import reported


class MdevContract:
    """Tests for a test case that sets the attributes annotated here.

    :ivar root: of sysfs
    :ivar parent: a function that has no mdevs
    :ivar types: how many vGPUs of a type fit on it, by name of the type
    """

    root: str
    backend: local.LocalHost
    parent: pci.PCIFunction
    types: dict[str, int]
    assertEqual: typing.Any
    assertRaises: typing.Any
    assertIn: typing.Any
    assertLess: typing.Any
    assertTrue: typing.Any

    def write(self, path: str, value: str) -> None:
        """Write an attribute as the plugin does. :raises OSError:"""
        raise NotImplementedError

    # -- helpers ------------------------------------------------------------

    @property
    def large(self) -> str:
        """Return the type of which the fewest fit."""
        return min(self.types, key=lambda name: self.types[name])

    @property
    def small(self) -> str:
        """Return the type of which the most fit."""
        return max(self.types, key=lambda name: self.types[name])

    def device(self, vgpu_type: str, **fields: typing.Any,
               ) -> host_base.HostDevice:
        """Return a device with a new assignment."""
        return host_base.HostDevice(**{
            'assignment_uuid': str(uuid.uuid4()), 'vgpu_type': vgpu_type,
            'stable_id': f'{self.parent.id}/mdev0',
            'address': self.parent.address, **fields})

    def scan_parent(self) -> reported.Reported:
        found = reported.function(
            sysfs.Sysfs(self.root), self.parent.address)
        assert found is not None
        return found

    def folder(self, vgpu_type: str) -> str:
        """Return the folder of a type, relative to the root."""
        [type_id] = [
            listed.type_id for listed in self.scan_parent().vgpu_types or ()
            if listed.name == vgpu_type]
        return (f'class/mdev_bus/{self.parent.address}/mdev_supported_types/'
                f'{type_id}')

    def available(self, vgpu_type: str) -> int:
        """Return how many more vGPUs of a type the kernel creates."""
        return int(pathlib.Path(
            self.root, self.folder(vgpu_type), 'available_instances',
        ).read_text())

    def mdevs(self) -> list[str]:
        """Return the mdevs of all parents."""
        folder = f'{self.root}/bus/mdev/devices'
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def refused(self, number: int, path: str, value: str) -> None:
        exc = self.assertRaises(OSError, self.write, path, value)
        self.assertEqual(errno.errorcode[number],
                         errno.errorcode[exc.errno], path)

    def check_refused(self, device: host_base.HostDevice, *words: str) -> None:
        """Check that prepare is refused and leaves nothing behind."""
        before = self.mdevs()
        exc = self.assertRaises(
            exception.HostError, self.backend.prepare, device)
        for word in words:
            self.assertIn(word, str(exc))
        self.assertEqual(before, self.mdevs())

    def fill(self) -> list[host_base.HostDevice]:
        """Prepare devices of the large type until no more fit."""
        devices = [self.device(self.large)
                   for _ in range(self.types[self.large])]
        for device in devices:
            self.backend.prepare(device)
        return devices

    # -- the kernel ---------------------------------------------------------

    def test_create_refuses_malformed_and_taken_uuids(self) -> None:
        create = f'{self.folder(self.small)}/create'
        name = str(uuid.uuid4())
        for malformed in ('', 'x', name[:-1], f'{name}ab',
                          name.replace('-', 'g'), f'{name[:-1]}g'):
            self.refused(errno.EINVAL, create, malformed)
        self.assertEqual([], self.mdevs())
        self.write(create, name)
        # A UUID is taken for every type, and in upper case.
        for path in (create, f'{self.folder(self.large)}/create'):
            for taken in (name, name.upper()):
                self.refused(errno.EEXIST, path, taken)
        other = str(uuid.uuid4())
        self.write(create, other.upper())
        self.assertEqual(sorted((name, other)), self.mdevs())
        self.refused(errno.ENOENT, f'{self.folder(self.small)}x/create',
                     str(uuid.uuid4()))

    def test_remove_accepts_only_numbers(self) -> None:
        name = str(uuid.uuid4())
        remove = f'bus/mdev/devices/{name}/remove'
        self.refused(errno.ENOENT, remove, '1')
        self.write(f'{self.folder(self.small)}/create', name)
        self.refused(errno.EINVAL, remove, 'x')
        self.write(remove, '0')
        self.assertEqual([name], self.mdevs())
        self.write(remove, '1')
        self.assertEqual([], self.mdevs())
        self.refused(errno.ENOENT, remove, '1')

    def test_create_on_full_parent_is_refused(self) -> None:
        made = self.fill()
        for name in (self.large, self.small):
            self.assertEqual(0, self.available(name))
            create = f'{self.folder(name)}/create'
            self.refused(errno.ENOSPC, create, str(uuid.uuid4()))
            # A taken UUID is refused before a full parent.
            self.refused(errno.EEXIST, create, made[0].assignment_uuid)
        self.assertEqual(len(made), len(self.mdevs()))

    def test_mdev_links_to_parent_and_type(self) -> None:
        device = self.device(self.small)
        self.backend.prepare(device)
        mdev = device.assignment_uuid
        path = pathlib.Path(self.root, 'bus/mdev/devices', mdev).resolve()
        self.assertEqual(self.parent.address, path.parent.name)
        of_type = pathlib.Path(self.root, self.folder(self.small)).resolve()
        self.assertEqual(of_type, (path / 'mdev_type').resolve())
        self.assertEqual([mdev], os.listdir(of_type / 'devices'))
        self.backend.release(device)
        self.assertEqual([], os.listdir(of_type / 'devices'))

    # -- the scanner --------------------------------------------------------

    def test_scan_finds_types(self) -> None:
        found = self.scan_parent()
        self.assertEqual(vgpu.VGPUMechanism.MDEV, found.vgpu_mechanism)
        self.assertEqual(self.types, {
            listed.name: listed.max_instances
            for listed in found.vgpu_types or ()})
        for name, most in self.types.items():
            self.assertEqual(most, self.available(name), name)
        scan = self.backend.scan()
        self.assertEqual((), scan.problems)
        self.assertIn(found.function.id, [
            function.id for function in self.backend.discover(scan)])

    def test_scan_finds_created_mdev(self) -> None:
        self.assertEqual(((), None), (
            self.scan_parent().existing_vgpus, self.scan_parent().used_by))
        device = self.device(self.small)
        self.backend.prepare(device)
        self.assertEqual(((device.assignment_uuid,), 'mdev'), (
            self.scan_parent().existing_vgpus, self.scan_parent().used_by))

    # -- the backend --------------------------------------------------------

    def test_prepare_creates_one_mdev_with_uuid_of_assignment(self) -> None:
        device = self.device(self.small)
        self.assertRaises(exception.HostError, self.backend.attachment,
                          device)
        for _ in range(2):
            self.backend.prepare(device)
            self.assertEqual([device.assignment_uuid], self.mdevs())
            self.assertEqual(
                host_base.Attachment(mdev=device.assignment_uuid),
                self.backend.attachment(device))

    def test_available_instances_shrink_and_grow(self) -> None:
        most = self.types[self.small]
        devices = [self.device(self.small) for _ in range(3)]
        for number, device in enumerate(devices, start=1):
            self.backend.prepare(device)
            self.assertEqual(most - number, self.available(self.small))
        self.assertLess(
            self.available(self.large), self.types[self.large])
        for number, device in enumerate(devices, start=1):
            self.backend.release(device)
            self.assertEqual(most - 3 + number, self.available(self.small))
        self.assertEqual(self.types[self.large], self.available(self.large))

    def test_release_is_idempotent(self) -> None:
        device = self.device(self.large)
        self.backend.release(device)
        self.backend.prepare(device)
        for _ in range(2):
            self.backend.release(device)
            self.assertEqual([], self.mdevs())
        exc = self.assertRaises(
            exception.HostError, self.backend.attachment, device)
        self.assertIn('is not there', str(exc))

    def test_late_release_keeps_mdev_of_next_assignment(self) -> None:
        late, now = self.device(self.large), self.device(self.large)
        self.backend.prepare(late)
        self.backend.release(late)
        self.backend.prepare(now)
        self.backend.release(late)
        self.assertTrue(self.backend.clean(late).passed)
        self.assertEqual([now.assignment_uuid], self.mdevs())

    def test_unknown_type_is_refused(self) -> None:
        self.check_refused(
            self.device('A2-1Q'), 'no vGPU type A2-1Q', self.small)

    def test_full_parent_is_refused(self) -> None:
        self.fill()
        for name in (self.large, self.small):
            self.check_refused(
                self.device(name), f'no more vGPUs of type {name}')

    def test_other_parent_at_the_address_is_refused(self) -> None:
        self.check_refused(self.device(self.small, stable_id=(
            '/devices/pci0000:ff/1f.7/mdev0')), 'is not there')

    def test_clean_removes_mdev_left_by_crash(self) -> None:
        # The process died right after the write.
        device = self.device(self.small)
        self.write(f'{self.folder(self.small)}/create',
                   device.assignment_uuid)
        for _ in range(2):
            verdict = self.backend.clean(device)
            self.assertTrue(verdict.passed, verdict.failure)
            self.assertIn(device.assignment_uuid, cleaned.reasons(verdict))
            self.assertEqual([], self.mdevs())

    def test_prepare_after_crash_keeps_mdev(self) -> None:
        device = self.device(self.small)
        self.write(f'{self.folder(self.small)}/create',
                   device.assignment_uuid)
        self.backend.prepare(device)
        self.assertEqual([device.assignment_uuid], self.mdevs())
