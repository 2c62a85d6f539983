# SPDX-License-Identifier: Apache-2.0
"""PCI addresses and ids, and PCI functions as a scan reads them."""

from __future__ import annotations

import dataclasses
import re

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device as device_rules

# Display controllers, processing accelerators, co-processors.
_GPU_CLASSES = ('03', '12', '0b40')
# Host bridges and PCI-to-PCI bridges. Other functions of base class 06 are
# devices that only one user can have: an NVSwitch is 0680.
_BRIDGES = ('0600', '0604')

VGPU_TYPES = 'vGPU types'
"""Entry of ``PCIFunction.unreadable``: what the driver lists for vGPUs."""

_ADDRESS = re.compile(
    r'([0-9a-f]{4,16}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])', re.IGNORECASE)


@dataclasses.dataclass(frozen=True, order=True)
class PCIAddress:
    """Present address of a function, which may change with each boot.

    The domain may be wider than four hex digits (Intel VMD, Hyper-V).
    """

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PCIAddress:
        """Read ``DDDD:BB:DD.F``.

        :raises Invalid: the text has another form
        """
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise exception.Invalid(
                field='PCI address', value=text,
                expected='DOMAIN:BUS:DEVICE.FUNCTION in hex, such as '
                         '0000:3b:00.0')
        return cls(*(int(part, 16) for part in match.groups()))

    def __str__(self) -> str:
        return (f'{self.domain:04x}:{self.bus:02x}:{self.device:02x}'
                f'.{self.function:x}')


def find_addresses(text: str) -> list[str]:
    """Return all PCI addresses in a text, in the form used everywhere."""
    return [str(PCIAddress.parse(match.group()))
            for match in _ADDRESS.finditer(text)]


ACPI_NAME = r'[A-Z_][A-Z0-9_]{3}(?:\.[A-Z_][A-Z0-9_]{3})*'
"""Regular expression of an ACPI path without the backslash before it."""

VF = '/vf'
"""Separator of a VF's stable id: between its PF's id and its number."""

_MDEV = '/mdev'


def mdev_row_id(gpu: str, number: int) -> str:
    """Return the stable id of an mdev row of a GPU."""
    return f'{gpu}{_MDEV}{number}'


def function_id_of(stable_id: str) -> str:
    """Return the stable id of the PCI function that a device is or is on.

    An mdev row is on the function that its mdev is made on; any other device
    is a function itself.
    """
    return stable_id.partition(_MDEV)[0]


def pf_of(stable_id: str) -> str | None:
    """Return the stable id of the PF of a VF, or of an mdev row on a VF.

    None for other devices.
    """
    pf, found, _ = function_id_of(stable_id).rpartition(VF)
    return pf if found else None


def bridge_of(stable_id: str) -> str | None:
    """Return the innermost PCIe switch above a function, or its root port.

    A root port is named by its root bus and its number there, ``root port
    _SB_.PC08:01.0``. A switch is named by the way to its upstream port,
    ``switch _SB_.PC08:01.0/00.0``, since the number of the bus that it is on
    may change.

    :returns: None for a device that is not on a PCI bus
    """
    _, found, path = (pf_of(stable_id) or function_id_of(stable_id)
                      ).rpartition('/pci')
    root, *hops = path.split('/')
    if not found or not hops:
        return None
    if len(hops) == 1:
        return f'root bus {root}'
    # Below the root port, upstream and downstream ports alternate.
    upstream = (len(hops) - 2) // 2 * 2
    if upstream:
        return f'switch {root}:{"/".join(hops[:upstream])}'
    return f'root port {root}:{hops[0]}'


def normalize_id(field: str, value: str, digits: int = 4) -> str:
    """Return a PCI id as lower-case hex without ``0x``.

    :param field: name used in the error
    :param digits: 4 for ids, 2 for a revision, 6 for a class
    :raises Invalid: not hex of that width, or all ones or zeroes, which is
        what an absent or broken function reads and so never identifies one
    """
    text = value.lower().removeprefix('0x')
    if not re.fullmatch(rf'[0-9a-f]{{{digits}}}', text):
        raise exception.Invalid(
            field=field, value=value,
            expected=f'{digits} hex digits, such as '
                     f'{"10de20b5"[-digits:] if digits <= 4 else "030200"}')
    if digits == 4 and text in ('ffff', '0000'):
        raise exception.Invalid(
            field=field, value=value,
            expected='an id that a device can have; ffff and 0000 are what '
                     'an absent or broken function reads')
    return text


def can_be_gpu(class_code: str | None) -> bool:
    """Return whether a function is a GPU, or its class is unknown."""
    return class_code is None or class_code.startswith(_GPU_CLASSES)


def is_bridge(class_code: str | None) -> bool:
    """Return whether a function is a host bridge or a PCI-to-PCI bridge.

    Bridges are never assigned to guests.
    """
    return class_code is not None and class_code.startswith(_BRIDGES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PCIFunction:
    """Identity and topology of one PCI function, as one scan found it.

    ``None`` is *unknown or none*; ``unreadable`` names those that
    exist but could not be read. Ids are lower-case hex without ``0x``
    (four digits; revision two, class six).

    :ivar id: stable id: sysfs path below ``/devices`` with bus numbers left
        out, ``/devices/pci_SB_.PC08/03.0/00.0``; a VF is its PF's id plus
        ``/vfN``. The root bus has the firmware's name (ACPI path); without
        one it has its domain and number, ``pci0000:7b``
    :ivar address: present address, ``0000:3b:00.0``, or the name of a parent
        of mdevs that is no PCI function, ``mbochs``
    :ivar class_code: PCI class, subclass and programming interface
    :ivar numa_node: the nearest one that has CPUs; None also where the kernel
        says -1
    :ivar iommu_group_members: addresses of the other functions of the group
    :ivar switch_path: stable ids of the upstream ports of the PCIe switches
        between the root port and the function, outermost first
    :ivar companions: addresses of the functions that go to the same guest:
        those of the same card that are not a separate GPU
        (gpgpu_plugin.domain.gpu)
    :ivar part_of: address of the function whose companion this one is
    :ivar iommu_foreign_members: addresses in the card's IOMMU groups that are
        not part of the card, without bridges. Reported for GPUs only
    :ivar used_by: user that the host itself can see
    :ivar serial: vendor's serial number (VPD), dsn: PCIe Device Serial Number
    :ivar pf: stable id of the PF if this is a VF; ``vf_index`` its number
    :ivar sriov_totalvfs: None if not SR-IOV capable
    :ivar owner: other service that manages the function, and how that is
        known: ``Nova ([pci] device_spec)``, ``Cyborg``
    :ivar fault: why the function cannot be trusted (config space reads ff)
    :ivar vfio_refusal: why no guest of the host can get the function itself:
        there is no IOMMU, or the kernel has no VFIO driver for it. A VF with
        vGPU types keeps the host's driver and needs none
    :ivar nvswitches: number of NVSwitches that the host has; None: unknown.
        Reported for NVIDIA's GPUs only
    :ivar hive: id of the xGMI hive, the GPUs that have links to each other;
        the driver amdgpu reports it
    """

    id: str
    address: str
    vendor: str | None = None
    device: str | None = None
    subsystem_vendor: str | None = None
    subsystem: str | None = None
    revision: str | None = None
    class_code: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    iommu_group_members: tuple[str, ...] = ()
    switch_path: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    part_of: str | None = None
    iommu_foreign_members: tuple[str, ...] = ()
    slot: str | None = None
    serial: str | None = None
    dsn: str | None = None
    used_by: device_rules.DeviceUser | None = None
    pf: str | None = None
    vf_index: int | None = None
    sriov_totalvfs: int | None = None
    sriov_numvfs: int | None = None
    unreadable: tuple[str, ...] = ()
    owner: str | None = None
    fault: str | None = None
    vfio_refusal: str | None = None
    nvswitches: int | None = None
    hive: str | None = None

    @property
    def has_vgpus(self) -> bool:
        """Return whether it has mdevs or VFs, so that no guest gets it whole.

        Its driver manages its memory then.
        """
        return self.used_by in (device_rules.DeviceUser.MDEV,
                                device_rules.DeviceUser.VF)

    @property
    def has_vfs(self) -> bool:
        """Return whether it has VFs."""
        return (self.used_by == device_rules.DeviceUser.VF
                or bool(self.sriov_numvfs))


_PLACEHOLDERS = ('N/A', 'NA', 'NONE', 'UNKNOWN')


def _number(text: str | None) -> str | None:
    """Return a serial number; None: it stands for none.

    A card whose firmware is not ready shows zeros, or ones as if it was gone.
    """
    if text is None or text.upper() in _PLACEHOLDERS:
        return None
    return text if text.strip('0-. ') and text.strip('fF-. ') else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a device, by which another one in its place is noticed.

    None: no scan could read it yet.

    :ivar serial: see PCIFunction, as for the others
    """

    vendor: str | None = None
    device: str | None = None
    subsystem_vendor: str | None = None
    subsystem: str | None = None
    serial: str | None = None
    dsn: str | None = None

    @classmethod
    def of(cls, function: PCIFunction) -> Identity:
        """Return the identity that one scan found."""
        found = cls(**{field.name: getattr(function, field.name)
                       for field in dataclasses.fields(cls)})
        return dataclasses.replace(
            found, serial=_number(found.serial), dsn=_number(found.dsn))

    def difference(self, now: Identity) -> str | None:
        """Return how a scan shows that another device is in the place.

        An unknown value proves nothing, nor does the case of letters, which
        firmware or a tool may change.
        """
        for field in dataclasses.fields(self):
            old, new = getattr(self, field.name), getattr(now, field.name)
            if None not in (old, new) and old.upper() != new.upper():
                return f'{field.name} was {old}, is {new}'
        return None

    def has_number_of(self, other: Identity) -> bool:
        """Return whether both show one serial number, and nothing differs."""
        return self.difference(other) is None and any(
            None not in (own, known) for own, known in (
                (self.dsn, other.dsn), (self.serial, other.serial)))

    def after(self, now: Identity) -> Identity:
        """Return what is known after another scan of the same device."""
        return Identity(**{
            field.name: getattr(now, field.name) or getattr(self, field.name)
            for field in dataclasses.fields(self)})
