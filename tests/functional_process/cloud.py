# SPDX-License-Identifier: Apache-2.0
"""A cloud of real processes, and the actions of an operator."""

from __future__ import annotations

import json
import pathlib
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


class ProcessCloud(base.BaseTestCase):
    """Base class with a running control plane; tests start nova-compute."""

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
        self.manage('key', 'init')
        for kind in ('scheduler', 'operator'):
            self.manage('key', 'create', kind, 'control')

    def _start_control_plane(self) -> None:
        stack = self.stack
        stack.start('placement', stack.wsgi('placement.wsgi.api',
                                            'placement'))
        stack.start('peers', stack.wsgi('tests.functional_process.peers',
                                        'peers'))
        self.start_conductor()
        for name in ('nova-conductor', 'nova-scheduler'):
            stack.start(name, stack.program(name, *stack.conf('nova.conf')))
        stack.start('nova-api', stack.wsgi('nova.wsgi.osapi_compute',
                                           'nova_api'))
        for port in ('placement', 'peers', 'nova_api'):
            stack.wait_for_http(port)

    def start_conductor(self) -> None:
        """Start gpgpu-conductor; ``conductor`` is the last one."""
        self.conductor = self.stack.start(
            'gpgpu-conductor', self.stack.program(
                'gpgpu-conductor', *self.stack.conf('gpgpu.conf'))).process

    def start_compute(self, host: str, conf: str,
                      folder: pathlib.Path = stack_mod.BIN,
                      ) -> stack_mod.Process:
        """Start nova-compute with a configuration file.

        :param conf: the text of it, for Stack.write
        :param folder: where the program is installed
        """
        (self.stack.state / host).mkdir(exist_ok=True)
        name = self.stack.write(f'{host}.conf', conf, host=host).name
        self.manage('key', 'create', 'host', host, '--file',
                    str(self.stack.state / host / 'keys' / 'host.key'))
        process = self.stack.start(
            f'nova-compute-{host}', self.stack.program(
                'nova-compute', *self.stack.conf(name), folder=folder))
        self.wait_for(lambda: host in self._hosts(), f'{host} reported')
        return process

    def manage(self, *arguments: str) -> typing.Any:
        """Run gpgpu-manage as a process and return its answer."""
        output = self.stack.run(*self.stack.program(
            'gpgpu-manage', *self.stack.conf('gpgpu.conf'), *arguments))
        return json.loads(output) if 'json' in arguments else output

    def wait_for(self, condition: Callable[[], typing.Any], what: str,
                 timeout: float = 600) -> typing.Any:
        """Return the first true value of the condition."""
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

    def wait_for_inventory(self, variant: str, total: int,
                           hosts: int = 1) -> None:
        """Wait until Placement offers all of a variant's GPUs of each host.

        Those that the host has not cleaned yet are reserved.
        """
        def found() -> bool:
            inventories = [self.placement.get(
                f'/resource_providers/{provider["uuid"]}/inventories'
            ).json()['inventories'].get(f'CUSTOM_GPU_{variant}', {})
                for provider in self.placement.get(
                    '/resource_providers').json()['resource_providers']
                if provider['name'].endswith(f'_gpu_{variant}')]
            return [(inventory.get('total'), inventory.get('reserved'))
                    for inventory in inventories] == [(total, 0)] * hosts
        try:
            self.wait_for(found, f'{total} GPUs of {variant} in Placement')
        except self.failureException as exc:
            # The logs are long, and an end of them may be all that is kept.
            self.fail(f'{exc}; ' + '; '.join(
                ' '.join(str(device.get(name)) for name in (
                    'Address', 'State', 'Shown State', 'Reason'))
                for device in self.devices()))

    def devices(self, *filters: str) -> list[typing.Any]:
        """Return the rows of ``device list`` with filters."""
        return list(self.manage('device', 'list', *filters, '-f', 'json'))

    @property
    def placement(self) -> adapter.Adapter:
        """Call Placement's API."""
        return self._client('placement', '', 'placement 1.39')

    @property
    def nova(self) -> adapter.Adapter:
        """Call Nova's API."""
        return self._client('nova_api', '/v2.1', 'compute 2.96')

    def flavor(self, name: str, **extra_specs: str) -> str:
        """Create a small flavor and return its id."""
        nova = self.nova
        nova.post('/flavors', json={'flavor': {
            'id': name, 'name': name, 'ram': 64, 'vcpus': 1, 'disk': 1}})
        nova.post(f'/flavors/{name}/os-extra_specs',
                  json={'extra_specs': extra_specs})
        return name

    def boot(self, flavor: str, **fields: str) -> str:
        """Boot a server and return its id, once it is ACTIVE."""
        server = self.create(flavor, **fields)
        self.wait_status(server, 'ACTIVE')
        return server

    def create(self, flavor: str, **fields: str) -> str:
        """Request a server and return its id."""
        # The scheduler maps new hosts once a second.
        self.wait_for(
            lambda: self.nova.get('/os-hypervisors').json()['hypervisors'],
            'a host is mapped to the cell')
        server = self.nova.post('/servers', json={'server': {
            'name': 'test', 'flavorRef': flavor, 'networks': 'none',
            'imageRef': peers.IMAGE['id'], **fields}}).json()['server']['id']
        return str(server)

    def act(self, server: str, status: str,
            **action: dict[str, typing.Any] | None) -> None:
        """Start an action on a server, and wait for its final status."""
        self.nova.post(f'/servers/{server}/action', json=action)
        self.wait_status(server, status)

    def wait_status(self, server: str, status: str) -> None:
        """Wait until a server has a status and no task."""
        def settled() -> dict[str, typing.Any] | None:
            found = self.nova.get(f'/servers/{server}').json()['server']
            return found if (
                found['OS-EXT-STS:task_state'] is None
                and found['status'] in (status, 'ERROR')) else None
        found = self.wait_for(settled, f'server {server} is {status}')
        self.assertEqual(status, found['status'], found.get('fault'))
