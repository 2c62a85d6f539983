# SPDX-License-Identifier: Apache-2.0
"""Rules that say which vGPUs a GPU of a fake machine can have.

gpgpu_plugin.host.fake.vgpu_driver applies them. An operator's file may have
rules, and names of types become names of folders; therefore a rule is checked
as a whole before anything is written.
"""

from __future__ import annotations

import typing
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.host.fake import tree as tree_mod

MECHANISMS = ('mdev', 'vf', 'vf_mdev')
MIX_POLICIES = ('same_type', 'equal_size', 'any_mix', 'mixed_size')
# More than any GPU has of anything.
_MAX = 2 ** 31


class TypeRule(typing.TypedDict):
    """One vGPU type.

    ``video_ram`` in MiB; ``max``: how many fit on an empty GPU;
    ``description``: of mdev types.
    """

    name: str
    video_ram: int
    max: int
    description: typing.NotRequired[str]


class VGPURule(typing.TypedDict):
    """Rule that says which vGPUs one GPU can have.

    ``mechanism``: ``mdev``, ``vf``, or ``vf_mdev`` for one mdev on each VF;
    ``mix_policy``: one of MIX_POLICIES, by default ``same_type``; ``types`` by
    the driver's id; ``placements`` by size, both in GiB, of GPUs with
    mixed-size mode (keys are texts once the rule was stored as JSON).
    """

    mechanism: str
    types: Mapping[str, TypeRule]
    mix_policy: typing.NotRequired[str]
    placements: typing.NotRequired[Mapping[str, Sequence[int]]]


def check(name: object, value: object) -> VGPURule:
    """Check a value and return it as a rule.

    :param name: of the PCI function or mdev parent that the rule is for
    :raises Invalid: it is not a rule; the message names the wrong part
    """
    if not (isinstance(name, str) and tree_mod.is_name(name)):
        raise _invalid('vgpu', name, 'the name of a device')
    field = f'vgpu {name}'
    rule = _mapping(field, value, ('mechanism', 'types'),
                    ('mix_policy', 'placements'))
    _one_of(f'{field}: mechanism', rule['mechanism'], MECHANISMS)
    if 'mix_policy' in rule:
        _one_of(f'{field}: mix_policy', rule['mix_policy'], MIX_POLICIES)
    sizes = _sizes(f'{field}: types', rule['types'])
    if 'placements' in rule:
        _placements(f'{field}: placements', rule['placements'], sizes)
    elif rule.get('mix_policy') == 'mixed_size':
        raise _invalid(field, rule, 'with placements, as it is mixed_size')
    return typing.cast(VGPURule, rule)


def gigabytes(video_ram: int) -> int:
    """Return the size of a type in GiB, rounded up, as placements have it.

    :param video_ram: in MiB
    """
    return -(-video_ram // 1024)


def _sizes(field: str, types: object) -> set[int]:
    """Check the types and return their sizes in GiB."""
    if not isinstance(types, Mapping) or not types:
        raise _invalid(field, types, 'a mapping of types')
    sizes = set()
    for type_id, facts in types.items():
        # A VF without a type reads 0.
        if not (isinstance(type_id, str) and tree_mod.is_name(type_id)
                and type_id != '0'):
            raise _invalid(field, type_id,
                           'the driver\'s id in quotes, without "/"')
        sizes.add(_size(f'{field}: {type_id}', facts))
    return sizes


def _size(field: str, value: object) -> int:
    facts = _mapping(field, value, ('name', 'video_ram', 'max'),
                     ('description',))
    for key in ('name', 'description'):
        if not isinstance(facts.get(key, ''), str):
            raise _invalid(f'{field}: {key}', facts[key], 'a text')
    video_ram = _number(f'{field}: video_ram', facts['video_ram'])
    _number(f'{field}: max', facts['max'])
    return gigabytes(video_ram)


def _placements(field: str, placements: object, sizes: set[int]) -> None:
    if not isinstance(placements, Mapping) or sizes - placements.keys():
        raise _invalid(field, placements,
                       'lists of placements for all sizes of the types: '
                       + ', '.join(map(str, sorted(sizes))))
    for size, starts in placements.items():
        if not (_is_number(size, 1) and isinstance(starts, list)
                and all(_is_number(start, 0) for start in starts)):
            raise _invalid(field, {size: starts}, 'a list of GiB')


def _mapping(field: str, value: object, needed: Collection[str],
             allowed: Collection[str]) -> Mapping[str, object]:
    if not (isinstance(value, Mapping)
            and {*needed} <= value.keys() <= {*needed, *allowed}):
        raise _invalid(
            field, value, f'a mapping with {", ".join(needed)}, and perhaps '
                          f'{", ".join(allowed)}')
    return value


def _one_of(field: str, value: object, words: Collection[str]) -> None:
    if value not in words:
        raise _invalid(field, value, f'one of {", ".join(words)}')


def _number(field: str, value: object) -> int:
    if not _is_number(value, 1):
        raise _invalid(field, value, 'a number')
    return value


def _is_number(value: object, least: int) -> typing.TypeGuard[int]:
    # isinstance would take True for a number.
    return type(value) is int and least <= value < _MAX


def _invalid(field: str, value: object, expected: str) -> exception.Invalid:
    return exception.Invalid(field=field, value=value, expected=expected)
