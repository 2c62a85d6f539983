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
"""Cards that are for guests, now and after every boot of the host.

A designated card stays bound to vfio-pci, so that no driver of the host takes
it. driverctl keeps that over a boot where it is installed, else a udev rule of
ours, which knows the card by its place without bus numbers and by its ids.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as card_mod
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import usage
from gpgpu_plugin.privsep import designation as privsep_designation

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Designation:
    """One function that is designated.

    :ivar id: stable id, None if driverctl knows it and it is not there
    :ivar address: None if it is not there
    :ivar kept_by: ``driverctl`` or ``udev``
    :ivar driver: what it is bound to now
    """

    id: str | None
    address: str | None
    vendor: str | None
    device: str | None
    kept_by: str
    driver: str | None


class Store:
    """What is written down below /etc.

    :param add_rule: lets udev bind a function, by its id, vendor and device;
        raises OSError
    :param remove_rule: forgets that, by its id; raises OSError
    :param driverctl: action and address; raises OSError. None: there is none
    """

    def __init__(self, etc: str = '/etc',
                 add_rule: Callable[[str, str, str], None] | None = None,
                 remove_rule: Callable[[str], None] | None = None,
                 driverctl: Callable[[str, str], None] | None = None,
                 ) -> None:
        self._etc = etc
        self._overrides = pathlib.Path(etc) / 'driverctl.d'
        self._add_rule = add_rule
        self._remove_rule = remove_rule
        self._driverctl = driverctl

    @classmethod
    def privileged(cls) -> Store:
        """The host's own, to be changed with root's rights."""
        return cls(
            add_rule=functools.partial(
                privsep.call, privsep_designation.add_rule),
            remove_rule=functools.partial(
                privsep.call, privsep_designation.remove_rule),
            driverctl=functools.partial(
                privsep.call, privsep_designation.driverctl)
            if os.path.exists(privsep_designation.DRIVERCTL) else None)

    def holds(self, function: pci.PCIFunction) -> bool:
        """Whether the function is designated."""
        return self.kept_by(function) is not None

    def kept_by(self, function: pci.PCIFunction) -> str | None:
        """What will bind the function when the host boots."""
        if function.address in self.addresses():
            return 'driverctl'
        return 'udev' if function.id in self.rules() else None

    def addresses(self) -> set[str]:
        """What driverctl gives to vfio-pci."""
        return {
            path.name.removeprefix('pci-')
            for path in self._overrides.glob('pci-*')
            if path.read_text().strip() == binding.VFIO}

    def rules(self) -> dict[str, str]:
        """Our udev rules by stable id."""
        return privsep_designation.read_rules(self._etc)

    def add(self, functions: Iterable[pci.PCIFunction]) -> None:
        """Write functions down. :raises OSError: it cannot be written"""
        for each in functions:
            if self._driverctl is not None:
                self._driverctl('set-override', each.address)
            elif self._add_rule is not None:
                # Nothing is designated whose ids are not known.
                self._add_rule(each.id, each.vendor or '', each.device or '')
            else:
                raise PermissionError(1, 'opened for reading')

    def remove(self, functions: Iterable[pci.PCIFunction]) -> None:
        """Forget functions. :raises OSError: it cannot be written"""
        rules, addresses = self.rules(), self.addresses()
        for each in functions:
            if each.address in addresses:
                if self._driverctl is None:
                    raise FileNotFoundError(
                        2, f'{each.address} was designated by driverctl, '
                        'which is not installed any more')
                self._driverctl('unset-override', each.address)
            if each.id in rules:
                if self._remove_rule is None:
                    raise PermissionError(1, 'opened for reading')
                self._remove_rule(each.id)


def listing(sysfs: sysfs_mod.Sysfs, store: Store) -> list[Designation]:
    """What is designated, also what is not there now.

    :raises HostError: the host cannot be looked at
    """
    found = [
        Designation(id=each.id, address=each.address, vendor=each.vendor,
                    device=each.device, kept_by=kept_by, driver=each.driver)
        for each in scanner.scan(sysfs).functions
        if (kept_by := store.kept_by(each)) is not None]
    gone = [(each, None, 'udev') for each in sorted(
        store.rules().keys() - {each.id for each in found})]
    unknown = [(None, each, 'driverctl') for each in sorted(
        store.addresses() - {each.address for each in found})]
    return found + [
        Designation(id=id_, address=address, vendor=None, device=None,
                    kept_by=kept_by, driver=None)
        for id_, address, kept_by in (*gone, *unknown)]


class Designator:
    """Designates cards of this host, all functions of a card together."""

    def __init__(self, sysfs: sysfs_mod.Sysfs, binder: binding.Binder,
                 store: Store, used_by_host: Callable[
                     [pci.PCIFunction], str | None] | None = None) -> None:
        self._sysfs = sysfs
        self._binder = binder
        self._store = store
        self._used_by_host = used_by_host or usage.Usage(sysfs).of

    def designate(self, name: str) -> Sequence[pci.PCIFunction]:
        """Bind a card to vfio-pci, and see to it that it stays so.

        :param name: address or stable id of one of its functions
        :returns: all its functions
        :raises NotFound: there is no such function
        :raises HostError: the host uses it, it cannot be given to a guest,
            or the hardware did not do what it was asked; nothing is changed
        """
        card = self._card(name)
        for each in card:
            reason = _unfit(each) or self._used_by_host(each)
            if reason is not None:
                raise exception.HostError(path=each.address, reason=reason)
        new = [each for each in card if not self._store.holds(each)]
        try:
            self._keep(self._store.add, new)
            for each in card:
                self._binder.bind(each)
        except exception.HostError:
            self._undo(new)
            raise
        return card

    def undesignate(self, name: str) -> Sequence[pci.PCIFunction]:
        """Give a card back to the host's own drivers.

        :param name: address or stable id of one of its functions
        :returns: all its functions
        :raises NotFound: there is no such function
        :raises HostError: a guest has it, or the hardware did not do what it
            was asked
        """
        card = self._card(name)
        for each in card:
            if each.used_by == device_rules.DeviceUser.VFIO:
                raise exception.HostError(
                    path=each.address, reason='a process has it open')
        self._keep(self._store.remove, card)
        for each in card:
            self._binder.give_back(each)
        return card

    def _card(self, name: str) -> Sequence[pci.PCIFunction]:
        for each in scanner.scan(self._sysfs).functions:
            if name in (each.id, each.address):
                card = scanner.scan_card(
                    self._sysfs, each.part_of or each.address)
                if card:
                    return card
        raise exception.NotFound(kind='PCI function', name=name)

    def _undo(self, functions: Sequence[pci.PCIFunction]) -> None:
        """Of functions that were not designated before."""
        for step in (
                functools.partial(self._keep, self._store.remove, functions),
                *(functools.partial(self._binder.give_back, each)
                  for each in functions if each.driver != binding.VFIO)):
            try:
                step()
            except exception.HostError:
                LOG.exception('What was designated could not be undone')

    @staticmethod
    def _keep(change: Callable[[Sequence[pci.PCIFunction]], None],
              functions: Sequence[pci.PCIFunction]) -> None:
        try:
            change(functions)
        except OSError as exc:
            raise exception.HostError(
                path=', '.join(each.address for each in functions),
                reason=f'the designation cannot be kept: {exc.strerror}',
            ) from None


def _unfit(function: pci.PCIFunction) -> str | None:
    """Why it makes no sense to give the function to a guest."""
    if pci.is_bridge(function.class_code):
        return 'it is a bridge'
    if function.pf is not None:
        return (f'it is a VF of {function.pf}, and gone after a boot of the '
                'host')
    if None in (function.vendor, function.device):
        # The rule that binds it at boot would match nothing.
        return 'its ids cannot be read'
    if function.iommu_group is None:
        return ('it is in no IOMMU group: is the IOMMU on (firmware: VT-d or '
                'AMD-Vi; kernel: intel_iommu=on)?')
    return card_mod.passthrough_refusal(
        dataclasses.replace(function, part_of=None))
