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
"""What the plugin reads of /sys, recorded as a tree
(gpgpu_plugin.host.fake.tree).

The lists below are all that is recorded; what is in none of them is not even
opened. Reading some attributes of sysfs is slow, large or changes the device
(``rom``, ``resource*``), and a recording leaves the house.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.fake import anonymize
from gpgpu_plugin.host.fake import tree as tree_mod


class How(enum.Enum):
    """How a name in a folder is recorded.

    :cvar WRITTEN: is written only, and not read: an empty file
    :cvar CONFIG: configuration space
    :cvar VPD: Vital Product Data
    """

    TEXT = enum.auto()
    LINK = enum.auto()
    WRITTEN = enum.auto()
    CONFIG = enum.auto()
    VPD = enum.auto()


# Patterns of names; a list stands for a folder, empty: that it is there.
Listing = Mapping[str, 'How | Listing']

_ADDRESS = '*:??:??.?'
_UUID = '????????-????-????-????-????????????'

PARENT: Listing = {
    'mdev_supported_types': {'*': {
        'available_instances': How.TEXT, 'create': How.WRITTEN,
        'description': How.TEXT, 'device_api': How.TEXT,
        'devices': {_UUID: How.LINK}, 'name': How.TEXT}},
    _UUID: {'mdev_type': How.LINK, 'remove': How.WRITTEN,
            'nvidia': {'placement_id': How.TEXT}}}

FUNCTION: Listing = {
    **PARENT,
    'boot_vga': How.TEXT, 'class': How.TEXT, 'config': How.CONFIG,
    'device': How.TEXT, 'driver': How.LINK, 'driver_override': How.TEXT,
    'enable': How.TEXT, 'iommu_group': How.LINK, 'label': How.TEXT,
    'numa_node': How.TEXT,
    'nvidia': {'creatable_vgpu_types': How.TEXT,
               'current_vgpu_type': How.TEXT,
               'placement_id': How.TEXT},
    'physfn': How.LINK, 'remove': How.WRITTEN, 'reset': How.WRITTEN,
    'reset_method': How.TEXT, 'revision': How.TEXT,
    'sriov_numvfs': How.TEXT, 'sriov_offset': How.TEXT,
    'sriov_stride': How.TEXT, 'sriov_totalvfs': How.TEXT,
    'sriov_vf_device': How.TEXT, 'subsystem_device': How.TEXT,
    'subsystem_vendor': How.TEXT, 'vendor': How.TEXT, 'vfio-dev': {},
    'virtfn*': How.LINK, 'vpd': How.VPD}

_DEVICES = 'bus/pci/devices'
_PARENTS = 'class/mdev_bus'

PLACES: Mapping[str, Listing] = {
    _DEVICES: {_ADDRESS: How.LINK},
    'bus/pci/drivers': {'*': {
        'bind': How.WRITTEN, 'unbind': How.WRITTEN, _ADDRESS: How.LINK}},
    'bus/pci/slots': {'*': {'address': How.TEXT}},
    'bus/mdev/devices': {_UUID: How.LINK},
    _PARENTS: {'*': How.LINK},
    'kernel/iommu_groups': {'*': {'devices': {'*': How.LINK}}}}


def record(sysfs: sysfs_mod.Sysfs, *,
           with_serials: bool = False) -> tree_mod.Tree:
    """What a host has now.

    :param with_serials: with the serial numbers of the devices; else others
        are in their place (gpgpu_plugin.host.fake.anonymize)
    :raises HostError: the root has no PCI bus at all
    """
    # Not for the addresses, but for the error.
    sysfs.addresses()
    recorder = _Recorder(
        sysfs, None if with_serials else anonymize.SerialNumbers())
    recorder.record()
    # A folder of folders need not be said.
    said = {folder.rpartition('/')[0] for folder in recorder.tree}
    return {folder: entries
            for folder, entries in sorted(recorder.tree.items())
            if entries or folder not in said}


class _Recorder:
    """One recording."""

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 serials: anonymize.SerialNumbers | None) -> None:
        self.tree: dict[str, dict[str, tree_mod.Entry]] = {}
        self._sysfs = sysfs
        self._serials = serials

    def record(self) -> None:
        for folder, listing in PLACES.items():
            self._folder(folder, listing, {})
        functions = dict(self._behind(_DEVICES))
        classes = {address: self._class(folder)
                   for address, folder in functions.items()}
        cards = {address.rpartition('.')[0]
                 for address, code in classes.items() if pci.can_be_gpu(code)}
        for address, folder in functions.items():
            self._folder(folder, FUNCTION, _limits(
                classes[address], address.rpartition('.')[0] in cards))
        for _, folder in self._behind(_PARENTS):
            if folder not in self.tree:
                self._folder(folder, PARENT, {})

    def _behind(self, folder: str) -> Iterator[tuple[str, str]]:
        """Name and place of each device that a folder links to."""
        for name, entry in self.tree[folder].items():
            place = tree_mod.target(folder, entry)
            if place is not None and place.startswith('devices/'):
                yield name, place

    def _class(self, folder: str) -> str | None:
        try:
            text = self._sysfs.read(f'{self._sysfs.root}/{folder}/class')
        except OSError:
            return None
        return text and text.removeprefix('0x')

    def _folder(self, folder: str, listing: Listing,
                limits: Mapping[How, int]) -> None:
        entries = self.tree.setdefault(folder, {})
        for name in sorted(self._sysfs.names(f'{self._sysfs.root}/{folder}')):
            how = next((each for pattern, each in listing.items()
                        if fnmatch.fnmatchcase(name, pattern)), None)
            if isinstance(how, Mapping):
                self._folder(f'{folder}/{name}', how, limits)
            elif how is not None:
                entry = self._entry(
                    f'{self._sysfs.root}/{folder}/{name}', how,
                    limits.get(how, 0))
                if entry is not None:
                    entries[name] = entry

    def _entry(self, path: str, how: How,
               limit: int) -> tree_mod.Entry | None:
        """None: there is nothing to record, or no more."""
        if how is How.WRITTEN:
            return ''
        try:
            if how is How.LINK:
                # Raises for what is no link.
                return tree_mod.link(self._sysfs.target(path))
            if how is How.TEXT:
                return self._sysfs.read(path)
            data = self._sysfs.read_bytes(path, limit) if limit else None
        except OSError as exc:
            return None if how is How.LINK else tree_mod.unreadable(exc)
        if data is None:
            return None
        if self._serials is not None:
            data = (self._serials.config(data) if how is How.CONFIG
                    else self._serials.vpd(data))
        return tree_mod.binary(data)


def _limits(class_code: str | None, is_card: bool) -> dict[How, int]:
    """How many bytes are read: as few as the plugin does, since there are
    devices that do not like to be asked (lspci(8), -xxx).

    :param is_card: it can be a GPU, or is in one slot with such a one
    """
    return {
        How.CONFIG: (
            config_space.SIZE if is_card
            else config_space.CONVENTIONAL if pci.is_bridge(class_code)
            else config_space.HEADER),
        How.VPD: config_space.VPD_READ if pci.can_be_gpu(class_code) else 0}
