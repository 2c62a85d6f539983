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
"""Rules of what a card of a fake machine can be carved into.

gpgpu_plugin.host.fake.vgpu_driver goes by them and says what is in one. A file
with some may come from a stranger, and names of types become names of
folders: so all of it is checked, once, before anything is made.
"""

from __future__ import annotations

import typing
from collections.abc import Collection
from collections.abc import Mapping

from gpgpu_plugin import exception
from gpgpu_plugin.host.fake import tree as tree_mod

SEATS = ('mdev', 'vf', 'vf_mdev')
SHARINGS = ('same_type', 'equal_size', 'any_mix', 'mixed_size')
# More than any card has of anything.
_MAX = 2 ** 31


def check(name: object, rule: object) -> None:
    """See that a rule is one.

    :param name: of the function, or parent of mdevs, that it is about
    :raises Invalid: it is none
    """
    if not (isinstance(name, str) and tree_mod.is_name(name)):
        raise _invalid('vgpu', name, 'the name of a device')
    field = f'vgpu {name}'
    rule = _mapping(field, rule, ('mechanism', 'types'),
                    ('mix_policy', 'placements'))
    _one_of(f'{field}: seats', rule['mechanism'], SEATS)
    if 'mix_policy' in rule:
        _one_of(f'{field}: sharing', rule['mix_policy'], SHARINGS)
    sizes = _sizes(f'{field}: types', rule['types'])
    if 'placements' in rule:
        _placements(f'{field}: placements', rule['placements'], sizes)
    elif rule.get('mix_policy') == 'mixed_size':
        raise _invalid(field, rule, 'with placements, as it is mixed_size')


def gigabytes(video_ram: int) -> int:
    """The size of a type, as placements have it; of whole MiB."""
    return -(-video_ram // 1024)


def _sizes(field: str, types: object) -> set[int]:
    """Sizes of the types."""
    if not isinstance(types, Mapping) or not types:
        raise _invalid(field, types, 'a mapping of types')
    sizes = set()
    for type_id, facts in types.items():
        # A VF without a type has number 0.
        if not (isinstance(type_id, str) and tree_mod.is_name(type_id)
                and type_id != '0'):
            raise _invalid(field, type_id,
                           'the driver\'s number in quotes, without "/"')
        kind = f'{field}: {type_id}'
        facts = _mapping(kind, facts, ('name', 'video_ram', 'max'),
                         ('description',))
        for key in ('name', 'description'):
            if not isinstance(facts.get(key, ''), str):
                raise _invalid(f'{kind}: {key}', facts[key], 'a text')
        for key in ('video_ram', 'max'):
            if not _is_number(facts[key], 1):
                raise _invalid(f'{kind}: {key}', facts[key], 'a number')
        sizes.add(gigabytes(facts['video_ram']))
    return sizes


def _placements(field: str, placements: object, sizes: set[int]) -> None:
    if not isinstance(placements, Mapping) or sizes - placements.keys():
        raise _invalid(field, placements,
                       'places by size, for each size of a type: '
                       + ', '.join(map(str, sorted(sizes))))
    for size, places in placements.items():
        if not (_is_number(size, 1) and isinstance(places, list)
                and all(_is_number(each, 0) for each in places)):
            raise _invalid(field, {size: places}, 'a list of GiB')


def _mapping(field: str, value: object, needed: Collection[str],
             allowed: Collection[str]) -> Mapping[str, typing.Any]:
    if not (isinstance(value, Mapping)
            and {*needed} <= value.keys() <= {*needed, *allowed}):
        raise _invalid(
            field, value, f'a mapping with {", ".join(needed)}, and perhaps '
                          f'{", ".join(allowed)}')
    return value


def _one_of(field: str, value: object, words: Collection[str]) -> None:
    if value not in words:
        raise _invalid(field, value, f'one of {", ".join(words)}')


def _is_number(value: object, least: int) -> bool:
    # True is an int, too.
    return type(value) is int and least <= value < _MAX


def _invalid(field: str, value: object, expected: str) -> exception.Invalid:
    return exception.Invalid(field=field, value=value, expected=expected)
