# SPDX-License-Identifier: Apache-2.0
"""Fake machines: descriptions from which /sys trees are built.

A tree has what the kernel shows of PCI: a folder for every function below
``devices``, links from ``bus/pci/devices``, drivers, slots and IOMMU groups,
and configuration space. A description either models these after a public
listing (``roots``), or contains a recording of them (``tree``, see
gpgpu_plugin.host.fake.recording). Descriptions are package data
(``machines/*.yaml``) or an operator's files.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import os
import pathlib
import shutil
import struct
import typing
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import yaml

from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import topology
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import tree as tree_mod
from gpgpu_plugin.host.fake import vgpu_driver

_MACHINES = importlib.resources.files('gpgpu_plugin.host.fake') / 'machines'

# A function of a modelled machine, as its file has it.
Node = Mapping[str, typing.Any]

_PORT_TYPES = {'root_port': 4, 'upstream': 5, 'downstream': 6, 'endpoint': 0}
_FILES = {'vendor': 'vendor', 'device': 'device',
          'subsystem_vendor': 'subsystem_vendor',
          'subsystem': 'subsystem_device', 'revision': 'revision',
          'class': 'class'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Description of a machine.

    :ivar source: ``recorded`` or ``modelled``
    :ivar reference: the public listing it follows, or what was recorded
    :ivar facts: facts of the listing, for tests that compare them with a scan
    :ivar roots: of modelled machines: host bridges, with trees of functions;
        ``firmware``: ACPI path
    :ivar tree: of recorded machines: the recording
    :ivar aliases: of modelled machines: ``vfio_pci:`` aliases of the kernel,
        with their modules, as modules.alias has them
    :ivar vgpu: of recorded machines: rules for vGPUs by the name of a function
        or an mdev parent; without a rule, vGPUs exist but none can be created
    """

    name: str
    title: str
    source: str
    reference: str
    facts: Node
    roots: tuple[Node, ...] = ()
    tree: tree_mod.Tree | None = None
    aliases: tuple[str, ...] = ()
    vgpu: Mapping[str, vgpu_driver.VGPURule] = dataclasses.field(
        default_factory=dict)


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes strings of several lines as block literals."""


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    'tag:yaml.org,2002:str', text, style='|' if '\n' in text else None))


def names() -> list[str]:
    """Return the names of the package's machines."""
    return sorted(file.name.removesuffix('.yaml')
                  for file in _MACHINES.iterdir()
                  if file.name.endswith('.yaml'))


def load(name: str) -> Machine:
    """Read a description.

    :param name: one of ``names``, or the path of a recording
    :raises NotFound: no such machine exists; the message lists the machines
    :raises Invalid: the file is not a machine
    """
    if name in names():
        return _packaged(name)
    try:
        text = read_machine(name)
    except FileNotFoundError:
        raise exception.NotFound(
            kind='machine',
            name=f'{name} (known: {", ".join(names())}; a recording is '
                 'given by the path of its file)') from None
    except (OSError, ValueError) as exc:
        raise _invalid(name, f'it cannot be read: {exc}') from None
    machine = _parse(name, text)
    if machine.tree is None:
        # The names in a model are not checked, and could lead anywhere.
        raise _invalid(name, 'it is not a recording')
    return machine


@functools.cache
def _packaged(name: str) -> Machine:
    return _parse(name, (_MACHINES / f'{name}.yaml').read_text())


def _parse(name: str, text: str) -> Machine:
    try:
        data = parse_machine(text)
    except ValueError as exc:
        raise _invalid(name, str(exc)) from None
    if not isinstance(data, dict):
        raise _invalid(name, 'it has no keys')
    missing = {'title', 'source', 'reference'} - data.keys()
    if missing or ('roots' in data) == ('tree' in data):
        raise _invalid(name, 'it lacks ' + (
            ' and '.join(sorted(missing)) or 'one of roots and tree'))
    vgpu = data.get('vgpu', {})
    if not isinstance(vgpu, dict):
        raise exception.Invalid(field='vgpu', value=vgpu,
                                expected='a mapping of rules')
    return Machine(
        name=name, title=data['title'], source=data['source'],
        reference=data['reference'], facts=data.get('facts', {}),
        roots=tuple(data.get('roots', ())), tree=data.get('tree'),
        aliases=tuple(data.get('aliases', ())),
        vgpu={device: vgpu_driver.check_rule(device, rule)
              for device, rule in vgpu.items()})


def _invalid(name: str, reason: str) -> exception.Invalid:
    return exception.Invalid(
        field='machine', value=name,
        expected=f'{reason}; name a file that "gpgpu-host record" '
                 'wrote')


def dump(tree: tree_mod.Tree, reference: str) -> str:
    """Return a recording as a description that ``load`` reads."""
    return yaml.dump(
        {'title': f'Recorded by gpgpu_plugin {version.VERSION}',
         'source': 'recorded', 'reference': reference, 'facts': {},
         'tree': tree}, Dumper=_Dumper, sort_keys=False,
        default_flow_style=None)


def number_cards(root: str | os.PathLike[str], owner: str) -> None:
    """Give the cards of a tree serial numbers that no other owner's have.

    Cards of two hosts with the same number would stand for one card that was
    moved. Numbers that identify nothing stay.
    """
    own = hashlib.sha256(owner.encode()).digest()[:2]
    for file in pathlib.Path(root).glob('bus/pci/devices/*/config'):
        found = file.read_bytes()
        at = config_space.serial_number_at(found)
        if at is not None and found[at:at + 8] not in (
                bytes(8), b'\xff' * 8):
            file.write_bytes(found[:at + 1] + bytes(
                byte ^ other for byte, other in zip(
                    found[at + 1:at + 3], own, strict=True)) + found[at + 3:])


def build(machine: Machine, root: str | os.PathLike[str],
          bus_step: int = 1) -> None:
    """Build the machine's tree in an empty or missing folder.

    :param bus_step: step between bus numbers below a host bridge; another
        value gives the same machine after a renumbering, also of the root
        buses that its firmware names; recorded machines keep their numbers
    :raises Invalid: the recording is not a tree, or a rule does not fit the
        machine; nothing was built
    """
    top = pathlib.Path(root)
    if machine.tree is not None:
        tree_mod.write(machine.tree, top)
    for folder in ('bus/pci/devices', 'bus/pci/drivers', 'bus/pci/slots',
                   'kernel/iommu_groups'):
        (top / folder).mkdir(parents=True, exist_ok=True)
    if machine.tree is None:
        _Builder(top, bus_step).build(machine)
        write_aliases(machine.aliases, top)
    try:
        for name, rule in machine.vgpu.items():
            vgpu_driver.set_rule(_device(top, name), rule)
    except exception.Invalid:
        # A later start would take the rest for a machine.
        shutil.rmtree(top)
        raise


def write_aliases(aliases: Iterable[str], root: pathlib.Path) -> None:
    """Write a fake kernel's modules.alias; without aliases there is none."""
    lines = ''.join(f'alias {alias}\n' for alias in aliases)
    if lines:
        path = root / vfio_drivers.ALIASES
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines)


def _device(root: pathlib.Path, name: str) -> pathlib.Path:
    """Return the folder of a PCI function or an mdev parent.

    :raises Invalid: the machine has none of that name
    """
    parent = root / vgpu_sysfs.PARENTS / name
    folder = (parent if parent.is_symlink()
              else root / 'bus/pci/devices' / name).resolve()
    if not folder.is_dir():
        raise _invalid(name, 'it has no such device')
    return folder


@dataclasses.dataclass
class _Builder:
    """Builder of the tree of a modelled machine."""

    root: pathlib.Path
    bus_step: int
    _next_group: int = 0

    def build(self, machine: Machine) -> None:
        for driver in ('vfio-pci', 'pcieport'):
            fake_kernel.add_driver(self.root, driver)
        for root in machine.roots:
            domain, bus = root['bus'].split(':')
            first = int(bus, 16) + (
                self.bus_step - 1 if 'firmware' in root else 0)
            bridge = self.root / 'devices' / f'pci{domain}:{first:02x}'
            bridge.mkdir(parents=True)
            if 'firmware' in root:
                name = bridge / topology.FIRMWARE_NAME
                name.parent.mkdir()
                name.write_text(f'{root["firmware"]}\n')
            buses = self._buses(first)
            self._children(root, bridge, domain, next(buses), buses,
                           root.get('numa', -1))

    def _buses(self, first: int) -> Iterator[int]:
        yield first
        bus = first
        while True:
            bus += self.bus_step
            yield bus

    def _children(self, parent: Node, folder: pathlib.Path, domain: str,
                  bus: int, buses: Iterator[int], numa: int) -> None:
        groups: dict[str, int] = {}
        for node in parent.get('children', ()):
            address = f'{domain}:{bus:02x}:{node["at"]}'
            group = self._group(node, groups)
            self._function(folder / address, address, node, numa, group)
            if 'children' in node:
                self._children(node, folder / address, domain, next(buses),
                               buses, numa)

    def _group(self, node: Node, groups: dict[str, int]) -> int:
        # Functions of one device share a group, as without ACS on it.
        device = node.get('iommu_with', node['at']).partition('.')[0]
        if device not in groups:
            groups[device] = self._next_group
            self._next_group += 1
        return groups[device]

    def _function(self, folder: pathlib.Path, address: str,
                  node: Node, numa: int, group: int) -> None:
        folder.mkdir()
        (self.root / 'bus/pci/devices' / address).symlink_to(
            os.path.relpath(folder, self.root / 'bus/pci/devices'))
        broken = node.get('broken', ())
        for key, name in _FILES.items():
            if key in node:
                self._write(folder / name, f'0x{node[key]}', name in broken)
        if not broken:
            fake_kernel.write_modalias(folder)
        self._write(folder / 'numa_node', str(node.get('numa', numa)),
                    'numa_node' in broken)
        for name in ('irq', 'driver_override', 'reset'):
            (folder / name).write_text('0\n' if name == 'irq' else '')
        (folder / 'reset_method').write_text(
            node.get('reset_method', 'bus') + '\n')
        (folder / 'resource').write_text(
            '0x0000000000000000 0x0000000000000000 0x0000000000000000\n' * 7)
        code = node.get('class')
        if pci.can_be_gpu(code) or pci.is_bridge(code):
            fake_kernel.write_link(folder)
        if pci.can_be_gpu(code):
            fake_kernel.write_errors(folder)
        for name, text in node.get('attributes', {}).items():
            # Some are in folders: sriov_admin/vf1/profile/vram_quota.
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._write(folder / name, str(text), name in broken)
        if node.get('dies_on_reset'):
            fake_kernel.kill_by_reset(folder)
        (folder / 'config').write_bytes(
            b'\xff' * 256 if node.get('dead') else config(node))
        if 'vgpu' in node:
            vgpu_driver.add_types(self.root, folder, node['vgpu'])
        self._links(folder, address, node, group)

    def _links(self, folder: pathlib.Path, address: str,
               node: Node, group: int) -> None:
        if 'driver' in node:
            fake_kernel.add_driver(self.root, node['driver'])
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
            tree_mod.make_unreadable(path)
        else:
            path.write_text(text + '\n')


def config(node: Node) -> bytes:
    """Return the configuration space of a function.

    It has the ids, a PCIe capability and the Device Serial Number, if any.
    """
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
    """Return a machine of SR-IOV GPUs, for measurements of large scans.

    :param pfs: number of GPUs
    :param vfs: number of VFs that the fake kernel can create on a GPU
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


# -- Files with descriptions of machines, in YAML.
#
# An operator's file may come from a stranger. YAML's aliases can expand a few
# hundred bytes to more data than there is memory, and deep nesting exhausts
# the parser's stack. ``dump`` writes neither, so neither is accepted. The
# package's own files are written by hand, with aliases.


# A recording of 256 VFs has 0.5 MB: it takes 0.3 s with the C loader, which
# not every PyYAML has, and 3 s without.
_Loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_MAX_SIZE = 16 * 1024 * 1024
_MAX_LEVELS = 16


def read_machine(path: str) -> str:
    """Return the text of an operator's file.

    :raises OSError: it cannot be read
    :raises ValueError: it is not YAML, too large, or would be once parsed; the
        message says which
    """
    with open(path, 'rb') as file:
        data = file.read(_MAX_SIZE + 1)
    if len(data) > _MAX_SIZE:
        raise ValueError(f'it has more than {_MAX_SIZE >> 20} MiB')
    text = data.decode()
    try:
        _check(text)
    except yaml.YAMLError as exc:
        raise ValueError(_explain(exc)) from None
    return text


def parse_machine(text: str) -> object:
    """Return the data of a text.

    :raises ValueError: it is not YAML; the message says why
    """
    try:
        return yaml.load(text, _Loader)
    # ValueError: a value looks like a date and is none.
    except (yaml.YAMLError, ValueError) as exc:
        raise ValueError(_explain(exc)) from None


def _check(text: str) -> None:
    levels = 0
    # Events are parsed one by one, before any data is built from them.
    for event in yaml.parse(text, _Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f'line {line} has an alias ("*")')
        levels += isinstance(event, yaml.CollectionStartEvent)
        levels -= isinstance(event, yaml.CollectionEndEvent)
        if levels > _MAX_LEVELS:
            raise ValueError(f'line {line} has too many levels')


def _explain(exc: Exception) -> str:
    text = ' '.join(str(exc).split())
    return f'it is not YAML: {text:.200}'
