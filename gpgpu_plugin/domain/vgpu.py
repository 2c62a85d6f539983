# SPDX-License-Identifier: Apache-2.0
"""vGPU types, and how many more vGPUs a GPU can take.

Sources: Linux, Documentation/driver-api/vfio-mediated-device.rst
(``mdev_supported_types``); NVIDIA vGPU software user guide
(``creatable_vgpu_types``, names of types, descriptions); samples/vfio-mdev.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import fractions
import functools
import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import naming

_BRANDS = ('GRID ', 'NVIDIA ')
_NUMBER = r'\s*[=:]?\s*(\d+)'
_FIELDS = {
    'max_heads': re.compile(rf'num_heads{_NUMBER}'),
    'max_instances': re.compile(rf'max_instance{_NUMBER}')}
# NVIDIA: framebuffer=1024M; GVT-g: high_gm_size: 384MB; the kernel's mbochs:
# virtual display, 16 MB video memory.
_VIDEO_RAM = re.compile(
    rf'(?:framebuffer|high_gm_size){_NUMBER}\s*M|(\d+)\s*MB\s+video\s+memory')
_RESOLUTION = re.compile(r'(?:max_resolution|resolution)\s*[=:]?\s*'
                         r'(\d+)\s*x\s*(\d+)')
# The last part of NVIDIA's names is gigabytes of framebuffer, a series, and
# what else there is to it: A40-12Q, H200X-1-18C, T4-2B4, A100-1-5CME. Nothing
# else is read from a name.
_PROFILE = re.compile(
    r'[A-Za-z0-9-]+-(\d+)[ABCQ](?:4|ME|NOME|MEALL|GFX|M)?')
# MIG-backed types name the slices of the card's GPU instance before that:
# H100-1-10C, DC-1-24Q.
_MIG = re.compile(
    r'(.+)-([1-7])-\d+[ABCQ](?:(ME|MEALL)|NOME|GFX|M)?')
_FOUR_SLICES = re.compile(r'A30|RTX')
_CREATABLE_VGPU_TYPES = re.compile(r'\s*(\d+)\s*:\s*(\S.*?)\s*')
_PLAIN_VF = re.compile(r'vf([1-9]\d*)')

MAX_TYPE_NAME = 64
"""Characters of a name, as the database has."""

# Many times what hardware has: GPUs have up to 300 GB of memory, drivers make
# up to a few dozen vGPUs on one, and displays have 8K. The database has 32
# bits for each number.
_LARGEST = {
    'video_ram': 4 * 1024 ** 2, 'max_heads': 1024, 'max_instances': 1024,
    'max_resolution_x': 1024 ** 2, 'max_resolution_y': 1024 ** 2}

_HALF_GIGABYTE = 512
_GIGABYTE = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPUType:
    """One vGPU type of one GPU; ``None`` is unknown.

    :ivar name: name that operators see, the same for all GPUs and releases
        of a driver
    :ivar type_id: id that this GPU's driver uses: the name of a folder
        below ``mdev_supported_types``, or a number of
        ``creatable_vgpu_types``
    :ivar video_ram: MiB
    :ivar max_instances: how many fit on a GPU without any other vGPU
    """

    name: str
    type_id: str
    video_ram: int | None = None
    max_heads: int | None = None
    max_resolution_x: int | None = None
    max_resolution_y: int | None = None
    max_instances: int | None = None


def implausible_type(known: VGPUType) -> str | None:
    """Return why no GPU has such a type; None if one may."""
    if len(known.name) > MAX_TYPE_NAME:
        return f'its name has {len(known.name)} characters'
    for field, largest in _LARGEST.items():
        number = getattr(known, field)
        if number is not None and not 0 <= number <= largest:
            return f'{field} is {number}, and not from 0 to {largest}'
    return None


def type_from_mdev(type_id: str, name: str | None, description: str | None,
                   available: int | None) -> VGPUType:
    """Return a type below ``mdev_supported_types``.

    :param available: ``available_instances`` while the GPU has no mdev; a
        number in the vendor's description takes precedence
    """
    text = description or ''
    numbers = {field: int(match.group(1)) if (match := pattern.search(text))
               else None for field, pattern in _FIELDS.items()}
    video_ram = _VIDEO_RAM.search(text)
    resolution = _RESOLUTION.search(text)
    width, height = resolution.groups() if resolution else (None, None)
    profile = _profile_name(name)
    return VGPUType(
        name=profile or type_id, type_id=type_id,
        video_ram=(int(video_ram.group(1) or video_ram.group(2))
                   if video_ram else _ram_of(profile)),
        max_heads=numbers['max_heads'],
        max_resolution_x=int(width) if width else None,
        max_resolution_y=int(height) if height else None,
        max_instances=(available if numbers['max_instances'] is None
                       else numbers['max_instances']))


@functools.lru_cache(maxsize=64)
def types_from_sysfs(text: str) -> tuple[VGPUType, ...]:
    """Return the types that ``creatable_vgpu_types`` of a VF lists, by name.

    It lists only numbers and names. How many fit is computed from the
    framebuffer of the largest type, which is that of the GPU; of MIG-backed
    types see ``_mig_instances``.
    """
    found = {}
    for line in text.splitlines():
        match = _CREATABLE_VGPU_TYPES.fullmatch(line)
        if match is not None:
            name = _profile_name(match.group(2)) or match.group(2)
            found[name] = match.group(1)
    return tuple(dataclasses.replace(known, type_id=found[known.name])
                 for known in _named(found))


def types_of_names(names: Iterable[str]) -> tuple[VGPUType, ...]:
    """Return types that a VF can be given while others have vGPUs.

    These names are not all types of the GPU, so they do not show how many fit
    on it, except of MIG-backed types that have an instance of their own.
    """
    return tuple(
        known if mig_share(known.name) and not _FOUR_SLICES.match(known.name)
        else dataclasses.replace(known, max_instances=None)
        for known in _named(names))


def _named(names: Iterable[str]) -> tuple[VGPUType, ...]:
    """Return types of which only the names are known, by name."""
    sizes = {name: _ram_of(name) for name in names}
    mig = {name: size for name, size in sizes.items()
           if size and mig_share(name)}
    largest = max((size for name, size in sizes.items()
                   if size and name not in mig), default=0)
    return tuple(
        VGPUType(
            name=name, type_id='', video_ram=size,
            max_instances=_mig_instances(name, mig) if name in mig
            else largest // size if size else None)
        for name, size in sorted(sizes.items()))


@functools.lru_cache(maxsize=1024)
def mig_share(name: str) -> fractions.Fraction | None:
    """Return the part of a card's compute slices that a type's instance has.

    None: the type is not backed by a MIG instance.
    """
    match = _MIG.fullmatch(name)
    return None if match is None else fractions.Fraction(
        int(match.group(2)), _slices(match.group(1)))


def _slices(card: str) -> int:
    return 4 if _FOUR_SLICES.match(card) else 7


def _mig_instances(name: str, sizes: Mapping[str, int]) -> int:
    """Return how many vGPUs of a MIG-backed type fit on an empty card.

    Cards with seven compute slices have eight of memory, and one vGPU in each
    instance. On cards with four, vGPUs can share an instance, whose memory is
    that of its largest type. Media engines (``ME``) are in one instance.

    :param sizes: MiB of all MIG-backed types that the card lists, by name
    """
    match = _MIG.fullmatch(name)
    assert match is not None
    card, slices = match.group(1), int(match.group(2))
    shared = 1
    instances = _slices(card) // slices
    if _slices(card) == 7:
        instances = min(instances, max(
            1, 8 // round(sizes[name] / min(sizes.values()))))
    else:
        shared = max(size for other, size in sizes.items()
                     if mig_share(other) == mig_share(name)) // sizes[name]
    return shared if match.group(3) else instances * shared


def type_of_plain_vfs(count: int) -> VGPUType:
    """Return the type of plain VFs, named after their number."""
    return VGPUType(
        name=f'vf{count}', type_id=str(count), max_instances=count)


def is_of_plain_vfs(name: str) -> bool:
    """Return whether it is a type of VFs whose driver has no types."""
    return count_of_plain_vfs(name) is not None


def count_of_plain_vfs(name: str) -> int | None:
    """Return the number of VFs in such a type's name; None: another type."""
    match = _PLAIN_VF.fullmatch(name)
    return int(match.group(1)) if match else None


def _profile_name(name: str | None) -> str | None:
    """Return NVIDIA's name without the brand; None for other names.

    The brand changed with releases (GRID T4-1Q, NVIDIA T4-1Q).
    """
    if name is None:
        return None
    for brand in _BRANDS:
        if name.startswith(brand):
            return name.removeprefix(brand).strip().replace(' ', '-') or None
    return None


def _ram_of(profile: str | None) -> int | None:
    match = _PROFILE.fullmatch(profile or '')
    if match is None:
        return None
    # 0 in a name, as in M10-0B, is half a gigabyte.
    return int(match.group(1)) * _GIGABYTE or _HALF_GIGABYTE


# -- vGPUs that a PCI function offers and has, merged from scan to scan.


class VGPUMechanism(enum.StrEnum):
    """Mechanism by which a driver exposes the vGPUs of a GPU.

    ``mdev``: a mediated device is created for each vGPU. ``vf``: each vGPU
    is one of the GPU's SR-IOV virtual functions.
    """

    MDEV = 'mdev'
    VF = 'vf'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPUCapability:
    """vGPUs of one PCI function.

    :ivar types: types that the function can be partitioned into; those of
        VFs are listed at their PF only. None: there are some, but the driver
        does not list them now
    :ivar existing_vgpus: UUIDs of the function's mdevs, or the number of the
        type that a VF has. As stored by the conductor: only those that were
        not made for an assignment
    """

    mechanism: VGPUMechanism
    types: tuple[VGPUType, ...] | None = ()
    existing_vgpus: tuple[str, ...] = ()


def merge_capability(stored: VGPUCapability | None,
                     observed: VGPUCapability | None, *,
                     in_use: bool,
                     own_vgpus: Collection[str]) -> VGPUCapability | None:
    """Return what is known about a function's vGPUs after a scan.

    While a guest has the whole function, its driver lists nothing. While a GPU
    has vGPUs, its driver may not list the types, or not how many of each fit
    on the empty GPU. In these cases the stored values stay.

    :param in_use: whether the function's own device is not available
    :param own_vgpus: those of ``observed.existing_vgpus`` that were made for
        assignments
    """
    if observed is None:
        if stored is None or not in_use:
            return None
        return dataclasses.replace(stored, existing_vgpus=())
    foreign = tuple(name for name in observed.existing_vgpus
                    if name not in own_vgpus)
    if stored is None:
        return dataclasses.replace(observed, existing_vgpus=foreign)
    if observed.types is None or (in_use and not observed.types):
        return dataclasses.replace(stored, existing_vgpus=foreign)
    known = {known.name: known.max_instances for known in stored.types or ()}
    return dataclasses.replace(
        observed, existing_vgpus=foreign,
        types=tuple(
            dataclasses.replace(
                listed, max_instances=known.get(listed.name))
            if listed.max_instances is None else listed
            for listed in observed.types))


# -- Capacity that the driver of a GPU reported, and how long it is valid.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverCapacity:
    """Report of a driver about the vGPUs that it can still create on one GPU.

    :ivar existing: vGPUs that the GPU had at that time: UUIDs of mdevs, or
        stable ids of VFs
    :ivar available: how many more of each type the driver can create if it
        creates no other type, by the type's name; None: at least one. A type
        that is left out cannot be created
    :ivar observed_max: how many of a type the GPU was seen to have without
        any other type; only the conductor knows it
    :ivar sampled_at: identifies the start of the host's nova-compute, and a
        growing number that was drawn before the driver was read; the equality
        of reports ignores it
    """

    existing: tuple[str, ...] = ()
    available: dict[str, int | None] = dataclasses.field(default_factory=dict)
    observed_max: dict[str, int] = dataclasses.field(default_factory=dict)
    sampled_at: tuple[str, int] = dataclasses.field(
        default=('', 0), compare=False
    )


def is_report_older(one: DriverCapacity, other: DriverCapacity) -> bool:
    """Return whether one report is known to be older than another."""
    return (one.sampled_at[0] == other.sampled_at[0]
            and one.sampled_at < other.sampled_at)


def newer_report(stored: DriverCapacity | None, reported: DriverCapacity,
                 used: Mapping[str, str | None]) -> DriverCapacity:
    """Return the newer of two driver reports.

    Reports of several builds may arrive in any order. Each one is sampled
    after its change was made, so the one that was sampled last saw all that
    the others saw. Reports of two starts of nova-compute cannot be ordered;
    the one that arrives last is used.

    :param used: types of the host's devices that are in use, by stable id
    """
    if stored is not None and is_report_older(reported, stored):
        return stored
    return dataclasses.replace(reported, observed_max=_observed_max(
        stored.observed_max if stored else {}, reported, used))


def _observed_max(before: Mapping[str, int], reported: DriverCapacity,
                  used: Mapping[str, str | None]) -> dict[str, int]:
    """Return how many of each type fit, as observed without other types."""
    result = dict(before)
    existing = collections.Counter(
        used.get(stable_id) for stable_id in reported.existing)
    for name in {*reported.available, *filter(None, existing)}:
        count, more = existing[name], reported.available.get(name, 0)
        if count != existing.total():
            continue
        if more is None:
            if result.get(name, count + 1) <= count:
                del result[name]
        elif count + more:
            # None at all means that the driver is in trouble, not a size.
            result[name] = count + more
    return result


def merge_reports(stored: DriverCapacity | None,
                  observed: DriverCapacity | None,
                  places: Mapping[str, str], used: Mapping[str, str | None],
                  ) -> DriverCapacity | None:
    """Return what is known about a driver's capacity after a scan.

    A scan that could not read the driver's report changes nothing, and neither
    does one that read the same report later.

    :param places: stable ids of mdevs made for assignments, by UUID
    :param used: as of ``newer_report``
    """
    if observed is None:
        return stored
    result = newer_report(stored, with_stable_ids(observed, places), used)
    return stored if result == stored else result


def with_stable_ids(reported: DriverCapacity,
                    places: Mapping[str, str]) -> DriverCapacity:
    """Return the report with stable ids of mdev rows instead of UUIDs.

    :param places: stable ids of mdevs made for assignments, by UUID; others
        keep their UUIDs
    """
    return dataclasses.replace(reported, existing=tuple(sorted(
        places.get(name, name) for name in reported.existing)))


def reported_types(capability: VGPUCapability | None,
                   reported: DriverCapacity | None) -> dict[str, VGPUType]:
    """Return the types that a GPU can be partitioned into, by name.

    Some were not listed while the GPU was empty, such as those of MIG
    instances that were made later.
    """
    if capability is None:
        return {}
    found = {known.name: known for known in capability.types or ()}
    if reported is None:
        return found
    found |= {known.name: known for known in types_of_names(
        reported.available.keys() - found.keys())}
    observed_max = reported.observed_max
    for name in found.keys() & observed_max.keys():
        if observed_max[name] < (found[name].max_instances or 0):
            found[name] = dataclasses.replace(
                found[name], max_instances=observed_max[name])
    return found


def reported_available(
    reported: DriverCapacity | None, used: Mapping[str, str | None],
) -> dict[str, int | None] | None:
    """Return how many more of each type the driver can create now.

    A vGPU that existed when the driver reported, and that nobody knows here,
    may be another tool's: the report holds until the next one.

    :param used: types of the GPU's mdev rows and VFs that have a vGPU or
        will have one, by stable id
    :returns: as in GPUCapacity
    """
    if reported is None:
        return None
    since = collections.Counter(
        used[stable_id] for stable_id in used.keys() - set(reported.existing))
    return {name: None if count is None else max(0, count - since[name])
            for name, count in reported.available.items()}


# -- Capacity of one GPU: how many more vGPUs of each type it can take.
#
# Passthrough is a type like any other, with one instance per GPU, that
# excludes everything else on its GPU and is excluded by everything else.
#
# Placements follow the NVIDIA vGPU software user guide, appendix "vGPU
# Placements for GPUs in Mixed-Size Mode". Its tables follow from halving: a
# GPU is halved until the type just fits into a part. In the first of two
# neighbouring parts the vGPU is at the beginning, in the second at the end.


UNKNOWN_TYPE = 'unknown'
"""Type of a vGPU that exists, but whose type nobody knows."""

# Whatever has a GPU in this way leaves nothing of it to others.
_EXCLUSIVE = frozenset({naming.PASSTHROUGH, UNKNOWN_TYPE})

_MAX_PLACEMENTS = 128
"""Placements of one type that are used. No driver makes so many vGPUs on one
GPU, and a claim compares each placement with all others: sizes are what a host
reports."""


class VGPUMixPolicy(enum.StrEnum):
    """Rule for which vGPUs may share one GPU.

    ``same_type``: only vGPUs of one type. ``equal_size``: only vGPUs with the
    same amount of framebuffer, as in NVIDIA's equal-size mode. ``any_mix``:
    all vGPUs whose shares of the GPU add up to at most one, regardless of
    placement. ``mixed_size``: each size at the placements that NVIDIA's
    mixed-size mode has for it.
    """

    SAME_TYPE = 'same_type'
    EQUAL_SIZE = 'equal_size'
    ANY_MIX = 'any_mix'
    MIXED_SIZE = 'mixed_size'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPU:
    """A vGPU on a GPU, or the whole GPU if its type is ``passthrough``.

    :ivar vgpu_type: name of the type, or ``UNKNOWN_MIX``
    :ivar placement_id: offset in the framebuffer in GiB; None: not reported,
        or the GPU has no placements
    """

    vgpu_type: str
    placement_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUCapacity:
    """Capacity of one GPU for vGPUs and for passthrough.

    :ivar id: stable id of the GPU
    :ivar offered: whether a claim may take the GPU or a part of it
    :ivar passthrough: whether a claim may take the whole GPU if nothing else
        is on it
    :ivar types: vGPU types that it supports, by name, without
        ``passthrough``
    :ivar vgpus: what is on it
    :ivar driver_available: how many more instances of each type its driver
        allows; None for a type: at least one; None for all: the driver does
        not report it
    :ivar free_vfs: VFs that can take a vGPU; None: vGPUs need no VF
    :ivar numa_node: None: unknown
    :ivar switch: the nearest PCIe switch above it; None: it is directly
        below a root port and shares no switch with any other GPU
    """

    id: str
    offered: bool = True
    passthrough: bool = False
    types: Mapping[str, VGPUType] = dataclasses.field(
        default_factory=dict)
    mix_policy: VGPUMixPolicy = VGPUMixPolicy.SAME_TYPE
    vgpus: tuple[VGPU, ...] = ()
    driver_available: Mapping[str, int | None] | None = None
    free_vfs: int | None = None
    numa_node: int | None = None
    switch: str | None = None

    def max_instances(self, name: str) -> int:
        """Return how many of a type fit on the GPU without other vGPUs."""
        if name == naming.PASSTHROUGH:
            return 1
        kind = self.types.get(name)
        if kind is None:
            return 0
        if kind.max_instances is None and self.free_vfs is not None:
            # The driver lists it, and not yet how many it makes.
            return self.free_vfs + len(self.vgpus)
        if self._policy_of(name) is VGPUMixPolicy.MIXED_SIZE:
            return len(self._placements(name))
        return kind.max_instances or 0

    def available(self, name: str) -> int:
        """Return how many more of a type the GPU can take now.

        This is what its mix policy allows, limited by what its driver reports
        and by the number of free VFs.
        """
        if not self.offered:
            return 0
        if name == naming.PASSTHROUGH:
            return int(self.passthrough and not self.vgpus)
        if any(vgpu.vgpu_type in _EXCLUSIVE for vgpu in self.vgpus):
            return 0
        available = self._by_policy(name)
        if self.free_vfs is not None:
            available = min(available, self.free_vfs)
        if self.driver_available is not None:
            reported = self.driver_available.get(name, 0)
            if reported is not None:
                available = min(available, reported)
        return max(0, available)

    def with_vgpu(self, name: str) -> GPUCapacity:
        """Return the GPU with one more of a type.

        If several placements are possible, it takes the one that leaves the
        most capacity for the larger types.

        :raises ValueError: it does not fit
        """
        if not self.available(name):
            raise ValueError(f'{name} does not fit on {self.id}')
        if name == naming.PASSTHROUGH:
            return dataclasses.replace(self, vgpus=(VGPU(vgpu_type=name),))
        placements = self._free_placements(name)
        if len(placements) == 1:
            return self._with(name, placements[0])
        return max((self._with(name, placement) for placement in placements),
                   key=GPUCapacity._available_by_size)

    def fragmentation_cost(self, name: str) -> tuple[int, ...]:
        """Return how many instances of each type one more of a type costs.

        The largest type is first.
        """
        return tuple(
            before - after for before, after in zip(
                self._available_by_size(),
                self.with_vgpu(name)._available_by_size(), strict=True))

    def _with(self, name: str, placement_id: int | None) -> GPUCapacity:
        reported = self.driver_available
        count = None if reported is None else reported.get(name)
        if reported is not None and count is not None:
            reported = {**reported, name: count - 1}
        return dataclasses.replace(
            self, driver_available=reported,
            vgpus=(*self.vgpus,
                   VGPU(vgpu_type=name, placement_id=placement_id)),
            free_vfs=None if self.free_vfs is None else self.free_vfs - 1)

    def _available_by_size(self) -> tuple[int, ...]:
        return tuple(map(self.available, self._names_by_size))

    @functools.cached_property
    def _names_by_size(self) -> list[str]:
        """Return the names of the vGPU types, the largest first."""
        return sorted(self.types,
                      key=lambda name: (self.max_instances(name), name))

    # -- the mix policies ---------------------------------------------------

    def _by_policy(self, name: str) -> int:
        """Return how many more of a type the mix policy allows."""
        max_instances = self.max_instances(name)
        if not max_instances:
            return 0
        match self._policy_of(name):
            case VGPUMixPolicy.SAME_TYPE:
                if any(vgpu.vgpu_type != name for vgpu in self.vgpus):
                    return 0
                return max_instances - len(self.vgpus)
            case VGPUMixPolicy.EQUAL_SIZE:
                if not all(self._is_same_size(vgpu.vgpu_type, name)
                           for vgpu in self.vgpus):
                    return 0
                return max_instances - len(self.vgpus)
            case VGPUMixPolicy.ANY_MIX:
                return min(
                    max_instances - sum(
                        vgpu.vgpu_type == name for vgpu in self.vgpus),
                    int((1 - self._used_fraction()) / self._fraction(name)))
            case VGPUMixPolicy.MIXED_SIZE:
                return len(self._free_placements(name))

    def _policy_of(self, name: str) -> VGPUMixPolicy:
        """Return the policy for one more of a type.

        Each MIG instance is a part of its own, whatever is in the others.
        """
        return VGPUMixPolicy.ANY_MIX if all(
            map(mig_share, (
                name, *(vgpu.vgpu_type for vgpu in self.vgpus)))
        ) else self.mix_policy

    def _is_same_size(self, one: str, other: str) -> bool:
        size = self._video_ram(one)
        return one == other or (
            size is not None and size == self._video_ram(other))

    def _used_fraction(self) -> fractions.Fraction:
        """Return the fraction of the GPU that its vGPUs use.

        A vGPU of a type that the GPU does not support is assumed to use all
        of it.
        """
        return sum((self._fraction(vgpu.vgpu_type) for vgpu in self.vgpus),
                   start=fractions.Fraction(0))

    def _fraction(self, name: str) -> fractions.Fraction:
        """Return the fraction of the GPU that a vGPU of a type uses.

        It is 1/n if at most n fit. If sizes do not divide the GPU, this is
        slightly more than it really uses. A MIG-backed one uses no more than
        the slices of its instance.
        """
        part = fractions.Fraction(1, self.max_instances(name) or 1)
        return min(part, mig_share(name) or part)

    def _video_ram(self, name: str) -> int | None:
        kind = self.types.get(name)
        return None if kind is None else kind.video_ram

    def _gibibytes(self, name: str) -> int | None:
        size = self._video_ram(name)
        return None if size is None else -(-size // _GIGABYTE)

    def _placements(self, name: str) -> Sequence[int]:
        """Return the placement ids of a type on an empty GPU."""
        return _placements(self._gibibytes(name) or 0, self._region)

    @functools.cached_property
    def _region(self) -> int:
        """Return the size of the GPU in GiB, that of its largest type."""
        return max((self._gibibytes(name) or 0 for name in self.types),
                   default=0)

    def _free_placements(self, name: str) -> Sequence[int | None]:
        """Return the placements that one more of a type could have.

        Return ``[None]`` if the mix policy has no placements.
        """
        if self._policy_of(name) is not VGPUMixPolicy.MIXED_SIZE:
            return [None]
        taken = []
        for vgpu in self.vgpus:
            size = self._gibibytes(vgpu.vgpu_type)
            if size is None or vgpu.placement_id is None:
                # It takes some placement, and nobody knows which.
                return []
            taken.append((vgpu.placement_id, vgpu.placement_id + size))
        return _free_placements(
            self._gibibytes(name) or 0, self._region, tuple(taken))


# Types of several series have the same size.
@functools.lru_cache
def _free_placements(size: int, region: int,
                     taken: Sequence[tuple[int, int]]) -> Sequence[int]:
    """Return the placement ids of a size that overlap nothing.

    :param taken: begin and end of what is there, in GiB
    """
    return tuple(placement for placement in _placements(size, region)
                 if all(placement + size <= begin or end <= placement
                        for begin, end in taken))


@functools.lru_cache
def _placements(size: int, region: int) -> Sequence[int]:
    """Return the placement ids of a size in a region, both in GiB."""
    if not 0 < size <= region:
        return ()
    parts = 1
    while 2 * parts * size <= region:
        parts *= 2
    return tuple(number * region // parts if number % 2 == 0
                 else (number + 1) * region // parts - size
                 for number in range(min(parts, _MAX_PLACEMENTS)))
