# SPDX-License-Identifier: Apache-2.0
"""Recordings: the part of a host's /sys that the plugin reads.

The kernel's aliases of VFIO drivers are added, which are in modules.alias.

Only what the lists below name is recorded (gpgpu_plugin.host.fake.tree); no
other file is opened. Reading some attributes of sysfs is slow, large or
changes the device (``rom``, ``resource*``), and operators send recordings to
others.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import machine
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import topology
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.fake import tree as tree_mod


class How(enum.Enum):
    """Way in which a name in a folder is recorded.

    :cvar WRITTEN: the plugin only writes it, so an empty file is recorded
    :cvar CONFIG: configuration space
    :cvar VPD: Vital Product Data
    """

    TEXT = enum.auto()
    LINK = enum.auto()
    WRITTEN = enum.auto()
    CONFIG = enum.auto()
    VPD = enum.auto()


# Entries by pattern of their names. A listing stands for a folder; an empty
# one records that the folder exists.
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
    'aer_dev_correctable': How.TEXT, 'aer_dev_fatal': How.TEXT,
    'aer_dev_nonfatal': How.TEXT, 'boot_vga': How.TEXT, 'class': How.TEXT,
    'config': How.CONFIG, 'current_link_width': How.TEXT,
    'device': How.TEXT, 'driver': How.LINK, 'driver_override': How.TEXT,
    'enable': How.TEXT, 'iommu_group': How.LINK, 'label': How.TEXT,
    'max_link_width': How.TEXT, 'numa_node': How.TEXT,
    'nvidia': {'creatable_vgpu_types': How.TEXT,
               'current_vgpu_type': How.TEXT,
               'placement_id': How.TEXT},
    'physfn': How.LINK, 'ras': {'*_err_count': How.TEXT},
    'remove': How.WRITTEN, 'reset': How.WRITTEN,
    'reset_method': How.TEXT, 'revision': How.TEXT,
    'sriov_numvfs': How.TEXT, 'sriov_offset': How.TEXT,
    'sriov_stride': How.TEXT, 'sriov_totalvfs': How.TEXT,
    'sriov_vf_device': How.TEXT, 'subsystem_device': How.TEXT,
    'subsystem_vendor': How.TEXT, 'vendor': How.TEXT, 'vfio-dev': {},
    'virtfn*': How.LINK, 'vpd': How.VPD,
    'xgmi_hive_info': {'xgmi_hive_id': How.TEXT}}

ROOT_BUS: Listing = {topology.FIRMWARE_NAME.rpartition('/')[2]: How.TEXT}

_DEVICES = 'bus/pci/devices'
_PARENTS = 'class/mdev_bus'

FOLDERS: Mapping[str, Listing] = {
    _DEVICES: {_ADDRESS: How.LINK},
    'bus/pci/drivers': {'*': {
        'bind': How.WRITTEN, 'unbind': How.WRITTEN, _ADDRESS: How.LINK}},
    'bus/pci/slots': {'*': {'address': How.TEXT}},
    'bus/mdev/devices': {_UUID: How.LINK},
    _PARENTS: {'*': How.LINK},
    machine.NODE_FOLDER: {'has_cpu': How.TEXT, 'online': How.TEXT,
                          'node*': {'distance': How.TEXT}},
    'kernel/iommu_groups': {'*': {'devices': {'*': How.LINK}}}}


def record(sysfs: sysfs_mod.Sysfs, *,
           with_serials: bool = False) -> tree_mod.Tree:
    """Record a host as it is now.

    :param with_serials: keep serial numbers of devices, instead of replacing
        them (AnonymousSerialNumbers)
    :raises HostError: the root has no PCI bus
    """
    # Called for the error; the addresses are not needed.
    sysfs.addresses()
    recorder = _Recorder(
        sysfs, None if with_serials else AnonymousSerialNumbers())
    recorder.record()
    # The parent of a recorded folder need not be recorded.
    parents = {folder.rpartition('/')[0] for folder in recorder.tree}
    return {folder: entries
            for folder, entries in sorted(recorder.tree.items())
            if entries or folder not in parents}


class _Recorder:
    """A recording in progress."""

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 serials: AnonymousSerialNumbers | None) -> None:
        self.tree: dict[str, dict[str, tree_mod.Entry]] = {}
        self._sysfs = sysfs
        self._serials = serials

    def record(self) -> None:
        for folder, listing in FOLDERS.items():
            self._folder(folder, listing, {})
        functions = dict(self._linked(_DEVICES))
        classes = {address: self._class(folder)
                   for address, folder in functions.items()}
        gpu_slots = {
            address.rpartition('.')[0]
            for address, code in classes.items() if pci.can_be_gpu(code)}
        for address, folder in functions.items():
            self._folder(folder, FUNCTION, _limits(
                classes[address], address.rpartition('.')[0] in gpu_slots))
        for root in set(_roots(functions.values())):
            # The kernel links to it from the folder of the root bus.
            node = f'{root}/{topology.FIRMWARE_NAME.rpartition("/")[0]}'
            if self._sysfs.names(f'{self._sysfs.root}/{node}'):
                self._folder(node, ROOT_BUS, {})
        for _, folder in self._linked(_PARENTS):
            if folder not in self.tree:
                self._folder(folder, PARENT, {})
        self._aliases()

    def _aliases(self) -> None:
        try:
            lines = [f'alias {pattern} {module}'
                     for pattern, module in vfio_drivers.aliases(self._sysfs)]
        except OSError as exc:
            entry = tree_mod.unreadable(exc)
        else:
            if not lines:
                return
            entry = '\n'.join(lines)
        folder, _, name = vfio_drivers.ALIASES.rpartition('/')
        self.tree[folder] = {name: entry}

    def _linked(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield name and folder of every device that a folder links to."""
        for name, entry in self.tree[folder].items():
            target = tree_mod.target(folder, entry)
            if target is not None and target.startswith('devices/'):
                yield name, target

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
            how = next((rule for pattern, rule in listing.items()
                        if fnmatch.fnmatchcase(name, pattern)), None)
            link = (self._entry(f'{self._sysfs.root}/{folder}/{name}',
                                How.LINK, 0)
                    if isinstance(how, Mapping) else None)
            if link is not None:
                # The folder is that of another function.
                entries[name] = link
            elif isinstance(how, Mapping):
                self._folder(f'{folder}/{name}', how, limits)
            elif how is not None:
                entry = self._entry(
                    f'{self._sysfs.root}/{folder}/{name}', how,
                    limits.get(how, 0))
                if entry is not None:
                    entries[name] = entry

    def _entry(self, path: str, how: How,
               limit: int) -> tree_mod.Entry | None:
        """Return the entry for a file; None: it is not recorded, or gone."""
        if how is How.WRITTEN:
            return ''
        try:
            if how is How.LINK:
                # Raises if it is no link.
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


def _roots(folders: Iterable[str]) -> Iterator[str]:
    """Yield the folders of the root buses above functions."""
    for folder in folders:
        hops = folder.split('/')
        for depth, hop in enumerate(hops, start=1):
            if hop.startswith('pci'):
                yield '/'.join(hops[:depth])


def _limits(class_code: str | None, is_in_gpu_slot: bool) -> dict[How, int]:
    """Return how many bytes to read, by kind of entry.

    No more is read than the plugin itself reads, since some devices fail when
    more is read (lspci(8), -xxx).

    :param is_in_gpu_slot: the function can be a GPU, or shares its slot
    """
    return {
        How.CONFIG: (
            config_space.SIZE if is_in_gpu_slot
            else config_space.CONVENTIONAL if pci.is_bridge(class_code)
            else config_space.HEADER),
        How.VPD: config_space.VPD_READ if pci.can_be_gpu(class_code) else 0}


# -- Anonymous serial numbers for recordings.
#
# A serial number is replaced by a count of the different ones so far. Equal
# numbers stay equal and different ones stay different. The original cannot be
# guessed, as it could be from a hash of a vendor's consecutive numbers.


# Keywords of the read-only part of VPD that say which product it is. Others
# may identify the very card, or its owner.
_MAX_KEPT = (b'PN', b'EC', b'MN')
_SERIAL = b'SN'


class AnonymousSerialNumbers:
    """The serial numbers of one recording, and their replacements."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def config(self, config: bytes) -> bytes:
        """Return configuration space with another Device Serial Number."""
        at = config_space.serial_number_at(config)
        if at is None:
            return config
        serial = config[at:at + 8]
        # These mean "no number" and identify nothing.
        if serial in (bytes(8), b'\xff' * 8):
            return config
        return (config[:at] + self._number(serial).to_bytes(8, 'little')
                + config[at + 8:])

    def vpd(self, vpd: bytes) -> bytes:
        """Return Vital Product Data with another serial number.

        Apart from it, only the product's name and the keywords of _KEPT
        remain.
        """
        made = bytearray()
        for tag, content in config_space.vpd_resources(vpd):
            if tag == config_space.VPD_R:
                content = b''.join(
                    keyword + bytes([len(value)]) + value
                    for keyword, value in map(
                        self._field, config_space.vpd_fields(content))
                    if keyword in (*_MAX_KEPT, _SERIAL))
            elif tag != config_space.VPD_NAME:
                continue
            made += bytes([tag]) + len(content).to_bytes(2, 'little')
            made += content
        return bytes(made) + bytes([config_space.VPD_END]) if made else b''

    def _field(self, field: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        keyword, value = field
        if keyword != _SERIAL or not value.strip(b'\0 '):
            return field
        digits = b'%0*d' % (len(value), self._number(value))
        return keyword, digits[-len(value):]

    def _number(self, serial: bytes) -> int:
        return self._numbers.setdefault(serial, len(self._numbers) + 1)
