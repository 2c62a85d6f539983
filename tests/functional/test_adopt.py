# SPDX-License-Identifier: Apache-2.0
"""GPUs that Nova's own PCI passthrough assigned, taken over by the plugin."""

from __future__ import annotations

import json
import pathlib
import typing

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from tests.fixtures import cloud
from tests.fixtures import libvirt_cloud

_SPEC = {'vendor_id': '10de', 'product_id': '2330'}
_VARIANT = ('H100', *cloud.HGX_H100)


class AdoptTest(libvirt_cloud.GpuLibvirtCloud):
    """A server with a GPU by a PCI alias, whose device_spec is emptied."""

    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = ()

    def _configure(self) -> None:
        super()._configure()
        folder = pathlib.Path(self.state_path) / 'machines/gpu1'
        machine.build(machine.load('hgx-h100-8'), folder)
        self.flags(
            device_spec=[json.dumps(_SPEC)],
            alias=[json.dumps({**_SPEC, 'name': 'h100',
                               'device_type': 'type-PCI'})], group='pci')
        self.restart_scheduler(
            'ComputeFilter', 'PciPassthroughFilter', 'GpuFilter')
        self.connections['gpu1'] = fakelibvirt.Connection(
            'qemu:///system', version=fakelibvirt.FAKE_LIBVIRT_VERSION,
            hv_version=fakelibvirt.FAKE_QEMU_VERSION, hostname='gpu1',
            host_info=fakelibvirt.HostInfo(
                cpu_nodes=2, cpu_sockets=1, cpu_cores=2, cpu_threads=2),
            pci_info=_as_libvirt_lists(folder))

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(
            self.flavor_of({'pci_passthrough:alias': 'h100:1'}))
        [self.address] = self.hostdevs(self.server)
        self._open()

    def _open(self) -> None:
        """Do what libvirt and QEMU do with the GPU of their guest."""
        kernel = fake_kernel.FakeKernel(str(self.sysfs('gpu1')))
        kernel.load_vfio()
        folder = f'bus/pci/devices/{self.address}'
        kernel.write(f'{folder}/driver_override', 'vfio-pci')
        kernel.write('bus/pci/drivers/vfio-pci/bind', self.address)
        (self.sysfs('gpu1') / folder / 'enable').write_text('1\n')

    def _close(self) -> None:
        """Do what libvirt does when the guest has ended."""
        kernel = fake_kernel.FakeKernel(str(self.sysfs('gpu1')))
        kernel.write('bus/pci/drivers/vfio-pci/unbind', self.address)
        kernel.write(f'bus/pci/devices/{self.address}/driver_override', '\n')

    def _adopt(self) -> None:
        """Do what the page about adoption says."""
        self.computes['gpu1'].stop()
        self.flags(device_spec=[], group='pci')
        self.manage('variant', 'create', *_VARIANT)
        self._start_compute('gpu1')
        self.run_periodics('gpu1')

    def _shown(self) -> dict[str, typing.Any]:
        [found] = [device for device in self.devices()
                   if device['address'] == self.address]
        return dict(self.listing('device', 'show', found['uuid']))

    def _check_kept(self) -> None:
        shown = self._shown()
        self.assertEqual('unmanaged', shown['shown_state'])
        for words in ('managed by Nova ([pci] device_spec', self.server['id']):
            self.assertIn(words, shown['reason'])
        self.wait_inventory(7, 0)

    def _check_offered_when_deleted(self) -> None:
        # The host may notice at once that the guest has gone.
        with fixtures.MockPatchObject(
                self.driver().gpu_tracker.backend, 'clean',
                wraps=self.driver().gpu_tracker.backend.clean) as clean:
            self.delete(self.server)
            self.run_periodics('gpu1')
            self.wait_states(assigned=7, available=1)
        self.assertEqual([self.address], [
            call.args[0].address for call in clean.mock.call_args_list])
        self.wait_inventory(8, 0)
        last = self.boot(self.flavor(H100=1))
        self.assertEqual([self.address], self.hostdevs(last))

    def test_gpu_of_a_running_guest_is_not_assigned_again(self) -> None:
        self._adopt()
        self._check_kept()
        other = self.boot(self.flavor(H100=7))
        self.assertNotIn(self.address, self.hostdevs(other))
        self.boot(self.flavor(H100=1), 'ERROR')
        self._close()
        self._check_offered_when_deleted()

    def test_gpu_of_a_stopped_guest_is_not_assigned_again(self) -> None:
        self.api.post_server_action(self.server['id'], {'os-stop': None})
        self.wait_status(self.server['id'], 'SHUTOFF')
        self._close()
        self._adopt()
        self._check_kept()
        other = self.boot(self.flavor(H100=7))
        self.assertNotIn(self.address, self.hostdevs(other))
        self.restart_compute()
        self._check_kept()
        self._check_offered_when_deleted()


_DOMAIN = """
<domain type='kvm'>
  <uuid>4f2d53a5-2b62-4f04-8a70-0a7d6d3b1c11</uuid>
  <name>by-hand</name>
  <memory>1024</memory>
  <vcpu>1</vcpu>
  <os><type>hvm</type></os>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x{0.domain:04x}' bus='0x{0.bus:02x}'
                 slot='0x{0.device:02x}' function='0x{0.function:x}'/>
      </source>
    </hostdev>
  </devices>
</domain>
"""


class OtherDomainTest(libvirt_cloud.GpuLibvirtCloud):
    """An operator has given a GPU to a domain of their own, which is off."""

    def test_gpu_of_a_domain_by_hand_is_not_assigned(self) -> None:
        address = min(device['address'] for device in self.devices(
            '--variant', 'H100'))
        kernel = fake_kernel.FakeKernel(str(self.sysfs('gpu1')))
        kernel.load_vfio()
        kernel.write(f'bus/pci/devices/{address}/driver_override', 'vfio-pci')
        kernel.write('bus/pci/drivers/vfio-pci/bind', address)
        domain = self.connections['gpu1'].defineXML(
            _DOMAIN.format(pci.PCIAddress.parse(address)))
        self.restart_compute()
        self.wait_inventory(7, 0)
        [found] = [device for device in self.devices()
                   if device['address'] == address]
        self.assertIn('libvirt domain by-hand', self.listing(
            'device', 'show', found['uuid'])['reason'])
        self.boot(self.flavor(H100=8), 'ERROR')
        domain.undefine()
        # Nobody knows what the domain left in the GPU.
        with fixtures.MockPatchObject(
                self.driver().gpu_tracker.backend, 'clean',
                wraps=self.driver().gpu_tracker.backend.clean) as clean:
            self.run_periodics('gpu1')
            self.wait_states(available=8)
        self.assertEqual([address], [
            call.args[0].address for call in clean.mock.call_args_list])


def _as_libvirt_lists(sysfs: pathlib.Path) -> fakelibvirt.HostPCIDevicesInfo:
    """Return the GPUs of a fake machine as devices of libvirt."""
    info = fakelibvirt.HostPCIDevicesInfo(num_pfs=0, num_vfs=0)
    for folder in sorted((sysfs / 'bus/pci/devices').iterdir()):
        if (folder / 'device').read_text() != '0x2330\n':
            continue
        address = pci.PCIAddress.parse(folder.name)
        info.add_device(
            dev_type='PCI', bus=address.bus, slot=address.device,
            function=address.function, iommu_group=100 + address.bus,
            numa_node=int((folder / 'numa_node').read_text()),
            vend_id='10de', prod_id='2330')
    return info
