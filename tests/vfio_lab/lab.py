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
"""What the tests inside the lab's guest share."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
import typing

from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import scanner
from gpgpu_plugin.host import sysfs
from gpgpu_plugin.privsep import sysfs as privsep_sysfs
from tests.vfio_lab import machine


def write(path: str, value: str) -> None:
    """Without the daemon: the guest's tests are root already."""
    privsep_sysfs.check(path)
    fd = os.open(f'/sys/{path}', os.O_WRONLY)
    try:
        os.write(fd, (value or '\n').encode())
    finally:
        os.close(fd)


def read(path: str) -> bytes:
    """A function's configuration space, likewise."""
    return pathlib.Path('/sys', path).read_bytes()


def unload(module: str) -> None:
    """Unload a module, which udev may be about to load for a device that was
    just found again."""
    for _ in range(20):
        subprocess.run(['udevadm', 'settle'], check=True)
        done = subprocess.run(['modprobe', '-r', module],
                              capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        time.sleep(0.5)
    raise AssertionError(done.stderr)


def functions() -> dict[str, pci.PCIFunction]:
    """All functions of the machine by address."""
    return {each.address: each for each in scanner.scan(
        sysfs.Sysfs('/sys')).functions}


def displays() -> list[pci.PCIFunction]:
    """The four cards, two on each NUMA node, by address."""
    return [each for each in functions().values() if each.vendor == '1234']


def require(test: typing.Any) -> None:
    """Fail a test anywhere else: it writes to the kernel's own /sys."""
    with open('/proc/cmdline', encoding='utf-8') as file:
        if machine.MARK not in file.read().split():
            test.fail('to be run in the lab: tox -e vfio-lab,vfio-chain')


class LabTestCase(base.BaseTestCase):
    """Runs in the lab alone."""

    def setUp(self) -> None:
        super().setUp()
        require(self)
