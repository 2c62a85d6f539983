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
from nova.virt import configdrive

from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import vendordata
from gpgpu_plugin.domain import pci
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
                   vendordata_password=PASSWORD, group='gpgpu')
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


class VendordataTest(test_moves.MovesCase):
    """A server with two L40S, which moves."""

    def setUp(self) -> None:
        super().setUp()
        self.endpoint = self.useFixture(Endpoint(self))

    def shown(self) -> list[tuple[str, int]]:
        """Return what the guest reads: variants and numbers of its GPUs."""
        found = metadata.get_metadata_by_instance_id(
            self.server['id'], '192.0.2.1',
            nova_context.get_admin_context())
        text = found.lookup('/openstack/latest/vendor_data2.json')
        data = json.loads(text)['gpgpu']
        return [(gpu['variant'], gpu['count'])
                for gpu in data['gpus']]

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
        self.flags(config_drive_file='/etc/gpgpu.json', group='gpgpu')
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
