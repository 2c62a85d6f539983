# SPDX-License-Identifier: Apache-2.0
"""What real hosts said (tests/listings), through the real readers, and against
the machines that are modelled after them."""

import dataclasses
import os
import pathlib
import re
import uuid
from xml.etree import ElementTree

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import vgpu_driver
from tests.fixtures import reported

LISTINGS = pathlib.Path(__file__).parents[3] / 'listings'


def listing(name):
    """Return the text of a listing without our header."""
    return (LISTINGS / f'{name}.txt').read_text().partition('\n\n')[2]


def summary(kind):
    """Return a type as one tuple."""
    return (kind.type_id, kind.video_ram, kind.max_heads,
            kind.max_resolution_x, kind.max_resolution_y, kind.max_instances)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MdevType:
    type_id: str
    name: str
    available: int
    description: str | None = None


def mdevctl_types(text):
    """Return the address and types of ``mdevctl types``, in order."""
    address, *blocks = re.split(r'^  (?=\S)', text, flags=re.MULTILINE)
    types = []
    for block in blocks:
        type_id, *lines = block.splitlines()
        facts = dict(line.strip().split(': ', 1) for line in lines)
        types.append(MdevType(
            type_id=type_id, name=facts['Name'],
            available=int(facts['Available instances']),
            description=facts.get('Description')))
    return address.strip(), types


def nodedev_types(text):
    return [MdevType(
        type_id=listed.get('id'), name=listed.findtext('name'),
        available=int(listed.findtext('availableInstances')))
        for listed in ElementTree.fromstring(text).iter('type')]


class ListingCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def offer(self, types):
        """Create the folders of a function as in the listing."""
        for listed in types:
            path = self.root / 'card/mdev_supported_types' / listed.type_id
            path.mkdir(parents=True)
            (path / 'name').write_text(f'{listed.name}\n')
            (path / 'device_api').write_text('vfio-pci\n')
            (path / 'available_instances').write_text(f'{listed.available}\n')
            if listed.description is not None:
                (path / 'description').write_text(f'{listed.description}\n')

    def read_types(self, types, *, empty):
        self.offer(types)
        return {listed.name: listed for listed, _ in vgpu_sysfs.mdev_types(
            sysfs.Sysfs(str(self.root)), f'{self.root}/card', empty=empty)}

    def machine(self, name, numvfs=None):
        """Return a machine's GPUs after VFs of the first were created."""
        machine.build(machine.load(name), self.root)
        if numvfs:
            first = self.gpus()[0]
            fake_kernel.FakeKernel(str(self.root)).set_vfs(
                first.address, numvfs)
        return self.gpus()

    def gpus(self):
        return [listed for listed in reported.functions(scanner.scan(
            sysfs.Sysfs(str(self.root))))
            if pci.can_be_gpu(listed.class_code)]

    def vfs_of(self, pf):
        """Return addresses of VFs relative to their PF, by virtfnN."""
        folder = self.root / 'bus/pci/devices' / pf.address
        return [os.path.basename(os.readlink(folder / f'virtfn{number}'))
                .removeprefix(pf.address[:8])
                for number in range(len(list(folder.glob('virtfn*'))))]

    def number(self, pf, name):
        return int((self.root / 'bus/pci/devices' / pf.address / name)
                   .read_text())


class HeaderTest(base.BaseTestCase):

    def test_listing_names_its_source(self):
        index = (LISTINGS / 'README.rst').read_text()
        paths = sorted(LISTINGS.glob('*.txt'))
        self.assertGreaterEqual(len(paths), 17)
        for path in paths:
            header, _, text = path.read_text().partition('\n\n')
            for word in ('# host: ', '# source: https://', '# cut: '):
                self.assertIn(f'\n{word}', f'\n{header}', path.name)
            self.assertNotIn('\n#  ', text, path.name)
            self.assertIn(f'``{path.name}``', index)


class MdevTypesTest(ListingCase):

    def test_a_description_goes_before_what_is_available(self):
        # The GPU has one 2Q; the driver still lists all that it can have.
        address, types = mdevctl_types(listing('a6000-one-2q'))
        self.assertEqual(('0000:01:00.0', 29), (address, len(types)))
        found = self.read_types(types, empty=False)
        for name, expected in {
                'RTXA6000-1B': ('nvidia-522', 1024, 4, 5120, 2880, 32),
                'RTXA6000-2B': ('nvidia-523', 2048, 4, 5120, 2880, 24),
                'RTXA6000-1Q': ('nvidia-524', 1024, 4, 5120, 2880, 32),
                'RTXA6000-2Q': ('nvidia-525', 2048, 4, 7680, 4320, 24),
                'RTXA6000-48Q': ('nvidia-533', 49152, 4, 7680, 4320, 1),
                'RTXA6000-1A': ('nvidia-534', 1024, 1, 1280, 1024, 32),
                'RTXA6000-6C': ('nvidia-549', 6144, 1, 4096, 2400, 8),
        }.items():
            self.assertEqual(expected, summary(found[name]))
        self.assertEqual(29, len(found))
        # Of 1 GB types fewer fit than the framebuffer has gigabytes.
        self.assertEqual(
            {'RTXA6000-1A', 'RTXA6000-1B', 'RTXA6000-1Q'},
            {name for name, listed in found.items()
             if listed.max_instances != 49152 // listed.video_ram})

    def test_without_descriptions_the_name_says_the_size(self):
        types = nodedev_types(listing('m60-nodedev'))
        found = self.read_types(types, empty=True)
        self.assertEqual(
            {'M60-0B': ('nvidia-11', 512, 16),
             'M60-0Q': ('nvidia-12', 512, 16),
             'M60-1A': ('nvidia-13', 1024, 8),
             'M60-1B': ('nvidia-14', 1024, 8),
             'M60-1Q': ('nvidia-15', 1024, 8),
             'M60-2A': ('nvidia-16', 2048, 4),
             'M60-2Q': ('nvidia-18', 2048, 4),
             'M60-4A': ('nvidia-19', 4096, 2),
             'M60-4Q': ('nvidia-20', 4096, 2),
             'M60-8A': ('nvidia-21', 8192, 1),
             'M60-8Q': ('nvidia-22', 8192, 1)},
            {name: (listed.type_id, listed.video_ram, listed.max_instances)
             for name, listed in found.items()})

    def test_m10(self):
        _, types = mdevctl_types(listing('m10-mdevctl-types'))
        self.assertEqual(
            {'M10-0Q': ('nvidia-36', 512, None, None, None, 16),
             'M10-2B': ('nvidia-155', 2048, None, None, None, 4)},
            {name: summary(listed) for name, listed in self.read_types(
                types, empty=True).items()})

    def test_p40(self):
        _, types = mdevctl_types(listing('p40-mdevctl-types'))
        self.assertEqual(
            {'P40-2B': ('nvidia-156', 2048, 4, 5120, 2880, 12),
             'P40-2B4': ('nvidia-215', 2048, 4, 5120, 2880, 12),
             'P40-1B4': ('nvidia-241', 1024, 4, 5120, 2880, 24),
             'P40-4C': ('nvidia-283', 4096, 1, 4096, 2400, 6),
             'P40-6C': ('nvidia-284', 6144, 1, 4096, 2400, 4),
             'P40-8C': ('nvidia-285', 8192, 1, 4096, 2400, 3)},
            {name: summary(listed) for name, listed in self.read_types(
                types, empty=True).items()})

    def test_size_by_name_is_the_size_by_description(self):
        # What creatable_vgpu_types has to be read by, names alone.
        checked = 0
        for name in ('a6000-one-2q', 'p40-mdevctl-types'):
            _, types = mdevctl_types(listing(name))
            for listed in types:
                by_text = vgpu.type_from_mdev(
                    listed.type_id, listed.name, listed.description, None)
                by_name = vgpu.type_from_mdev(
                    listed.type_id, listed.name, None, None)
                self.assertEqual(
                    by_text.video_ram, by_name.video_ram, listed.name
                )
                checked += 1
        self.assertEqual(35, checked)

    def test_rows_of_a_charm(self):
        found = {}
        for line in listing('charm-vgpu-types').splitlines():
            type_id, _, name, description = line.split(', ', 3)
            listed = vgpu.type_from_mdev(type_id, name, description, None)
            found[listed.name] = summary(listed)
        self.assertEqual({
            'RTX6000-1Q': ('nvidia-256', 1024, 4, 5120, 2880, 24),
            'RTX6000-2Q': ('nvidia-257', 2048, 4, 7680, 4320, 12),
            'RTX6000-3Q': ('nvidia-258', 3072, 4, 7680, 4320, 8),
            'RTX6000-4Q': ('nvidia-259', 4096, 4, 7680, 4320, 6),
            'V100-1Q': ('nvidia-105', 1024, 4, 5120, 2880, 16),
            'V100-2Q': ('nvidia-106', 2048, 4, 7680, 4320, 8),
            'V100-4Q': ('nvidia-107', 4096, 4, 7680, 4320, 4),
            'V100-8Q': ('nvidia-108', 8192, 4, 7680, 4320, 2),
            'L40S-1B': ('nvidia-1145', 1024, 4, 5120, 2880, 32)}, found)


class TypesOfVFsTest(ListingCase):

    def test_l40s(self):
        found = {listed.name: (listed.type_id, listed.video_ram,
                             listed.max_instances)
                 for listed in vgpu.types_from_sysfs(
                     listing('l40s-creatable'))}
        self.assertEqual(23, len(found))
        for name, expected in {
                'L40S-2Q': ('1148', 2048, 24), 'L40S-3Q': ('1149', 3072, 16),
                'L40S-12Q': ('1153', 12288, 4), 'L40S-48Q': ('1156', 49152, 1),
                'L40S-16A': ('1164', 16384, 3),
                'L40S-3B': ('2164', 3072, 16)}.items():
            self.assertEqual(expected, found[name])

    def test_sizes_are_those_of_the_listing(self):
        line = re.compile(r'(\d+): \((?:vgpu|vgpu\+mig)\) (.+) \((\d+)MiB\)')
        rows = [line.fullmatch(listed).groups()
                for listed in listing('a100-openforbc').splitlines()]
        found = {listed.type_id: (listed.name, listed.video_ram)
                 for listed in vgpu.types_from_sysfs(''.join(
                     f'{number:<5} : {name}\n' for number, name, _ in rows))}
        self.assertEqual(
            {number: (name.removeprefix('GRID '), int(size))
             for number, name, size in rows}, found)
        self.assertEqual(('A100-1-5CME', 5120), found['706'])
        self.assertEqual(12, len(found))

    def test_a_name_of_many_words(self):
        row = re.compile(r'type: nvidia-(\d+), name: (.+?), spec: (.*)')
        rows = [row.fullmatch(listed).groups()
                for listed in listing('rtxpro6000-types').splitlines()]
        self.assertEqual(8, len(rows))
        by_name = {
            listed.type_id: listed
            for listed in vgpu.types_from_sysfs(
                ''.join(f'{number:<5} : {name}\n' for number, name, _ in rows)
            )
        }
        for number, name, text in rows:
            by_text = vgpu.type_from_mdev(number, name, text, None)
            self.assertEqual((by_name[number].name, by_name[number].video_ram),
                             (by_text.name, by_text.video_ram))
        self.assertEqual(
            ('1528', 12288, None, None, None, 8), summary(
                vgpu.type_from_mdev(*rows[-1], None)))
        self.assertEqual('RTX-Pro-6000-Blackwell-DC-4Q',
                         by_name['1521'].name)


class FakeDriverTest(ListingCase):
    """The vendor's driver of fake machines does what real ones were seen
    doing."""

    def test_types_of_one_size_fit_on_one_gpu(self):
        address, types = mdevctl_types(listing('a6000-one-2q'))
        card = self.root / 'devices' / address
        card.mkdir(parents=True)
        facts = {listed.type_id: vgpu.type_from_mdev(
            listed.type_id, listed.name, listed.description, None)
            for listed in types}
        vgpu_driver.add_types(self.root, card, {
            'mechanism': 'mdev', 'mix_policy': 'equal_size', 'types': {
                listed.type_id: {
                    'name': listed.name, 'description': listed.description,
                    'video_ram': facts[listed.type_id].video_ram,
                    'max': facts[listed.type_id].max_instances}
                for listed in types}})
        name = str(uuid.uuid4())
        driver, bus = vgpu_driver.VGPUDriver(card), self.root / 'bus/mdev'
        driver.create_mdev('nvidia-525', name, bus)

        def available():
            return {path.parent.name: int(path.read_text()) for path in
                    card.glob('mdev_supported_types/*/available_instances')}

        self.assertEqual(
            {listed.type_id: listed.available for listed in types}, available()
        )
        driver.remove_mdev(name, bus)
        self.assertEqual(
            {listed.type_id: facts[listed.type_id].max_instances
             for listed in types}, available())


class MachinesTest(ListingCase):
    """Tests of machines, compared with the listings of their GPUs."""

    def types_of(self, name):
        return {
            listed.name: listed for listed in self.machine(name)[0].vgpu_types
        }

    def test_l40s(self):
        pf, *_ = self.machine('nvidia-l40s-vgpu-2', 32)
        vf = self.root / 'bus/pci/devices' / pf.address / 'virtfn0/nvidia'
        self.assertEqual(listing('l40s-creatable'),
                         (vf / 'creatable_vgpu_types').read_text())
        [row] = [listed.split(', ') for listed in
                 listing('charm-vgpu-types').splitlines() if 'L40S' in listed]
        # The VF of both listings is the first one.
        self.assertEqual(row[1].rpartition(':')[2], self.vfs_of(pf)[0])
        # All VFs are made: of one gigabyte no more fit than there are.
        by_text = vgpu.type_from_mdev('', row[2], ', '.join(row[3:]), None)
        self.assertEqual(
            by_text.max_instances, next(
                listed.max_instances for listed in self.gpus()[0].vgpu_types
                if listed.name == by_text.name))

    def test_a100(self):
        listed = dict(reversed(line[1:].split(' ', 1)) for line in
                      listing('a100d-types').splitlines())
        pf, *_ = self.machine('nvidia-a100-2', 4)
        types = self.root / 'bus/pci/devices' / pf.address / 'virtfn0'
        found = {(path / 'name').read_text().strip(): path.name for path in
                 types.glob('mdev_supported_types/*')}
        # The GPU is not in MIG mode.
        self.assertEqual({name: number for name, number in listed.items()
                          if name.count('-') == 1}, found)
        places = [line.split()[1] for line in
                  listing('a100d-mdevctl-list').splitlines()]
        self.assertEqual([listed.removeprefix('0000:17:') for listed in places
                          if listed.startswith('0000:17:')], self.vfs_of(pf))

    def test_m60(self):
        text = listing('m60-nodedev')
        device = ElementTree.fromstring(text)
        gpu, *_ = self.machine('nvidia-m60-1')
        card = self.root / 'bus/pci/devices' / gpu.address
        self.assertEqual(nodedev_types(text), [MdevType(
            type_id=path.name, name=(path / 'name').read_text().strip(),
            available=int((path / 'available_instances').read_text()))
            for path in sorted((card / 'mdev_supported_types').iterdir())])
        real, modelled = (
            pathlib.PurePath(listed).parts[3:] for listed in (
                device.findtext('path'),
                f'/sys/{card.resolve().relative_to(self.root.resolve())}'))
        self.assertEqual([listed[7:] for listed in real[1:]],
                         [listed[7:] for listed in modelled[1:]])
        self.assertEqual(real[0], modelled[0])
        capability = device.find('capability')
        self.assertEqual(
            (capability.find('vendor').get('id'),
             capability.find('product').get('id'),
             int(capability.find('numa').get('node')),
             device.findtext('driver/name'),
             len(capability.findall('iommuGroup/address'))),
            (f'0x{gpu.vendor}', f'0x{gpu.device}', gpu.numa_node, gpu.driver,
             1 + len(gpu.iommu_group_members)))

    def test_m10(self):
        _, types = mdevctl_types(listing('m10-mdevctl-types'))
        found = self.types_of('nvidia-m10-1')
        for listed in types:
            kind = found[listed.name.removeprefix('GRID ')]
            self.assertEqual((listed.type_id, listed.available),
                             (kind.type_id, kind.max_instances))

    def test_t4(self):
        lines = listing('t4-mdev-types').splitlines()
        listed = {word for line in lines if line.startswith('nvidia-')
                  for word in line.split()}
        self.assertEqual(17, len(listed))
        found = {listed.type_id for listed in self.types_of(
            'nvidia-t4-2').values()}
        self.assertEqual(5, len(found & listed))
        self.assertEqual(set(), found - listed)
        gpu = self.gpus()[0]
        self.assertIn(f'[{gpu.vendor}:{gpu.device}]', lines[1])
        self.assertIn(f'[{gpu.class_code[:4]}]', lines[1])
        text = listing('t4-lspci')
        self.assertIn(f'Device {gpu.device} (rev {gpu.revision})', text)
        self.assertIn(f'Device {gpu.subsystem}\n', text)
        # FLReset- : the kernel cannot reset the function alone.
        self.assertEqual('+' if 'flr' in self.reset_of(gpu) else '-',
                         re.search(r'FLReset([+-])', text).group(1))

    def reset_of(self, gpu):
        return (self.root / 'bus/pci/devices' / gpu.address
                / 'reset_method').read_text().split()

    def test_flex_170(self):
        text = listing('flex170-lspci')
        pf, *_ = self.machine('intel-flex170-2', 31)
        numbers = re.search(
            r'Total VFs: (\d+).*VF offset: (\d+), stride: (\d+), '
            r'Device ID: (\w+)', text, re.DOTALL).groups()
        self.assertEqual(tuple(map(int, numbers[:3])), tuple(
            self.number(pf, listed) for listed in (
                'sriov_totalvfs', 'sriov_offset', 'sriov_stride')))
        vf = self.root / 'bus/pci/devices' / pf.address / 'virtfn0'
        self.assertEqual(f'0x{numbers[3]}',
                         (vf / 'device').read_text().strip())
        self.assertEqual(('00.1', '03.7'), (
            self.vfs_of(pf)[0], self.vfs_of(pf)[-1]))
        self.assertIn('53:00.0 Display controller: Intel Corporation Device '
                      f'{pf.device} (rev {pf.revision})\n', text)
        self.assertEqual('0380', pf.class_code[:4])
        self.assertIn(f'Device {self.port_of(pf)} (prog-if 00', text)

    def port_of(self, gpu):
        folder = self.root / 'bus/pci/devices' / gpu.address
        return (folder.resolve().parent / 'device').read_text().strip()[2:]

    def test_v620(self):
        line = listing('v620-guest-lspci')
        pf, vf, *_ = self.machine('amd-v620-2', 1)
        self.assertEqual(pf.id, vf.pf)
        self.assertIn(f'[{vf.vendor}:{vf.device}]', line)
        # A VF is of the class of its PF.
        self.assertIn(f'Display controller [{pf.class_code[:4]}]', line)

    def test_mi300x(self):
        limit = re.search(r'exceeds the vf limit (\d+)\.',
                          listing('mi300x-gim')).group(1)
        self.assertEqual({int(limit)}, {
            gpu.sriov_totalvfs for gpu in self.machine('amd-mi300x-8')})


class FakeKernelTest(ListingCase):
    """Tests of the addresses of VFs, compared with real hosts."""

    def places(self, function, offset, vfs):
        node = {'at': function, 'vendor': '10de', 'device': '2bb5',
                'class': '030200', 'attributes': {
                    'sriov_totalvfs': vfs, 'sriov_numvfs': 0,
                    'sriov_vf_device': '2bb5', 'sriov_offset': offset,
                    'sriov_stride': 1}}
        machine.build(machine.Machine(
            name='x', title='x', source='modelled', reference='none',
            facts={}, roots=({'bus': '0001:04', 'children': [node]},)),
            self.root)
        fake_kernel.FakeKernel(str(self.root)).set_vfs(
            f'0001:04:{function}', vfs)
        return self.gpus()[0]

    def test_rtx_pro_6000(self):
        listed = dict(re.findall(r'virtfn(\d+) -> \.\./0001:04:(\S+)',
                                 listing('rtxpro6000-virtfn')))
        self.assertEqual(14, len(listed))
        found = self.vfs_of(self.places('00.0', 2, 48))
        self.assertEqual(listed, {
            number: found[int(number)] for number in listed})

    def test_vf_of_an_s7150_has_its_own_iommu_group(self):
        text = listing('s7150-dmesg')
        listed = re.findall(r'pci 0000:0c:(\S+): Adding to iommu group (\d+)',
                            text)
        count = int(re.search(r'vfs count = (\d+)', text).group(1))
        pf = self.places('00.0', 16, count)
        self.assertEqual(count, len(self.vfs_of(pf)))
        self.assertEqual([place for place, _ in listed],
                         self.vfs_of(pf)[:len(listed)])
        groups = {listed.iommu_group for listed in self.gpus()
                  if listed.pf == pf.id}
        self.assertEqual((len({group for _, group in listed}), count),
                         (len(listed), len(groups)))
