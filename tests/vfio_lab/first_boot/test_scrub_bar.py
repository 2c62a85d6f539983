# SPDX-License-Identifier: Apache-2.0
"""The program of the scrub guest's image, on files in place of a card."""

from __future__ import annotations

import os
import pathlib
import subprocess
import threading

import fixtures

from tests.vfio_lab import lab

IMAGE = pathlib.Path('/out/scrub-guest')
MIB = 1024 ** 2


class ScrubBarTest(lab.LabTestCase):
    """The program of the image, on files in place of a card."""

    address = '0000:01:00.0'

    def setUp(self) -> None:
        super().setUp()
        self.top = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        unpacked = subprocess.run(
            ['zcat', IMAGE / 'initrd.img'], check=True,
            stdout=subprocess.PIPE).stdout
        subprocess.run(['cpio', '-i', '-d', '--quiet', 'bin/scrub-bar'],
                       cwd=self.top, input=unpacked, check=True)
        self.folder = self.top / 'bus/pci/devices' / self.address
        self.folder.mkdir(parents=True)
        (self.folder / 'enable').write_text('0')

    def bars(self, *sizes: int, flags: int = 0x14220c) -> None:
        lines = [f'{base << 32:#018x} {(base << 32) + size - 1:#018x} '
                 f'{flags:#018x}\n' if size else f'{0:#018x} ' * 3 + '\n'
                 for base, size in enumerate(sizes, start=1)]
        empty = f'{0:#018x} {0:#018x} {0:#018x}\n'
        (self.folder / 'resource').write_text(
            ''.join(lines) + empty * (6 - len(lines)))

    def memory(self, number: int, size: int) -> pathlib.Path:
        path = self.folder / f'resource{number}'
        path.write_bytes(os.urandom(size))
        return path

    def run_program(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.top / 'bin/scrub-bar', self.top], text=True, check=False,
            env={'GPGPU_ADDRESS': self.address}, capture_output=True)

    def test_largest_bar_is_zeros_in_the_end(self) -> None:
        self.bars(4096, 0, 3 * 4096)
        small, large = self.memory(0, 4096), self.memory(2, 3 * 4096)
        before = small.read_bytes()
        done = self.run_program()
        self.assertEqual(
            'memory_bytes=12288 verified_bytes=12288 through BAR 2 of '
            f'{self.address}\n', done.stdout)
        self.assertEqual(bytes(3 * 4096), large.read_bytes())
        self.assertEqual(before, small.read_bytes())
        self.assertEqual('1', (self.folder / 'enable').read_text())

    def test_gpu_without_a_memory_bar_has_nothing_verified(self) -> None:
        # Registers (not prefetchable), and a BAR without an address.
        for flags in (0x140204, 0x2014220c):
            self.bars(4096, flags=flags)
            self.memory(0, 4096)
            self.assertIn('memory_bytes=0 verified_bytes=0 ',
                          self.run_program().stdout)

    def test_memory_that_does_not_answer_is_an_error(self) -> None:
        self.bars(8192)
        self.memory(0, 4096)
        done = self.run_program()
        self.assertEqual((2, ''), (done.returncode, done.stdout))
        self.assertIn('bus error', done.stderr)

    def test_memory_that_loses_its_content_is_not_verified(self) -> None:
        size = 32 * MIB
        self.bars(size)
        path = self.memory(0, size)
        ended = threading.Event()

        def lose() -> None:
            with path.open('r+b', buffering=0) as file:
                while not ended.is_set():
                    os.pwrite(file.fileno(), bytes(1024), 4096)
        thread = threading.Thread(target=lose)
        thread.start()
        try:
            done = self.run_program()
        finally:
            ended.set()
            thread.join()
        # 1 of 256 bytes was zero already.
        verified = int(done.stdout.split()[1].partition('=')[2])
        self.assertTrue(size - 1024 <= verified < size - 900, done.stdout)
