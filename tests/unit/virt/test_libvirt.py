# SPDX-License-Identifier: Apache-2.0
"""Tests of the elements of a libvirt domain."""

import contextlib
import types

import fixtures
from lxml import etree
from nova.virt.libvirt import config as libvirt_config
from oslo_config import fixture as config_fixture
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import libvirt
from tests.unit.compute import make


class HostdevTest(base.BaseTestCase):

    def elements(self, *functions, number=0, machine_type='pc-q35-7.2'):
        attachment = host_base.Attachment(functions=functions)
        return [
            etree.fromstring(device.to_xml()) for device in libvirt.hostdevs(
                attachment, number, machine_type)]

    def test_mdev_is_a_hostdev_by_its_uuid(self):
        [device] = libvirt.hostdevs(
            host_base.Attachment(mdev='u-u-i-d'), 0, 'pc-q35-7.2')
        element = etree.fromstring(device.to_xml())
        self.assertEqual(
            {'mode': 'subsystem', 'type': 'mdev', 'managed': 'no',
             'model': 'vfio-pci'}, dict(element.attrib))
        self.assertEqual('u-u-i-d', element.find(
            'source/address').get('uuid'))

    def test_single_function_has_no_address_in_the_guest(self):
        [element] = self.elements('10000:e1:1f.0')
        self.assertEqual('no', element.get('managed'))
        # libvirt chooses one.
        self.assertIsNone(element.find('address'))
        self.assertEqual(
            {'domain': '0x10000', 'bus': '0xe1', 'slot': '0x1f',
             'function': '0x0'}, dict(element.find('source/address').attrib))

    def addresses(self, **kwargs):
        return [(hostdev.find('address').get('bus'),
                 hostdev.find('address').get('slot'),
                 hostdev.find('address').get('function'),
                 hostdev.find('address').get('multifunction'))
                for hostdev in self.elements(
                    '0000:21:00.0', '0000:21:00.2', **kwargs)]

    def test_functions_of_a_gpu_share_a_slot(self):
        self.assertEqual([('0x01', '0x00', '0x0', 'on'),
                          ('0x01', '0x00', '0x1', None)], self.addresses())
        for number, machine_type, address in (
                (1, 'q35', ('0x02', '0x00')), (0, 'virt', ('0x01', '0x00')),
                (1, 'pc-i440fx-7.2', ('0x00', '0x11')),
                (0, None, ('0x00', '0x10'))):
            found = self.addresses(number=number, machine_type=machine_type)
            self.assertEqual([address] * 2, [got[:2] for got in found])


class DriverCase(base.BaseTestCase):
    """Base class: a driver without tracker, backend and libvirt."""

    def setUp(self):
        super().setUp()
        self.driver = object.__new__(libvirt.GpuLibvirtDriver)
        self.driver._gpu_tracker = types.SimpleNamespace(
            assigned=lambda instance_uuid: (make.assignment(),))
        self.attachments = []
        self.useFixture(fixtures.MockPatchObject(
            self.driver, 'gpu_attachments', lambda instance: self.attachments))
        self.instance = types.SimpleNamespace(
            uuid='i1', flavor=types.SimpleNamespace(extra_specs={}),
            get_pci_devices=list)

    def patch_nova(self, method, **kwargs):
        return self.useFixture(fixtures.MockPatch(
            f'nova.virt.libvirt.driver.LibvirtDriver.{method}',
            **kwargs)).mock


class GuestConfigTest(DriverCase):

    def setUp(self):
        super().setUp()
        guest = libvirt_config.LibvirtConfigGuest()
        guest.os_mach_type = 'pc-q35-7.2'
        self.nova = self.patch_nova('_get_guest_config', return_value=guest)

    def devices(self, *attachments, mdevs=None, **specs):
        self.attachments = list(attachments)
        self.instance.flavor.extra_specs = {
            key.replace('__', ':'): value for key, value in specs.items()}
        guest = self.driver._get_guest_config(
            self.instance, None, None, None, mdevs=mdevs)
        return [etree.fromstring(device.to_xml())
                for device in guest.devices]

    def test_guest_has_a_hostdev_for_every_gpu(self):
        found = self.devices(host_base.Attachment(functions=('0000:21:00.0',)),
                             host_base.Attachment(mdev='a1'))
        self.assertEqual(['pci', 'mdev'],
                         [element.get('type') for element in found])
        self.assertIsNone(found[1].get('display'))

    def test_gpus_of_several_functions_have_slots_of_their_own(self):
        found = self.devices(*(
            host_base.Attachment(functions=(f'0000:{bus}:00.0',
                                            f'0000:{bus}:00.1'))
            for bus in (21, 22)))
        self.assertEqual(['0x01', '0x01', '0x02', '0x02'], [
            element.find('address').get('bus') for element in found])

    def test_mdevs_of_assignments_are_not_added_twice(self):
        self.devices(host_base.Attachment(mdev='a1'),
                     mdevs=['a1', 'another'])
        self.assertEqual(['another'], self.nova.call_args.args[7])

    def test_guest_without_gpus_is_nova_s(self):
        self.assertEqual([], self.devices())
        self.assertEqual([], self.nova.call_args.args[7])

    def test_first_mdev_is_the_display_if_the_flavor_wants_it(self):
        found = self.devices(
            host_base.Attachment(functions=('0000:21:00.0',)),
            host_base.Attachment(mdev='a1'), host_base.Attachment(mdev='a2'),
            gpgpu__display='on')
        self.assertEqual([None, 'on', None],
                         [element.get('display') for element in found])

    def test_display_without_an_mdev_is_refused(self):
        self.assertRaises(
            exception.Invalid, self.devices,
            host_base.Attachment(functions=('0000:21:00.0',)),
            gpgpu__display='on')


class UnrescueTest(DriverCase):

    XML = """<domain><devices>
      <hostdev type='pci'><source><address domain='0x0000' bus='0x21'
        slot='0x1f' function='0x1'/></source></hostdev>
      <hostdev type='mdev'><source><address uuid='a1'/></source></hostdev>
    </devices></domain>"""

    def setUp(self):
        super().setUp()
        self.nova = self.patch_nova('unrescue')
        # Its own tests have a host with a book.
        self.driver._gpu_working = lambda instance: contextlib.nullcontext()
        for name, value in (('get_instance_path', '/instances/i1'),
                            ('load_file', self.XML)):
            self.useFixture(fixtures.MockPatch(
                f'nova.virt.libvirt.utils.{name}', return_value=value))

    def unrescue(self, *functions):
        self.attachments = [host_base.Attachment(functions=functions)]
        self.driver.unrescue(None, self.instance)

    def test_domain_with_the_assigned_devices_is_taken_back(self):
        self.unrescue('0000:21:1f.1')
        self.nova.assert_called_once_with(None, self.instance)

    def test_domain_with_other_devices_is_refused(self):
        exc = self.assertRaises(
            virt_exception.GPUDomainStale, self.unrescue, '0000:22:1f.1')
        for word in ('i1', '0000:21:1f.1', '0000:22:1f.1'):
            self.assertIn(word, str(exc))
        self.assertFalse(self.nova.called)

    def test_devices_that_nova_assigned_are_not_compared(self):
        self.instance.get_pci_devices = lambda: [
            types.SimpleNamespace(address='0000:21:1f.1')]
        exc = self.assertRaises(
            virt_exception.GPUDomainStale, self.unrescue, '0000:22:1f.1')
        self.assertIn('PCI devices none', str(exc))

    def test_domain_of_a_guest_without_functions_is_not_read(self):
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.utils.load_file',
            side_effect=FileNotFoundError))
        self.unrescue()
        self.assertTrue(self.nova.called)


class GuestsTest(DriverCase):

    def setUp(self):
        super().setUp()
        conf_gpgpu.register_opts(libvirt.CONF)
        self.conf = self.useFixture(config_fixture.Config(libvirt.CONF))
        self.conf.config(group='libvirt', virt_type='qemu')
        self.made = self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.virt.guests.LibvirtGuests')).mock

    def test_guests_are_those_of_nova_s_libvirt(self):
        self.assertIs(self.made.return_value, self.driver._gpu_guests())
        self.made.assert_called_once_with(
            'qemu:///system', 'qemu', libvirt.hostdevs)
        # Without an image there never was any.
        self.assertFalse(self.made.return_value.end_all.called)

    def test_guests_of_an_earlier_process_are_ended(self):
        self.conf.config(group='gpgpu_compute', scrub_guest_path='/g')
        self.driver._gpu_guests()
        self.made.return_value.end_all.assert_called_once_with()


class FakeDriverTest(base.BaseTestCase):

    def test_domain_has_no_fake_gpus(self):
        driver = object.__new__(libvirt.GpuLibvirtFakeDriver)
        self.assertEqual([], driver.gpu_attachments(None))
        self.assertIsNone(driver._gpu_guests())
        # Otherwise a guest would seem to run without its devices.
        self.assertIsNone(driver._gpu_devices('i1'))
