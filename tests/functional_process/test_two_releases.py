# SPDX-License-Identifier: Apache-2.0
"""Cold migrations between Nova 33 and Nova 34, in a cloud being upgraded.

As Nova's documentation wants it, the control plane is upgraded first: it is of
Nova 34, and so is one nova-compute. The other is still of Nova 33, from the
environment of ``tox -e nova33``, and uses eventlet.
"""

from __future__ import annotations

import typing

from tests.functional_process import cloud
from tests.functional_process import stack

OLDER = stack.REPOSITORY / '.tox/nova33/bin'


class TwoReleasesTest(cloud.ProcessCloud):
    """A host of each release, and one gpgpu-conductor."""

    def setUp(self) -> None:
        if stack.BIN == OLDER:
            self.skipTest('the control plane is of Nova 34')
        if not (OLDER / 'nova-compute').exists():
            self.skipTest('Nova 33 is not installed: tox -e nova33 --notest')
        super().setUp()
        self.assertEqual(['33', '34'], [self.stack.run(
            str(folder / 'python'), '-c', 'from importlib import metadata; '
            'print(metadata.version("nova"))').partition('.')[0]
            for folder in (OLDER, stack.BIN)])
        self.start_compute('nova33', stack.FAKE_COMPUTE_CONF, OLDER)
        self.start_compute('nova34', stack.FAKE_COMPUTE_CONF)
        self.manage('variant', 'create', 'H100', *stack.HGX_H100)
        self.wait_for_inventory('H100', 8, hosts=2)
        self.wait_for(lambda: len(self.nova.get(
            '/os-hypervisors').json()['hypervisors']) == 2, 'both are mapped')

    def assigned(self, server: str) -> dict[str, set[str]]:
        """Return the addresses of a server's devices by host."""
        found: dict[str, set[str]] = {}
        for device in self.devices('--used-by', server):
            found.setdefault(device['Host'], set()).add(device['Address'])
        return found

    def migrate(self, server: str, host: str) -> None:
        """Migrate a server, which then has GPUs on both hosts."""
        self.act(server, 'VERIFY_RESIZE', migrate={'host': host})
        self.assertEqual({'nova33': 2, 'nova34': 2}, {
            name: len(addresses) for name, addresses
            in self.assigned(server).items()})

    def settled(self, server: str, host: str) -> set[str]:
        """Return its devices once it has only those of one host.

        Check that nothing else is assigned or allocated.
        """
        found: dict[str, set[str]] = self.wait_for(
            lambda: (now := self.assigned(server)).keys() == {host} and now,
            f'only {host} has devices of the server')
        self.wait_for(lambda: len(self.devices('--state', 'available')) == 14,
                      'all other devices are available')
        self.assertEqual([2], self.allocated(server))
        return found[host]

    def allocated(self, server: str) -> list[typing.Any]:
        """Return how many GPUs each provider has allocated to a server."""
        allocations = self.placement.get(
            f'/allocations/{server}').json()['allocations']
        return [amount for provider in allocations.values()
                for name, amount in provider['resources'].items()
                if name == 'CUSTOM_GPU_H100']

    def test_gpus_follow_a_server_to_the_other_release_and_back(self) -> None:
        server = self.boot(self.flavor('gpu2', **{
            'resources:CUSTOM_GPU_H100': '2'}), host='nova33')
        self.assertEqual({'nova33'}, self.assigned(server).keys())

        self.migrate(server, 'nova34')
        self.act(server, 'ACTIVE', confirmResize=None)
        there = self.settled(server, 'nova34')

        self.migrate(server, 'nova33')
        self.act(server, 'ACTIVE', revertResize=None)
        self.assertEqual(there, self.settled(server, 'nova34'))

        self.migrate(server, 'nova33')
        self.act(server, 'ACTIVE', confirmResize=None)
        self.settled(server, 'nova33')
