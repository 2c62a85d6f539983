# SPDX-License-Identifier: Apache-2.0
"""Common code of the tests inside the lab's guest."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
import struct
import subprocess
import time
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import privsep
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host import health
from gpgpu_plugin.host import local
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import designation
from gpgpu_plugin.host.vfio import operations
from gpgpu_plugin.privsep import guard
from gpgpu_plugin.privsep import sysfs as privsep_sysfs
from tests.fixtures import reported
from tests.vfio_lab import machine

# For a libvirtd of the guest's own.
QEMU_CONF = """
user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0
stdio_handler = "file"
"""
# include/uapi/linux/vfio.h
_VFIO_SET_IOMMU = 0x3b66
_VFIO_GROUP_SET_CONTAINER = 0x3b68
_VFIO_GROUP_GET_DEVICE_FD = 0x3b6a
_VFIO_TYPE1 = 1

# The lab's only device with VFs is an NVMe.
GPU_CLASSES = (*guard.GPU_CLASSES, '0x0108')


def _write_for_plugin(path: str, value: str) -> None:
    """Write without the daemon, but only what the daemon would write.

    The tests run as root already.
    """
    with mock.patch.object(guard, 'GPU_CLASSES', GPU_CLASSES):
        privsep_sysfs.check('/sys', path, value)
    write(path, value)


def write(path: str, value: str) -> None:
    """Write any attribute, including those that only tests write."""
    fd = os.open(f'/sys/{path}', os.O_WRONLY)
    try:
        os.write(fd, (value or '\n').encode())
    finally:
        os.close(fd)


def read(path: str) -> bytes:
    """Return the configuration space of a function."""
    return pathlib.Path('/sys', path).read_bytes()


def unload(module: str) -> None:
    """Unload a module.

    udev may be about to load it for a device that was just found again.
    """
    for _ in range(20):
        subprocess.run(['udevadm', 'settle'], check=True)
        done = subprocess.run(['modprobe', '-r', module],
                              capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        time.sleep(0.5)
    raise AssertionError(done.stderr)


def load_mdevs() -> None:
    """Load the kernel's sample drivers of mdevs."""
    for module in machine.MDEVS:
        # The host of the lab may have modules of this kernel without them.
        subprocess.run(['modprobe', '-d', '/out/kernel', module], check=True)


def host(test: typing.Any, numvfs: Mapping[str, int] | None = None,
         baselines: str | None = None,
         scrub_guest: host_base.ScrubGuest | None = None) -> local.LocalHost:
    """Return the plugin's host for the lab's guest.

    :param baselines: folder of them; None: one that the test removes
    :param scrub_guest: of the cleaning step; None: none is configured
    """
    subprocess.run(['modprobe', 'vfio-pci'], check=True)
    # The tests run as root: no daemon.
    test.useFixture(fixtures.MockPatchObject(
        privsep.sys_admin_pctxt, 'client_mode', False))
    tree = sysfs.Sysfs('/sys')
    return local.LocalHost(host_base.Access(
        sysfs=tree, binder=binding.Binder(
            tree, _write_for_plugin, lambda module: None, read,
            lambda address: None),
        is_designated=designation.Store().holds,
        baselines=baseline.Baselines(
            baselines or test.useFixture(fixtures.TempDir()).path),
        vfio=operations.PrivilegedVFIO(tree),
        scrub_guest=scrub_guest or host_base.ScrubGuest()),
        health.HealthBook(
            tree, f'{test.useFixture(fixtures.TempDir()).path}/errors.json'),
        numvfs)


@contextlib.contextmanager
def opened(group: object, device: str) -> Iterator[None]:
    """Open a device of an IOMMU group in this process during the block."""
    container = os.open('/dev/vfio/vfio', os.O_RDWR)
    member = os.open(f'/dev/vfio/{group}', os.O_RDWR)
    try:
        fcntl.ioctl(member, _VFIO_GROUP_SET_CONTAINER,
                    struct.pack('i', container))
        fcntl.ioctl(container, _VFIO_SET_IOMMU, _VFIO_TYPE1)
        fcntl.ioctl(member, _VFIO_GROUP_GET_DEVICE_FD,
                    device.encode() + b'\0')
        fd = _device_fd()
        try:
            yield
        finally:
            os.close(fd)
    finally:
        os.close(member)
        os.close(container)


def _device_fd() -> int:
    # The ioctl returns it, which fcntl.ioctl hides when it is given bytes;
    # it is the newest one.
    return max(int(name) for name in os.listdir('/proc/self/fd')
               if os.path.exists(f'/proc/self/fd/{name}')
               and 'vfio-device' in os.readlink(f'/proc/self/fd/{name}'))


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that has no event."""
    deadline = time.monotonic() + 90
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f'{what}: not in time')
        time.sleep(0.5)


def placed(text: str, ids: str) -> int:
    """Return how many devices got an address from a guest's firmware.

    :param text: output of ``info pci`` in QEMU's monitor
    """
    return sum(
        # All ones: the firmware has not come to it yet.
        bool(re.search(r'BAR0: .* at 0x(?!f{8})', bus))
        for bus in re.split(r'^  Bus ', text, flags=re.M) if ids in bus)


def nested(ids: str, *arguments: str) -> int:
    """Boot a nested guest, and wait until its firmware has placed a device.

    :returns: how many such devices it has
    """
    with subprocess.Popen(
            ['qemu-system-x86_64', '-machine', 'q35', '-accel', 'tcg', '-m',
             '64', '-nodefaults', '-display', 'none', '-qmp', 'stdio',
             *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True) as process:
        try:
            _ask(process, 'qmp_capabilities')
            found = 0

            def seen() -> bool:
                nonlocal found
                found = placed(_ask(
                    process, 'human-monitor-command',
                    {'command-line': 'info pci'}), ids)
                return found > 0
            wait(seen, f'{ids} in a nested guest')
            return found
        finally:
            process.kill()


def _ask(process: subprocess.Popen[str], command: str,
         arguments: Mapping[str, str] | None = None) -> str:
    """Send a command to QEMU (QEMU Machine Protocol)."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(
        {'execute': command, 'arguments': arguments or {}}) + '\n')
    process.stdin.flush()
    for line in process.stdout:
        said = json.loads(line)
        if 'return' in said:
            return str(said['return'])
        # Not the greeting, no event.
        assert 'error' not in said, said
    raise AssertionError(f'QEMU ended with {process.wait()}')


def functions() -> dict[str, reported.Reported]:
    """Return all functions of the machine by address."""
    return {function.address: function for function in reported.functions(
        scanner.scan(sysfs.Sysfs('/sys')))}


def displays() -> list[reported.Reported]:
    """Return the four displays by address, two on each NUMA node.

    That of two_functions is not among them.
    """
    return [function for function in functions().values()
            if function.vendor == '1234' and function.slot != '16'
            and function.id.startswith('/devices/pci')]


def two_functions() -> list[reported.Reported]:
    """Return the display and the sound controller that share a reset."""
    found = functions().values()
    card = next(function.address.rpartition('.')[0] for function in found
                if function.slot == '16')
    return [function for function in found
            if function.address.startswith(f'{card}.')]


def nvme() -> pci.PCIFunction:
    """Return the PF of the NVMe, whose driver can create VFs."""
    subprocess.run(['modprobe', 'nvme'], check=True)
    return next(function for function in functions().values()
                if function.class_code == '010802' and function.pf is None)


def vfs() -> list[pci.PCIFunction]:
    """Return the VFs of the NVMe, once its driver has given up on them.

    They are off (NVMe, Secondary Controller State), and nobody turns them on.
    """
    found: list[pci.PCIFunction] = []

    def given_up() -> bool:
        found[:] = [vf for vf in functions().values() if vf.pf]
        return all(vf.driver != 'nvme' for vf in found)
    wait(given_up, 'VFs without a driver')
    return sorted(found, key=lambda vf: vf.vf_index or 0)


def mdevs() -> list[str]:
    """Return the UUIDs of all mdevs."""
    folder = '/sys/bus/mdev/devices'
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def remove_mdevs() -> None:
    """Remove all mdevs, including those that a test left."""
    for name in mdevs():
        write(f'bus/mdev/devices/{name}/remove', '1')


def require(test: typing.Any) -> None:
    """Fail a test outside the lab: it writes to the kernel's own /sys."""
    with open('/proc/cmdline', encoding='utf-8') as file:
        if machine.MARK not in file.read().split():
            test.fail('to be run in the lab: tox -e vfio-lab,vfio-chain')


class LabTestCase(base.BaseTestCase):
    """Base class of tests that run only in the lab."""

    def setUp(self) -> None:
        super().setUp()
        require(self)
