# SPDX-License-Identifier: Apache-2.0
"""Clouds of the benchmark boots: python -m bench.boot_cloud NAME HOSTS

Boots servers of two GPUs for exactly as many places, and prints what became of
them as JSON. REST API, scheduler, conductors, computes and Placement are
Nova's own, in this process, over Nova's model of libvirt; the hosts have eight
GPUs each.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import typing
import unittest

from tests.fixtures import libvirt_cloud

from nova.tests.fixtures import libvirt as fakelibvirt  # isort: skip

from bench import boots
from tests.fixtures import cleaned

_GPUS = 8
_FILTERS = ('ComputeFilter', 'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter', 'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter')
"""Those that Nova enables by default."""

_ALIAS = {'vendor_id': fakelibvirt.PCI_VEND_ID,
          'product_id': fakelibvirt.PCI_PROD_ID}


class _Cloud(libvirt_cloud.GpuLibvirtCloud):
    """Hosts with GPUs of the plugin, which its filter and weigher choose."""

    hosts: int
    filters: tuple[str, ...] = (*_FILTERS, 'GpuNUMATopologyFilter',
                                'GpuFilter')
    weighers: typing.ClassVar[list[str]] = [
        'nova.scheduler.weights.all_weighers',
        'gpgpu_plugin.scheduler_weights.all_weighers']

    def _configure(self) -> None:
        self.machines = {  # type: ignore[misc]
            f'gpu{number}': 'hgx-h100-8' for number in range(self.hosts)}
        super()._configure()
        self.flags(weight_classes=self.weighers, group='filter_scheduler')
        self._tune()
        self.restart_scheduler(*self.filters)

    def _tune(self) -> None:
        """Set further options of Nova."""

    def _gpu_flavor(self) -> str:
        return self.flavor(H100=2)

    def _wait_until_free(self) -> None:
        """Wait until the GPUs of earlier servers were cleaned."""
        self.wait_for(lambda: all(
            self.inventory(host, 'H100') == (_GPUS, 0)
            for host in self.machines), 'all GPUs are free')

    def measure(self) -> None:
        """Boot servers in each mode; ``figures`` has the outcome."""
        self.figures = {mode: self._boot(self._gpu_flavor(), mode)
                        for mode in boots.MODES}

    def _boot(self, flavor: str, mode: str) -> dict[str, float]:
        servers = self.hosts * _GPUS // 2
        # What a first server imports and compiles counts for none.
        self.delete(self.boot(self.flavor_of({})))
        self._wait_until_free()
        began = time.process_time()
        if mode == 'at once':
            ids = [self.post_server(flavor) for _ in range(servers)]
            done = [self.wait_status(server_id, 'ACTIVE', 'ERROR')
                    for server_id in ids]
        else:
            done = [self.wait_status(
                self.post_server(flavor), 'ACTIVE', 'ERROR')
                for _ in range(servers)]
        cpu = (time.process_time() - began) / servers
        self.delete(*done)
        return {'servers': servers, 'cpu': cpu, 'active': [
            server['status'] for server in done].count('ACTIVE')}


class _WithoutGPU(_Cloud):
    """The same cloud, and servers without GPUs."""

    def _gpu_flavor(self) -> str:
        return self.flavor_of({})


class _InTree(_Cloud):
    """The same hosts without the plugin: Nova assigns their GPUs by alias."""

    compute_driver = 'libvirt.LibvirtDriver'
    filters = (*_FILTERS, 'PciPassthroughFilter')
    weighers: typing.ClassVar[list[str]] = [
        'nova.scheduler.weights.all_weighers']

    def _tune(self) -> None:
        self.flags(device_spec=[json.dumps(_ALIAS)],
                   alias=[json.dumps({**_ALIAS, 'name': 'h100'})],
                   group='pci')
        self.connections = {
            host: fakelibvirt.Connection(
                'qemu:///system', version=fakelibvirt.FAKE_LIBVIRT_VERSION,
                hv_version=fakelibvirt.FAKE_QEMU_VERSION, hostname=host,
                host_info=fakelibvirt.HostInfo(
                    cpu_nodes=2, cpu_sockets=1, cpu_cores=2, cpu_threads=2),
                pci_info=fakelibvirt.HostPCIDevicesInfo(
                    num_pci=_GPUS, num_pfs=0, num_vfs=0))
            for host in self.machines}

    def _gpu_flavor(self) -> str:
        return self.flavor_of({'pci_passthrough:alias': 'h100:2'})

    def _wait_until_free(self) -> None:
        """Do nothing: Nova frees a device when its server is deleted."""

    def _end_workers(self) -> None:
        """Do nothing: the computes have no part of the plugin."""


class _Tuned(_InTree):
    """In-tree as Nova's documentation advises for several requests at once.

    Placement counts the devices ("PCI tracking in Placement"), the scheduler
    picks one of the best hosts at random, and more hosts may be tried.
    """

    def _tune(self) -> None:
        super()._tune()
        self.flags(report_in_placement=True, group='pci')
        self.flags(pci_in_placement=True, host_subset_size=self.hosts,
                   group='filter_scheduler')
        self.flags(max_attempts=10, group='scheduler')


_CLOUDS = {'plugin': _Cloud, 'in-tree': _InTree, 'tuned': _Tuned,
           'without': _WithoutGPU}


def main() -> int:
    """Boot the servers; return 1 if the cloud itself failed."""
    case = _CLOUDS[sys.argv[1]]('measure')
    case.hosts = int(sys.argv[2])
    result = unittest.TestResult()
    logging.disable(logging.CRITICAL)
    with cleaned.CleanedBefore():
        case.run(result)
    for _, trace in result.errors + result.failures:
        print(trace, file=sys.stderr)
        return 1
    print(json.dumps(case.figures))
    return 0


if __name__ == '__main__':
    sys.exit(main())
