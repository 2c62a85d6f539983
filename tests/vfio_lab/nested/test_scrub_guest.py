# SPDX-License-Identifier: Apache-2.0
"""A scrub guest that gets a card of the lab, by libvirt."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import subprocess
import threading
import time
import types
import typing
from collections.abc import Iterator

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.virt import guests
from gpgpu_plugin.virt import libvirt as virt_libvirt
from tests.fixtures import patience
from tests.functional_libvirt import libvirtd
from tests.vfio_lab import lab
from tests.vfio_lab import machine
from tests.vfio_lab.first_boot import test_cleaning

IMAGE = pathlib.Path('/out/scrub-guest')
SIZE = machine.MEMORY_MIB * 1024 ** 2
POLICY = 'reset+scrub-guest+settings+canary'
# Its kernel boots in a minute on a busy machine. This is less than
# machine.SILENCE, so that a test fails if the guest of the guest hangs.
SECONDS = 600.0

# A program of somebody else, which claims more than it did, and less than all
# of SIZE.
PROGRAM = """#!/bin/sh
printf '\n{"nonce": "%032d", "vendor": "1234", "device": "1111", ' 0 \
    >/dev/console
printf '"memory_bytes": 4194304, "verified_bytes": 4194304, ' >/dev/console
printf '"seconds": 1, "program": "/scrub", "detail": "all"}\n' >/dev/console
echo "with $GPGPU_MEMORY_MIB MiB at $GPGPU_ADDRESS"
echo 'memory_bytes=4194304 verified_bytes=4194303 by "somebody"'
"""


class ScrubGuestCase(test_cleaning.CleaningCase):

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(['modprobe', 'kvm_amd'], check=True)
        # libvirt locks consoles there, below /var/lock.
        pathlib.Path('/run/lock').mkdir(exist_ok=True)
        pathlib.Path('/etc/libvirt/qemu.conf').write_text(lab.QEMU_CONF)
        found = self.useFixture(libvirtd.Libvirtd())
        self.assertIsNone(found.unavailable)
        self.connection = found.connection
        self.configure()

    def configure(self, **changes: typing.Any) -> None:
        self.guests = guests.LibvirtGuests(
            libvirtd.URI, 'kvm', virt_libvirt.hostdevs)
        self.backend = lab.host(self, scrub_guest=dataclasses.replace(
            host_base.ScrubGuest(
                path=str(IMAGE), memory_mib=160, seconds=SECONDS,
                guests=self.guests), **changes))

    def result(self, verdict: host_base.CleanVerdict,
               ) -> cleaning.StepResult:
        """Return that of the step, after which nobody has the card."""
        # It has ended, and libvirt may have to forget it.
        self.assertTrue(
            patience.wait_until(lambda: not self.connection.listAllDomains()),
            [(domain.name(), domain.state(), domain.isPersistent())
             for domain in self.connection.listAllDomains()])
        [found] = [function for function in lab.functions().values()
                   if function.id == self.gpu.id]
        if not verdict.passed:
            self.assertEqual('vfio-pci', found.driver)
        self.assertIsNone(found.used_by)
        [result] = [result for result in verdict.results
                    if result.step == cleaning.SCRUB_GUEST]
        return result

    def clear(self) -> None:
        """Return the card as the next test expects it."""
        self.assertTrue(self.backend.clean(
            self.device('a', 'scrub')).passed)


class ScrubGuestTest(ScrubGuestCase):

    def test_scrub_guest_writes_all_of_an_emulated_card(self) -> None:
        with self.watched() as owners:
            verdict = self.cleaned(POLICY)
        self.assertTrue(verdict.passed, verdict.failure)
        facts = self.result(verdict).facts
        self.assertEqual((SIZE, SIZE), (
            facts['bytes_verified'], facts['bytes_of_memory']))
        self.assertEqual('/bin/scrub-bar', facts['program'])
        self.assertEqual(['reset', 'scrub-guest', 'settings', 'canary'],
                         [result.step for result in verdict.results])
        # While libvirt had the guest, it was not taken for somebody's.
        self.assertEqual({True}, set(owners))
        self.assertEqual(bytes(len(test_cleaning.SECRET)),
                         self.read_by_next_tenant())

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[bool]]:
        """Note whether running domains are nobody's owners of the card."""
        records = guests.OtherDomains(
            typing.cast(typing.Any, types.SimpleNamespace(
                list_guests=self.listed)), set, lambda uuid: False)
        seen: list[bool] = []
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(1):
                if self.connection.listAllDomains():
                    seen.append(not records._find({self.gpu.address}))
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()

    def listed(self, only_running: bool = True) -> list[typing.Any]:
        """Return domains as Nova does."""
        return [types.SimpleNamespace(
            name=domain.name(), uuid=domain.UUIDString(),
            get_xml_desc=domain.XMLDesc)
            for domain in self.connection.listAllDomains()]

    def test_program_of_somebody_else_is_not_believed_more(self) -> None:
        self.configure(path=self.with_program(PROGRAM))
        verdict = self.cleaned(POLICY)
        self.assertFalse(verdict.passed)
        result = self.result(verdict)
        # Not the line that has another nonce, and which came first.
        self.assertEqual(cleaning.StepOutcome.FAILED, result.outcome)
        self.assertIn(f'1 of {SIZE} bytes did not keep', result.reason)
        self.assertEqual(('/scrub', 'by somebody'), (
            result.facts['program'], result.facts['detail']))
        self.clear()

    def with_program(self, text: str) -> str:
        """Return a copy of the image with a program added.

        The kernel unpacks one archive after the other.
        """
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        program = folder / 'scrub'
        program.write_text(text)
        program.chmod(0o755)
        added = subprocess.run(
            ['cpio', '-o', '-H', 'newc', '--quiet'], cwd=folder, check=True,
            input=b'scrub\n', stdout=subprocess.PIPE).stdout
        image = folder / 'initrd.img'
        first = (IMAGE / 'initrd.img').read_bytes()
        # One that is not compressed begins at a multiple of four.
        image.write_bytes(first + bytes(-len(first) % 4) + added)
        (folder / 'vmlinuz').symlink_to(IMAGE / 'vmlinuz')
        return str(folder)

    def test_guest_that_hangs_is_ended_at_its_limit(self) -> None:
        self.configure(seconds=3.0)
        began = time.monotonic()
        verdict = self.cleaned(POLICY)
        self.assertLess(time.monotonic() - began, SECONDS)
        self.assertFalse(verdict.passed)
        result = self.result(verdict)
        self.assertIn('took longer than 3 s, and was ended', result.reason)
        # libvirt did it, before it was asked by the host.
        self.assertEqual(cleaning.StepOutcome.FAILED, result.outcome)
        self.clear()

    def test_kernel_that_is_none_blames_no_device(self) -> None:
        folder = self.useFixture(fixtures.TempDir()).path
        shutil.copy('/etc/hostname', f'{folder}/vmlinuz')
        shutil.copy(IMAGE / 'initrd.img', folder)
        self.configure(path=folder)
        device = self.device('a', POLICY)
        self.backend.prepare(device)
        exc = self.assertRaises(
            exception.HostNotReady, self.backend.clean, device)
        print(exc)
        self.assertIn('its scrub guest cannot be started', str(exc))
        self.assertEqual([], self.connection.listAllDomains())
        self.clear()
