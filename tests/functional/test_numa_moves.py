# SPDX-License-Identifier: Apache-2.0
"""Guests with NUMA topologies on two hosts."""

from __future__ import annotations

import typing

from tests.fixtures import libvirt_cloud
from tests.functional import test_numa


class TwoHostsTest(test_numa.GpuNUMACloud):
    """Moves and builds that find one NUMA node taken."""

    machines: typing.ClassVar = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'pcie-l40s-4'}

    def test_required_guest_migrates_to_the_node_that_has_free_gpus(
            self) -> None:
        self.useFixture(libvirt_cloud.Moves())
        server = self.boot(self.numa_flavor(2, 'required'))
        self.assertEqual('gpu1', server['OS-EXT-SRV-ATTR:host'])
        self.take_node(0, 'gpu2')
        self.api.post_server_action(server['id'], {'migrate': None})
        moved = self.wait_status(server['id'], 'VERIFY_RESIZE', 'ACTIVE')
        self.assertEqual(('VERIFY_RESIZE', 'gpu2'), (
            moved['status'], moved['OS-EXT-SRV-ATTR:host']))
        self.assertEqual({1}, self.guest_nodes(server))
        self.assertEqual({0: 0, 1: 64}, self.used_memory('gpu2'))
        # Nova computes it anew from its instances.
        self.run_periodics('gpu2')
        self.assertEqual({0: 0, 1: 64}, self.used_memory('gpu2'))
        self.api.post_server_action(server['id'], {'confirmResize': None})
        self.wait_status(server['id'], 'ACTIVE')
        self.wait_states('gpu1', 'L40S', available=4)
        self.assertEqual({1}, self.gpu_nodes(server))
        self.delete(server)
        self.assertEqual({0: 0, 1: 0}, self.used_memory('gpu2'))

    def test_required_guest_is_evacuated_to_the_node_that_has_free_gpus(
            self) -> None:
        server = self.boot(self.numa_flavor(2, 'required'))
        self.assertEqual('gpu1', server['OS-EXT-SRV-ATTR:host'])
        self.take_node(0, 'gpu2')
        [service] = self.api.get_services(binary='nova-compute', host='gpu1')
        self.computes['gpu1'].stop()
        self.api.put_service_force_down(service['id'], True)
        self.api.post_server_action(server['id'], {'evacuate': {}})
        self.wait_migration('done')
        self.assertEqual({1}, self.guest_nodes(server))
        self.assertEqual({0: 0, 1: 64}, self.used_memory('gpu2'))
        # Nova computes it anew from its instances.
        self.run_periodics('gpu2')
        self.assertEqual({0: 0, 1: 64}, self.used_memory('gpu2'))
        # The host that returns releases what the server had there.
        self._start_compute('gpu1')
        self.api.put_service_force_down(service['id'], False)
        self.delete(server)
        self.assertEqual({0: 0, 1: 0}, self.used_memory('gpu2'))

    def test_host_with_gpus_and_memory_on_different_nodes_is_left_out(
            self) -> None:
        self.flags(max_attempts=1, group='scheduler')
        self.take_node(0)
        flavor = self.numa_flavor(1, 'required', memory_mb=7000)
        for host in ('gpu1', 'gpu2'):
            server = self.boot(flavor)
            self.assertEqual(host, server['OS-EXT-SRV-ATTR:host'])
