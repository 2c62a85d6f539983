# SPDX-License-Identifier: Apache-2.0
"""The installed nova-compute with our driver, as a process of its own.

Everything here is a real process: Placement, Nova's API, scheduler, conductor
and compute, gpgpu-conductor and gpgpu-manage, over RabbitMQ and MariaDB.
"""

from __future__ import annotations

import signal
import time

from tests.functional_process import cloud
from tests.functional_process import stack


class NovaComputeProcessTest(cloud.ProcessCloud):
    """One host that pretends to be an HGX server."""

    def test_server_boots_with_two_gpus(self) -> None:
        self.start_compute('gpu1', stack.FAKE_COMPUTE_CONF)
        print('nova-compute loaded gpgpu.GpuFakeDriver and gpu1 is listed '
              'by gpgpu-manage host list')

        self.manage('variant', 'create', 'H100', *stack.HGX_H100)
        self.wait_for_inventory('H100', 8)
        print('variant created: 8 CUSTOM_GPU_H100 in Placement, without a '
              'restart')

        flavor = self.flavor('gpu2', **{
            'resources:CUSTOM_GPU_H100': '2', 'gpgpu:topology': 'same_numa'})
        server = self.boot(flavor)
        self.assertEqual(2, len(self.devices('--used-by', server)))
        print(f'server {server} is ACTIVE and holds 2 devices')

        later = [self._boot_after(signal.SIGHUP, flavor),
                 self._boot_after(signal.SIGTERM, flavor)]
        print('servers requested while gpgpu-conductor was reloaded and '
              'restarted are ACTIVE')

        self._start_twin('gpu1')
        print('a second nova-compute with its files does not start')

        for deleted in server, *later:
            self.nova.delete(f'/servers/{deleted}')
        self.wait_for(lambda: len(self.devices(
            '--state', 'available', '--host', 'gpu1')) == 8, 'cleaned')
        print('deleted: 8 devices are available')

    def _boot_after(self, number: int, flavor: str) -> str:
        """Boot a server just after a signal to gpgpu-conductor.

        The conductor is started again if the signal ends it.
        """
        self.conductor.send_signal(number)
        time.sleep(0.3)
        server = self.create(flavor)
        if number == signal.SIGTERM:
            self.assertEqual(0, self.conductor.wait(600))
            self.start_conductor()
        self.wait_status(server, 'ACTIVE')
        return server

    def _start_twin(self, host: str) -> None:
        """Start nova-compute again with the files of one that runs."""
        twin = self.stack.start(
            'nova-compute-twin', self.stack.program(
                'nova-compute', *self.stack.conf(f'{host}.conf')))
        code = self.wait_for(twin.process.poll, 'the twin has ended')
        self.assertGreater(code, 0)
        # With eventlet, Nova 33 fails to stop what it has not started, and
        # writes a traceback of its own afterwards.
        before, _, reason = twin.log.read_text().partition(
            ' nova-compute cannot start: ')
        self.assertRegex(before, r' CRITICAL [^\n]*\Z')
        self.assertRegex(
            reason, f'^Option .gpgpu_compute. state_path: .*/{host}.json is '
            f'in use by process')
        self.assertNotIn('Traceback', before)
