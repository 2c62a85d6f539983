# SPDX-License-Identifier: Apache-2.0
"""Fixture of libvirt: the running daemon, or one for the tests."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import shutil
import subprocess
import time
import typing

import fixtures

URI = 'qemu:///system'


class Unavailable(Exception):
    """Error: libvirt is not installed here, or does not answer."""


class Libvirtd(fixtures.Fixture):
    """Fixture with a connection to libvirt.

    :ivar connection: to the daemon
    :ivar unavailable: why there is none
    """

    connection: typing.Any = None
    unavailable: str | None = None

    def _setUp(self) -> None:
        try:
            self.connection = self._connect()
        except Unavailable as exc:
            # Whether that is a failure the test decides.
            self.unavailable = str(exc)
        else:
            self.addCleanup(self.connection.close)

    def _connect(self) -> typing.Any:
        try:
            libvirt = importlib.import_module('libvirt')
        except ImportError:
            raise Unavailable(
                'libvirt-python is not installed: pip install '
                'libvirt-python (Debian: libvirt-dev, pkg-config)') from None
        # Its errors are raised; they need no line on stderr each.
        libvirt.registerErrorHandler(lambda context, error: None, None)
        try:
            return libvirt.open(URI)
        except libvirt.libvirtError:
            self._start()
            return self._wait(libvirt)

    def _start(self) -> None:
        if os.geteuid() != 0 or shutil.which('libvirtd') is None:
            raise Unavailable(
                f'nobody answers at {URI}, and libvirtd is not installed or '
                'not ours to start')
        pathlib.Path('/run/libvirt').mkdir(exist_ok=True)
        for program in ('virtlogd', 'libvirtd'):
            process = subprocess.Popen(
                [program], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(self._end, process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()

    @staticmethod
    def _wait(libvirt: typing.Any) -> typing.Any:
        deadline = time.monotonic() + 300
        while True:
            try:
                return libvirt.open(URI)
            except libvirt.libvirtError as exc:
                if time.monotonic() > deadline:
                    raise Unavailable(f'libvirtd does not answer: {exc}',
                                       ) from None
                time.sleep(0.2)
