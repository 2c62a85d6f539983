# SPDX-License-Identifier: Apache-2.0
"""vGPU types, into which a driver can partition a GPU.

Sources: Linux, Documentation/driver-api/vfio-mediated-device.rst
(``mdev_supported_types``); NVIDIA vGPU software user guide
(``creatable_vgpu_types``, names of types, descriptions); samples/vfio-mdev.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import re
from collections.abc import Iterable
from collections.abc import Mapping

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

LONGEST_NAME = 64
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


def implausible(known: VGPUType) -> str | None:
    """Return why no GPU has such a type; None if one may."""
    if len(known.name) > LONGEST_NAME:
        return f'its name has {len(known.name)} characters'
    for field, largest in _LARGEST.items():
        number = getattr(known, field)
        if number is not None and not 0 <= number <= largest:
            return f'{field} is {number}, and not from 0 to {largest}'
    return None


def from_mdev(type_id: str, name: str | None, description: str | None,
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
def from_creatable_vgpu_types(text: str) -> tuple[VGPUType, ...]:
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


def of_names(names: Iterable[str]) -> tuple[VGPUType, ...]:
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


def of_plain_vfs(count: int) -> VGPUType:
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
