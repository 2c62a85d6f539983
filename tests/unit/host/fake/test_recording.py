# SPDX-License-Identifier: Apache-2.0
"""Tests of recordings: a scan of one equals a scan of its host."""

import builtins
import collections
import dataclasses
import os
import pathlib
import shutil
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu as vgpu_rules
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import recording
from gpgpu_plugin.host.fake import vgpu_driver
from tests.fixtures import hives
from tests.fixtures import reported

MTTY = {'mechanism': 'mdev', 'mix_policy': 'any_mix', 'types': {
    'mtty-1': {'name': 'Single port serial', 'video_ram': 1, 'max': 24},
    'mtty-2': {'name': 'Dual port serial', 'video_ram': 2, 'max': 12}}}
# What no recording may contain, and the files that have it.
SECRET = 'not for strangers'
FOREIGN = ('resource', 'resource0', 'resource2_wc', 'rom', 'uevent',
           'modalias', 'serial', 'new_id', 'unique_id', 'rescan', 'power')


def vpd(serial: bytes) -> bytes:
    fields = b''.join(
        key + bytes([len(value)]) + value for key, value in (
            (b'PN', b'900-2G193'), (b'SN', serial), (b'V0', b'owner'),
            (b'RV', b'\x01')))
    return (b'\x82\x04\x00L40S' + b'\x90' + len(fields).to_bytes(2, 'little')
            + fields + b'\x91\x09\x00YA\x06asset7' + b'\x78')


class RecordingCase(base.BaseTestCase):

    def temporary(self):
        return f'{self.useFixture(fixtures.TempDir()).path}/sys'

    def machine(self, name):
        """Build a machine that has everything a recording can have."""
        root = self.temporary()
        machine.build(machine.load(name), root)
        folder = pathlib.Path(root, 'devices/virtual/mtty/mtty')
        if not folder.exists():
            folder.mkdir(parents=True)
            vgpu_driver.add_types(pathlib.Path(root), folder, MTTY)
        self.add_vgpus(root)
        for number, function in enumerate(self.gpus(root)):
            path = pathlib.Path(root, 'bus/pci/devices', function.address)
            # Two GPUs have the same number.
            (path / 'vpd').write_bytes(vpd(b'1320%d21' % (number // 2)))
            if number % 2:
                (path / 'vfio-dev').mkdir()
                (path / 'enable').write_text('1\n')
        self.join(root)
        hives.link(root, [function.address for function in self.gpus(root)])
        # GPUs that need a VFIO driver, which the kernel does not have.
        pathlib.Path(root, vfio_drivers.ALIASES).unlink(missing_ok=True)
        return root

    def join(self, root):
        """Put two GPUs into one IOMMU group."""
        gpus = [
            function for function in self.gpus(root) if function.pf is None
        ]
        devices = pathlib.Path(root, 'bus/pci/devices').resolve()
        one, other = ((devices / function.address).resolve()
                      for function in (gpus[0], gpus[-1]))
        if one == other:
            return
        (other / 'iommu_group/devices' / other.name).unlink()
        (other / 'iommu_group').unlink()
        group = (one / 'iommu_group').resolve()
        (other / 'iommu_group').symlink_to(os.path.relpath(group, other))
        (group / 'devices' / other.name).symlink_to(
            os.path.relpath(other, group / 'devices'))

    def add_vgpus(self, root):
        kernel = fake_kernel.FakeKernel(root)
        for function in self.gpus(root):
            if function.sriov_totalvfs:
                kernel.set_vfs(
                    function.address, min(4, function.sriov_totalvfs)
                )
        tree = sysfs.Sysfs(root)
        parents = os.listdir(f'{root}/{vgpu_sysfs.PARENTS}')
        for number, name in enumerate(sorted(parents)):
            types = reported.function(tree, name).vgpu_types
            kernel.write(
                f'{vgpu_sysfs.PARENTS}/{name}/{vgpu_sysfs.MDEV_TYPES}/'
                f'{types[0].type_id}/create', str(uuid.UUID(int=100 + number)))
        vfs = [
            function
            for function in self.gpus(root)
            if function.pf
            and function.vgpu_mechanism == vgpu_rules.VGPUMechanism.VF
        ]
        for function in vfs[1:3]:
            [kind, *_] = vgpu_sysfs.creatable_vgpu_types(
                tree, f'{tree.devices}/{function.address}')
            kernel.write(f'bus/pci/devices/{function.address}/{vgpu_sysfs.CURRENT}',
                         kind.type_id)

    @staticmethod
    def gpus(root):
        return [
            function
            for function in reported.functions(scanner.scan(sysfs.Sysfs(root)))
            if pci.can_be_gpu(function.class_code) and ':' in function.address
        ]

    @staticmethod
    def record(root, **kwargs):
        return recording.record(sysfs.Sysfs(root), **kwargs)

    def text(self, root, **kwargs):
        return machine.dump(self.record(root, **kwargs), 'a test')

    def load(self, text):
        path = f'{self.useFixture(fixtures.TempDir()).path}/host.yaml'
        pathlib.Path(path).write_text(text)
        return machine.load(path)

    def replay(self, text):
        root = self.temporary()
        machine.build(self.load(text), root)
        return root


class RoundTripTest(RecordingCase):

    def test_scan_of_recording_equals_scan_of_host(self):
        seen = collections.Counter()
        for name in machine.names():
            root = self.machine(name)
            text = self.text(root, with_serials=True)
            again = self.replay(text)
            before = scanner.scan(sysfs.Sysfs(root))
            self.assertEqual(before, scanner.scan(sysfs.Sysfs(again)), name)
            for function in before.functions:
                self.assertEqual(
                    scanner.scan_function(sysfs.Sysfs(root), function.address),
                    scanner.scan_function(
                        sysfs.Sysfs(again), function.address
                    ),
                )
                self.assertEqual(
                    scanner.scan_card(sysfs.Sysfs(root), function.address),
                    scanner.scan_card(sysfs.Sysfs(again), function.address))
                seen.update(
                    field.name for field in dataclasses.fields(function)
                    if getattr(function, field.name) not in (None, (), False))
            self.assertEqual(text, self.text(again, with_serials=True), name)
        # Not because there was nothing to see. Whose it is no scan says, and
        # VPD is read apart.
        self.assertEqual(
            {'owner', 'serial'}, {field.name for field in dataclasses.fields(
                pci.PCIFunction)} - set(seen))

    def test_recording_has_the_aliases_of_vfio_drivers(self):
        root = self.machine('wide-domains')
        alias = ('vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* '
                 'nvgrace_gpu_vfio_pci')
        path = pathlib.Path(root, vfio_drivers.ALIASES)
        for first in ('', 'alias pci:v00008086d00001572sv*sd* i40e\n'):
            path.write_text(f'{first}alias {alias}\n')
            again = pathlib.Path(self.replay(self.text(root)))
            self.assertEqual(f'alias {alias}\n',
                             (again / vfio_drivers.ALIASES).read_text())
            self.assertEqual([], [
                function.vfio_refusal
                for function in scanner.scan(sysfs.Sysfs(str(again))).functions
                if function.vfio_refusal])

    def test_recording_has_aliases_that_cannot_be_read(self):
        root = self.machine('wide-domains')
        path = pathlib.Path(root, vfio_drivers.ALIASES)
        path.symlink_to(path.name)
        again = self.replay(self.text(root))
        [reason] = [
            function.vfio_refusal
            for function in scanner.scan(sysfs.Sysfs(again)).functions
            if function.vfio_refusal]
        self.assertIn('modules.alias cannot be read', reason)

    def test_files_equal_those_of_the_host(self):
        # Also files that only backends and the fake kernel read.
        left_out = set()
        for name in ('nvidia-l40s-vgpu-2', 'nvidia-t4-2', 'nvidia-a100-2'):
            root = self.machine(name)
            again = self.replay(self.text(root, with_serials=True))
            for folder, folders, files in os.walk(root):
                for entry in (*folders, *files):
                    path = os.path.join(folder, entry)
                    other = f'{again}{path.removeprefix(root)}'
                    if not os.path.lexists(other):
                        left_out.add(entry)
                    elif os.path.islink(path):
                        self.assertEqual(
                            os.readlink(path), os.readlink(other))
                    elif entry != 'config' and os.path.isfile(path):
                        self.assertEqual(
                            pathlib.Path(path).read_bytes(),
                            pathlib.Path(other).read_bytes(), path)
        self.assertEqual(
            {'irq', 'modalias', 'resource', vgpu_driver.RULE}, left_out)

    def test_anonymous_recording_differs_in_serial_numbers_only(self):
        for name in machine.names():
            root = self.machine(name)
            text = self.text(root)
            self.assertEqual(text, self.text(root))
            before = scanner.scan(sysfs.Sysfs(root))
            after = scanner.scan(sysfs.Sysfs(self.replay(text)))
            plain = [
                [
                    dataclasses.replace(function, serial=None, dsn=None)
                    for function in scan.functions
                ]
                for scan in (before, after)
            ]
            self.assertEqual(plain[0], plain[1], name)
            self.assertEqual(before.problems, after.problems)
            for field in ('serial', 'dsn'):
                pairs = [(getattr(one, field), getattr(other, field))
                         for one, other in zip(
                             before.functions, after.functions, strict=True)]
                self._check(pairs, text)

    def _check(self, pairs, text):
        """Check form, difference and number of serial numbers."""
        self.assertEqual([pair for pair in pairs if None in pair],
                         [(None, None)] * sum(None in pair for pair in pairs))
        pairs = {pair for pair in pairs if None not in pair}
        for before, after in pairs:
            self.assertEqual(len(before), len(after))
            self.assertNotEqual(before, after)
            self.assertNotIn(before.encode().hex(' '), text)
        self.assertEqual(len(pairs), len({before for before, _ in pairs}))
        self.assertEqual(len(pairs), len({after for _, after in pairs}))

    def test_watch_works_on_a_recording(self):
        root = self.replay(self.text(self.machine('intel-flex170-2')))
        gpu = next(
            function for function in self.gpus(root) if function.sriov_numvfs
        )
        seen = watch.Watch(
            sysfs.Sysfs(root), scanner.scan(sysfs.Sysfs(root)))
        self.addCleanup(seen.close)
        self.assertFalse(seen.changed())
        fake_kernel.FakeKernel(root).write(
            f'bus/pci/devices/{gpu.address}/sriov_numvfs', '0')
        self.assertTrue(seen.changed())

    def test_recording_has_the_firmware_s_names_of_root_buses(self):
        root = self.machine('nvidia-t4-2')
        # The kernel shows a link.
        node = pathlib.Path(root, 'devices/LNXSYSTM:00')
        link = pathlib.Path(root, 'devices/pci0000:3a/firmware_node')
        link.rename(node)
        link.symlink_to('../LNXSYSTM:00')
        (node / 'uid').write_text(SECRET)
        text = self.text(root)
        self.assertNotIn(SECRET, text)
        self.assertEqual([function.id for function in self.gpus(root)], [
            function.id for function in self.gpus(self.replay(text))])

    def test_this_machine(self):
        if not os.path.isdir('/sys/bus/pci/devices'):
            self.skipTest('no PCI')
        before = scanner.scan(sysfs.Sysfs())
        root = self.replay(self.text('/sys', with_serials=True))
        self.assertEqual(before.functions,
                         scanner.scan(sysfs.Sysfs(root)).functions)

    def test_folder_without_pci_bus_is_refused(self):
        self.assertRaises(exception.HostError, self.record, '/nonexistent')


class UnreadableTest(RecordingCase):

    def setUp(self):
        super().setUp()
        self.root = self.machine('broken-l40s-4')
        [self.gpu] = [function for function in self.gpus(self.root)
                      if function.unreadable]
        self.folder = pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address).resolve()

    def _unreadable(self, name):
        """Let reads fail with EISDIR."""
        (self.folder / name).unlink(missing_ok=True)
        (self.folder / name).mkdir()

    def test_unreadable_file_stays_unreadable(self):
        for name in ('vpd', 'config', 'class', 'enable'):
            self._unreadable(name)
        tree = self.record(self.root)[
            str(self.folder.relative_to(pathlib.Path(self.root).resolve()))]
        self.assertEqual(
            {'numa_node': 'ELOOP', 'subsystem_device': 'ELOOP',
             'vpd': 'EISDIR', 'config': 'EISDIR', 'class': 'EISDIR',
             'enable': 'EISDIR'},
            {name: entry['unreadable'] for name, entry in tree.items()
             if 'unreadable' in entry})
        again = self.replay(self.text(self.root))
        found = scanner.scan_function(sysfs.Sysfs(again), self.gpu.address)
        self.assertEqual(
            scanner.scan_function(
                sysfs.Sysfs(self.root), self.gpu.address
            ).unreadable,
            found.unreadable,
        )
        self.assertLessEqual(
            {'numa_node', 'subsystem_device', 'config', 'class'},
            set(found.unreadable))

    def test_function_that_vanishes_is_left_out(self):
        link = pathlib.Path(self.root, 'bus/pci/devices', self.gpu.address)
        link.unlink()
        link.symlink_to('nowhere')
        again = self.replay(self.text(self.root))
        self.assertEqual(
            scanner.scan(sysfs.Sysfs(self.root)).problems,
            scanner.scan(sysfs.Sysfs(again)).problems)


class ListTest(RecordingCase):
    """Only listed files are recorded, or opened at all."""

    def setUp(self):
        super().setUp()
        self.root = self.machine('nvidia-l40s-vgpu-2')
        for folder, _, _ in list(os.walk(self.root)):
            for name in FOREIGN:
                path = pathlib.Path(folder, name)
                if not path.exists():
                    path.write_text(SECRET)

    def _names(self, listing):
        for name, how in listing.items():
            if isinstance(how, recording.How):
                if how not in (recording.How.LINK, recording.How.WRITTEN):
                    yield name
            else:
                yield from self._names(how)

    def test_unlisted_file_is_not_recorded(self):
        text = self.text(self.root, with_serials=True)
        self.assertNotIn(SECRET, text)
        for name in (*FOREIGN, vgpu_driver.RULE):
            self.assertNotIn(f' {name}:', text)

    def test_unlisted_file_is_not_opened(self):
        opened = []
        for module in (os, builtins):
            original = module.open

            def noted(path, *args, original=original, **kwargs):
                opened.append(str(path))
                return original(path, *args, **kwargs)
            self.useFixture(fixtures.MonkeyPatch(
                f'{module.__name__}.open', noted))
        self.record(self.root)
        names = {os.path.basename(path) for path in opened
                 if path.startswith(self.root)}
        self.assertLessEqual(
            {'vendor', 'config', 'current_vgpu_type', 'name'}, names)
        listed = set(self._names({
            str(number): listing for number, listing in enumerate(
                (recording.FUNCTION, recording.ROOT_BUS,
                 *recording.FOLDERS.values()))}))
        self.assertEqual(set(), names - listed - {'modules.alias'})
        self.assertEqual(set(), names & {
            *FOREIGN, 'create', 'remove', 'reset', 'bind', 'unbind'})

    def test_sizes_of_reads_are_those_of_the_scanner(self):
        asked = {}

        class Asked(sysfs.Sysfs):
            def read_bytes(self, path, size=4096):
                asked[path.removeprefix(f'{self.root}/')] = size
                return super().read_bytes(path, size)
        root = self.machine('old-two-card')
        for entry in os.scandir(f'{root}/bus/pci/devices'):
            pathlib.Path(entry.path, 'vpd').write_bytes(vpd(b'1'))
        # The switch becomes a NIC.
        for function in scanner.scan(sysfs.Sysfs(root)).functions:
            if function.device == '8747':
                pathlib.Path(root, 'bus/pci/devices', function.address,
                             'class').write_text('0x020000\n')
        functions = scanner.scan(sysfs.Sysfs(root)).functions
        recording.record(Asked(root))
        sizes = collections.defaultdict(set)
        for function in functions:
            if ':' in function.address:
                folder = os.readlink(
                    f'{root}/bus/pci/devices/{function.address}')
                place = folder.removeprefix('../../../')
                sizes[function.class_code].add((
                    asked[f'{place}/config'], asked.get(f'{place}/vpd')))
        self.assertEqual(
            {'030000': {(4096, 1024)}, '030200': {(4096, 1024)},
             '040300': {(4096, None)}, '060400': {(256, None)},
             '020000': {(64, None)}}, dict(sizes))


class MaskTest(RecordingCase):

    def test_anonymous_vpd_has_product_and_serial_number_only(self):
        root = self.machine('pcie-l40s-4')
        root = self.replay(self.text(root))
        gpu = self.gpus(root)[1]
        data = pathlib.Path(root, 'bus/pci/devices', gpu.address,
                            'vpd').read_bytes()
        resources = dict(config_space.vpd_resources(data))
        self.assertEqual([0x82, 0x90], list(resources))
        self.assertEqual(b'L40S', resources[0x82])
        fields = dict(config_space.vpd_fields(resources[0x90]))
        self.assertEqual({b'PN', b'SN'}, fields.keys())
        self.assertEqual(b'900-2G193', fields[b'PN'])
        for word in (b'owner', b'asset', b'1320'):
            self.assertNotIn(word, data)

    def test_serial_number_that_identifies_nothing_stays(self):
        # These values identify nothing.
        root = self.machine('pcie-l40s-4')
        first, second = self.gpus(root)[:2]
        devices = pathlib.Path(root, 'bus/pci/devices')
        for function, byte in ((first, 0), (second, 0xff)):
            with open(devices / function.address / 'config', 'r+b') as file:
                file.truncate(4096)
                file.seek(0x100)
                file.write(b'\x03\x00\x01\x00' + bytes([byte]) * 8)
            (devices / function.address / 'vpd').write_bytes(vpd(b'   '))
        found = self.gpus(self.replay(self.text(root)))[:2]
        self.assertEqual(
            [('-'.join(['00'] * 8), None), ('-'.join(['ff'] * 8), None)],
            [(function.dsn, function.serial) for function in found])


class FakeTest(RecordingCase):
    """A recording is a fake machine."""

    def host(self, text, vgpu=''):
        path = f'{self.useFixture(fixtures.TempDir()).path}/host.yaml'
        pathlib.Path(path).write_text(text + vgpu)
        self.root = self.temporary()
        return fake_host.FakeHost.for_machine(path, self.root)

    def test_host_without_vfio_pci_loads_it(self):
        root = self.temporary()
        machine.build(machine.load('pcie-l40s-4'), root)
        for entry in os.scandir(f'{root}/bus/pci/devices'):
            # The kernel shows this where nothing was ever written.
            pathlib.Path(entry.path, 'driver_override').write_text('(null)\n')
        vfio = pathlib.Path(root, 'bus/pci/drivers/vfio-pci')
        for name in ('bind', 'unbind'):
            (vfio / name).unlink()
        vfio.rmdir()
        host = self.host(self.text(root))
        gpu = next(function for function in self.gpus(self.root)
                   if function.vendor == '10de')
        device = host_base.HostDevice(
            assignment_uuid='a', stable_id=gpu.id, address=gpu.address)
        host.prepare(device)
        self.assertEqual('vfio-pci', scanner.scan_function(
            sysfs.Sysfs(self.root), gpu.address).driver)
        self.assertTrue(host.clean(device).passed)

    def test_function_without_override_is_unbound_and_bound(self):
        root = self.temporary()
        machine.build(machine.load('old-two-card'), root)
        gpu = next(function for function in self.gpus(root) if function.driver)
        folder = pathlib.Path(root, 'bus/pci/devices', gpu.address)
        (folder / 'driver_override').write_text('(null)\n')
        (folder / 'enable').write_text('1\n')
        kernel = fake_kernel.FakeKernel(root)
        for name, enabled in (('unbind', '0\n'), ('bind', '1\n')):
            kernel.write(f'bus/pci/drivers/{gpu.driver}/{name}', gpu.address)
            self.assertEqual(enabled, (folder / 'enable').read_text())
        [found, *_] = scanner.scan_card(sysfs.Sysfs(root), gpu.address)
        # The scan of a card alone does not count the host's NVSwitches.
        self.assertEqual(
            gpu.function, dataclasses.replace(found, nvswitches=0))

    def test_vfs_are_created_without_an_iommu(self):
        root = self.temporary()
        machine.build(machine.load('intel-flex170-2'), root)
        for entry in os.scandir(f'{root}/bus/pci/devices'):
            os.unlink(f'{entry.path}/iommu_group')
        groups = f'{root}/kernel/iommu_groups'
        shutil.rmtree(groups)
        os.mkdir(groups)
        host = self.host(self.text(root))
        pf = next(function for function in self.gpus(self.root)
                  if function.sriov_totalvfs)
        for count in ('2', '0'):
            host.kernel.write(
                f'bus/pci/devices/{pf.address}/sriov_numvfs', count)
            self.assertEqual(int(count), sum(
                function.pf == pf.id for function in self.gpus(self.root)))

    def _mtty(self):
        root = self.temporary()
        machine.build(machine.load('pcie-l40s-4'), root)
        folder = pathlib.Path(root, 'devices/virtual/mtty/mtty')
        folder.mkdir(parents=True)
        vgpu_driver.add_types(pathlib.Path(root), folder, MTTY)
        fake_kernel.FakeKernel(root).write(
            'class/mdev_bus/mtty/mdev_supported_types/mtty-2/create',
            str(uuid.UUID(int=0)))
        return self.text(root)

    def test_recorded_vgpus_exist_and_a_rule_allows_more(self):
        one = str(uuid.UUID(int=1))
        text = self._mtty()
        path = 'class/mdev_bus/mtty/mdev_supported_types/mtty-2'
        for rule in ('', f'vgpu: {{mtty: {MTTY!r}}}\n'):
            host = self.host(text, rule)
            before = pathlib.Path(
                self.root, path, 'available_instances').read_text()
            self.assertEqual('11\n', before)
            if not rule:
                self.assertRaises(
                    OSError, host.kernel.write, f'{path}/create', one)
                continue
            for uuid_, count in ((one, 2), (str(uuid.UUID(int=0)), 1)):
                if count == 2:
                    host.kernel.write(f'{path}/create', uuid_)
                else:
                    host.kernel.write(
                        f'bus/mdev/devices/{uuid_}/remove', '1')
                self.assertEqual(count, len(reported.function(
                    sysfs.Sysfs(self.root), 'mtty').existing_vgpus))

    def test_rule_for_missing_device_is_refused(self):
        text = self._mtty()
        for name in ('mbochs', '../../../etc', '0000:ff:00.0'):
            exc = self.assertRaises(
                exception.Invalid, self.host, text,
                f'vgpu: {{"{name}": {MTTY!r}}}\n')
            self.assertIn(name, str(exc))

    def test_rule_with_malformed_names_is_refused(self):
        text = self._mtty()
        outside = self.temporary()
        for name in (outside, '../../../../outside', 'a/b', '..'):
            rule = {**MTTY, 'types': {**MTTY['types'], name: {
                'name': 'theirs', 'video_ram': 1, 'max': 1}}}
            exc = self.assertRaises(
                exception.Invalid, self.host, text,
                f'vgpu: {{mtty: {rule!r}}}\n')
            self.assertIn(name, str(exc))
            self.assertFalse(os.path.exists(self.root))
        for rules in ('[]', 'null', '{mtty: null}', '{1: {}}',
                      f'{{1: {MTTY!r}}}'):
            exc = self.assertRaises(exception.Invalid, self.host, text,
                                    f'vgpu: {rules}\n')
            self.assertIn('vgpu', str(exc))

    def test_rule_without_types_that_exist_is_refused(self):
        # It has an mdev of type mtty-2 and offers both.
        text = self._mtty()
        for name in MTTY['types']:
            rule = {**MTTY, 'types': {name: MTTY['types'][name]}}
            exc = self.assertRaises(exception.Invalid, self.host, text,
                                    f'vgpu: {{mtty: {rule!r}}}\n')
            [other] = MTTY['types'].keys() - {name}
            self.assertIn(other, str(exc))
            # Or the next start would take it for a machine.
            self.assertFalse(os.path.exists(self.root))

    def test_mixed_size_rule_without_recorded_placements_is_refused(self):
        rule = {**MTTY, 'mix_policy': 'mixed_size', 'placements': {1: [0]}}
        exc = self.assertRaises(exception.Invalid, self.host, self._mtty(),
                                f'vgpu: {{mtty: {rule!r}}}\n')
        self.assertIn('placements', str(exc))

    def test_message_does_not_repeat_the_file(self):
        long = 'x' * 100000
        for tree in (f'[{long}]', f'{{/{long}: {{}}}}', f'{{{long}: 1}}',
                     f'{{a: {{b: [{long}]}}}}', f'{{a: {{/{long}: ""}}}}',
                     f'{{a: {{b: {{link: "/{long}"}}}}}}'):
            text = ('{title: x, source: x, reference: x, '
                    f'tree: {tree}}}')
            exc = self.assertRaises(exception.Invalid, self.replay, text)
            self.assertLess(len(str(exc)), 1000)
