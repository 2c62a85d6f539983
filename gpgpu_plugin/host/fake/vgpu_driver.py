# SPDX-License-Identifier: Apache-2.0
"""Vendor's driver of fake machines, and the vGPUs that it allows.

A rule says which vGPUs a GPU can have, and ``VGPUDriver`` applies it. An
operator's file may have rules, and names of types become names of folders;
therefore a rule is checked as a whole before anything is written.
"""

from __future__ import annotations

import collections
import errno
import json
import math
import os
import pathlib
import re
import shutil
import typing
from collections.abc import Collection
from collections.abc import Iterable
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


def check_rule(name: object, value: object) -> VGPURule:
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


# -- Vendor's driver of fake machines, which creates and removes vGPUs.
#
# The attributes in sysfs behave as those of NVIDIA's drivers: what can be
# created depends on the vGPUs that exist, by the mix policy of the GPU:
#
# * ``same_type``: the first vGPU decides the type;
# * ``equal_size``: the first vGPU decides the size of the framebuffer, as
#   drivers were observed to do (tests/listings/a6000-one-2q.txt);
# * ``any_mix``: whatever fits into the remaining framebuffer;
# * ``mixed_size``: types have placements. The driver takes the last free one
#   for a vGPU until it is given another one.
#
# The rule is in a file beside the function's attributes, and the placement in
# one beside those of the vGPU. Their names begin with a dot, which no name of
# a recorded tree does (gpgpu_plugin.host.fake.tree).


RULE = '.vgpu.json'
# (start, size) of a vGPU in GiB.
PLACEMENT = '.placement.json'
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def add_types(root: pathlib.Path, folder: pathlib.Path,
              rule: VGPURule) -> None:
    """Enable vGPUs on a function, and show their types in sysfs.

    :param root: of the tree
    :param folder: of the function
    """
    if rule['mechanism'] == 'mdev':
        _add_mdev_types(root, folder, rule)
    set_rule(folder, rule)


def set_rule(folder: pathlib.Path, rule: VGPURule) -> None:
    """Enable vGPUs on a function of a recording that shows vGPU types.

    :raises Invalid: the rule does not fit what the function shows
    """
    (folder / RULE).write_text(json.dumps(rule))
    driver = VGPUDriver(folder)
    driver.check()
    driver.update()


def add_vfs(root: pathlib.Path, pf: pathlib.Path,
            vfs: Iterable[pathlib.Path]) -> None:
    """Enable vGPUs on new VFs if their PF has a rule."""
    if not (pf / RULE).exists():
        return
    rule: VGPURule = json.loads((pf / RULE).read_text())
    for vf in vfs:
        if rule['mechanism'] == 'vf_mdev':
            _add_mdev_types(root, vf, rule)
        else:
            (vf / 'nvidia').mkdir()
            (vf / 'nvidia/current_vgpu_type').write_text('0\n')
            _clear_placement(vf, rule)
    VGPUDriver(pf).update()


def remove_vf(root: pathlib.Path, vf: pathlib.Path) -> None:
    """Remove a VF, and mdevs on it, from the buses of mdevs."""
    (root / 'class/mdev_bus' / vf.name).unlink(missing_ok=True)
    for path in vf.glob('*/mdev_type'):
        (root / 'bus/mdev/devices' / path.parent.name).unlink()


def _clear_placement(vgpu: pathlib.Path, rule: VGPURule) -> None:
    """Write the placement that a vGPU shows while no guest uses it."""
    if 'placements' in rule:
        (vgpu / 'nvidia').mkdir(exist_ok=True)
        (vgpu / 'nvidia/placement_id').write_text('Not Applicable\n')


def _add_mdev_types(root: pathlib.Path, folder: pathlib.Path,
                    rule: VGPURule) -> None:
    for type_id, facts in rule['types'].items():
        path = folder / 'mdev_supported_types' / str(type_id)
        (path / 'devices').mkdir(parents=True)
        for name, text in (('name', facts.get('name')),
                           ('description', facts.get('description'))):
            if text is not None:
                (path / name).write_text(f'{text}\n')
        (path / 'device_api').write_text('vfio-pci\n')
        (path / 'create').touch()
    bus = root / 'class/mdev_bus'
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(os.path.relpath(folder, bus))


def _error(number: int, value: str) -> OSError:
    return OSError(number, os.strerror(number), value)


class VGPUDriver:
    """The driver of one GPU.

    :param function: folder of the GPU, or of a VF of it
    """

    def __init__(self, function: pathlib.Path) -> None:
        self._function = function
        self._gpu = function if (function / RULE).exists() else (
            function / 'physfn').resolve()
        self._rule: VGPURule = json.loads(
            (self._gpu / RULE).read_text())

    def enable_mixed_size(self) -> None:
        """Switch the GPU to mixed-size mode, as ``nvidia-smi vgpu -shm 1``.

        :raises OSError: EBUSY: it has vGPUs
        """
        if self._vgpus():
            raise _error(errno.EBUSY, str(self._gpu))
        set_rule(self._gpu, {**self._rule, 'mix_policy': 'mixed_size'})

    def check(self) -> None:
        """Check that the rule fits the types and vGPUs that exist.

        :raises Invalid: there are other types, or vGPUs without a placement
        """
        vgpus = self._vgpus()
        unknown = {*vgpus.values(), *(
            path.name for function in (self._gpu, *self._vfs())
            for path in (function / 'mdev_supported_types').glob('*'))
        } - self._rule['types'].keys()
        if unknown:
            raise exception.Invalid(
                field=f'vgpu {self._gpu.name}: types',
                value=', '.join(self._rule['types']),
                expected=f'also {", ".join(sorted(unknown))}, which it has')
        if self._mix_policy == 'mixed_size' and not all(
                (vgpu / PLACEMENT).exists() for vgpu in vgpus):
            raise exception.Invalid(
                field=f'vgpu {self._gpu.name}: mix_policy',
                value=self._mix_policy,
                expected='another one, since vGPUs exist whose placements '
                         'are not recorded')

    def create_mdev(self, type_id: str, uuid: str,
                    bus: pathlib.Path) -> None:
        """Create an mdev: a write to ``create`` of a type.

        :param uuid: of either case; the name of the mdev is lower-case
        :param bus: folder of all mdevs
        :raises OSError: EINVAL no UUID, EEXIST taken, ENOSPC no more fit
        """
        uuid = uuid.lower()
        if not _UUID.fullmatch(uuid):
            raise _error(errno.EINVAL, uuid)
        if (bus / uuid).is_symlink():
            raise _error(errno.EEXIST, uuid)
        if not min(self._max_mdevs(self._function),
                   self._available().get(type_id, 0)):
            raise _error(errno.ENOSPC, type_id)
        mdev = self._function / uuid
        mdev.mkdir()
        self._choose_placement(mdev, type_id)
        (mdev / 'remove').touch()
        (mdev / 'mdev_type').symlink_to(
            f'../mdev_supported_types/{type_id}')
        bus.mkdir(parents=True, exist_ok=True)
        (bus / uuid).symlink_to(os.path.relpath(mdev, bus))
        (self._mdevs_of_type(mdev) / uuid).symlink_to(f'../../../{uuid}')
        _clear_placement(mdev, self._rule)
        self.update()

    def remove_mdev(self, uuid: str, bus: pathlib.Path) -> None:
        """Remove an mdev: a write to its ``remove``."""
        mdev = self._function / uuid
        (bus / uuid).unlink()
        (self._mdevs_of_type(mdev) / uuid).unlink()
        shutil.rmtree(mdev)
        self.update()

    @staticmethod
    def _mdevs_of_type(mdev: pathlib.Path) -> pathlib.Path:
        """Return the folder that lists all mdevs of the mdev's type."""
        return (mdev / 'mdev_type').resolve() / 'devices'

    def set_type(self, vf: pathlib.Path, type_id: str) -> None:
        """Set the type of a VF: a write to its ``current_vgpu_type``.

        :raises OSError: EBUSY it has one, EINVAL no such type, or no more fit
        """
        path = vf / 'nvidia/current_vgpu_type'
        if type_id != '0':
            if path.read_text().strip() != '0':
                raise _error(errno.EBUSY, type_id)
            if not self._available().get(type_id, 0):
                raise _error(errno.EINVAL, type_id)
            self._choose_placement(vf, type_id)
        path.write_text(f'{type_id}\n')
        _clear_placement(vf, self._rule)
        self.update()

    def set_placement(self, vgpu: pathlib.Path, text: str) -> None:
        """Set the placement of a vGPU: a write to its ``placement_id``.

        :param vgpu: an mdev, or a VF with a type
        :raises OSError: EINVAL: the vGPU does not fit there
        """
        others = self._vgpus()
        type_id = others.pop(vgpu, None)
        if (self._mix_policy != 'mixed_size' or type_id is None
                or text not in map(str, self._free(type_id, others))):
            raise _error(errno.EINVAL, text)
        self._write_placement(vgpu, type_id, int(text))
        (vgpu / 'nvidia/placement_id').write_text(f'{text}\n')
        self.update()

    def update(self) -> None:
        """Update ``available_instances`` and similar attributes."""
        vfs = self._vfs()
        available = self._available()
        for function in (self._gpu, *vfs):
            max_mdevs = self._max_mdevs(function)
            for path in (function / 'mdev_supported_types').glob('*'):
                (path / 'available_instances').write_text(
                    f'{min(max_mdevs, available[path.name])}\n')
        text = 'ID    : vGPU Name\n' + ''.join(
            f'{type_id:<5} : {facts["name"]}\n'
            for type_id, facts in self._rule['types'].items()
            if available[type_id])
        for vf in vfs:
            if (vf / 'nvidia').is_dir():
                (vf / 'nvidia/creatable_vgpu_types').write_text(text)

    def _vfs(self) -> list[pathlib.Path]:
        return [path.resolve() for path in self._gpu.glob('virtfn*')]

    def _max_mdevs(self, function: pathlib.Path) -> float:
        """Return how many more mdevs a function takes: a VF takes one."""
        if function == self._gpu:
            return math.inf
        return 0 if any(function.glob('*/mdev_type')) else 1

    @property
    def _mix_policy(self) -> str:
        return self._rule.get('mix_policy', 'same_type')

    def _vgpus(self) -> dict[pathlib.Path, str]:
        """Return the mdevs and the VFs with a type, with the type's id."""
        vfs = self._vfs()
        found = {path.parent: os.path.basename(os.readlink(path))
                 for function in (self._gpu, *vfs)
                 for path in function.glob('*/mdev_type')}
        for vf in vfs:
            path = vf / 'nvidia/current_vgpu_type'
            if path.exists() and (text := path.read_text().strip()) != '0':
                found[vf] = text
        return found

    def _available(self) -> dict[str, int]:
        """Return how many more vGPUs of each type fit on the GPU."""
        vgpus = self._vgpus()
        return {type_id: self._available_of(type_id, vgpus)
                for type_id in self._rule['types']}

    def _available_of(self, type_id: str,
                      vgpus: dict[pathlib.Path, str]) -> int:
        types = self._rule['types']
        facts = types[type_id]
        used = collections.Counter(vgpus.values())
        if self._mix_policy == 'same_type':
            return 0 if used.keys() - {type_id} else (
                facts['max'] - used[type_id])
        if self._mix_policy == 'equal_size':
            sizes = {types[other]['video_ram'] for other in used}
            return 0 if sizes - {facts['video_ram']} else (
                facts['max'] - used.total())
        if self._mix_policy == 'mixed_size':
            return len(self._free(type_id, vgpus))
        return self._free_memory(used.elements()) // facts['video_ram']

    def _free_memory(self, type_ids: Iterable[str]) -> int:
        """Return the framebuffer in MiB that vGPUs of types leave."""
        types = self._rule['types']
        memory = max(facts['video_ram'] * facts['max']
                     for facts in types.values())
        return max(0, memory - sum(
            types[type_id]['video_ram'] for type_id in type_ids))

    def _gigabytes(self, type_id: str) -> int:
        return gigabytes(self._rule['types'][type_id]['video_ram'])

    def _free(self, type_id: str,
              vgpus: Collection[pathlib.Path]) -> list[int]:
        """Return the placements at which one more vGPU of a type fits."""
        size = self._gigabytes(type_id)
        taken = [json.loads((vgpu / PLACEMENT).read_text())
                 for vgpu in vgpus]
        return [start for start in self._rule['placements'][str(size)]
                if all(start + size <= begin or begin + length <= start
                       for begin, length in taken)]

    def _choose_placement(self, vgpu: pathlib.Path, type_id: str) -> None:
        if self._mix_policy == 'mixed_size':
            self._write_placement(
                vgpu, type_id, self._free(type_id, self._vgpus())[-1])

    def _write_placement(self, vgpu: pathlib.Path, type_id: str,
                         start: int) -> None:
        (vgpu / PLACEMENT).write_text(json.dumps(
            (start, self._gigabytes(type_id))))
