# SPDX-License-Identifier: Apache-2.0
"""Description of the GPUs of a server in Nova's metadata."""

from __future__ import annotations

import json
import typing

import fixtures
from keystoneauth1 import loading
from lxml import etree
from nova import context as nova_context
from nova import service_auth
from nova.api.metadata import base as metadata
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt import configdrive

from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import vendordata
from gpgpu_plugin.domain import pci
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import cloud
from tests.fixtures import libvirt_cloud
from tests.functional import test_moves

PASSWORD = 'secret'

_GROUP = 'vendordata_dynamic_auth'


class Endpoint(fixtures.Fixture):
    """The endpoint of a cloud's conductor, which Nova is configured to ask."""

    def __init__(self, test: cloud.GpuCloud) -> None:
        self._test = test

    def _setUp(self) -> None:
        test = self._test
        test.flags(vendordata_bind='127.0.0.1:9465',
                   vendordata_password=PASSWORD, group='gpgpu_conductor')
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.http_server.parse',
            return_value=http_server.Address(host='127.0.0.1', port=0)))
        subject = vendordata.Vendordata(cloud.CONF)
        address = subject.start(test.conductor.database)
        self.addCleanup(subject.stop)
        test.flags(vendordata_providers=['DynamicJSON'],
                   vendordata_dynamic_targets=[f'gpgpu@http://{address}/'],
                   vendordata_dynamic_read_timeout=60, group='api')
        self.addCleanup(service_auth.reset_globals)
        self.authenticate(PASSWORD)

    def authenticate(self, password: str) -> None:
        """Let Nova send a password."""
        # The options of a group are those of its auth_type.
        cloud.CONF.register_opts(
            loading.get_auth_plugin_conf_options('http_basic'), _GROUP)
        self._test.flags(auth_type='http_basic', username='nova',
                         password=password, group=_GROUP)
        service_auth.reset_globals()


class VendordataCase(test_moves.MovesCase):
    """Base class of tests of a server with two L40S, which moves."""

    def setUp(self) -> None:
        super().setUp()
        self.endpoint = self.useFixture(Endpoint(self))

    def shown(self) -> list[tuple[str, int]]:
        """Return what the guest reads: variants and numbers of its GPUs."""
        return [(gpu['variant'], gpu['count']) for gpu in self.read()]

    def read(self) -> list[dict[str, typing.Any]]:
        """Return the GPUs that the guest reads in Nova's metadata."""
        found = metadata.get_metadata_by_instance_id(
            self.server['id'], '192.0.2.1',
            nova_context.get_admin_context())
        text = found.lookup('/openstack/latest/vendor_data2.json')
        gpus: list[dict[str, typing.Any]] = json.loads(text)['gpgpu']['gpus']
        return gpus


class VendordataTest(VendordataCase):
    """Variants and numbers of GPUs."""

    def test_guest_is_shown_what_it_has_over_moves(self) -> None:
        self.assertEqual([('L40S', 2)], self.shown())
        self.resize(self.flavor(L40S=4))
        self.both(4)
        self.assertEqual([('L40S', 4)], self.shown())
        self.decide('revertResize')
        self.assertEqual([('L40S', 2)], self.shown())
        self.act('migrate')
        self.both(2)
        self.decide('confirmResize')
        self.assertEqual([('L40S', 2)], self.shown())
        self.act('rebuild', {'imageRef': cloud.IMAGE})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.assertEqual([('L40S', 2)], self.shown())
        self.act('shelve')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.assertEqual([], self.shown())
        self.act('unshelve')
        self.wait_status(self.server['id'], 'ACTIVE')
        self.assertEqual([('L40S', 2)], self.shown())

    def test_config_drive_of_a_new_server_has_it(self) -> None:
        """Nova asks while it spawns, when the claim is not active yet."""
        asked: list[typing.Any] = []
        original = vendordata.gpus

        def gpus(*args: typing.Any) -> typing.Any:
            asked.append(original(*args))
            return asked[-1]
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.vendordata.gpus', gpus))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver._create_image',
            _create_config_drive))
        self.boot(self.flavor(L40S=1), config_drive=True)
        self.assertEqual([[('L40S', 1)]], [
            [(gpu['variant'], gpu['count']) for gpu in answer]
            for answer in asked])

    def test_wrong_password_tells_nothing(self) -> None:
        self.endpoint.authenticate('guessed')
        with self.assertRaises(KeyError):
            self.shown()


class GuestAddressesTest(VendordataCase):
    """A server whose hypervisor gives its GPUs other places each time."""

    def setUp(self) -> None:
        self.first_bus = 4
        original = fakelibvirt.Domain.XMLDesc

        def described(domain: typing.Any, flags: int) -> str:
            # Nova's fake libvirt gives all devices the same address. A real
            # one chooses when the domain is defined.
            first = vars(domain).setdefault('first_bus', self.first_bus)
            tree = etree.fromstring(original(domain, flags))
            for number, element in enumerate(
                    tree.findall('./devices/hostdev/address')):
                element.set('bus', f'0x{first + number:02x}')
                element.set('slot', '0x00')
            return etree.tostring(tree).decode()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.XMLDesc', described))
        self.calls = 0
        activate = conductor_client.ConductorAPI.activate

        def counted(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            self.calls += 1
            return activate(*args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.conductor_client.ConductorAPI.activate',
            counted))
        super().setUp()

    def check(self, host: str = 'gpu1', *, first_bus: int) -> None:
        """Check that the guest reads what its domain has."""
        domain = etree.fromstring(self.domain_xml(self.server['id'], host))
        places = [[f'0000:{element.get("bus")[2:]}:00.0']
                  for element in domain.findall('./devices/hostdev/address')]
        self.assertEqual([[f'0000:{first_bus + number:02x}:00.0']
                          for number in range(len(places))], places)
        self.assertEqual([places], [
            gpu.get('addresses') for gpu in self.read()])

    def hard_reboot(self) -> None:
        self.act('reboot', {'type': 'HARD'})
        self.wait_status(self.server['id'], 'ACTIVE')

    def test_guest_is_shown_what_it_has_over_moves(self) -> None:
        self.check(first_bus=4)
        self.first_bus = 8
        self.act('migrate')
        self.both(2)
        self.check('gpu2', first_bus=8)
        self.first_bus = 12
        self.decide('revertResize')
        self.check(first_bus=12)
        self.first_bus = 16
        self.act('rebuild', {'imageRef': cloud.IMAGE})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.check(first_bus=16)
        self.act('shelve')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.first_bus = 20
        self.act('unshelve')
        server = self.wait_status(self.server['id'], 'ACTIVE')
        self.check(server['OS-EXT-SRV-ATTR:host'], first_bus=20)

    def test_only_a_change_is_a_call(self) -> None:
        self.assertEqual(1, self.calls)
        self.hard_reboot()
        self.run_once('gpu1')
        self.assertEqual(1, self.calls)
        self.first_bus = 8
        self.hard_reboot()
        self.check(first_bus=8)
        self.assertEqual(2, self.calls)
        # A start reads the guests, and sends all that it knows once.
        self.restart_compute()
        for _ in range(2):
            self.run_once('gpu1')
            self.assertEqual(3, self.calls)
        self.hard_reboot()
        self.assertEqual(3, self.calls)
        self.check(first_bus=8)

    def test_change_without_a_conductor_is_sent_later(self) -> None:
        self.conductor.stop()
        self.first_bus = 8
        self.hard_reboot()
        self.conductor.start()
        self.run_once('gpu1')
        self.check(first_bus=8)

    def test_guest_that_cannot_be_read_starts_without_addresses(self) -> None:
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.virt.guest_file.addresses',
                lambda *args: {}['libvirt']):
            self.hard_reboot()
        self.assertEqual([('L40S', 2)], self.shown())
        self.assertNotIn('addresses', self.read()[0])


def _create_config_drive(
        this: typing.Any, context: typing.Any, instance: typing.Any,
        *args: object, **kwargs: object) -> tuple[bool, bool]:
    """Ask for metadata as a driver that makes config drives does."""
    metadata.InstanceMetadata(instance).lookup(
        '/openstack/latest/vendor_data2.json')
    return False, False


class ConfigDriveFileTest(libvirt_cloud.GpuLibvirtCloud):
    """GPUs with an audio function, whose place in the guest is chosen."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'nvidia-rtx5090-2'}
    # Nova does not write a config drive that exists.
    missing_disks = ('disk.config',)
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('RTX', '--vendor', '10de', '--device', '2b85', '--unsupported-ok'),)

    def setUp(self) -> None:
        super().setUp()
        self.flags(config_drive_file='/etc/gpgpu.json', group='gpgpu_compute')
        self.files: list[typing.Any] = []
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.configdrive.ConfigDriveBuilder.make_drive',
            lambda *args: None))
        original = configdrive.ConfigDriveBuilder.__init__

        def init(builder: typing.Any, instance_md: typing.Any) -> None:
            self.files.append({
                file['path']: instance_md.lookup(
                    f'/openstack{file["content_path"]}')
                for file in instance_md.files})
            original(builder, instance_md)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.configdrive.ConfigDriveBuilder.__init__', init))

    def test_config_drive_has_places_of_gpus(self) -> None:
        server = self.boot(self.flavor(RTX=2), config_drive=True)
        places = [element.get('bus') for element in etree.fromstring(
            self.domain_xml(server['id'], 'gpu1')).findall(
                "./devices/hostdev/address[@type='pci']")]
        self.assertEqual(4, len(places))
        [files] = self.files
        gpus = json.loads(files['/etc/gpgpu.json'])['gpus']
        self.assertEqual([('RTX', None)] * 2, [
            (gpu['variant'], gpu['vgpu_type']) for gpu in gpus])
        self.assertEqual(
            [int(place, 16) for place in places],
            [pci.PCIAddress.parse(address).bus
             for gpu in gpus for address in gpu['addresses']])

    def test_server_without_gpus_has_no_file(self) -> None:
        self.boot(self.flavor_of({}), config_drive=True)
        self.assertEqual([{}], self.files)
