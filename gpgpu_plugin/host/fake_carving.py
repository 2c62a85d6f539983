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
one decides; ``mixed``: framebuffer). The rule is in a file of the function
that no real sysfs has.
"""

from __future__ import annotations

import collections
import errno
import json
import os
import pathlib
import re
import shutil
import typing

RULE = '.vgpu.json'
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def equip(root: pathlib.Path, folder: pathlib.Path,
          rule: typing.Mapping[str, typing.Any]) -> None:
    """Let a function be carved.

    :param root: of the tree
    :param rule: ``seats`` (mdev or vf), ``sharing``, ``types`` by the
        driver's number, each with ``name``, ``video_ram`` (MiB), ``max``
        and, for mdevs, ``description``
    """
    (folder / RULE).write_text(json.dumps(rule))
    if rule['seats'] == 'mdev':
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
        Carving(folder).show()


def equip_vf(pf: pathlib.Path, vf: pathlib.Path) -> None:
    """Let a new VF have a type, if its PF can be carved so."""
    if (pf / RULE).exists():
        (vf / 'nvidia').mkdir()
        (vf / 'nvidia/current_vgpu_type').write_text('0\n')
        Carving(pf).show()


class Carving:
    """One card.

    :param folder: of the function, the PF for VFs
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._rule = json.loads((folder / RULE).read_text())

    def create_mdev(self, type_id: str, uuid: str,
                    bus: pathlib.Path) -> None:
        """``create`` of a type.

        :param bus: folder of all mdevs
        :raises OSError: EINVAL no UUID, EEXIST taken, ENOSPC no room
        """
        if not _UUID.fullmatch(uuid):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), uuid)
        if (bus / uuid).is_symlink():
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), uuid)
        if not self._available(type_id):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), type_id)
        mdev = self._folder / uuid
        mdev.mkdir()
        (mdev / 'remove').touch()
        (mdev / 'mdev_type').symlink_to(
            f'../mdev_supported_types/{type_id}')
        bus.mkdir(parents=True, exist_ok=True)
        (bus / uuid).symlink_to(os.path.relpath(mdev, bus))
        self.show()

    def remove_mdev(self, uuid: str, bus: pathlib.Path) -> None:
        """``remove`` of an mdev."""
        (bus / uuid).unlink()
        shutil.rmtree(self._folder / uuid)
        self.show()

    def set_type(self, vf: pathlib.Path, type_id: str) -> None:
        """``current_vgpu_type`` of a VF.

        :raises OSError: EBUSY it has one, EINVAL no such type, or no room
        """
        path = vf / 'nvidia/current_vgpu_type'
        if type_id != '0':
            if path.read_text().strip() != '0':
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), type_id)
            if not self._available(type_id):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL),
                              type_id)
        path.write_text(f'{type_id}\n')
        self.show()

    def show(self) -> None:
        """Bring what is shown up to date."""
        types = self._rule['types']
        for path in (self._folder / 'mdev_supported_types').glob('*'):
            (path / 'available_instances').write_text(
                f'{self._available(path.name)}\n')
        text = 'ID    : vGPU Name\n' + ''.join(
            f'{type_id:<5} : {facts["name"]}\n'
            for type_id, facts in types.items() if self._available(type_id))
        for vf in self._vfs():
            (vf / 'nvidia/creatable_vgpu_types').write_text(text)

    def _vfs(self) -> list[pathlib.Path]:
        return [path.resolve() for path in self._folder.glob('virtfn*')
                if (path / 'nvidia').is_dir()]

    def _used(self) -> collections.Counter[str]:
        mdevs = [os.path.basename(os.readlink(path))
                 for path in self._folder.glob('*/mdev_type')]
        vfs = [(vf / 'nvidia/current_vgpu_type').read_text().strip()
               for vf in self._vfs()]
        return collections.Counter([*mdevs, *(
            each for each in vfs if each != '0')])

    def _available(self, type_id: str) -> int:
        types = {str(each): facts
                 for each, facts in self._rule['types'].items()}
        if type_id not in types:
            return 0
        used = self._used()
        most = int(types[type_id]['max'])
        if self._rule.get('sharing', 'same_type') == 'same_type':
            return 0 if used.keys() - {type_id} else most - used[type_id]
        memory = max(facts['video_ram'] * facts['max']
                     for facts in types.values())
        memory -= sum(types[each]['video_ram'] * count
                      for each, count in used.items())
        return int(max(0, memory) // types[type_id]['video_ram'])
