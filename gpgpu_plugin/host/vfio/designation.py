# SPDX-License-Identifier: Apache-2.0
"""Designation of cards for passthrough, which survives reboots.

All functions of a designated card stay bound to their VFIO drivers, so that no
other driver binds to them. After a boot a udev rule of the plugin restores
this. The rule matches a function by its stable id and its PCI ids. An override
that an operator made with driverctl designates a function, too. It names a PCI
address, at which another function may be after a renumbering.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin import vfio
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import topology
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.privsep import guard

LOG = logging.getLogger(__name__)

_Refusal = Callable[[Sequence[pci.PCIFunction]], tuple[str, str] | None]
_AddRule = Callable[[str, str, str, vfio_drivers.VFIODriver], None]

_USERS = {
    device_rules.DeviceUser.BOOT_VGA: guard.BOOT_DISPLAY,
    device_rules.DeviceUser.VFIO: guard.OPEN,
    device_rules.DeviceUser.MDEV: 'it has mdevs',
    device_rules.DeviceUser.VF: 'it has VFs'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Designation:
    """A designated function.

    :ivar id: stable id; None: driverctl has an address where no function is
    :ivar address: None: the function is not there
    :ivar kept_by: ``driverctl`` or ``udev``
    :ivar driver: the driver that it is bound to now
    """

    id: str | None
    address: str | None
    vendor: str | None
    device: str | None
    kept_by: str
    driver: str | None


class Store:
    """The designations stored below /etc.

    The functions that it is given raise OSError.

    :param add_rule: adds a udev rule for a stable id, vendor, device and
        VFIO driver
    :param remove_rule: removes the udev rule of a stable id
    :param unset_override: removes the override of an address through
        driverctl; None: driverctl is not installed
    """

    def __init__(self, etc: str = '/etc',
                 add_rule: _AddRule | None = None,
                 remove_rule: Callable[[str], None] | None = None,
                 unset_override: Callable[[str], None] | None = None,
                 ) -> None:
        self._etc = etc
        self._overrides = pathlib.Path(etc) / 'driverctl.d'
        self._add_rule = add_rule
        self._remove_rule = remove_rule
        self._unset_override = unset_override

    @classmethod
    def as_root(cls) -> Store:
        """Return the store of this host for a process that runs as root."""
        has_driverctl = os.path.exists(DRIVERCTL)
        return cls(
            add_rule=add_rule, remove_rule=remove_rule,
            unset_override=(
                unset_override if has_driverctl else None))

    def holds(self, function: pci.PCIFunction) -> bool:
        """Return whether the function is designated."""
        return self.kept_by(function) is not None

    def kept_by(self, function: pci.PCIFunction) -> str | None:
        """Return what binds the function at boot; None: nothing does."""
        if function.address in self.addresses():
            return 'driverctl'
        return 'udev' if function.id in self.rules() else None

    def addresses(self) -> set[str]:
        """Return the addresses that driverctl binds to a VFIO driver."""
        return {
            path.name.removeprefix('pci-')
            for path in self._overrides.glob('pci-*')
            if vfio.is_vfio(path.read_text().strip())}

    def rules(self) -> dict[str, str]:
        """Return the plugin's udev rules by stable id."""
        return read_rules(self._etc)

    def add(self, functions: Iterable[pci.PCIFunction], *,
            bound_to: Mapping[str, vfio_drivers.VFIODriver]) -> None:
        """Store functions as designated.

        :param bound_to: their VFIO drivers by address
        :raises OSError: that cannot be written
        """
        for function in functions:
            if self._add_rule is None:
                raise PermissionError(1, 'opened for reading')
            # A function whose ids are unknown was refused before.
            self._add_rule(function.id, function.vendor or '',
                           function.device or '', bound_to[function.address])

    def remove(self, functions: Iterable[pci.PCIFunction]) -> None:
        """Remove functions from the store.

        :raises OSError: that cannot be written
        """
        rules, addresses = self.rules(), self.addresses()
        for function in functions:
            if function.address in addresses:
                if self._unset_override is None:
                    raise FileNotFoundError(
                        2, f'{function.address} was designated by driverctl, '
                        'which is not installed any more')
                self._unset_override(function.address)
            if function.id in rules:
                if self._remove_rule is None:
                    raise PermissionError(1, 'opened for reading')
                self._remove_rule(function.id)


def listing(sysfs: sysfs_mod.Sysfs, store: Store) -> list[Designation]:
    """Return all designations, also those of functions that are missing now.

    :raises HostError: the host cannot be scanned
    """
    found = [
        Designation(id=function.id, address=function.address,
                    vendor=function.vendor, device=function.device,
                    kept_by=kept_by, driver=function.driver)
        for function in scanner.scan(sysfs).functions
        if (kept_by := store.kept_by(function)) is not None]
    gone = [(stable_id, None, 'udev') for stable_id in sorted(
        store.rules().keys() - {known.id for known in found})]
    unknown = [(None, address, 'driverctl') for address in sorted(
        store.addresses() - {known.address for known in found})]
    return found + [
        Designation(id=id_, address=address, vendor=None, device=None,
                    kept_by=kept_by, driver=None)
        for id_, address, kept_by in (*gone, *unknown)]


class Designator:
    """Designator of cards of a host, with all functions of a card together.

    :param check: raises OSError for a function that root must not change
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, binder: binding.Binder,
                 store: Store,
                 check: Callable[[str, str], None] = guard.check_closed,
                 ) -> None:
        self._sysfs = sysfs
        self._binder = binder
        self._store = store
        self._check = check

    @classmethod
    def as_root(cls) -> Designator:
        """Return a designator of this machine for a process that runs as root.

        It writes without the privileged helper.
        """
        privsep.be_root()
        sysfs = sysfs_mod.Sysfs()
        return cls(sysfs, binding.Binder.privileged(sysfs),
                   Store.as_root())

    def designate(self, name: str) -> Sequence[pci.PCIFunction]:
        """Bind a card to its VFIO drivers, now and after every boot.

        :param name: address or stable id of one of its functions
        :returns: all its functions
        :raises NotFound: there is no such function
        :raises HostError: the host uses it, it cannot be assigned to guests,
            or the hardware did not do what was requested; nothing is changed
        """
        card = self._card(name)
        for function in card:
            reason = _refusal(function) or self._checked(function)
            if reason is not None:
                raise exception.HostError(
                    path=function.address, reason=reason)
        new = [function for function in card
               if not self._store.holds(function)]
        bound_to = {function.address: self._binder.load_driver(function)
                    for function in new}
        try:
            self._change_store(functools.partial(
                self._store.add, bound_to=bound_to), new)
            for function in card:
                self._binder.bind(function)
        except exception.HostError:
            self._undo(new)
            raise
        return card

    def undesignate(self, name: str, refusal: _Refusal,
                    ) -> Sequence[pci.PCIFunction]:
        """Unbind a card from VFIO and bind the host's own drivers.

        :param name: address or stable id of one of its functions
        :param refusal: returns the address of a function that holds a guest's
            data, or may do so, and why; None: the card is free
        :returns: all its functions
        :raises NotFound: there is no such function
        :raises HostError: it may hold a guest's data, a process has it open,
            or the hardware did not do what it was asked
        """
        card = self._card(name)
        refused = refusal(card)
        if refused is not None:
            path, reason = refused
            raise exception.HostError(path=path, reason=reason)
        for function in card:
            if function.used_by == device_rules.DeviceUser.VFIO:
                raise exception.HostError(
                    path=function.address, reason=guard.OPEN)
        self._change_store(self._store.remove, card)
        for function in card:
            self._binder.give_back(function)
        return card

    def _checked(self, function: pci.PCIFunction) -> str | None:
        """Return why root must not change a function; None: it may."""
        try:
            self._check(self._sysfs.root, function.address)
        except OSError as exc:
            return exc.strerror
        return None

    def _card(self, name: str) -> Sequence[pci.PCIFunction]:
        for function in scanner.scan(self._sysfs).functions:
            if name in (function.id, function.address):
                card = scanner.scan_card(
                    self._sysfs, function.part_of or function.address)
                if card:
                    return card
        raise exception.NotFound(kind='PCI function', name=name)

    def _undo(self, functions: Sequence[pci.PCIFunction]) -> None:
        """Undo the designation of functions that had none before."""
        for step in (
                functools.partial(
                    self._change_store, self._store.remove, functions),
                *(functools.partial(self._binder.give_back, function)
                  for function in functions
                  if not vfio.is_vfio(function.driver))):
            try:
                step()
            except exception.HostError:
                LOG.exception('The designation of %s could not be undone; '
                              'repeat it, or undesignate the card',
                              _addresses(functions))

    @staticmethod
    def _change_store(change: Callable[[Sequence[pci.PCIFunction]], None],
              functions: Sequence[pci.PCIFunction]) -> None:
        try:
            change(functions)
        except OSError as exc:
            raise exception.HostError(
                path=_addresses(functions),
                reason=f'the designation cannot be stored: {exc.strerror}',
            ) from None


def _addresses(functions: Iterable[pci.PCIFunction]) -> str:
    return ', '.join(function.address for function in functions)


def _refusal(function: pci.PCIFunction) -> str | None:
    """Return why a function cannot be designated; None: it can."""
    if pci.is_bridge(function.class_code):
        return 'it is a bridge'
    if function.used_by is not None:
        return _USERS[function.used_by]
    if function.pf is not None:
        return (f'it is a VF of {function.pf}; the VFs of a GPU do not '
                f'survive a reboot of the host')
    if None in (function.vendor, function.device):
        # The rule that binds it at boot would match nothing.
        return 'its ids cannot be read'
    return gpu_rules.passthrough_refusal(
        dataclasses.replace(function, part_of=None))


# -- Files below /etc that bind designated functions at boot.
#
# No privileged helper writes them, only commands that root runs, so that
# nobody who took over nova-compute decides what is bound at boot. Rules of
# udev run programs as root, so they are composed here, from checked ids.


ETC = '/etc'
RULES = 'udev/rules.d/71-gpgpu-plugin.rules'
DRIVERCTL = '/usr/sbin/driverctl'
_HEADER = '# Written by gpgpu-host designate.\n'
_MARK = '# designated: '
_STABLE_ID = re.compile(
    rf'/devices(/pci([0-9a-f]{{4,16}}:[0-9a-f]{{2}}|{pci.ACPI_NAME})'
    r'(/[0-9a-f]{2}\.[0-7])+)+')
_NUMBER = re.compile(r'[0-9a-f]{4}')
# A driver of the initramfs may bind the device before udev, when the VFIO
# driver is not loaded yet. In a rule, %k is the address and %p the path below
# /sys.
_BIND = ('modprobe MODULE; cd /sys%p && '
         '{ grep -qx DRIVER=NAME uevent || '
         '{ [ ! -e driver ] || echo %k >driver/unbind; '
         'echo %k >/sys/bus/pci/drivers_probe; }; }')


def unset_override(address: str) -> None:
    """Remove a function's override through driverctl.

    ``--noprobe``: driverctl does not bind the device, since driverctl 0.111
    does not remove the override of a device that has no other driver.

    :raises OSError: driverctl failed
    :raises Invalid: the address is malformed
    """
    pci.PCIAddress.parse(address)
    privsep.run(DRIVERCTL, '--noprobe', 'unset-override', address)


def read_rules(etc: str) -> dict[str, str]:
    """Return the plugin's udev rules by stable id; anybody may read them."""
    with contextlib.suppress(FileNotFoundError):
        lines = pathlib.Path(etc, RULES).read_text().splitlines()
        return {line.removeprefix(_MARK): rule
                for line, rule in itertools.pairwise(lines)
                if line.startswith(_MARK)}
    return {}


def add_rule(stable_id: str, vendor: str, device: str,
             driver: vfio_drivers.VFIODriver) -> None:
    """Add a udev rule that binds a function to a VFIO driver when it appears.

    :raises OSError: the rule cannot be written, or an argument is malformed
    """
    _check_vfio(driver.module)
    _check_vfio(driver.name)
    if not (_STABLE_ID.fullmatch(stable_id) and _NUMBER.fullmatch(vendor)
            and _NUMBER.fullmatch(device)):
        raise PermissionError(
            1, f'no udev rule can be made for {stable_id} '
            f'({vendor}:{device}): malformed stable id or PCI id')
    _replace(read_rules(ETC) | {
        stable_id: _rule(stable_id, vendor, device, driver)})


def remove_rule(stable_id: str) -> None:
    """Remove the rule of a function, if there is one.

    :raises OSError: the file cannot be written
    """
    rules = read_rules(ETC)
    if rules.pop(stable_id, None) is not None:
        _replace(rules)


def _check_vfio(name: str) -> None:
    """Refuse a name that is not that of a VFIO driver or its module.

    :raises PermissionError: it is not
    """
    if not vfio.is_vfio(name):
        raise PermissionError(1, f'{name} is not a VFIO driver')


def _rule(stable_id: str, vendor: str, device: str,
          driver: vfio_drivers.VFIODriver) -> str:
    """Return the rule that binds a function whenever it appears (udev(7))."""
    path, domain, root = [], '', []
    for hop in stable_id.removeprefix('/devices/').split('/'):
        if not hop.startswith('pci'):
            path.append(f'{domain}:??:{hop}')
            continue
        # Below a function may be another host bridge (Intel VMD).
        domain, numbered, _ = hop.removeprefix('pci').partition(':')
        if not numbered:
            # ACPI has domains of four digits. "?" stands for the backslash,
            # which versions of udev may take for an escape.
            root = ['KERNELS=="pci????:??"',
                    f'ATTRS{{{topology.FIRMWARE_NAME}}}=="?{domain}"']
            domain, hop = '????', 'pci????:??'
        path.append(hop)
    bind = _BIND.replace('MODULE', driver.module).replace('NAME', driver.name)
    return ', '.join([
        'ACTION=="add"', 'SUBSYSTEM=="pci"',
        f'DEVPATH=="/devices/*{"/".join(path)}"', *root,
        f'ATTR{{vendor}}=="0x{vendor}"', f'ATTR{{device}}=="0x{device}"',
        f'ATTR{{driver_override}}="{driver.name}"',
        f'RUN+="/bin/sh -c \'{bind}\'"'])


def _replace(rules: Mapping[str, str]) -> None:
    """Replace the file of udev rules, or delete it if there are no rules."""
    path = pathlib.Path(ETC, RULES)
    if rules:
        durable.replace(path, _HEADER + ''.join(
            f'{_MARK}{id_}\n{rule}\n'
            for id_, rule in sorted(rules.items())), mode=0o644)
    else:
        path.unlink(missing_ok=True)
