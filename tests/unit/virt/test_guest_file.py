# SPDX-License-Identifier: Apache-2.0

import json

from oslotest import base

from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.virt import guest_file
from tests.unit.compute import make

MDEV = 'b0e9ac2c-0d7e-4b0b-b1a1-1d3a1f5d6c11'
DOMAIN = f"""<domain><devices>
<hostdev type='pci'>
 <source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></source>
 <address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/>
</hostdev>
<hostdev type='pci'>
 <source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/></source>
 <address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x1'/>
</hostdev>
<hostdev type='mdev'>
 <source><address uuid='{MDEV}'/></source>
 <address type='pci' domain='0x0000' bus='0x00' slot='0x1f' function='0x7'/>
</hostdev>
<hostdev type='pci'>
 <source><address domain='0x0000' bus='0x5e' slot='0x00' function='0x0'/></source>
</hostdev>
<hostdev type='usb'><source/></hostdev>
</devices></domain>"""  # noqa: E501


class ContentTest(base.BaseTestCase):

    def content(self, attachment, **fields):
        [gpu] = json.loads(guest_file.content(DOMAIN, [
            (make.assignment(**fields), attachment)]))['gpus']
        return gpu

    def test_whole_gpu_has_the_places_of_its_functions(self):
        self.assertEqual(
            {'variant': 'H100', 'vgpu_type': None,
             'addresses': ['0000:07:00.0', '0000:07:00.1']},
            self.content(host_base.Attachment(
                functions=('0000:3b:00.0', '0000:3b:00.1'))))

    def test_mdev_has_the_place_of_its_device(self):
        self.assertEqual(
            {'variant': 'H100', 'vgpu_type': 'H100-10C',
             'addresses': ['0000:00:1f.7']},
            self.content(host_base.Attachment(mdev=MDEV),
                         vgpu_type='H100-10C'))

    def test_unknown_place_is_left_out(self):
        for address in ('0000:5e:00.0', '0000:99:00.0'):
            self.assertEqual([], self.content(host_base.Attachment(
                functions=(address,)))['addresses'])


class AddressesTest(base.BaseTestCase):

    def addresses(self, attachment):
        [found] = guest_file.addresses(DOMAIN, [
            (make.assignment(), attachment)]).values()
        return found

    def test_all_functions_and_mdevs_have_their_places(self):
        for attachment, places in (
                (host_base.Attachment(functions=(
                    '0000:3b:00.0', '0000:3b:00.1')),
                 ('0000:07:00.0', '0000:07:00.1')),
                (host_base.Attachment(mdev=MDEV), ('0000:00:1f.7',))):
            self.assertEqual(places, self.addresses(attachment))

    def test_gpu_with_a_function_without_a_place_is_unknown(self):
        for names in (('0000:3b:00.0', '0000:5e:00.0'), ('0000:99:00.0',)):
            self.assertEqual((), self.addresses(
                host_base.Attachment(functions=names)))
