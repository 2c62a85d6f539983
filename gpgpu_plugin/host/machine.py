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
"""Fake machines: a description becomes a /sys tree on a plain disk.

The tree has what the kernel shows of PCI: one folder a function below
``devices``, links from ``bus/pci/devices``, drivers, slots and IOMMU groups,
and configuration space. Descriptions are package data (``machines/*.yaml``);
each says whether it was recorded or modelled and which public listing it
follows.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
import pathlib
import struct
import typing
from collections.abc import Iterator
from collections.abc import Mapping

import yaml

from gpgpu_plugin import exception
from gpgpu_plugin.host import fake_carving

_MACHINES = importlib.resources.files('gpgpu_plugin.host') / 'machines'

_PORT_TYPES = {'root_port': 4, 'upstream': 5, 'downstream': 6, 'endpoint': 0}
_FILES = {'vendor': 'vendor', 'device': 'device',
          'subsystem_vendor': 'subsystem_vendor',
          'subsystem': 'subsystem_device', 'revision': 'revision',
          'class': 'class'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A description.

    :ivar source: ``recorded`` from hardware or ``modelled``
    :ivar reference: the public listing it follows
    :ivar facts: what that listing says, to be compared with a scan
    :ivar roots: host bridges, each with its tree of functions
    """

    name: str
    title: str
    source: str
    reference: str
    facts: Mapping[str, typing.Any]
    roots: tuple[Mapping[str, typing.Any], ...]


def names() -> list[str]:
    """Names of all machines."""
    return sorted(each.name.removesuffix('.yaml')
                  for each in _MACHINES.iterdir()
                  if each.name.endswith('.yaml'))


def load(name: str) -> Machine:
    """Read a description.

    :raises NotFound: no such machine; the message names those there are
    """
    if name not in names():
        raise exception.NotFound(
            kind='machine',
            name=f'{name} (there are: {", ".join(names())})')
    data = yaml.safe_load((_MACHINES / f'{name}.yaml').read_text())
    return Machine(
        name=name, title=data['title'], source=data['source'],
        reference=data['reference'], facts=data.get('facts', {}),
        roots=tuple(data['roots']))


def build(machine: Machine, root: str | os.PathLike[str],
          bus_step: int = 1) -> None:
    """Make the machine's tree in an empty or missing folder.

    :param bus_step: how far the bus numbers below a host bridge are apart;
        another value gives the same machine after a renumbering
    """
    _Builder(pathlib.Path(root), bus_step).build(machine)


@dataclasses.dataclass
class _Builder:
    root: pathlib.Path
    bus_step: int
    _next_group: int = 0

    def build(self, machine: Machine) -> None:
        for folder in ('bus/pci/devices', 'bus/pci/drivers',
                       'bus/pci/slots', 'kernel/iommu_groups'):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for driver in ('vfio-pci', 'pcieport'):
            self._driver(driver)
        for root in machine.roots:
            domain, bus = root['bus'].split(':')
            bridge = self.root / 'devices' / f'pci{root["bus"]}'
            bridge.mkdir(parents=True)
            buses = self._buses(int(bus, 16))
            self._children(root, bridge, domain, next(buses), buses,
                           root.get('numa', -1))

    def _buses(self, first: int) -> Iterator[int]:
        yield first
        bus = first
        while True:
            bus += self.bus_step
            yield bus

    def _children(self, parent: Mapping[str, typing.Any],
                  folder: pathlib.Path, domain: str, bus: int,
                  buses: Iterator[int], numa: int) -> None:
        groups: dict[str, int] = {}
        for node in parent.get('children', ()):
            address = f'{domain}:{bus:02x}:{node["at"]}'
            group = self._group(node, groups)
            self._function(folder / address, address, node, numa, group)
            if 'children' in node:
                self._children(node, folder / address, domain, next(buses),
                               buses, numa)

    def _group(self, node: Mapping[str, typing.Any],
               groups: dict[str, int]) -> int:
        # Functions of one device share a group, as without ACS on it.
        device = node.get('iommu_with', node['at']).partition('.')[0]
        if device not in groups:
            groups[device] = self._next_group
            self._next_group += 1
        return groups[device]

    def _driver(self, name: str) -> None:
        folder = self.root / 'bus/pci/drivers' / name
        folder.mkdir(exist_ok=True)
        for file in ('bind', 'unbind'):
            (folder / file).touch()

    def _function(self, folder: pathlib.Path, address: str,
                  node: Mapping[str, typing.Any], numa: int,
                  group: int) -> None:
        folder.mkdir()
        (self.root / 'bus/pci/devices' / address).symlink_to(
            os.path.relpath(folder, self.root / 'bus/pci/devices'))
        broken = node.get('broken', ())
        for key, name in _FILES.items():
            if key in node:
                self._write(folder / name, f'0x{node[key]}', name in broken)
        self._write(folder / 'numa_node', str(node.get('numa', numa)),
                    'numa_node' in broken)
        for name in ('irq', 'driver_override', 'reset'):
            (folder / name).write_text('0\n' if name == 'irq' else '')
        (folder / 'reset_method').write_text(
            node.get('reset_method', 'bus') + '\n')
        (folder / 'resource').write_text(
            '0x0000000000000000 0x0000000000000000 0x0000000000000000\n' * 7)
        for name, text in node.get('attributes', {}).items():
            self._write(folder / name, str(text), name in broken)
        (folder / 'config').write_bytes(
            b'\xff' * 256 if node.get('dead') else config(node))
        if 'vgpu' in node:
            fake_carving.equip(self.root, folder, node['vgpu'])
        self._links(folder, address, node, group)

    def _links(self, folder: pathlib.Path, address: str,
               node: Mapping[str, typing.Any], group: int) -> None:
        if 'driver' in node:
            self._driver(node['driver'])
            driver = self.root / 'bus/pci/drivers' / node['driver']
            (folder / 'driver').symlink_to(os.path.relpath(driver, folder))
            (driver / address).symlink_to(os.path.relpath(folder, driver))
        members = self.root / 'kernel/iommu_groups' / str(group) / 'devices'
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(os.path.relpath(folder, members))
        (folder / 'iommu_group').symlink_to(
            os.path.relpath(members.parent, folder))
        if 'slot' in node:
            slot = self.root / 'bus/pci/slots' / str(node['slot'])
            slot.mkdir(exist_ok=True)
            (slot / 'address').write_text(address.partition('.')[0] + '\n')

    @staticmethod
    def _write(path: pathlib.Path, text: str, broken: bool) -> None:
        if broken:
            # A link to itself: whoever reads it gets ELOOP, root as well.
            path.symlink_to(path.name)
        else:
            path.write_text(text + '\n')


def config(node: Mapping[str, typing.Any]) -> bytes:
    """Configuration space with ids, a PCIe capability and, if there is one,
    the Device Serial Number."""
    kind = node.get('kind', 'endpoint')
    space = bytearray(4096 if 'dsn' in node else 256)
    struct.pack_into('<HH', space, 0, int(node['vendor'], 16),
                     int(node['device'], 16))
    space[0x06] = 0x10
    struct.pack_into('<I', space, 0x08, int(node['class'], 16) << 8
                     | int(node.get('revision', '00'), 16))
    space[0x0e] = 0 if kind == 'endpoint' else 1
    if kind == 'endpoint':
        struct.pack_into('<HH', space, 0x2c,
                         int(node.get('subsystem_vendor', '0'), 16),
                         int(node.get('subsystem', '0'), 16))
    space[0x34] = 0x40
    struct.pack_into('<BBH', space, 0x40, 0x10, 0,
                     2 | _PORT_TYPES[kind] << 4)
    if 'dsn' in node:
        struct.pack_into('<I', space, 0x100, 0x00010003)
        space[0x104:0x10c] = bytes.fromhex(
            node['dsn'].replace('-', ''))[::-1]
    return bytes(space)


def synthetic(pfs: int = 8, vfs: int = 32) -> Machine:
    """A machine of SR-IOV GPUs, to measure a scan of many functions.

    VFs are made by the fake kernel (``sriov_numvfs``), as on a real host.
    """
    gpu = {'at': '00.0', 'vendor': '1002', 'device': '74a1',
           'class': '120000', 'subsystem_vendor': '1002',
           'subsystem': '74a1', 'revision': '00', 'driver': 'gim',
           'attributes': {'sriov_totalvfs': vfs, 'sriov_numvfs': 0,
                          'sriov_vf_device': '74b5', 'sriov_offset': 1,
                          'sriov_stride': 1}}
    port = {'at': '01.0', 'kind': 'root_port', 'vendor': '1022',
            'device': '14ab', 'class': '060400', 'driver': 'pcieport'}
    return Machine(
        name=f'synthetic-{pfs}x{vfs}', title='synthetic', source='modelled',
        reference='none', facts={},
        roots=tuple({'bus': f'0000:{0x10 + 0x18 * index:02x}',
                     'numa': index % 2,
                     'children': [{**port, 'children': [gpu]}]}
                    for index in range(pfs)))
