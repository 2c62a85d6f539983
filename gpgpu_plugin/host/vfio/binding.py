# SPDX-License-Identifier: Apache-2.0
"""Driver binding, reset and VFs of PCI functions, by privileged writes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin import smbios
from gpgpu_plugin import vfio
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.privsep import sysfs as privsep_sysfs

LOG = logging.getLogger(__name__)

_NVIDIA = 'nvidia'


@contextlib.contextmanager
def translate_errors(path: str, what: str) -> Iterator[None]:
    """Translate errors of the kernel, a program or the privileged helper."""
    try:
        yield
    except privsep.HelperUnavailable as exc:
        raise exception.HostNotReady(path=path, reason=exc.strerror) from None
    except privsep.UsedByHost as exc:
        raise exception.HostNotReady(
            path=path, reason=f'the host uses it: {exc.strerror}') from None
    except privsep.HelperDied as exc:
        raise exception.HalfPrepared(
            path=path, reason=f'{what}: {exc.strerror}') from None
    except OSError as exc:
        raise exception.HostError(
            path=path, reason=f'{what}: {exc.strerror}'
            + (f' ({exc.filename})' if exc.filename else '')) from None


class Binder:
    """Changes to PCI functions through sysfs.

    Methods that bind or unbind compare drivers before they act. The parameters
    are functions that need root's rights; all raise OSError.

    :param write: writes a value to a path relative to the root of sysfs
    :param load: loads a kernel module with a VFIO driver, by name
    :param read: reads a file at a path relative to the root of sysfs
    :param make_nvidia_vfs: runs NVIDIA's program that creates all VFs of the
        GPU at an address
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 write: Callable[[str, str], None],
                 load: Callable[[str], None],
                 read: Callable[[str], bytes],
                 make_nvidia_vfs: Callable[[str], None]) -> None:
        self._sysfs = sysfs
        self._read_file = read
        self._write_attribute = write
        self._load_vfio = load
        self._make_nvidia_vfs = make_nvidia_vfs

    @classmethod
    def privileged(cls, sysfs: sysfs_mod.Sysfs) -> Binder:
        """Return a binder that uses the privileged helper."""
        return cls(
            sysfs,
            functools.partial(privsep.call, privsep_sysfs.write, sysfs.root),
            functools.partial(privsep.call, privsep_sysfs.load_vfio),
            functools.partial(
                privsep.call, privsep_sysfs.read, sysfs.root),
            functools.partial(privsep.call, privsep_sysfs.make_vfs))

    def bind(self, function: pci.PCIFunction) -> None:
        """Bind a function to its VFIO driver, and keep other drivers off it.

        :raises HostError: the kernel refused
        :raises HostNotReady: the VFIO driver cannot be loaded
        """
        driver = self._driver(function)
        # A guest that began with another VFIO driver keeps it: the kernel
        # would make an unbind wait for the guest.
        wanted = (driver if driver is not None and vfio.is_vfio(driver)
                  and self._is_open(function)
                  else self.load_driver(function).name)
        self._override(function, wanted)
        if driver == wanted:
            return
        if driver is not None:
            self.write(f'bus/pci/drivers/{driver}/unbind', function.address)
        self.write(f'bus/pci/drivers/{wanted}/bind', function.address)

    def load_driver(self, function: pci.PCIFunction,
                    ) -> vfio_drivers.VFIODriver:
        """Load the VFIO driver for a function, if it is not loaded yet.

        :raises HostNotReady: it cannot be loaded
        """
        module = self._module(function)
        name = vfio_drivers.loaded(self._sysfs, module)
        if name is None:
            self._load(module)
            name = vfio_drivers.loaded(self._sysfs, module)
        if name is None:
            raise exception.HostNotReady(
                path=module, reason='the module was loaded, but '
                '/sys/bus/pci/drivers has no driver of it')
        return vfio_drivers.VFIODriver(module=module, name=name)

    def unbind(self, function: pci.PCIFunction) -> None:
        """Unbind a function from its VFIO driver; it has no driver then.

        :raises HostError: the kernel refused
        """
        self._override(function, '')
        driver = self._driver(function)
        if vfio.is_vfio(driver):
            self.write(f'bus/pci/drivers/{driver}/unbind', function.address)

    def give_back(self, function: pci.PCIFunction) -> None:
        """Unbind a function from its VFIO driver and bind the host's driver.

        :raises HostError: the kernel refused
        """
        self.unbind(function)
        self.write('bus/pci/drivers_probe', function.address)

    def reprobe(self, function: pci.PCIFunction) -> None:
        """Unbind a function from its driver, and bind it again.

        :raises HostError: the kernel refused, or the driver did not bind
        """
        driver = self._driver(function)
        if driver is None:
            return
        for name in ('unbind', 'bind'):
            self.write(f'bus/pci/drivers/{driver}/{name}', function.address)
        if self._driver(function) != driver:
            raise exception.HostError(
                path=function.address,
                reason=f'driver {driver} did not bind to it again')

    def reset(self, function: pci.PCIFunction) -> None:
        """Reset a function, without any other.

        The kernel refuses a bus reset (ENOTTY) while other functions are on
        the bus.

        :raises HostError: the kernel refused
        """
        self.write(f'bus/pci/devices/{function.address}/reset', '1')

    def make_vfs(self, function: pci.PCIFunction, count: int) -> int:
        """Create VFs of a function that has none.

        :param count: number of VFs; NVIDIA's driver creates all that the GPU
            supports instead
        :returns: number of VFs that exist now
        :raises HostError: there are still none
        """
        path = f'bus/pci/devices/{function.address}/sriov_numvfs'
        if self._driver(function) == _NVIDIA:
            with translate_errors(path, 'VFs cannot be created'):
                self._make_nvidia_vfs(function.address)
        else:
            self.write(path, str(count))
        found = sysfs_mod.count_vfs(self._sysfs.names(
            f'{self._sysfs.devices}/{function.address}'))
        if not found:
            raise exception.HostError(
                path=function.address,
                reason=f'it has no VFs after {count} were created')
        return found

    def config(self, function: pci.PCIFunction) -> bytes:
        """Return a function's configuration space, read from the hardware.

        :raises HostError: it cannot be read
        :raises HostNotReady: the privileged helper does not start
        """
        path = f'bus/pci/devices/{function.address}/config'
        with translate_errors(path, 'cannot be read'):
            return self._read_file(path)

    def vpd(self, function: pci.PCIFunction) -> bytes:
        """Return the beginning of a function's VPD; empty if it has none.

        The device itself has to answer, so no guest may have it.

        :raises HostError: a guest has it, or it cannot be read
        :raises HostNotReady: the privileged helper does not start
        """
        path = f'bus/pci/devices/{function.address}/vpd'
        with translate_errors(path, 'cannot be read'):
            try:
                return self._read_file(path)
            except FileNotFoundError:
                return b''

    def smbios(self) -> bytes:
        """Return the SMBIOS structures that have labels of slots.

        :raises HostError: they cannot be read
        :raises HostNotReady: the privileged helper does not start
        """
        with translate_errors(smbios.TABLE, 'cannot be read'):
            return self._read_file(smbios.TABLE)

    def write(self, path: str, value: str) -> None:
        """Write to sysfs.

        :raises HostError: the kernel refused
        :raises HostNotReady: the privileged helper does not start
        """
        with translate_errors(path, f'cannot write {value!r}'):
            self._write_attribute(path, value)

    def _driver(self, function: pci.PCIFunction) -> str | None:
        # Read again: the driver may differ from the one of the scan.
        return self._sysfs.link(
            f'{self._sysfs.devices}/{function.address}/driver')

    def _override(self, function: pci.PCIFunction, driver: str) -> None:
        # Not compared: the kernel reads it under the lock of the device, which
        # an unbind that hangs holds for ever. The helper's calls have a limit.
        self.write(f'bus/pci/devices/{function.address}/driver_override',
                   driver)

    def _is_open(self, function: pci.PCIFunction) -> bool:
        """Return whether a process has a function's VFIO device open.

        VFIO drivers enable a device only as long (vfio_pci_core_enable).
        """
        return self._sysfs.read(
            f'{self._sysfs.devices}/{function.address}/enable',
        ) not in (None, '0')

    def _module(self, function: pci.PCIFunction) -> str:
        try:
            return vfio_drivers.module_for(self._sysfs, function)
        except OSError as exc:
            # A device that is known not to work with vfio-pci never gets it;
            # any other works at least as well as before its own driver was
            # added to the kernel.
            module = vfio_drivers.needed_module(function)
            LOG.warning(
                'Binding %s to the VFIO driver of module %s, although the '
                'kernel may have a more specific one: cannot read %s (%s). '
                'Make the file readable by the user of nova-compute',
                function.address, module, exc.filename, exc.strerror)
            return module

    def _load(self, module: str) -> None:
        try:
            self._load_vfio(module)
        except OSError as exc:
            raise exception.HostNotReady(
                path=module, reason=f'cannot be loaded: {exc.strerror}',
            ) from None
