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
"""The vendor's driver of fake machines: vGPUs that appear, run out and go.

Attributes behave as those of NVIDIA's drivers: what can be made shrinks and
grows with what is there, by the rule of the card (``same_type``: the first
one decides; ``equal_size``: its framebuffer does, as drivers were seen doing,
tests/listings/a6000-one-2q.txt; ``any_mix``: what is left of the framebuffer;
``mixed_size``: the places for each size, of which the driver takes the last
free one for a vGPU that it is not told about). The rule is in a file
of the function that no real sysfs has; so is where a vGPU is.
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
from collections.abc import Iterable

from gpgpu_plugin import exception
from gpgpu_plugin.host.fake import vgpu_rule

# No name of a tree begins with a dot (gpgpu_plugin.host.fake.tree).
RULE = '.vgpu.json'
# Of a vGPU: where it is on its card, and its size.
PLACE = '.place.json'
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def equip(root: pathlib.Path, folder: pathlib.Path,
          rule: typing.Mapping[str, typing.Any]) -> None:
    """Let a function be carved.

    :param root: of the tree
    :param rule: ``seats`` (``mdev``, ``vf``, or ``vf_mdev`` for one mdev on
        each VF), ``sharing``, ``types`` by the driver's number, each with
        ``name``, ``video_ram`` (MiB), ``max`` and, for mdevs,
        ``description``; ``placements`` by size, both in GiB, of cards with
        mixed-size mode
    """
    if rule['mechanism'] == 'mdev':
        _offer_mdevs(root, folder, rule)
    set_rule(folder, rule)


def set_rule(folder: pathlib.Path,
             rule: typing.Mapping[str, typing.Any]) -> None:
    """Let what a function offers already, as in a recording, be made.

    :param rule: see equip
    :raises Invalid: it is not of this function
    """
    (folder / RULE).write_text(json.dumps(rule))
    carving = VGPUDriver(folder)
    carving.check()
    carving.show()


def equip_vfs(root: pathlib.Path, pf: pathlib.Path,
              vfs: Iterable[pathlib.Path]) -> None:
    """Let new VFs be carved, if their PF can be."""
    if not (pf / RULE).exists():
        return
    rule = json.loads((pf / RULE).read_text())
    for vf in vfs:
        if rule['mechanism'] == 'vf_mdev':
            _offer_mdevs(root, vf, rule)
        else:
            (vf / 'nvidia').mkdir()
            (vf / 'nvidia/current_vgpu_type').write_text('0\n')
            _offer_placement(vf, rule)
    VGPUDriver(pf).show()


def _offer_placement(vgpu: pathlib.Path,
                     rule: typing.Mapping[str, typing.Any]) -> None:
    """What the driver shows as long as no guest uses the vGPU."""
    if 'placements' in rule:
        (vgpu / 'nvidia').mkdir(exist_ok=True)
        (vgpu / 'nvidia/placement_id').write_text('Not Applicable\n')


def drop_vf(root: pathlib.Path, vf: pathlib.Path) -> None:
    """Forget what is on a VF that goes."""
    (root / 'class/mdev_bus' / vf.name).unlink(missing_ok=True)
    for path in vf.glob('*/mdev_type'):
        (root / 'bus/mdev/devices' / path.parent.name).unlink()


def _offer_mdevs(root: pathlib.Path, folder: pathlib.Path,
                 rule: typing.Mapping[str, typing.Any]) -> None:
    for type_id, facts in rule['types'].items():
        path = folder / 'mdev_supported_types' / str(type_id)
        (path / 'devices').mkdir(parents=True)
        for name in ('name', 'description'):
            if name in facts:
                (path / name).write_text(f'{facts[name]}\n')
        (path / 'device_api').write_text('vfio-pci\n')
        (path / 'create').touch()
    bus = root / 'class/mdev_bus'
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(os.path.relpath(folder, bus))


class VGPUDriver:
    """One card.

    :param function: folder of a function, or of a VF of it
    """

    def __init__(self, function: pathlib.Path) -> None:
        self._function = function
        self._folder = function if (function / RULE).exists() else (
            function / 'physfn').resolve()
        self._rule = json.loads((self._folder / RULE).read_text())

    def mixed_size(self) -> None:
        """``nvidia-smi vgpu -shm 1``: sizes beside each other, from now on.

        :raises OSError: EBUSY: it has vGPUs
        """
        if self._vgpus():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY),
                          str(self._folder))
        set_rule(self._folder, {**self._rule, 'mix_policy': 'mixed_size'})

    def check(self) -> None:
        """See that the rule fits what is there already.

        :raises Invalid: there are other types, or vGPUs without a place
        """
        vgpus = self._vgpus()
        unknown = {*vgpus.values(), *(
            path.name for function in (self._folder, *self._vfs())
            for path in (function / 'mdev_supported_types').glob('*'))
        } - self._rule['types'].keys()
        if unknown:
            raise exception.Invalid(
                field=f'vgpu {self._folder.name}: types',
                value=', '.join(self._rule['types']),
                expected=f'also {", ".join(sorted(unknown))}, which it has')
        if self._sharing == 'mixed_size' and not all(
                (vgpu / PLACE).exists() for vgpu in vgpus):
            raise exception.Invalid(
                field=f'vgpu {self._folder.name}: sharing',
                value=self._sharing,
                expected='another one where there are vGPUs, whose places '
                         'nothing says')

    def create_mdev(self, type_id: str, uuid: str,
                    bus: pathlib.Path) -> None:
        """``create`` of a type.

        :param uuid: of either case; the name of the mdev is lower-case
        :param bus: folder of all mdevs
        :raises OSError: EINVAL no UUID, EEXIST taken, ENOSPC no room
        """
        uuid = uuid.lower()
        if not _UUID.fullmatch(uuid):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), uuid)
        if (bus / uuid).is_symlink():
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), uuid)
        if not min(self._seats(self._function),
                   self._left().get(type_id, 0)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), type_id)
        mdev = self._function / uuid
        mdev.mkdir()
        self._put_anywhere(mdev, type_id)
        (mdev / 'remove').touch()
        (mdev / 'mdev_type').symlink_to(
            f'../mdev_supported_types/{type_id}')
        bus.mkdir(parents=True, exist_ok=True)
        (bus / uuid).symlink_to(os.path.relpath(mdev, bus))
        (self._of_type(mdev) / uuid).symlink_to(f'../../../{uuid}')
        _offer_placement(mdev, self._rule)
        self.show()

    def remove_mdev(self, uuid: str, bus: pathlib.Path) -> None:
        """``remove`` of an mdev."""
        mdev = self._function / uuid
        (bus / uuid).unlink()
        (self._of_type(mdev) / uuid).unlink()
        shutil.rmtree(mdev)
        self.show()

    @staticmethod
    def _of_type(mdev: pathlib.Path) -> pathlib.Path:
        """Where the type of an mdev lists those of its kind."""
        return (mdev / 'mdev_type').resolve() / 'devices'

    def set_type(self, vf: pathlib.Path, type_id: str) -> None:
        """``current_vgpu_type`` of a VF.

        :raises OSError: EBUSY it has one, EINVAL no such type, or no room
        """
        path = vf / 'nvidia/current_vgpu_type'
        if type_id != '0':
            if path.read_text().strip() != '0':
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), type_id)
            if not self._left().get(type_id, 0):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL),
                              type_id)
            self._put_anywhere(vf, type_id)
        path.write_text(f'{type_id}\n')
        _offer_placement(vf, self._rule)
        self.show()

    def place(self, vgpu: pathlib.Path, text: str) -> None:
        """``placement_id`` of a vGPU.

        :param vgpu: an mdev, or a VF with a type
        :raises OSError: EINVAL: it cannot be there
        """
        others = self._vgpus()
        type_id = others.pop(vgpu, None)
        if (self._sharing != 'mixed_size' or type_id is None
                or text not in map(str, self._free(type_id, others))):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), text)
        self._put(vgpu, type_id, int(text))
        (vgpu / 'nvidia/placement_id').write_text(f'{text}\n')
        self.show()

    def show(self) -> None:
        """Bring what is shown up to date."""
        vfs = self._vfs()
        left = self._left()
        for function in (self._folder, *vfs):
            seats = self._seats(function)
            for path in (function / 'mdev_supported_types').glob('*'):
                (path / 'available_instances').write_text(
                    f'{min(seats, left[path.name])}\n')
        text = 'ID    : vGPU Name\n' + ''.join(
            f'{type_id:<5} : {facts["name"]}\n'
            for type_id, facts in self._rule['types'].items()
            if left[type_id])
        for vf in vfs:
            if (vf / 'nvidia').is_dir():
                (vf / 'nvidia/creatable_vgpu_types').write_text(text)

    def _vfs(self) -> list[pathlib.Path]:
        return [path.resolve() for path in self._folder.glob('virtfn*')]

    def _seats(self, function: pathlib.Path) -> float:
        """How many more mdevs there may be on it: of a VF one at most."""
        if function == self._folder:
            return math.inf
        return 0 if any(function.glob('*/mdev_type')) else 1

    @property
    def _sharing(self) -> str:
        return str(self._rule.get('mix_policy', 'same_type'))

    def _vgpus(self) -> dict[pathlib.Path, str]:
        """Mdevs and VFs that have a type, with its number."""
        vfs = self._vfs()
        found = {path.parent: os.path.basename(os.readlink(path))
                 for function in (self._folder, *vfs)
                 for path in function.glob('*/mdev_type')}
        for vf in vfs:
            path = vf / 'nvidia/current_vgpu_type'
            if path.exists() and (text := path.read_text().strip()) != '0':
                found[vf] = text
        return found

    def _left(self) -> dict[str, int]:
        """How many more of each type the card takes."""
        types = self._rule['types']
        vgpus = self._vgpus()
        used = collections.Counter(vgpus.values())
        memory = max(facts['video_ram'] * facts['max']
                     for facts in types.values())
        memory -= sum(types[each]['video_ram'] * count
                      for each, count in used.items())

        def of(type_id: str) -> int:
            most, size = (int(types[type_id][key])
                          for key in ('max', 'video_ram'))
            if self._sharing == 'same_type':
                return 0 if used.keys() - {type_id} else most - used[type_id]
            if self._sharing == 'equal_size':
                others = {types[each]['video_ram'] for each in used} - {size}
                return 0 if others else most - used.total()
            if self._sharing == 'mixed_size':
                return len(self._free(type_id, vgpus))
            return int(max(0, memory) // size)
        return {type_id: of(type_id) for type_id in types}

    def _gigabytes(self, type_id: str) -> int:
        return vgpu_rule.gigabytes(
            int(self._rule['types'][type_id]['video_ram']))

    def _free(self, type_id: str,
              vgpus: Iterable[pathlib.Path]) -> list[int]:
        """Places where one more of a type can be."""
        size = self._gigabytes(type_id)
        taken = [json.loads((vgpu / PLACE).read_text()) for vgpu in vgpus]
        return [place for place in self._rule['placements'][str(size)]
                if all(place + size <= begin or begin + length <= place
                       for begin, length in taken)]

    def _put_anywhere(self, vgpu: pathlib.Path, type_id: str) -> None:
        if self._sharing == 'mixed_size':
            self._put(vgpu, type_id,
                      self._free(type_id, self._vgpus())[-1])

    def _put(self, vgpu: pathlib.Path, type_id: str, place: int) -> None:
        (vgpu / PLACE).write_text(json.dumps(
            (place, self._gigabytes(type_id))))
