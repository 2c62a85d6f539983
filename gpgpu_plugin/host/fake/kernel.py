# SPDX-License-Identifier: Apache-2.0
"""Kernel of fake machines: it reacts to writes as Linux does.

It supports the attributes that the plugin writes (bind, unbind,
driver_override, drivers_probe, reset and sriov_numvfs), and ``remove``, which
unplugs a device. Errors are those of drivers/pci (Linux 6.x). vGPUs are those
of gpgpu_plugin.host.fake.vgpu_driver.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import shutil
import threading
from collections.abc import Callable
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin import vfio
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import vgpu_driver

# Drivers that are not called as their module (KBUILD_MODNAME).
_DRIVERS = {'xe_vfio_pci': 'xe-vfio-pci'}


def add_driver(root: pathlib.Path, name: str) -> None:
    """Load a driver, if it is not loaded yet."""
    folder = root / 'bus/pci/drivers' / name
    folder.mkdir(exist_ok=True)
    for file in ('bind', 'unbind'):
        (folder / file).touch()


def write_modalias(folder: pathlib.Path) -> None:
    """Write the attribute that is made of the ids of a function.

    A function that lacks one of them gets none.
    """
    try:
        vendor, device, subsystem_vendor, subsystem, code = (
            int((folder / name).read_text(), 16)
            for name in ('vendor', 'device', 'subsystem_vendor',
                         'subsystem_device', 'class'))
    except FileNotFoundError:
        return
    (folder / 'modalias').write_text(
        f'pci:v{vendor:08X}d{device:08X}'
        f'sv{subsystem_vendor:08X}sd{subsystem:08X}'
        f'bc{code >> 16:02X}sc{code >> 8 & 0xff:02X}i{code & 0xff:02X}\n')


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class FakeKernel:
    """The kernel of one tree of gpgpu_plugin.host.fake.machine.

    :ivar faults: errno by the end of a path; a write to such a path raises it
    :ivar ignored: ends of paths; writes there have no effect and no error
    :ivar late: ends of paths; writes there take effect in ``catch_up``
    :ivar written: paths that were written, in order
    :ivar vfio: what VFIO does on this machine
    """

    def __init__(self, root: str) -> None:
        self._root = pathlib.Path(root)
        self._sysfs = sysfs_mod.Sysfs(root)
        self._lock = threading.Lock()
        self.faults: dict[str, int] = {}
        self.ignored: set[str] = set()
        self.late: set[str] = set()
        self._waiting: list[tuple[str, str]] = []
        self.written: list[str] = []
        self.vfio = FakeVFIO(root, self._note)
        # Drivers by the ids of devices that they were bound to.
        self._native: dict[str, str] = {}

    def write(self, path: str, value: str) -> None:
        """Write to an attribute.

        :param path: relative to the root
        :raises OSError: with the errno of Linux
        """
        self._check_fault(path)
        folder, _, name = path.rpartition('/')
        actions = {
            'bind': self._bind, 'unbind': self._unbind,
            'driver_override': self._override, 'reset': self._reset,
            'drivers_probe': self._probe, 'remove': self._remove,
            'sriov_numvfs': self._numvfs, 'create': self._create_mdev,
            'current_vgpu_type': self._set_type,
            'placement_id': self._set_placement}
        if name not in actions or not os.path.lexists(self._root / folder):
            raise _error(errno.ENOENT, path)
        self.written.append(path)
        if any(path.endswith(end) for end in self.ignored):
            return
        if any(path.endswith(end) for end in self.late):
            self._waiting.append((path, value))
            return
        with self._lock:
            actions[name](self._root / folder, value.strip())

    def _check_fault(self, path: str) -> None:
        for end, number in self.faults.items():
            if path.endswith(end):
                raise _error(number, path)

    def _note(self, path: str) -> None:
        """Note what VFIO did, as if it had been written to an attribute."""
        self._check_fault(path)
        self.written.append(path)

    def catch_up(self) -> None:
        """Apply late writes."""
        self.late.clear()
        while self._waiting:
            self.write(*self._waiting.pop(0))

    # -- drivers ------------------------------------------------------------

    def load_vfio(self, module: str = vfio.PLAIN) -> None:
        """Load a module with a VFIO driver, as modprobe does.

        :raises OSError: modules.alias does not have it
        """
        if module != vfio.PLAIN and module not in {
                name for _, name in vfio_drivers.aliases(self._sysfs)}:
            raise OSError(errno.EIO, f'modprobe {module} failed: not found')
        name = _DRIVERS.get(module, module)
        add_driver(self._root, name)
        links = self._root / 'module' / module.replace('-', '_') / 'drivers'
        links.mkdir(parents=True, exist_ok=True)
        if not (links / f'pci:{name}').is_symlink():
            (links / f'pci:{name}').symlink_to(
                os.path.relpath(self._root / 'bus/pci/drivers' / name, links))

    def _device(self, address: str) -> pathlib.Path:
        path = self._root / 'bus/pci/devices' / address
        if not path.exists():
            raise _error(errno.ENODEV, address)
        return path.resolve()

    def _bind(self, driver: pathlib.Path, address: str) -> None:
        device = self._device(address)
        if (device / 'driver').is_symlink():
            raise _error(errno.EBUSY, address)
        override = self._overridden(device)
        # VFIO drivers bind by override only.
        if (override and override != driver.name) or (
                vfio.is_vfio(driver.name) and not override):
            raise _error(errno.ENODEV, address)
        self._attach(driver, device)
        if self._has_vgpus(driver, device):
            vgpu_driver.add_vfs(
                self._root, (device / 'physfn').resolve(), [device])

    def _attach(self, driver: pathlib.Path, device: pathlib.Path) -> None:
        # VFIO drivers enable a device when it is opened, others at once.
        self._enable(device, not vfio.is_vfio(driver.name))
        (device / 'driver').symlink_to(os.path.relpath(driver, device))
        (driver / device.name).symlink_to(os.path.relpath(device, driver))

    @staticmethod
    def _has_vgpus(driver: pathlib.Path, device: pathlib.Path) -> bool:
        return driver.name == 'nvidia' and (device / 'physfn').exists()

    def _unbind(self, driver: pathlib.Path, address: str) -> None:
        device = self._device(address)
        if self._sysfs.link(str(device / 'driver')) != driver.resolve().name:
            raise _error(errno.ENODEV, address)
        if not vfio.is_vfio(driver.name):
            self._native[self._ids(device)] = driver.name
        self._enable(device, False)
        (device / 'driver').unlink()
        (driver.resolve() / address).unlink()
        if self._has_vgpus(driver, device):
            self._remove_vgpus(device)

    def _remove_vgpus(self, vf: pathlib.Path) -> None:
        vgpu_driver.remove_vf(self._root, vf)
        for folder in (
                *(path.parent for path in vf.glob('*/mdev_type')),
                vf / 'nvidia', vf / 'mdev_supported_types'):
            shutil.rmtree(folder, ignore_errors=True)
        # Other VFs can be given types in their stead.
        vgpu_driver.add_vfs(self._root, (vf / 'physfn').resolve(), [])

    @staticmethod
    def _enable(device: pathlib.Path, enabled: bool) -> None:
        (device / 'enable').write_text(f'{enabled:d}\n')

    @staticmethod
    def _ids(device: pathlib.Path) -> str:
        return ''.join((device / name).read_text()
                       for name in ('vendor', 'device', 'class'))

    @staticmethod
    def _overridden(device: pathlib.Path) -> str:
        text = (device / 'driver_override').read_text().strip()
        # The kernel shows this where nothing was ever written.
        return '' if text == '(null)' else text

    def _override(self, device: pathlib.Path, value: str) -> None:
        (device / 'driver_override').write_text(
            f'{value}\n' if value else '')

    def _probe(self, bus: pathlib.Path, address: str) -> None:
        device = self._device(address)
        override = self._overridden(device)
        name = override or self._native.get(self._ids(device))
        if name and not (device / 'driver').is_symlink():
            driver = self._root / 'bus/pci/drivers' / name
            if driver.is_dir():
                self._bind(driver, address)

    # -- functions ----------------------------------------------------------

    def _reset(self, device: pathlib.Path, value: str) -> None:
        if value != '1':
            raise _error(errno.EINVAL, str(device))
        if not reset_works(device.resolve()):
            raise _error(errno.ENOTTY, str(device))
        self.vfio.reset(device.resolve().name)

    def _remove(self, device: pathlib.Path, value: str) -> None:
        try:
            # Much as kstrtoul does: 0x1 is a number, too.
            number = int(value, 0)
        except ValueError:
            raise _error(errno.EINVAL, str(device)) from None
        if not number:
            return
        if device.parent == self._mdevs:
            vgpu_driver.VGPUDriver(device.resolve().parent).remove_mdev(
                device.name, self._mdevs)
        else:
            self._unplug(device.name)

    def _unplug(self, address: str) -> None:
        link = self._root / 'bus/pci/devices' / address
        device = link.resolve()
        driver = device / 'driver'
        if driver.is_symlink():
            (driver.resolve() / address).unlink()
        vgpu_driver.remove_vf(self._root, device)
        # Without an IOMMU there are no groups.
        (device / 'iommu_group' / 'devices' / address).unlink(
            missing_ok=True)
        link.unlink()
        shutil.rmtree(device)

    # -- vGPUs --------------------------------------------------------------

    @property
    def _mdevs(self) -> pathlib.Path:
        return self._root / 'bus/mdev/devices'

    def _create_mdev(self, folder: pathlib.Path, uuid: str) -> None:
        vgpu_driver.VGPUDriver(folder.resolve().parents[1]).create_mdev(
            folder.name, uuid, self._mdevs)

    def _set_type(self, folder: pathlib.Path, value: str) -> None:
        vf = folder.resolve().parent
        vgpu_driver.VGPUDriver((vf / 'physfn').resolve()).set_type(vf, value)

    def enable_mixed_size(self, address: str) -> None:
        """Switch a GPU to mixed-size mode, as ``nvidia-smi vgpu -shm 1``."""
        vgpu_driver.VGPUDriver(self._device(address)).enable_mixed_size()

    def _set_placement(self, folder: pathlib.Path, value: str) -> None:
        vgpu = folder.resolve().parent
        function = vgpu.parent if (
            vgpu / 'mdev_type').is_symlink() else vgpu
        vgpu_driver.VGPUDriver(function).set_placement(vgpu, value)

    # -- SR-IOV -------------------------------------------------------------

    def _numvfs(self, link: pathlib.Path, value: str) -> None:
        pf = link.resolve()
        total = int((pf / 'sriov_totalvfs').read_text())
        now = int((pf / 'sriov_numvfs').read_text())
        try:
            wanted = int(value)
        except ValueError:
            raise _error(errno.EINVAL, str(pf)) from None
        if wanted < 0 or wanted > total:
            raise _error(errno.ERANGE, str(pf))
        if wanted == now:
            return
        if (pf / 'driver').exists() and (
                (pf / 'driver').resolve().name == 'nvidia'):
            # That driver has no sriov_configure.
            raise _error(errno.ENOENT, str(pf))
        if wanted and now:
            raise _error(errno.EBUSY, str(pf))
        self.set_vfs(pf.name, wanted)

    def sriov_manage(self, address: str) -> None:
        """Create all VFs of a GPU, as NVIDIA's ``sriov-manage -e``."""
        self.written.append('sriov-manage')
        self.set_vfs(address, int(
            (self._device(address) / 'sriov_totalvfs').read_text()))

    def set_vfs(self, address: str, count: int) -> None:
        """Replace all VFs of a PF by a number of new ones."""
        pf = self._device(address).resolve()
        now = int((pf / 'sriov_numvfs').read_text())
        for number in range(now):
            self._unplug(self._vf_address(pf, number))
            (pf / f'virtfn{number}').unlink()
        vfs = [self._add_vf(pf, number) for number in range(count)]
        vgpu_driver.add_vfs(self._root, pf, vfs)
        (pf / 'sriov_numvfs').write_text(f'{count}\n')
        driver = (pf / 'driver').resolve()
        for vf in vfs:
            if self._has_vgpus(driver, vf):
                self._attach(driver, vf)

    def _vf_address(self, pf: pathlib.Path, number: int) -> str:
        domain, bus, rest = pf.name.split(':')
        slot, function = rest.split('.')
        routing = (int(bus, 16) << 8 | int(slot, 16) << 3 | int(function))
        routing += int((pf / 'sriov_offset').read_text())
        routing += number * int((pf / 'sriov_stride').read_text())
        return (f'{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}'
                f'.{routing & 7:x}')

    def _add_vf(self, pf: pathlib.Path, number: int) -> pathlib.Path:
        address = self._vf_address(pf, number)
        folder = pf.parent / address
        folder.mkdir()
        for name in ('vendor', 'subsystem_vendor', 'subsystem_device',
                     'revision', 'class', 'numa_node', 'resource',
                     'irq', 'reset_method'):
            if (pf / name).exists():
                shutil.copy(pf / name, folder / name)
        # The kernel pads "device" with zeros, but not "sriov_vf_device".
        device = int((pf / 'sriov_vf_device').read_text(), 16)
        (folder / 'device').write_text(f'0x{device:04x}\n')
        write_modalias(folder)
        # Ids in the configuration space of a VF read ffff; attributes have
        # those of the PF.
        config = (pf / 'config').read_bytes()
        (folder / 'config').write_bytes(b'\xff' * 4 + config[4:256])
        for name in ('driver_override', 'reset'):
            (folder / name).touch()
        (folder / 'physfn').symlink_to(f'../{pf.name}')
        (pf / f'virtfn{number}').symlink_to(f'../{address}')
        devices = self._root / 'bus/pci/devices'
        (devices / address).symlink_to(os.path.relpath(folder, devices))
        groups = self._root / 'kernel/iommu_groups'
        group = 1 + max(map(int, os.listdir(groups)), default=-1)
        members = groups / str(group) / 'devices'
        members.mkdir(parents=True)
        (members / address).symlink_to(os.path.relpath(folder, members))
        (folder / 'iommu_group').symlink_to(
            os.path.relpath(members.parent, folder))
        return folder


# -- Files in which a fake kernel shows the health of a function.
#
# The counts of single errors, of which the plugin reads the total only, are
# all in one line.


_LINES = {
    watch.FATAL: ('Data Link Protocol', 'TOTAL_ERR_FATAL'),
    watch.NONFATAL: ('Completion Timeout', 'TOTAL_ERR_NONFATAL'),
    watch.CORRECTABLE: ('Receiver Error', 'TOTAL_ERR_COR')}


def write_link(folder: pathlib.Path, width: int = 16,
               maximum: int = 16) -> None:
    """Write the width of the link above a function, or below a port."""
    (folder / watch.WIDTH).write_text(f'{width}\n')
    (folder / watch.MAX_WIDTH).write_text(f'{maximum}\n')


def write_errors(folder: pathlib.Path, *, fatal: int = 0, nonfatal: int = 0,
                 correctable: int = 0) -> None:
    """Write how many errors Advanced Error Reporting has counted."""
    for name, count in ((watch.FATAL, fatal),
                        (watch.NONFATAL, nonfatal),
                        (watch.CORRECTABLE, correctable)):
        error, total = _LINES[name]
        (folder / name).write_text(
            f'Undefined 0\n{error} {count}\n{total} {count}\n')


# -- Resets of the functions of a fake machine: which work, and which kill.
#
# As __pci_reset_function_locked does (Linux, drivers/pci/pci.c), the kernel
# tries the methods of ``reset_method`` in order. That list is made when the
# function is found, so it may name a method that the kernel refuses later.


# No attribute of sysfs begins with a dot; a recording cannot have one.
_KILLED = '.dies_on_reset'
_BUS = 'bus'


def kill_by_reset(folder: pathlib.Path) -> None:
    """Make a function one that does not answer after its next reset."""
    (folder / _KILLED).touch()


def reset_works(folder: pathlib.Path) -> bool:
    """Return whether the kernel has a method that resets the function alone.

    :param folder: the function's own folder, not a link to it
    """
    file = folder / 'reset_method'
    methods = file.read_text().split() if file.exists() else []
    return any(method != _BUS or _is_alone(folder) for method in methods)


def _is_alone(folder: pathlib.Path) -> bool:
    """Return whether no other function is on the bus of a function.

    A reset of the bus would reset it, too (pci_parent_bus_reset).
    """
    bus = folder.name.rpartition(':')[0]
    return not any(name.startswith(f'{bus}:') and name != folder.name
                   for name in os.listdir(folder.parent))


def apply_reset(folder: pathlib.Path) -> None:
    """Reset a function: it may not answer until its host is booted again."""
    if (folder / _KILLED).exists():
        config = folder / 'config'
        config.write_bytes(b'\xff' * config.stat().st_size)


# -- VFIO of a fake machine, with the memory of its GPUs.
#
# A reset clears the memory, unless a test says that it does not.


MEMORY = 2 * 1024 ** 2
_PLACES = 16


class FakeVFIO:
    """Implementation of gpgpu_plugin.host.vfio.operations.VFIO.

    :param root: root of the fake sysfs
    :param note: notes a write, as the kernel does, and may raise OSError
    :ivar outlasting: addresses of GPUs whose memory a reset does not clear
    :ivar sizes: bytes of memory by address; MEMORY for others
    :ivar stuck: addresses of GPUs that do not keep what is written
    :ivar uncleared: addresses of GPUs that never report that they have
        cleared their memory
    :ivar roms: option ROMs by address; the others have none
    """

    def __init__(self, root: str, note: Callable[[str], None]) -> None:
        self._devices = pathlib.Path(root, 'bus/pci/devices')
        self._note = note
        self.outlasting: set[str] = set()
        self.stuck: set[str] = set()
        self.uncleared: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.roms: dict[str, bytes] = {}
        self._content: dict[str, bytearray] = {}

    def content(self, address: str) -> bytearray:
        """Return all bytes of the memory, which a guest may change."""
        return self._content.setdefault(
            address, bytearray(self.memory(address)))

    def reset(self, address: str) -> None:
        """Reset a function: its memory is cleared, and it may die."""
        if address not in self.outlasting:
            self._content.pop(address, None)
        apply_reset((self._devices / address).resolve())

    def hot_reset(self, address: str, functions: Sequence[str]) -> None:
        try:
            self._note(f'bus/pci/devices/{address}/reset')
        except OSError as exc:
            raise exception.HostError(
                path=address,
                reason=f'it cannot be reset: {exc.strerror}') from None
        foreign = set(self._on_bus(address)).difference(functions)
        if foreign:
            raise exception.HostError(
                path=address, reason=f'it cannot be reset: its hot reset '
                f'would also reset {", ".join(sorted(foreign))}, which the '
                f'caller does not name')
        for name in functions:
            self.reset(name)

    def reset_and_wait(self, address: str, functions: Sequence[str],
                       ) -> nvidia.ClearReading:
        vendor, model = (
            (self._devices / address / name).read_text().strip()[2:]
            for name in ('vendor', 'device'))
        architecture = nvidia.architecture(vendor, model)
        if architecture is None:
            raise exception.HostError(
                path=address, reason='nobody can wait until it has cleared '
                f'its memory: no register of {vendor}:{model} is known')
        self.hot_reset(address, functions)
        return nvidia.ClearReading(
            before=1, first=0, boot=nvidia.REGISTERS[architecture].booted,
            clear=0 if address in self.uncleared else nvidia.CLEARED,
            milliseconds=20)

    def _on_bus(self, address: str) -> list[str]:
        """Return the functions on the bus of a function."""
        parent = (self._devices / address).resolve().parent.name
        if not (self._devices / parent).exists():
            # The bus of a host bridge.
            raise exception.HostError(
                path=address, reason='it cannot be reset: '
                + os.strerror(errno.ENODEV))
        bus = address.rpartition(':')[0]
        return [name for name in os.listdir(self._devices)
                if name.startswith(f'{bus}:')]

    def firmware(self, address: str) -> dict[str, str]:
        rom = self.roms.get(address)
        return {'option ROM': hashlib.sha256(rom).hexdigest() if rom else '',
                'VPD': ''}

    def memory(self, address: str) -> int:
        return self.sizes.get(address, MEMORY)

    def write_marks(self, address: str, seed: str) -> tuple[int, int]:
        marks = self._marks(address, seed)
        for place, mark in marks.items():
            self._write(address, place, mark)
        return len(marks), self.find_marks(address, seed)

    def find_marks(self, address: str, seed: str) -> int:
        content = self.content(address)
        return sum(content[place:place + len(mark)] == mark for place, mark
                   in self._marks(address, seed).items())

    def try_marks(self, address: str, seed: str) -> tuple[int, int]:
        result = self.write_marks(address, seed)
        for place, mark in self._marks(address, seed).items():
            self._write(address, place, bytes(len(mark)))
        return result

    def scrub(self, address: str, length: int) -> int:
        self._write(address, 0, bytes(length))
        return self.content(address)[:length].count(0)

    def _write(self, address: str, offset: int, data: bytes) -> None:
        if address not in self.stuck:
            self.content(address)[offset:offset + len(data)] = data

    def _marks(self, address: str, seed: str) -> dict[int, bytes]:
        distance = self.memory(address) // _PLACES
        return {place: hashlib.sha512(f'{seed} {place}'.encode()).digest()
                for place in range(0, distance * _PLACES, distance)
                } if distance else {}
