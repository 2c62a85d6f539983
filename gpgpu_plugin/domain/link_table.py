# SPDX-License-Identifier: Apache-2.0
"""Tables of link partitions, as operators state them.

A table is JSON. Nothing is derived from a model: boards of one model differ in
their partitions, and an owner may change them::

    {"named_by": "slot",
     "fabric": true,
     "modules": {"1": "GPU3", "2": "GPU1"},
     "partitions": {"0": ["1", "2"], "1": ["1"], "2": ["2"]}}

``named_by`` says how GPUs are named: by ``order`` (0 is the one with the
lowest PCI address), ``address`` or ``slot``. With ``modules``, partitions name
GPUs by module id, and each module id has such a name. ``fabric`` is whether
the board allows nothing but these partitions. NVIDIA's own form,
``partitionInfo``, can stand for ``partitions``.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import links

_MOST_PARTITIONS = 256
_KEYS = ('fabric', 'modules', 'named_by', 'partitionInfo', 'partitions')
_Object = Mapping[str, typing.Any]


class NamedBy(enum.StrEnum):
    """Property by which a table names GPUs."""

    ORDER = 'order'
    ADDRESS = 'address'
    SLOT = 'slot'


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPU:
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

    def links(self, gpus: Collection[GPU]) -> links.Links:
        """Return the partitions of which all GPUs are there.

        :param gpus: all known GPUs of a group, missing ones too
        """
        ids = self._ids(gpus)
        known = {name: frozenset(ids[gpu] for gpu in part)
                 for name, part in self.partitions.items()
                 if all(gpu in ids for gpu in part)}
        return links.Links(
            names=tuple(known), partitions=tuple(known.values()),
            fabric=self.fabric, problem=self.problem(gpus))

    def problem(self, gpus: Collection[GPU]) -> str:
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

    def _ids(self, gpus: Collection[GPU]) -> dict[str, str]:
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


def _place(gpu: GPU) -> pci.PCIAddress:
    return pci.PCIAddress.parse(gpu.address)


@functools.lru_cache(maxsize=1000)
def parse(text: str) -> LinkTable:
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


def normalize(text: str) -> str:
    """Return a table in the one form in which it is kept.

    :raises Invalid: it is no table
    """
    table = parse(text)
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
    if not 0 < len(partitions) <= _MOST_PARTITIONS:
        raise _invalid('partitions', len(partitions),
                       f'1 to {_MOST_PARTITIONS} partitions')
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
