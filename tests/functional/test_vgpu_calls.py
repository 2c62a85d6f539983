# SPDX-License-Identifier: Apache-2.0
"""Number of calls for one vGPU, independent of the number of devices."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
import os
import threading
import typing
from collections.abc import Iterator

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from gpgpu_plugin.host.fake import machine
from tests.fixtures import libvirt_cloud

GPUS = 256


def many_gpus() -> machine.Machine:
    """Return a machine with 256 of the T4 of ``nvidia-t4-2``."""
    t4 = machine.load('nvidia-t4-2')
    [port] = t4.roots[0]['children']
    per_root = 32
    return dataclasses.replace(t4, roots=tuple(
        {'bus': f'{domain:04x}:00', 'numa': domain % 2, 'children': [
            {**port, 'at': f'{number // 8 + 1:02x}.{number % 8}',
             'slot': f'{domain}-{number}'}
            for number in range(per_root)]}
        for domain in range(GPUS // per_root)))


class CallsTest(libvirt_cloud.GpuLibvirtCloud):
    """libvirt's API and writes to sysfs within a spawn."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'nvidia-t4-2'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('T4', '--vendor', '10de', '--device', '1eb8'),)
    gpus = 2

    def _configure(self) -> None:
        super()._configure()
        if self.gpus != 2:
            machine.build(many_gpus(), os.path.join(
                self.state_path, 'machines', 'gpu1'))

    def setUp(self) -> None:
        super().setUp()
        self.manage('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.wait_for(lambda: self.unallocated() == {
            'T4': self.gpus, '4Q': 4 * self.gpus}, 'types in Placement')

    @contextlib.contextmanager
    def counted(self) -> Iterator[collections.Counter[str]]:
        """Count calls of libvirt's API by the thread that spawns."""
        calls: collections.Counter[str] = collections.Counter()
        spawning = threading.local()

        def count(name: str, function: typing.Any) -> typing.Any:
            @functools.wraps(function)
            def counts(*args: typing.Any, **kwargs: typing.Any,
                       ) -> typing.Any:
                if getattr(spawning, 'now', False):
                    calls[name] += 1
                return function(*args, **kwargs)
            return counts

        spawn = type(self.driver()).spawn

        def spawns(*args: typing.Any, **kwargs: typing.Any) -> None:
            spawning.now = True
            try:
                spawn(*args, **kwargs)
            finally:
                spawning.now = False
        with contextlib.ExitStack() as patches:
            for kind in (fakelibvirt.Connection, fakelibvirt.Domain,
                         fakelibvirt.NodeDevice):
                for name, function in inspect.getmembers(
                        kind, inspect.isfunction):
                    if not name.startswith('_'):
                        patches.enter_context(fixtures.MonkeyPatch(
                            f'{kind.__module__}.{kind.__name__}.{name}',
                            count(name, function)))
            patches.enter_context(fixtures.MonkeyPatch(
                'gpgpu_plugin.virt.mixin.GPUMixin.spawn', spawns))
            yield calls

    def test_one_vgpu_costs_one_write_and_one_domain_xml(self) -> None:
        kernel = self.driver().gpu_tracker.backend.kernel
        plain, flavor = self.flavor_of({}), self.flavor_of(
            {'resources:CUSTOM_VGPU_T4_T4_4Q': '1'})
        with self.counted() as without:
            server = self.boot(plain)
        # The stand-in for libvirt looks at every domain to find one.
        self.delete(server)
        kernel.written.clear()
        with self.counted() as with_one:
            self.boot(flavor)
        self.assertTrue(without['defineXML'], without)
        # Its domain is read once, for the place of the vGPU in the guest.
        self.assertEqual(
            {'lookupByUUIDString': 1, 'UUIDString': 1, 'XMLDesc': 1},
            with_one - without)
        self.assertFalse(without - with_one)
        self.assertEqual(1, len(kernel.written), kernel.written)
        # What was to be shown: at most five of both kinds together.
        self.assertLessEqual(
            (with_one - without).total() + len(kernel.written), 5)


class ManyGPUsTest(CallsTest):
    """One vGPU on a host with 256 GPUs."""

    gpus = GPUS
