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
"""The elements of a domain; what libvirt makes of them is tested with it."""

from lxml import etree
from oslotest import base

from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.virt import libvirt


class HostdevTest(base.BaseTestCase):

    def elements(self, *card, number=0, machine_type='pc-q35-7.2'):
        return [
            etree.fromstring(device.to_xml())
            for device in libvirt.hostdevs(
                host_base.Attachment(functions=card), number, machine_type)]

    def test_mdev(self):
        [device] = libvirt.hostdevs(
            host_base.Attachment(mdev='u-u-i-d'), 0, 'pc-q35-7.2')
        element = etree.fromstring(device.to_xml())
        self.assertEqual(
            {'mode': 'subsystem', 'type': 'mdev', 'managed': 'no',
             'model': 'vfio-pci'}, dict(element.attrib))
        self.assertEqual('u-u-i-d', element.find(
            'source/address').get('uuid'))

    def test_one_function(self):
        [element] = self.elements('10000:e1:1f.0')
        self.assertEqual('no', element.get('managed'))
        # libvirt finds a place for it.
        self.assertIsNone(element.find('address'))
        self.assertEqual(
            {'domain': '0x10000', 'bus': '0xe1', 'slot': '0x1f',
             'function': '0x0'}, dict(element.find('source/address').attrib))

    def places(self, **kwargs):
        return [(hostdev.find('address').get('bus'),
                 hostdev.find('address').get('slot'),
                 hostdev.find('address').get('function'),
                 hostdev.find('address').get('multifunction'))
                for hostdev in self.elements(
                    '0000:21:00.0', '0000:21:00.2', **kwargs)]

    def test_functions_of_a_card_share_a_slot(self):
        self.assertEqual([('0x01', '0x00', '0x0', 'on'),
                          ('0x01', '0x00', '0x1', None)], self.places())
        for number, machine_type, place in (
                (1, 'q35', ('0x02', '0x00')), (0, 'virt', ('0x01', '0x00')),
                (1, 'pc-i440fx-7.2', ('0x00', '0x11')),
                (0, None, ('0x00', '0x10'))):
            found = self.places(number=number, machine_type=machine_type)
            self.assertEqual(
                [place, place], [address[:2] for address in found])
