# SPDX-License-Identifier: Apache-2.0
"""Tests of GPUs that other libvirt domains use."""

import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from gpgpu_plugin.virt import guests
from tests.fixtures import reported

ADDRESS = '0000:3b:00.0'
OTHER = '0000:5e:00.0'
OWNER = {ADDRESS: 'libvirt domain by-hand (u1)'}

objects.register_all()


def domain(address=ADDRESS, managed='yes', uuid='u1'):
    """Return a domain with one PCI function."""
    names = ('domain', 'bus', 'slot', 'function')
    values = (address[:4], address[5:7], address[8:10], address[11:])
    source = ' '.join(f"{name}='0x{value}'"
                      for name, value in zip(names, values, strict=True))
    return types.SimpleNamespace(
        name='by-hand', uuid=uuid, get_xml_desc=lambda: (
            f"<domain><devices><hostdev type='usb'/><hostdev type='pci' "
            f"managed='{managed}'><source><address {source}/></source>"
            f"</hostdev></devices></domain>"))


class DevicesTest(base.BaseTestCase):

    def test_functions_and_mdevs_of_a_domain_are_its_devices(self):
        xml = domain().get_xml_desc().replace(
            '</devices>', "<hostdev type='mdev'><source><address uuid='a1'/>"
            '</source></hostdev></devices>')
        self.assertEqual({ADDRESS, 'a1'}, guests.devices(xml))


class OtherDomainsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.host = mock.Mock(**{'list_guests.return_value': [domain()]})
        self.assigned = set()
        self.instances = set()
        self.records = guests.OtherDomains(
            self.host, lambda: self.assigned,
            lambda uuid: uuid in self.instances)

    def owners(self, driver='vfio-pci'):
        return self.records.owners(reported.scan([
            reported.Reported(id='/devices/1', address=ADDRESS,
                              driver=driver),
            reported.Reported(id='/devices/2', address=OTHER,
                              driver=driver)]))

    def test_gpu_of_a_domain_without_an_instance_is_reported(self):
        self.assertEqual(OWNER, self.owners(driver='xe-vfio-pci'))
        self.host.list_guests.reset_mock()
        self.assertEqual(OWNER, self.owners())
        # It may be stopped.
        self.host.list_guests.assert_called_once_with(only_running=False)

    def test_gpu_that_libvirt_binds_for_an_instance_is_reported(self):
        self.instances.add('u1')
        self.assertEqual(OWNER, self.owners())

    def test_gpu_in_a_domain_left_by_a_failed_move_is_not_reported(self):
        self.host.list_guests.return_value = [domain(managed='no')]
        self.instances.add('u1')
        self.assertEqual({}, self.owners())

    def test_gpu_of_an_operator_s_unmanaged_hostdev_is_reported(self):
        self.host.list_guests.return_value = [domain(managed='no')]
        self.assertEqual(OWNER, self.owners())

    def test_scrub_guest_owns_nothing(self):
        found = domain(managed='no')
        found.name = f'gpgpu-scrub-{ADDRESS}'
        self.host.list_guests.return_value = [found]
        self.assertEqual({}, self.owners())

    def test_libvirt_is_not_asked_while_all_is_explained(self):
        self.owners(driver='nvidia')
        self.assigned = {ADDRESS, OTHER}
        self.owners()
        self.assertFalse(self.records.changed())
        self.assertFalse(self.host.list_guests.called)

    def test_change_is_noticed_when_the_domain_is_gone(self):
        self.owners()
        self.assertFalse(self.records.changed())
        self.host.list_guests.return_value = []
        self.assertTrue(self.records.changed())
        self.owners()
        self.assertFalse(self.records.changed())

    def test_instance_is_one_that_nova_has_or_had(self):
        get = self.useFixture(fixtures.MockPatchObject(
            objects.Instance, 'get_by_uuid')).mock
        self.assertTrue(guests.is_instance('u1'))
        self.assertEqual('yes', get.call_args.args[0].read_deleted)
        get.side_effect = nova_exception.InstanceNotFound(instance_id='u1')
        self.assertFalse(guests.is_instance('u1'))
