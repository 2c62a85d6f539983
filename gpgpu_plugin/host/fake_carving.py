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
one decides; ``same_size``: its framebuffer does, as drivers were seen doing,
tests/listings/a6000-one-2q.txt; ``mixed``: what is left of the framebuffer).
The rule is in a file of the function that no real sysfs has.
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

RULE = '.vgpu.json'
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def equip(root: pathlib.Path, folder: pathlib.Path,
          rule: typing.Mapping[str, typing.Any]) -> None:
    """Let a function be carved.

    :param root: of the tree
    :param rule: ``seats`` (``mdev``, ``vf``, or ``vf_mdev`` for one mdev on
        each VF), ``sharing``, ``types`` by the driver's number, each with
        ``name``, ``video_ram`` (MiB), ``max`` and, for mdevs,
        ``description``
    """
    if rule['seats'] == 'mdev':
        _offer_mdevs(root, folder, rule)
    set_rule(folder, rule)


def set_rule(folder: pathlib.Path,
             rule: typing.Mapping[str, typing.Any]) -> None:
    """Let what a function offers already, as in a recording, be made.

    :param rule: see equip
    """
    (folder / RULE).write_text(json.dumps(rule))
    Carving(folder).show()


def equip_vfs(root: pathlib.Path, pf: pathlib.Path,
              vfs: Iterable[pathlib.Path]) -> None:
    """Let new VFs be carved, if their PF can be."""
    if not (pf / RULE).exists():
        return
    rule = json.loads((pf / RULE).read_text())
    for vf in vfs:
        if rule['seats'] == 'vf_mdev':
            _offer_mdevs(root, vf, rule)
        else:
            (vf / 'nvidia').mkdir()
            (vf / 'nvidia/current_vgpu_type').write_text('0\n')
    Carving(pf).show()


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


class Carving:
    """One card.

    :param function: folder of a function, or of a VF of it
    """

    def __init__(self, function: pathlib.Path) -> None:
        self._function = function
        self._folder = function if (function / RULE).exists() else (
            function / 'physfn').resolve()
        self._rule = json.loads((self._folder / RULE).read_text())

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
        (mdev / 'remove').touch()
        (mdev / 'mdev_type').symlink_to(
            f'../mdev_supported_types/{type_id}')
        bus.mkdir(parents=True, exist_ok=True)
        (bus / uuid).symlink_to(os.path.relpath(mdev, bus))
        (self._of_type(mdev) / uuid).symlink_to(f'../../../{uuid}')
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
        path.write_text(f'{type_id}\n')
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

    def _used(self) -> collections.Counter[str]:
        vfs = self._vfs()
        mdevs = [os.path.basename(os.readlink(path))
                 for function in (self._folder, *vfs)
                 for path in function.glob('*/mdev_type')]
        types = [path.read_text().strip() for vf in vfs
                 if (path := vf / 'nvidia/current_vgpu_type').exists()]
        return collections.Counter([*mdevs, *(
            each for each in types if each != '0')])

    def _left(self) -> dict[str, int]:
        """How many more of each type the card takes."""
        types = self._rule['types']
        used = self._used()
        sharing = self._rule.get('sharing', 'same_type')
        memory = max(facts['video_ram'] * facts['max']
                     for facts in types.values())
        memory -= sum(types[each]['video_ram'] * count
                      for each, count in used.items())

        def of(type_id: str) -> int:
            most, size = (int(types[type_id][key])
                          for key in ('max', 'video_ram'))
            if sharing == 'same_type':
                return 0 if used.keys() - {type_id} else most - used[type_id]
            if sharing == 'same_size':
                others = {types[each]['video_ram'] for each in used} - {size}
                return 0 if others else most - used.total()
            return int(max(0, memory) // size)
        return {type_id: of(type_id) for type_id in types}
