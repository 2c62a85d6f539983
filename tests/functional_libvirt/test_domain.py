# SPDX-License-Identifier: Apache-2.0
"""The plugin's elements of a domain, as the real libvirt reads them."""

from __future__ import annotations

import typing
import uuid

from lxml import etree
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.virt import guest_file
from gpgpu_plugin.virt import libvirt as driver
from tests.functional_libvirt import test_nova_compute
from tests.unit.compute import make

DOMAIN = """
<domain type='qemu'><name>{name}</name><memory>65536</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='{machine}'>hvm</type></os><devices>{ports}
<interface type='user'><model type='virtio'/></interface>
<video><model type='virtio'/></video>{hostdevs}</devices></domain>"""
PORTS = ("<controller type='pci' model='pcie-root'/>"
         + "<controller type='pci' model='pcie-root-port'/>" * 4)
FUNCTIONS_BY_CARD = (
    ('0000:21:00.0', '0000:21:00.1'), ('0000:22:00.0',),
    ('0000:23:00.0', '0000:23:00.1', '0000:23:00.2'))


class DomainTest(base.BaseTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.libvirt = test_nova_compute.libvirt_of(self)

    def _define(self, machine: str, ports: str,
                hostdevs: str | None = None) -> typing.Any:
        if hostdevs is None:
            hostdevs = ''.join(
                device.to_xml()
                for number, card in enumerate(FUNCTIONS_BY_CARD)
                for device in driver.hostdevs(
                    host_base.Attachment(functions=card), number, machine))
        domain = self.libvirt.defineXML(DOMAIN.format(
            name=f'gpgpu-test-{uuid.uuid4().hex[:8]}', machine=machine,
            ports=ports, hostdevs=hostdevs))
        self.addCleanup(domain.undefine)
        return etree.fromstring(domain.XMLDesc())

    def test_first_mdev_is_the_display(self) -> None:
        names = [str(uuid.uuid4()) for _ in range(2)]
        devices = [device for number, name in enumerate(names)
                   for device in driver.hostdevs(
                       host_base.Attachment(mdev=name), number, 'q35')]
        driver.show(devices)
        tree = self._define(
            'q35', '', ''.join(device.to_xml() for device in devices)
            + "<graphics type='vnc' listen='127.0.0.1'/>")
        self.assertEqual(
            [(names[0], 'on'), (names[1], 'off')],
            [(element.find('source/address').get('uuid'),
              element.get('display'))
             for element in tree.findall("devices/hostdev[@type='mdev']")])

    def test_functions_of_a_card_share_a_slot_of_their_own(self) -> None:
        for machine, ports in (('q35', ''), ('q35', PORTS), ('pc', '')):
            tree = self._define(machine, ports)
            places: dict[tuple[str, str], list[str]] = {}
            for hostdev in tree.findall('devices/hostdev'):
                source = hostdev.find('source/address')
                place = hostdev.find('address')
                places.setdefault(
                    (place.get('bus'), place.get('slot')), []).append(
                        f'{source.get("bus")[2:]}:{place.get("function")}')
            self.assertEqual(
                [['21:0x0', '21:0x1'], ['22:0x0'],
                 ['23:0x0', '23:0x1', '23:0x2']], sorted(places.values()))
            taken = [(element.get('bus'), element.get('slot'))
                     for element in tree.findall(
                         "devices/*/address[@type='pci']")
                     if element.getparent().tag != 'hostdev']
            self.assertFalse(set(places) & set(taken), machine)
            self._check_addresses(tree)

    def _check_addresses(self, tree: etree.Element) -> None:
        """Compare what the tenant sees with the domain of libvirt."""
        found = guest_file.addresses(etree.tostring(tree).decode(), [
            (make.assignment(uuid=card[0]), host_base.Attachment(
                functions=card)) for card in FUNCTIONS_BY_CARD])
        self.assertEqual(
            {card[0]: len(card) for card in FUNCTIONS_BY_CARD},
            {name: len(set(places)) for name, places in found.items()})
        self.assertEqual(
            [(element.get('bus'), element.get('slot'),
              element.get('function'))
             for element in tree.findall('devices/hostdev/address')],
            [(f'0x{place.bus:02x}', f'0x{place.device:02x}',
              f'0x{place.function:x}')
             for card in FUNCTIONS_BY_CARD
             for place in map(pci.PCIAddress.parse, found[card[0]])])
