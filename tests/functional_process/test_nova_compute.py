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
"""The installed nova-compute with our driver, as a process of its own.

Everything here is a real process: Placement, Nova's API, scheduler, conductor
and compute, gpgpu-conductor and gpgpu-manage, over RabbitMQ and MariaDB.
"""

from __future__ import annotations

import json
import sys
import time
import typing
from collections.abc import Callable

from keystoneauth1 import adapter
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from oslotest import base
from testtools import content

from tests.fixtures import services
from tests.functional_process import peers
from tests.functional_process import stack as stack_mod


class NovaComputeProcessTest(base.BaseTestCase):
    """One host that pretends to be an HGX server."""

    def setUp(self) -> None:
        super().setUp()
        services.require(self, services.RABBITMQ, services.MARIADB)
        self.stack = self.useFixture(stack_mod.Stack())
        self.addOnException(self._attach_logs)
        self._create_schemas()
        self._start_control_plane()

    def _attach_logs(self, exc_info: object) -> None:
        for name, text in self.stack.logs():
            self.addDetail(name, content.text_content(text))

    def _create_schemas(self) -> None:
        stack = self.stack
        stack.run(sys.executable, '-m',
                  'tests.functional_process.nova_db',
                  str(stack.state / 'nova.conf'))
        stack.run(*stack.program('placement-manage'),
                  *stack.conf('placement.conf'), 'db', 'sync')
        self.manage('db', 'sync')

    def _start_control_plane(self) -> None:
        stack = self.stack
        stack.start('placement', stack.wsgi('placement.wsgi.api',
                                            'placement'))
        stack.start('peers', stack.wsgi('tests.functional_process.peers',
                                        'peers'))
        stack.start('gpgpu-conductor', stack.program(
            'gpgpu-conductor', *stack.conf('gpgpu.conf')))
        for name in ('nova-conductor', 'nova-scheduler'):
            stack.start(name, stack.program(name, *stack.conf('nova.conf')))
        stack.start('nova-api', stack.wsgi('nova.wsgi.osapi_compute',
                                           'nova_api'))
        for port in ('placement', 'peers', 'nova_api'):
            stack.wait_for_http(port)

    def _start_compute(self, host: str) -> stack_mod.Process:
        (self.stack.state / host).mkdir()
        name = self.stack.write(
            f'{host}.conf', stack_mod.COMPUTE_CONF, host=host).name
        return self.stack.start(f'nova-compute-{host}', self.stack.program(
            'nova-compute', *self.stack.conf(name)))

    def manage(self, *arguments: str) -> typing.Any:
        """gpgpu-manage as a process; what it answers."""
        output = self.stack.run(*self.stack.program(
            'gpgpu-manage', *self.stack.conf('gpgpu.conf'), *arguments))
        return json.loads(output) if 'json' in arguments else output

    def wait_for(self, condition: Callable[[], typing.Any], what: str,
                 timeout: float = 60) -> typing.Any:
        """The first true value of the condition."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > deadline:
                self.fail(f'not within {timeout} s: {what}')
            time.sleep(0.5)
        return value

    def _client(self, port: str, path: str, version: str,
                ) -> adapter.Adapter:
        url = f'http://127.0.0.1:{self.stack.ports[port]}{path}'
        return adapter.Adapter(
            session.Session(auth=token_endpoint.Token(url, 'admin')),
            endpoint_override=url, raise_exc=True,
            additional_headers={'OpenStack-API-Version': version})

    def _hosts(self) -> list[str]:
        return [next(v for k, v in row.items() if k.lower() == 'host')
                for row in self.manage('host', 'list', '-f', 'json')]

    def test_boots_a_server_with_two_gpus(self) -> None:
        self._start_compute('gpu1')
        self.wait_for(lambda: 'gpu1' in self._hosts(), 'gpu1 reported')
        print('nova-compute loaded gpgpu.GpuFakeDriver and gpu1 is listed '
              'by gpgpu-manage host list')

        self.manage('variant', 'create', 'H100', '--vendor', '10de',
                    '--device', '2330')
        placement = self._client('placement', '', 'placement 1.39')
        group = self.wait_for(
            lambda: self._group(placement), 'the group in Placement')
        inventory = placement.get(
            f'/resource_providers/{group}/inventories').json()['inventories']
        self.assertEqual(8, inventory['CUSTOM_GPU_H100']['total'])
        self.assertEqual(0, inventory['CUSTOM_GPU_H100']['reserved'])
        print('variant created: 8 CUSTOM_GPU_H100 in Placement, without a '
              'restart')

        server = self._boot()
        self.assertEqual(2, len(self._devices('--used-by', server)))
        print(f'server {server} is ACTIVE and holds 2 devices')

        self.nova.delete(f'/servers/{server}')
        self.wait_for(lambda: len(self._devices(
            '--state', 'available', '--host', 'gpu1')) == 8, 'cleaned')
        print('deleted: 8 devices are available')

    def _devices(self, *filters: str) -> list[typing.Any]:
        return list(self.manage('device', 'list', *filters, '-f', 'json'))

    @property
    def nova(self) -> adapter.Adapter:
        return self._client('nova_api', '/v2.1', 'compute 2.96')

    def _boot(self) -> str:
        nova = self.nova
        nova.post('/flavors', json={'flavor': {
            'id': 'gpu2', 'name': 'gpu2', 'ram': 64, 'vcpus': 1, 'disk': 1}})
        nova.post('/flavors/gpu2/os-extra_specs', json={
            'extra_specs': {'resources:CUSTOM_GPU_H100': '2',
                            'gpgpu:topology': 'same_numa'}})
        # The scheduler maps new hosts once a second.
        self.wait_for(
            lambda: nova.get('/os-hypervisors').json()['hypervisors'],
            'gpu1 is mapped to the cell')
        server = nova.post('/servers', json={'server': {
            'name': 'test', 'flavorRef': 'gpu2', 'networks': 'none',
            'imageRef': peers.IMAGE['id']}}).json()['server']['id']

        def settled() -> dict[str, typing.Any] | None:
            found = nova.get(f'/servers/{server}').json()['server']
            return found if found['status'] in ('ACTIVE', 'ERROR') else None
        found = self.wait_for(settled, 'the server is there')
        self.assertEqual('ACTIVE', found['status'], found.get('fault'))
        return str(server)

    def _group(self, placement: adapter.Adapter) -> str | None:
        for provider in placement.get(
                '/resource_providers').json()['resource_providers']:
            if provider['name'].endswith('_gpu_H100'):
                inventories = placement.get(
                    f'/resource_providers/{provider["uuid"]}/inventories')
                if inventories.json()['inventories']:
                    return str(provider['uuid'])
        return None
