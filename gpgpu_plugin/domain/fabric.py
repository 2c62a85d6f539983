# SPDX-License-Identifier: Apache-2.0
"""Links between GPUs: partitions of them, and their tables.

Claims, the weigher and the simulator choose partitions by one rule: of all
choices, the one with the least fragmentation cost. Partitions are bit masks
there: bit i is GPU i. ``Links`` and tables name GPUs.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import json
import math
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request as request_mod

MAX_COMBINATIONS = 500
"""Sets of GPUs that are tried for the least cost. If there are more, those
GPUs are taken first that break the least alone."""

_MAX_STATES = 100_000


def fragmentation_cost(free: Iterable[int], taken: int) -> int:
    """Return how much a choice takes away from later ones.

    That is the number of GPUs of each partition that was free and is not free
    any more, those of all partitions added.

    :param free: partitions that are free before the choice
    :param taken: the chosen GPUs
    """
    return sum([mask.bit_count() for mask in free if mask & taken])


def least_cost(free: Sequence[int], gpus: Sequence[int],
               count: int) -> tuple[int, ...]:
    """Return the GPUs whose choice costs the least; the first of equal ones.

    :param free: as of ``fragmentation_cost``
    :param gpus: the GPUs to choose from, each as a mask
    """
    if not free or len(gpus) <= count:
        return tuple(gpus[:count])
    if math.comb(len(gpus), count) > MAX_COMBINATIONS:
        return tuple(sorted(gpus, key=lambda gpu: fragmentation_cost(
            free, gpu))[:count])
    return min(itertools.combinations(gpus, count),
               key=lambda chosen: fragmentation_cost(free, sum(chosen)))


class PartitionChoice(typing.NamedTuple):
    """GPUs to take, and their fragmentation cost."""

    cost: int
    gpus: int


class Partitions:
    """Partitions of some GPUs; they may overlap.

    What it works out is remembered. ``partitions_of`` returns the same
    object for the same partitions.
    """

    def __init__(self, masks: Iterable[int]) -> None:
        self._masks = sorted(set(masks))
        self._free: dict[int, tuple[int, ...]] = {}
        self._choices: dict[tuple[int, int, bool], PartitionChoice | None] = {}

    def free(self, gpus: int) -> tuple[int, ...]:
        """Return the partitions that some GPUs contain."""
        found = self._free.get(gpus)
        if found is None:
            if len(self._free) >= _MAX_STATES:
                self._free.clear()
            found = self._free[gpus] = tuple(
                mask for mask in self._masks if mask & gpus == mask)
        return found

    def count(self, free: int, size: int) -> int:
        """Return how many partitions of a size are free."""
        return sum(mask.bit_count() == size for mask in self.free(free))

    def best(self, free: int, size: int) -> PartitionChoice | None:
        """Return the partition of a size whose choice costs the least.

        :returns: of equal ones the lowest; None: no partition of this size is
            free
        """
        return self._chosen(free, size, is_confined=True)

    def best_gpus(self, free: int, size: int) -> PartitionChoice | None:
        """Return the GPUs, a partition or not, whose choice costs the least.

        :returns: None: too few are free
        """
        return self._chosen(free, size, is_confined=False)

    def _chosen(self, free: int, size: int, *,
                is_confined: bool) -> PartitionChoice | None:
        key = free, size, is_confined
        if key not in self._choices:
            if len(self._choices) >= _MAX_STATES:
                self._choices.clear()
            whole = self.free(free)
            sets = ([mask for mask in whole if mask.bit_count() == size]
                    if is_confined else _least(whole, free, size))
            self._choices[key] = min(
                (PartitionChoice(fragmentation_cost(whole, mask), mask)
                 for mask in sets), default=None)
        return self._choices[key]


def _least(whole: Sequence[int], free: int, size: int) -> list[int]:
    if free.bit_count() < size:
        return []
    gpus = [1 << bit for bit in range(free.bit_length()) if free >> bit & 1]
    return [sum(least_cost(whole, gpus, size))]


@functools.lru_cache(maxsize=1000)
def partitions_of(masks: tuple[int, ...]) -> Partitions:
    """Return the partitions with these masks."""
    return Partitions(masks)


# -- State of link partitions: free, taken, or what keeps them from being it.


class PartitionState(enum.StrEnum):
    """State of a link partition.

    ``taken``: one instance has exactly its GPUs. ``overlapped``: instances
    have some of its GPUs, each as another partition. ``broken``: an instance
    has some of them, but not as a partition. ``unavailable``: no instance has
    one of them, but not all can be claimed.
    """

    FREE = 'free'
    TAKEN = 'taken'
    OVERLAPPED = 'overlapped'
    BROKEN = 'broken'
    UNAVAILABLE = 'unavailable'


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionUse:
    """GPUs of a group that one instance has, or had before it moved.

    :ivar gpus: ids of the GPUs
    :ivar is_whole: whether it has them as a whole, rather than vGPUs of them
    """

    gpus: frozenset[str]
    is_whole: bool


def partition_states(partitions: Mapping[str, frozenset[str]],
                     free: Collection[str],
                     uses: Sequence[PartitionUse]) -> dict[str,
                                                           PartitionState]:
    """Return the state of each partition, by its name.

    :param partitions: ids of the GPUs of each
    :param free: ids of the GPUs that can be claimed as a whole
    """
    known = set(partitions.values())
    return {name: _state(part, frozenset(free), known, [
        use for use in uses if use.gpus & part])
        for name, part in partitions.items()}


def _state(part: frozenset[str], free: frozenset[str],
           known: Collection[frozenset[str]],
           uses: Sequence[PartitionUse]) -> PartitionState:
    if part <= free:
        return PartitionState.FREE
    if any(not use.is_whole or use.gpus not in known for use in uses):
        return PartitionState.BROKEN
    if not uses:
        return PartitionState.UNAVAILABLE
    return (PartitionState.TAKEN if uses[0].gpus == part
            else PartitionState.OVERLAPPED)


# -- Link partitions of whole GPUs, and what a claim of some of them costs.
#
# GPUs of one partition reach each other over links of their own: NVLink, xGMI
# or a fabric of switches. Partitions may overlap, as those of NVIDIA's fabric
# manager do: with eight GPUs one of eight, two of four, four of two and eight
# of one. A claim takes exactly one as a whole. What overlaps it is then
# broken.


Partition = frozenset[str]
"""Ids of GPUs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Links:
    """Links between the GPUs of one group.

    :ivar partitions: those of which every GPU is known to be there
    :ivar names: of the partitions, in the same order
    :ivar fabric: whether the board allows nothing but its partitions; else
        its GPUs can be taken in any other way, too, without links
    :ivar problem: why some partitions, or all, are not known; may be empty
    """

    partitions: tuple[Partition, ...] = ()
    names: tuple[str, ...] = ()
    fabric: bool = False
    problem: str = ''

    def free(self, gpus: Collection[str]) -> tuple[Partition, ...]:
        """Return the partitions that some GPUs contain.

        :param gpus: ids of those that can be taken as a whole
        """
        ids = frozenset(gpus)
        return tuple(part for part in self.partitions if part <= ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreePartitions:
    """Partitions that a claim can take, and what it takes from later ones.

    :ivar gpus: ids of all GPUs of the offer
    """

    partitions: tuple[Partition, ...]
    gpus: tuple[str, ...]

    @functools.cached_property
    def _bits(self) -> Mapping[str, int]:
        return {gpu: 1 << index
                for index, gpu in enumerate(sorted(self.gpus))}

    @functools.cached_property
    def _masks(self) -> tuple[int, ...]:
        return tuple(map(self._mask, self.partitions))

    def _mask(self, gpus: Iterable[str]) -> int:
        return sum([self._bits[gpu] for gpu in gpus])

    def cost(self, taken: Iterable[str]) -> int:
        """Return the fragmentation cost of a claim of some GPUs.

        :param taken: their ids
        """
        return fragmentation_cost(self._masks, self._mask(taken))

    def least_cost(self, gpus: Iterable[str], count: int) -> list[str]:
        """Return those of some GPUs whose claim costs the least."""
        by_bit = {self._bits[gpu]: gpu for gpu in gpus}
        return [by_bit[bit] for bit in least_cost(
            self._masks, list(by_bit), count)]


def links_of_hives(hives: Mapping[str, str | None]) -> Links | None:
    """Return the links that the driver of some GPUs reports.

    Each hive is one partition. None counts unless that of each GPU is known:
    with one more member a hive would be another partition.

    :param hives: by id of the GPU; None: unknown, or the GPU has no links
    :returns: None: no hive is known
    """
    known = sorted({hive for hive in hives.values() if hive is not None})
    if not known:
        return None
    unknown = list(hives.values()).count(None)
    if unknown:
        return Links(problem=f'the xGMI hive of {unknown} of {len(hives)} '
                             f'GPUs is not known')
    return Links(
        names=tuple(f'hive {hive}' for hive in known), partitions=tuple(
            frozenset(gpu for gpu, mine in hives.items() if mine == hive)
            for hive in known))


NOTHING_KNOWN = Links(problem='its links are not known')
"""Links of a group that nobody said anything about."""


def is_confined(links: Links | None, request: request_mod.Request) -> bool:
    """Return whether whole GPUs of a request must be exactly one partition.

    :param links: of the group; None: not known
    """
    return request.is_linked or (links is not None and links.fabric)


def partition_size_counts(sizes: Iterable[int]) -> dict[int, int]:
    """Return the number of partitions by their number of GPUs."""
    return dict(sorted(collections.Counter(sizes).items()))


def link_refusal(demand: request_mod.Demand, request: request_mod.Request,
                 sizes: Iterable[int], problem: str) -> request_mod.Refusal:
    """Return the refusal if no partition with so many GPUs is free.

    :param sizes: number of GPUs of each partition of the group
    :param problem: as of ``Links``
    """
    counts = partition_size_counts(sizes)
    known = (', '.join(f'{number} of {size}'
                       for size, number in counts.items()) or 'none')
    detail = (f'{demand} requested as one link partition, none of that size '
              f'is free; partitions by number of GPUs: {known}')
    return request_mod.Refusal(
        reason=(request_mod.Reason.TOPOLOGY_LINKED if request.is_linked
                else request_mod.Reason.LINK_PARTITION),
        detail=f'{detail} ({problem})' if problem else detail)


def link_kinds_refusal(
        request: request_mod.Request) -> request_mod.Refusal | None:
    """Return the refusal if linked GPUs are requested of several classes."""
    if not request.is_linked or len(request.demands) == 1:
        return None
    return request_mod.Refusal(
        reason=request_mod.Reason.TOPOLOGY_LINKED,
        detail=f'{request_mod.describe(request)} requested, but a link '
               f'partition has whole GPUs of one resource class')


# -- Tables of link partitions, as operators state them.
#
# A table is JSON. Nothing is derived from a model: boards of one model differ
# in their partitions, and an owner may change them::
#
#     {"named_by": "slot",
#      "fabric": true,
#      "modules": {"1": "GPU3", "2": "GPU1"},
#      "partitions": {"0": ["1", "2"], "1": ["1"], "2": ["2"]}}
#
# ``named_by`` says how GPUs are named: by ``order`` (0 is the one with the
# lowest PCI address), ``address`` or ``slot``. With ``modules``, partitions
# name GPUs by module id, and each module id has such a name. ``fabric`` is
# whether the board allows nothing but these partitions. NVIDIA's own form,
# ``partitionInfo``, can stand for ``partitions``.


_MAX_PARTITIONS = 256
_KEYS = ('fabric', 'modules', 'named_by', 'partitionInfo', 'partitions')
_Object = Mapping[str, typing.Any]


class NamedBy(enum.StrEnum):
    """Property by which a table names GPUs."""

    ORDER = 'order'
    ADDRESS = 'address'
    SLOT = 'slot'


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableGPU:
    """Names that a table can use for a GPU of a group.

    :ivar id: stable id
    """

    id: str
    address: str
    slot: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkTable:
    """Partitions of the GPUs of a host, or of each host of a variant.

    :ivar partitions: names of GPUs by the name of the partition
    """

    named_by: NamedBy
    fabric: bool
    partitions: Mapping[str, tuple[str, ...]]

    @property
    def gpu_names(self) -> frozenset[str]:
        """Return the names of all GPUs."""
        return frozenset(name for part in self.partitions.values()
                         for name in part)

    def links(self, gpus: Collection[TableGPU]) -> Links:
        """Return the partitions of which all GPUs are there.

        :param gpus: all known GPUs of a group, missing ones too
        """
        ids = self._ids(gpus)
        known = {name: frozenset(ids[gpu] for gpu in part)
                 for name, part in self.partitions.items()
                 if all(gpu in ids for gpu in part)}
        return Links(
            names=tuple(known), partitions=tuple(known.values()),
            fabric=self.fabric, problem=self.problem(gpus))

    def problem(self, gpus: Collection[TableGPU]) -> str:
        """Return why the table does not fit some GPUs; empty: it fits."""
        if self.named_by is NamedBy.ORDER:
            named = len(self.gpu_names)
            return '' if named == len(gpus) else (
                f'the table names {named} GPUs by their order, but the group '
                f'has {len(gpus)}')
        missing = sorted(self.gpu_names - self._ids(gpus).keys())
        if not missing:
            return ''
        has = ', '.join(sorted(str(getattr(gpu, self.named_by))
                               for gpu in gpus))
        return (f'the group has no GPU, or several, with {self.named_by} '
                f'{", ".join(missing)}; it has {has or "none"}')

    def _ids(self, gpus: Collection[TableGPU]) -> dict[str, str]:
        """Return the ids of the GPUs that the table names, by their names."""
        if self.named_by is NamedBy.ORDER:
            # Without one of them, each name might mean another GPU.
            if len(gpus) != len(self.gpu_names):
                return {}
            return {str(number): gpu.id
                    for number, gpu in enumerate(sorted(gpus, key=_place))}
        found = [(str(getattr(gpu, self.named_by)), gpu.id) for gpu in gpus]
        counts = collections.Counter(name for name, _ in found)
        return {name: gpu_id for name, gpu_id in found if counts[name] == 1}


def _place(gpu: TableGPU) -> pci.PCIAddress:
    return pci.PCIAddress.parse(gpu.address)


@functools.lru_cache(maxsize=1000)
def parse_link_table(text: str) -> LinkTable:
    """Return the table that a text states.

    :raises Invalid: the message names the field and what is expected
    """
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise _invalid('', text, f'JSON ({exc})') from None
    if not isinstance(found, dict):
        raise _invalid('', text, 'a JSON object with "partitions"')
    unknown = sorted(found.keys() - _KEYS)
    if unknown:
        raise _invalid('', ', '.join(unknown),
                       'only the keys ' + ', '.join(_KEYS))
    fabric = found.get('fabric', True)
    if not isinstance(fabric, bool):
        raise _invalid('fabric', fabric, 'true or false')
    named_by = _named_by(found)
    partitions = _partitions(found)
    _check_partitions(partitions)
    if 'modules' in found:
        partitions = _without_modules(partitions, found['modules'])
    return LinkTable(
        named_by=named_by, fabric=fabric,
        partitions=_checked_names(named_by, partitions))


def normalize_link_table(text: str) -> str:
    """Return a table in the one form in which it is kept.

    :raises Invalid: it is no table
    """
    table = parse_link_table(text)
    return json.dumps({
        'named_by': table.named_by, 'fabric': table.fabric,
        'partitions': table.partitions}, separators=(',', ':'))


def _invalid(field: str, value: object, expected: str) -> exception.Invalid:
    return exception.Invalid(
        field=f'link partitions: {field}' if field else 'link partitions',
        value=value, expected=expected)


def _named_by(found: _Object) -> NamedBy:
    try:
        return NamedBy(str(found.get('named_by')))
    except ValueError:
        raise _invalid(
            'named_by', found.get('named_by'),
            'one of ' + ', '.join(NamedBy)
            + ', which says how GPUs (or with "modules", modules) are named',
        ) from None


def _partitions(found: _Object) -> dict[str, tuple[str, ...]]:
    """Return the partitions as they are named, in any of the forms."""
    if ('partitions' in found) == ('partitionInfo' in found):
        raise _invalid('partitions', found.get('partitions'),
                       'either "partitions" or "partitionInfo"')
    if 'partitionInfo' in found:
        return _of_fabric_manager(found['partitionInfo'])
    stated = found['partitions']
    if isinstance(stated, list):
        stated = {str(number): part for number, part in enumerate(stated)}
    if not isinstance(stated, dict):
        raise _invalid('partitions', stated,
                       'lists of GPUs, by the name of the partition')
    return {name: _names(f'partition {name}', part)
            for name, part in stated.items()}


def _of_fabric_manager(stated: object) -> dict[str, tuple[str, ...]]:
    """Return the partitions of a file for, or a list by, fabric manager."""
    form = ('objects with "partitionId" and "gpuModuleIds", or "gpuInfo" '
            'with a "physicalId" of each GPU')
    if not isinstance(stated, list):
        raise _invalid('partitionInfo', stated, form)
    found: dict[str, tuple[str, ...]] = {}
    for entry in stated:
        try:
            name = str(entry['partitionId'])
            modules = (entry['gpuModuleIds'] if 'gpuModuleIds' in entry else [
                gpu['physicalId'] for gpu in entry['gpuInfo']])
        except (KeyError, TypeError):
            raise _invalid('partitionInfo', entry, form) from None
        if name in found:
            raise _invalid('partitionInfo', name, 'each partitionId once')
        found[name] = _names(f'partition {name}', modules)
    return found


def _names(field: str, part: object) -> tuple[str, ...]:
    if not isinstance(part, list) or not part or not all(
            isinstance(name, (int, str)) and not isinstance(name, bool)
            for name in part):
        raise _invalid(field, part, 'a list of names of GPUs, not empty')
    names = tuple(map(str, part))
    if len(set(names)) < len(names):
        raise _invalid(field, part, 'each GPU once')
    return names


def _check_partitions(partitions: Mapping[str, Sequence[str]]) -> None:
    """Refuse partitions that say nothing, or one thing twice."""
    if not 0 < len(partitions) <= _MAX_PARTITIONS:
        raise _invalid('partitions', len(partitions),
                       f'1 to {_MAX_PARTITIONS} partitions')
    first: dict[frozenset[str], str] = {}
    for name, part in partitions.items():
        same = first.setdefault(frozenset(part), name)
        if same != name:
            raise _invalid(f'partition {name}', list(part),
                           f'other GPUs than those of partition {same}')


def _without_modules(partitions: Mapping[str, Iterable[str]],
                     modules: object) -> dict[str, tuple[str, ...]]:
    """Return partitions that name GPUs directly."""
    if not isinstance(modules, dict) or not all(
            isinstance(name, (int, str)) for name in modules.values()):
        raise _invalid('modules', modules, 'names of GPUs by module id')
    names = {module: str(name) for module, name in modules.items()}
    used = {module for part in partitions.values() for module in part}
    unknown = sorted(used - names.keys())
    if unknown:
        raise _invalid('modules', ', '.join(names),
                       f'also module {", ".join(unknown)}, which partitions '
                       f'name')
    if len(set(names.values())) < len(names):
        raise _invalid('modules', modules, 'another GPU for each module')
    return {name: tuple(names[module] for module in part)
            for name, part in partitions.items()}


def _checked_names(named_by: NamedBy, partitions: Mapping[str, Sequence[str]],
                   ) -> dict[str, tuple[str, ...]]:
    """Return partitions whose names of GPUs are of the right form."""
    if named_by is NamedBy.ADDRESS:
        return {name: tuple(str(pci.PCIAddress.parse(gpu)) for gpu in part)
                for name, part in partitions.items()}
    names = {gpu for part in partitions.values() for gpu in part}
    if named_by is NamedBy.ORDER and names != set(
            map(str, range(len(names)))):
        raise _invalid(
            'partitions', ', '.join(sorted(names)),
            f'{len(names)} GPUs named 0 to {len(names) - 1}, in the order of '
            f'their PCI addresses; for module ids, add "modules"')
    return {name: tuple(part) for name, part in partitions.items()}
